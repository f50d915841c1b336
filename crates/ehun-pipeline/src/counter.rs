//! Token counts by the model's own tokenizer, for the chunker.

use std::sync::Arc;

use ehun_documents::TokenCounter;
use ehun_engine::Prompt;
use ehun_models::{Model, ModelError};

/// Counts as a model does, with room for the prompt that it puts before a text.
#[derive(Debug, Clone)]
pub struct ModelCounter {
    model: Arc<Model>,
    /// Special tokens around a text.
    special: usize,
    prompt: usize,
}

impl ModelCounter {
    /// A counter for texts that are embedded with the prompt `prompt`.
    ///
    /// # Errors
    /// If the model has no such prompt.
    pub fn new(model: Arc<Model>, prompt: Option<&Prompt>) -> Result<Self, ModelError> {
        let special = model.tokenizer().count("")?;
        let prompt = match Prompt::words(prompt, &model)? {
            // With the tokens at the seam counted twice at the most: a chunk may be a token short, never too long.
            Some(prompt) if !prompt.is_empty() => model.tokenizer().count(prompt)?.saturating_sub(special) + 1,
            _ => 0,
        };
        Ok(Self { model, special, prompt })
    }
}

impl TokenCounter for ModelCounter {
    fn count(&self, text: &str) -> usize {
        // A text that the tokenizer refuses counts by its bytes; embedding it then fails with the tokenizer's own words.
        self.model.tokenizer().count(text).map_or(text.len(), |tokens| tokens.saturating_sub(self.special))
    }

    fn special_tokens(&self) -> usize {
        self.special + self.prompt
    }
}

//! What is asked of a service, and what it looks like once tokenised.

use std::sync::Arc;

use ehun_graph::SequenceInput;
use ehun_models::{Model, ModelError};

use crate::error::EngineError;

/// One thing to be run through a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// A text.
    Text(Arc<str>),
    /// Two texts read together: a query and a passage, a premise and a hypothesis.
    Pair(Arc<str>, Arc<str>),
    /// Token ids, special tokens included.
    Tokens(Arc<[u32]>),
}

impl Input {
    /// Size in bytes; a token counts as four.
    pub fn num_bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Pair(a, b) => a.len() + b.len(),
            Self::Tokens(ids) => ids.len() * 4,
        }
    }
}

impl From<&str> for Input {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Input {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

/// What happens to an input that is longer than the model takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Truncation {
    /// It is an error of the item.
    Refuse,
    /// Tokens are cut off at the end; the answer says so.
    #[default]
    Right,
    /// Tokens are cut off at the beginning; the answer says so.
    Left,
}

/// How an item is tokenised.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ItemOptions {
    /// What happens to an input that is too long.
    pub truncation: Truncation,
    /// What is put before the text; `None` is the checkpoint's default prompt, if it has one.
    pub prompt: Option<Prompt>,
}

/// What is put before a text that is embedded.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Prompt {
    /// The checkpoint's prompt of this name (`query`, `document`).
    Named(Arc<str>),
    /// These words.
    Text(Arc<str>),
}

impl From<&str> for Prompt {
    fn from(name: &str) -> Self {
        Self::Named(name.into())
    }
}

impl From<String> for Prompt {
    fn from(name: String) -> Self {
        Self::Named(name.into())
    }
}

impl Prompt {
    /// The words of `prompt`, or of the default prompt of `model`. Fails where it has none of that name.
    pub fn words<'a>(prompt: Option<&'a Self>, model: &'a Model) -> Result<Option<&'a str>, ModelError> {
        match prompt {
            Some(Self::Text(words)) => Ok(Some(words)),
            Some(Self::Named(name)) => model.prompt(Some(name)),
            None => model.prompt(None),
        }
    }
}

/// An input as the tokeniser gives it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tokenized {
    /// Tokens, special tokens included.
    pub sequence: SequenceInput,
    /// Whether something was cut off.
    pub truncated: bool,
}

/// Turns inputs into tokens. A model is one; a remote service without a local tokeniser may count roughly.
pub trait Tokenize: Send + Sync {
    /// Tokenises one input.
    fn tokenize(&self, input: &Input, options: &ItemOptions) -> Result<Tokenized, EngineError>;

    /// The longest sequence that the model takes, in tokens.
    fn max_sequence(&self) -> usize;
}

/// A tokenised item, shared between the queue, the runner and whoever watches.
pub struct Prepared {
    /// What was asked.
    pub input: Input,
    /// How it was to be tokenised.
    pub options: ItemOptions,
    /// Its tokens.
    pub tokens: Tokenized,
    /// Who tokenised it: a batch is only run on a model with the same tokeniser.
    pub tokenizer: Arc<dyn Tokenize>,
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prepared")
            .field("input", &self.input)
            .field("tokens", &self.num_tokens())
            .finish_non_exhaustive()
    }
}

impl Prepared {
    /// Tokenises `input`. A panic of the tokeniser is an error of the item.
    pub fn new(input: Input, options: ItemOptions, tokenizer: Arc<dyn Tokenize>) -> Result<Self, EngineError> {
        let work = std::panic::AssertUnwindSafe(|| tokenizer.tokenize(&input, &options));
        let tokens = std::panic::catch_unwind(work)
            .unwrap_or_else(|_| Err(EngineError::invalid("the tokeniser cannot process this text")))?;
        Ok(Self { input, options, tokens, tokenizer })
    }

    /// Length in tokens.
    pub fn num_tokens(&self) -> usize {
        self.tokens.sequence.token_ids.len()
    }
}

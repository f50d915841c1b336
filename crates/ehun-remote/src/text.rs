//! What is sent for an item where the protocol knows no prompts and no truncation: its text, or the tokens that this model
//! makes of it.

use ehun_backend::{BackendError, Refusal};
use ehun_engine::{Input, Prepared, Prompt};
use ehun_models::{Model, Task};

/// Whether an item goes as token ids: it came so, or it was cut. A text that ends where a token ends need not give the same
/// tokens again, so what is cut is cut here.
pub(crate) fn goes_as_ids(item: &Prepared) -> bool {
    match item.input {
        Input::Tokens(_) => true,
        Input::Text(_) => item.tokens.truncated,
        Input::Pair(..) => false,
    }
}

/// The ids of an item, prompt and special tokens included.
pub(crate) fn ids_of(item: &Prepared) -> Result<&[u32], BackendError> {
    let sequence = &item.tokens.sequence;
    if sequence.pooling_start > 0 {
        return Err(refused("token ids cannot say that the prompt is left out of pooling"));
    }
    Ok(&sequence.token_ids)
}

/// The text of an item. A named prompt is put before it; the checkpoint's default prompt is left to the service, which has
/// the same checkpoint.
pub(crate) fn text_of(model: &Model, item: &Prepared) -> Result<String, BackendError> {
    let Input::Text(text) = &item.input else {
        return Err(refused("this protocol takes single texts and not pairs"));
    };
    let prompt = match &item.options.prompt {
        Some(prompt) if model.task() == Task::Embed => {
            if item.tokens.sequence.pooling_start > 0 {
                return Err(refused("the protocol cannot say that the prompt is left out of pooling"));
            }
            let words = Prompt::words(Some(prompt), model).map_err(|error| BackendError::Failed(error.to_string()))?;
            words.unwrap_or_default()
        }
        _ => "",
    };
    Ok(format!("{prompt}{text}"))
}

pub(crate) fn refused(reason: impl Into<String>) -> BackendError {
    BackendError::Refused(vec![Refusal::new("request", reason)])
}

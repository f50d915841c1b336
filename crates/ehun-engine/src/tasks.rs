//! Answers as what they mean: vectors, scores, labels.

use crate::error::EngineError;
use crate::request::Answer;
use crate::runner::ItemRows;

fn wrong(message: &str) -> EngineError {
    EngineError::Answer(message.into())
}

/// The rows of the answer's first result.
pub fn rows(answer: &Answer) -> Result<&ItemRows, EngineError> {
    answer.output.values.first().ok_or_else(|| wrong("there is no result"))
}

/// The answer as one row: an embedding, the logits of a text, the weights of terms.
pub fn row(answer: Answer) -> Result<Vec<f32>, EngineError> {
    match answer.output.values.into_iter().next() {
        Some(values) if values.rows == 1 => Ok(values.data),
        Some(_) => Err(wrong("it has a row for each token; one row is expected")),
        None => Err(wrong("there is no result")),
    }
}

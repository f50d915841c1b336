//! `ehun tokens`: a vector for each token, for late interaction.

use clap::Args;
use ehun_engine::{ItemOptions, tasks};
use ehun_models::tasks::embed::normalize;
use ehun_models::{Model, Task};
use serde::Serialize;

use crate::error::CommandResult;
use crate::output::json_line;
use crate::session::ModelArgs;
use crate::texts::{Failures, TextArgs, answer_all, single, whole};

/// Flags of `ehun tokens`.
#[derive(Debug, Args)]
pub struct Tokens {
    #[command(flatten)]
    texts: TextArgs,
    /// Scale each vector to length 1, as `ehun rerank --late` does
    #[arg(long)]
    normalize: bool,
    #[command(flatten)]
    model: ModelArgs,
}

#[derive(Serialize)]
struct Line {
    index: usize,
    tokens: Vec<Token>,
    truncated: bool,
}

#[derive(Serialize)]
struct Token {
    id: u32,
    token: String,
    special: bool,
    /// Characters of the text; equal for special tokens.
    start: usize,
    end: usize,
    vector: Vec<f32>,
}

/// The tokens of `text`, with a row of `rows` for each.
fn tokens(model: &Model, text: &str, rows: &[f32]) -> Result<Vec<Token>, String> {
    let tokens = model.tokenize(text).map_err(|error| error.to_string())?;
    let width = rows.len() / tokens.ids.len().max(1);
    if width * tokens.ids.len() != rows.len() {
        return Err(format!("{} numbers for {} tokens", rows.len(), tokens.ids.len()));
    }
    let characters = |byte: usize| text.get(..byte).map_or(0, |before| before.chars().count());
    let token = |(i, vector): (usize, &[f32])| Token {
        id: tokens.ids[i],
        token: model.tokenizer().token(tokens.ids[i]).unwrap_or_default(),
        special: tokens.texts[i].is_none(),
        start: characters(tokens.offsets[i].start),
        end: characters(tokens.offsets[i].end),
        vector: vector.to_vec(),
    };
    Ok(rows.chunks_exact(width.max(1)).enumerate().map(token).collect())
}

impl Tokens {
    /// Computes the vectors.
    pub fn run(self) -> CommandResult {
        let model = self.model.load(Some(Task::Tokens))?;
        let service = self.model.serve(&model, false)?;
        let mut failures = Failures::default();
        answer_all(&service, &self.texts, &ItemOptions::default(), &whole, &mut |index, text, answers| {
            let result = single(answers).and_then(|answer| {
                let mut rows = tasks::rows(&answer).map_err(|error| error.to_string())?.data.clone();
                if self.normalize {
                    rows.chunks_mut(model.dimension()).for_each(normalize);
                }
                Ok((answer.truncated, tokens(&model, text, &rows)?))
            });
            match result {
                Ok((truncated, tokens)) => json_line(&Line { index, tokens, truncated }),
                Err(error) => failures.note(index, &error),
            }
        })?;
        Ok(failures.outcome())
    }
}

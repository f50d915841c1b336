//! `ehun sparse`: weights of vocabulary terms.

use clap::Args;
use ehun_engine::{ItemOptions, tasks};
use ehun_models::Task;
use ehun_models::tasks::sparse::Term;
use serde::Serialize;

use crate::error::CommandResult;
use crate::output::json_line;
use crate::session::ModelArgs;
use crate::texts::{Failures, TextArgs, answer_all, single, whole};

/// Flags of `ehun sparse`.
#[derive(Debug, Args)]
pub struct Sparse {
    #[command(flatten)]
    texts: TextArgs,
    #[command(flatten)]
    model: ModelArgs,
}

#[derive(Serialize)]
struct Line {
    index: usize,
    terms: Vec<Term>,
    truncated: bool,
}

impl Sparse {
    /// Computes sparse vectors.
    pub fn run(self) -> CommandResult {
        let model = self.model.load(Some(Task::Sparse))?;
        let service = self.model.serve(&model, false)?;
        let mut failures = Failures::default();
        answer_all(&service, &self.texts, &ItemOptions::default(), &whole, &mut |index, _, answers| {
            let result = single(answers).and_then(|answer| {
                let truncated = answer.truncated;
                Ok((truncated, tasks::row(answer).map_err(|error| error.to_string())?))
            });
            match result {
                Ok((truncated, weights)) => json_line(&Line { index, terms: model.sparse_terms(&weights), truncated }),
                Err(error) => failures.note(index, &error),
            }
        })?;
        Ok(failures.outcome())
    }
}

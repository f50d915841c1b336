//! `ehun rerank`: texts by their relevance to a query.

use std::sync::Arc;

use clap::Args;
use ehun_engine::{Input, ItemOptions, tasks};
use ehun_models::Task;
use serde::Serialize;

use crate::error::CommandResult;
use crate::output::json_line;
use crate::session::ModelArgs;
use crate::texts::{Failures, TextArgs, answer_all, single};

/// Flags of `ehun rerank`.
#[derive(Debug, Args)]
pub struct Rerank {
    /// What the texts are to be relevant to
    #[arg(value_name = "QUERY")]
    query: String,
    #[command(flatten)]
    texts: TextArgs,
    /// Only the best
    #[arg(short = 'k', long = "top", value_name = "N")]
    count: Option<usize>,
    /// The model's logits instead of its scores
    #[arg(long)]
    raw: bool,
    #[command(flatten)]
    model: ModelArgs,
}

#[derive(Serialize)]
struct Line {
    index: usize,
    score: f32,
    text: String,
}

impl Rerank {
    /// Reranks.
    pub fn run(self) -> CommandResult {
        let model = self.model.load(Some(Task::Rerank))?;
        let service = self.model.serve(&model, false)?;
        let query: Arc<str> = self.query.as_str().into();
        let pair =
            |text: &str| -> Result<Vec<Input>, String> { Ok(vec![Input::Pair(Arc::clone(&query), text.into())]) };
        let mut failures = Failures::default();
        let mut lines: Vec<Line> = Vec::new();
        answer_all(&service, &self.texts, &ItemOptions::default(), &pair, &mut |index, text, answers| {
            let row = single(answers).and_then(|answer| tasks::row(answer).map_err(|error| error.to_string()));
            match row {
                Ok(logits) => {
                    let score = model.rerank_score(&logits, self.raw)?;
                    lines.push(Line { index, score, text: text.to_owned() });
                    Ok(())
                }
                Err(error) => failures.note(index, &error),
            }
        })?;
        // A stable sort: equal scores stay in the order of the texts.
        lines.sort_by(|a, b| b.score.total_cmp(&a.score));
        lines.iter().take(self.count.unwrap_or(usize::MAX)).try_for_each(json_line)?;
        Ok(failures.outcome())
    }
}

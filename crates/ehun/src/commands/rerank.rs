//! `ehun rerank`: texts by their relevance to a query.

use std::sync::Arc;

use clap::Args;
use ehun_engine::{Answer, EngineError, Input, ItemOptions, Request, tasks};
use ehun_models::Task;
use ehun_models::tasks::embed::normalize;
use ehun_models::tasks::sparse::max_sim;
use serde::Serialize;

use crate::error::{CommandError, CommandResult};
use crate::output::json_line;
use crate::session::{ModelArgs, PromptArgs};
use crate::texts::{Failures, TextArgs, answer_all, single, whole};

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
    #[arg(long, conflicts_with = "late")]
    raw: bool,
    #[command(flatten)]
    prompt: PromptArgs,
    /// By late interaction: the sum, over the query's tokens, of the largest cosine with a token of the text (MaxSim of
    /// ColBERT). The model is an embedding model
    #[arg(long)]
    late: bool,
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
        if self.late { self.by_tokens() } else { self.by_pairs() }
    }

    fn by_pairs(&self) -> CommandResult {
        let model = self.model.load(Some(Task::Rerank))?;
        let service = self.model.serve(&model, false)?;
        let query: Arc<str> = self.query.as_str().into();
        let pair =
            |text: &str| -> Result<Vec<Input>, String> { Ok(vec![Input::Pair(Arc::clone(&query), text.into())]) };
        let mut failures = Failures::default();
        let mut lines: Vec<Line> = Vec::new();
        let options = ItemOptions { prompt: self.prompt.prompt(), ..ItemOptions::default() };
        answer_all(&service, &self.texts, &options, &pair, &mut |index, text, answers| {
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
        self.print(lines, &failures)
    }

    fn by_tokens(&self) -> CommandResult {
        let model = self.model.load(Some(Task::Tokens))?;
        let width = model.dimension();
        let service = self.model.serve(&model, false)?;
        let of = |answer: &Answer| -> Result<Vec<f32>, String> {
            let mut rows = tasks::rows(answer).map_err(|error| error.to_string())?.data.clone();
            rows.chunks_mut(width).for_each(normalize);
            Ok(rows)
        };
        let answer = service.request(Request::new(vec![self.query.as_str().into()]))?.wait().items.pop();
        let query = of(&answer.unwrap_or(Err(EngineError::ShuttingDown))?).map_err(CommandError::Usage)?;
        let mut failures = Failures::default();
        let mut lines: Vec<Line> = Vec::new();
        answer_all(&service, &self.texts, &ItemOptions::default(), &whole, &mut |index, text, answers| match single(
            answers,
        )
        .and_then(|answer| of(&answer))
        {
            Ok(rows) => {
                lines.push(Line { index, score: max_sim(&query, &rows, width), text: text.to_owned() });
                Ok(())
            }
            Err(error) => failures.note(index, &error),
        })?;
        self.print(lines, &failures)
    }

    fn print(&self, mut lines: Vec<Line>, failures: &Failures) -> CommandResult {
        // A stable sort: equal scores stay in the order of the texts.
        lines.sort_by(|a, b| b.score.total_cmp(&a.score));
        lines.iter().take(self.count.unwrap_or(usize::MAX)).try_for_each(json_line)?;
        Ok(failures.outcome())
    }
}

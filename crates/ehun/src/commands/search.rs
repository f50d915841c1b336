//! `ehun search`: the chunks closest to a query, and among them the most relevant by a cross-encoder.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use ehun_engine::{Input, ItemOptions, Request, tasks};
use ehun_models::Task;
use ehun_pipeline::{Hit, chunk_tables, search};
use serde::Serialize;

use crate::error::{CommandError, CommandResult, Outcome};
use crate::output::{json_line, line, snippet};
use crate::session::{ModelArgs, PromptArgs, at_least_one};

/// Flags of `ehun search`.
#[derive(Debug, Args)]
pub struct Search {
    /// Output folder of `ehun process`
    dir: PathBuf,
    /// What is looked for
    query: String,
    /// How many chunks
    #[arg(short = 'k', long = "top", default_value_t = 10, value_name = "N", value_parser = at_least_one)]
    count: usize,
    #[command(flatten)]
    prompt: PromptArgs,
    /// Order what is found by the relevance that this cross-encoder gives
    #[arg(long, value_name = "DIR|ORG/NAME|NAME")]
    rerank: Option<PathBuf>,
    /// Chunks that are reranked [default: 5 for each that is shown]
    #[arg(long, value_name = "N", requires = "rerank", value_parser = at_least_one)]
    candidates: Option<usize>,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelArgs,
}

/// Candidates for each chunk that is shown.
const CANDIDATES: usize = 5;

/// A chunk that was found, with what the reranker says of it.
#[derive(Serialize)]
struct Found {
    #[serde(flatten)]
    hit: Hit,
    #[serde(flatten)]
    reranked: Option<Reranked>,
}

#[derive(Serialize)]
struct Reranked {
    /// By the activation that the reranker's checkpoint states.
    rerank_score: f32,
    /// Whether the reranker read only the beginning of the chunk.
    rerank_truncated: bool,
}

impl Search {
    /// Searches.
    pub fn run(self) -> CommandResult {
        if self.query.trim().is_empty() {
            return Err(CommandError::Usage("the query is empty: say what is looked for".into()));
        }
        let candidates = match (&self.rerank, self.candidates) {
            (None, _) => self.count,
            (Some(_), None) => self.count.saturating_mul(CANDIDATES),
            (Some(_), Some(candidates)) if candidates >= self.count => candidates,
            (Some(_), Some(candidates)) => {
                let count = self.count;
                return Err(CommandError::Usage(format!(
                    "--candidates {candidates} is fewer than the {count} asked for"
                )));
            }
        };
        let tables = chunk_tables(&self.dir)?;
        let model = self.model.load(Some(Task::Embed))?;
        let service = self.model.serve(&model, false)?;
        let options = ItemOptions { prompt: self.prompt.prompt(), ..ItemOptions::default() };
        let request = Request { inputs: vec![self.query.as_str().into()], options, deadline: None };
        let answer = service.request(request)?.wait().items.pop();
        let answer = answer.unwrap_or(Err(ehun_engine::EngineError::ShuttingDown))?;
        let vector = tasks::row(answer)?;
        let hits = search(&tables, &vector, model.weight_hash(), candidates)?;
        let mut found: Vec<Found> = match &self.rerank {
            Some(name) => self.reranked(name, hits)?,
            None => hits.into_iter().map(|hit| Found { hit, reranked: None }).collect(),
        };
        found.truncate(self.count);
        for (rank, found) in found.iter().enumerate() {
            if self.json { json_line(found)? } else { show(rank, found)? }
        }
        Ok(Outcome::Done)
    }

    /// `hits` by the score of the cross-encoder `name`, the best first.
    fn reranked(&self, name: &Path, hits: Vec<Hit>) -> Result<Vec<Found>, CommandError> {
        let arguments = self.model.with_model(name);
        let model = arguments.load(Some(Task::Rerank))?;
        let service = arguments.serve(&model, false)?;
        let query: Arc<str> = self.query.as_str().into();
        let inputs = hits.iter().map(|hit| Input::Pair(Arc::clone(&query), hit.text.as_str().into())).collect();
        let answers = service.request_when_room(Request::new(inputs))?.wait().items;
        let mut found = Vec::with_capacity(hits.len());
        for (hit, answer) in hits.into_iter().zip(answers) {
            let answer = answer?;
            let rerank_truncated = answer.truncated;
            let rerank_score = model.rerank_score(&tasks::row(answer)?, false)?;
            found.push(Found { hit, reranked: Some(Reranked { rerank_score, rerank_truncated }) });
        }
        let score = |found: &Found| found.reranked.as_ref().map_or(f32::NEG_INFINITY, |reranked| reranked.rerank_score);
        // A stable sort: of equal scores the closer vector stays first.
        found.sort_by(|a, b| score(b).total_cmp(&score(a)));
        Ok(found)
    }
}

fn show(rank: usize, found: &Found) -> Result<(), CommandError> {
    let hit = &found.hit;
    let page = hit.page.map_or_else(String::new, |page| format!(", page {page}"));
    let relevance =
        found.reranked.as_ref().map_or_else(String::new, |found| format!(" rerank {:.4}", found.rerank_score));
    line(&format!("{:>3}. {:.4}{relevance}  {}{page}", rank + 1, hit.score, snippet(&hit.path, 200)))?;
    if !hit.heading_path.is_empty() {
        line(&format!("     {}", snippet(&hit.heading_path.join(" > "), 110)))?;
    }
    if let Some(first) = hit.also_at.first() {
        let more = hit.also_at.len() - 1;
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        line(&format!("     also in {}{more}", snippet(&first.path, 100)))?;
    }
    line(&format!("     {}", snippet(&hit.text, 220)))
}

//! `ehun search`: the chunks closest to a query.

use std::path::PathBuf;

use clap::Args;
use ehun_engine::{ItemOptions, Request, tasks};
use ehun_models::Task;
use ehun_pipeline::{Hit, chunk_tables, search};

use crate::error::{CommandError, CommandResult, Outcome};
use crate::output::{json_line, line, snippet};
use crate::session::{ModelArgs, at_least_one};

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
    /// Name of the model's prompt for queries
    #[arg(long, value_name = "NAME")]
    prompt: Option<String>,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelArgs,
}

impl Search {
    /// Searches.
    pub fn run(self) -> CommandResult {
        if self.query.trim().is_empty() {
            return Err(CommandError::Usage("the query is empty: say what is looked for".into()));
        }
        let tables = chunk_tables(&self.dir)?;
        let model = self.model.load(Some(Task::Embed))?;
        let service = self.model.serve(&model, false)?;
        let options = ItemOptions { prompt: self.prompt.as_deref().map(Into::into), ..ItemOptions::default() };
        let request = Request { inputs: vec![self.query.as_str().into()], options, deadline: None };
        let answer = service.request(request)?.wait().items.pop();
        let answer = answer.unwrap_or(Err(ehun_engine::EngineError::ShuttingDown))?;
        let vector = tasks::row(answer)?;
        let hits = search(&tables, &vector, model.weight_hash(), self.count)?;
        for (rank, hit) in hits.iter().enumerate() {
            if self.json { json_line(hit)? } else { show(rank, hit)? }
        }
        Ok(Outcome::Done)
    }
}

fn show(rank: usize, hit: &Hit) -> Result<(), CommandError> {
    let page = hit.page.map_or_else(String::new, |page| format!(", page {page}"));
    line(&format!("{:>3}. {:.4}  {}{page}", rank + 1, hit.score, snippet(&hit.path, 200)))?;
    if !hit.heading_path.is_empty() {
        line(&format!("     {}", snippet(&hit.heading_path.join(" > "), 110)))?;
    }
    line(&format!("     {}", snippet(&hit.text, 220)))
}

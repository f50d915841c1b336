//! `ehun similarity`: how alike texts are to one text, by their vectors.

use clap::Args;
use ehun_engine::{ItemOptions, Request, tasks};
use ehun_models::Task;
use ehun_models::tasks::embed::Similarity as Measure;
use serde::Serialize;

use crate::error::{CommandError, CommandResult};
use crate::output::json_line;
use crate::session::{ModelArgs, PromptArgs};
use crate::texts::{Failures, TextArgs, answer_all, single, whole};

/// Flags of `ehun similarity`.
#[derive(Debug, Args)]
pub struct Similarity {
    /// What the texts are compared with
    #[arg(value_name = "SOURCE")]
    source: String,
    #[command(flatten)]
    texts: TextArgs,
    /// cosine, dot, euclidean or manhattan (distances are negated) [default: what the model was trained for, else cosine]
    #[arg(long, value_name = "NAME", value_parser = measure)]
    measure: Option<Measure>,
    #[command(flatten)]
    prompt: PromptArgs,
    #[command(flatten)]
    model: ModelArgs,
}

fn measure(name: &str) -> Result<Measure, String> {
    Measure::from_name(name)
        .ok_or_else(|| format!("`{name}` is no measure; there are cosine, dot, euclidean, manhattan"))
}

#[derive(Serialize)]
struct Line {
    index: usize,
    score: f32,
    truncated: bool,
}

impl Similarity {
    /// Compares.
    pub fn run(self) -> CommandResult {
        let model = self.model.load(Some(Task::Embed))?;
        let measure = match (self.measure, model.similarity()) {
            (Some(asked), _) => asked,
            (None, Some(name)) => measure(name).map_err(CommandError::Usage)?,
            (None, None) => Measure::default(),
        };
        let service = self.model.serve(&model, false)?;
        let options = ItemOptions { prompt: self.prompt.prompt(), ..ItemOptions::default() };
        let request = Request { inputs: vec![self.source.as_str().into()], options: options.clone(), deadline: None };
        let answer = service.request(request)?.wait().items.pop();
        let source = tasks::row(answer.unwrap_or(Err(ehun_engine::EngineError::ShuttingDown))?)?;
        let mut failures = Failures::default();
        answer_all(&service, &self.texts, &options, &whole, &mut |index, _, answers| {
            let result = single(answers).and_then(|answer| {
                let truncated = answer.truncated;
                Ok((truncated, tasks::row(answer).map_err(|error| error.to_string())?))
            });
            match result {
                Ok((truncated, vector)) => json_line(&Line { index, score: measure.of(&source, &vector), truncated }),
                Err(error) => failures.note(index, &error),
            }
        })?;
        Ok(failures.outcome())
    }
}

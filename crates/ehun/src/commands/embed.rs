//! `ehun embed`: vectors of texts.

use clap::Args;
use ehun_engine::{ItemOptions, Prompt, Truncation, tasks};
use ehun_models::Task;
use ehun_models::tasks::embed::{Encoded, Encoding, encode, truncate};
use serde::Serialize;

use crate::error::CommandResult;
use crate::output::json_line;
use crate::session::{ModelArgs, PromptArgs};
use crate::texts::{Failures, TextArgs, answer_all, single, whole};

/// Flags of `ehun embed`.
#[derive(Debug, Args)]
pub struct Embed {
    #[command(flatten)]
    texts: TextArgs,
    #[command(flatten)]
    prompt: PromptArgs,
    /// Keep only the first dimensions, scaled to length 1
    #[arg(long, value_name = "N")]
    dimensions: Option<usize>,
    /// Number type: float (or f32), int8, uint8, binary, ubinary
    #[arg(long, default_value = "float")]
    encoding: Encoding,
    /// A text that is too long is an error instead of being cut (a cut one has `"truncated": true`)
    #[arg(long)]
    no_truncate: bool,
    /// Say nothing but errors
    #[arg(long, short)]
    quiet: bool,
    #[command(flatten)]
    model: ModelArgs,
}

#[derive(Serialize)]
struct Line {
    index: usize,
    embedding: Encoded,
    tokens: usize,
    truncated: bool,
}

impl Embed {
    /// Embeds.
    pub fn run(self) -> CommandResult {
        let model = self.model.load(Some(Task::Embed))?;
        if let Some(dimensions) = self.dimensions {
            truncate(&mut vec![0.0; model.dimension()], dimensions)?;
        }
        let prompt = self.prompt.prompt();
        Prompt::words(prompt.as_ref(), &model)?;
        let service = self.model.serve(&model, false)?;
        let options =
            ItemOptions { truncation: if self.no_truncate { Truncation::Refuse } else { Truncation::Right }, prompt };
        let (mut failures, mut cut) = (Failures::default(), 0usize);
        answer_all(&service, &self.texts, &options, &whole, &mut |index, _, answers| {
            let result = single(answers).and_then(|answer| {
                let (tokens, truncated) = (answer.tokens, answer.truncated);
                let vector = tasks::row(answer).map_err(|error| error.to_string())?;
                Ok((tokens, truncated, vector))
            });
            match result {
                Ok((tokens, truncated, mut vector)) => {
                    cut += usize::from(truncated);
                    if let Some(dimensions) = self.dimensions {
                        truncate(&mut vector, dimensions)?;
                    }
                    json_line(&Line { index, embedding: encode(&vector, self.encoding), tokens, truncated })
                }
                Err(error) => failures.note(index, &error),
            }
        })?;
        if cut > 0 && !self.quiet {
            eprintln!("{cut} texts were longer than the model's {} tokens and were cut", model.max_tokens());
        }
        Ok(failures.outcome())
    }
}

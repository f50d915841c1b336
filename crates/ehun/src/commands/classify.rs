//! `ehun classify`: labels of texts or of pairs of texts.

use clap::Args;
use ehun_engine::{Input, ItemOptions, tasks};
use ehun_models::Task;
use ehun_models::tasks::scores::LabelScore;
use serde::Serialize;

use crate::error::CommandResult;
use crate::output::json_line;
use crate::session::ModelArgs;
use crate::texts::{Failures, TextArgs, answer_all, single, whole};

/// Flags of `ehun classify`.
#[derive(Debug, Args)]
pub struct Classify {
    #[command(flatten)]
    texts: TextArgs,
    /// Each text is two, with a tab between them
    #[arg(long)]
    pairs: bool,
    /// Only the best labels
    #[arg(short = 'k', long = "top", value_name = "N")]
    count: Option<usize>,
    /// The model's logits instead of probabilities
    #[arg(long)]
    raw: bool,
    #[command(flatten)]
    model: ModelArgs,
}

#[derive(Serialize)]
struct Line {
    index: usize,
    labels: Vec<LabelScore>,
    truncated: bool,
}

fn pair(text: &str) -> Result<Vec<Input>, String> {
    let (first, second) = text.split_once('\t').ok_or("there is no tab between the two texts of the pair")?;
    Ok(vec![Input::Pair(first.into(), second.into())])
}

impl Classify {
    /// Classifies.
    pub fn run(self) -> CommandResult {
        let model = self.model.load(Some(Task::Classify))?;
        let service = self.model.serve(&model, false)?;
        let mut failures = Failures::default();
        let inputs = if self.pairs { pair } else { whole };
        answer_all(&service, &self.texts, &ItemOptions::default(), &inputs, &mut |index, _, answers| {
            let result = single(answers).and_then(|answer| {
                let truncated = answer.truncated;
                Ok((truncated, tasks::row(answer).map_err(|error| error.to_string())?))
            });
            match result {
                Ok((truncated, logits)) => {
                    let labels = model.label_scores(&logits, self.raw, self.count)?;
                    json_line(&Line { index, labels, truncated })
                }
                Err(error) => failures.note(index, &error),
            }
        })?;
        Ok(failures.outcome())
    }
}

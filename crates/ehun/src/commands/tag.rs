//! `ehun tag`: entities in texts.

use std::cell::RefCell;
use std::collections::VecDeque;

use clap::Args;
use ehun_engine::{Input, ItemOptions, ItemResult, tasks};
use ehun_models::tasks::tag::{Aggregation, Entity, Windows};
use ehun_models::{Model, Task};
use serde::Serialize;

use crate::error::CommandResult;
use crate::output::json_line;
use crate::session::ModelArgs;
use crate::texts::{Failures, TextArgs, answer_all};

/// Flags of `ehun tag`.
#[derive(Debug, Args)]
pub struct Tag {
    #[command(flatten)]
    texts: TextArgs,
    /// How tokens become entities: none, simple, first, average, max
    #[arg(long, default_value = "simple")]
    aggregation: Aggregation,
    #[command(flatten)]
    model: ModelArgs,
}

#[derive(Serialize)]
struct Line {
    index: usize,
    entities: Vec<Entity>,
}

impl Tag {
    /// Tags.
    pub fn run(self) -> CommandResult {
        let model = self.model.load(Some(Task::Tag))?;
        let service = self.model.serve(&model, false)?;
        let mut failures = Failures::default();
        // The windows of the texts that are under way, in their order.
        let under_way: RefCell<VecDeque<Windows>> = RefCell::default();
        let inputs = |text: &str| -> Result<Vec<Input>, String> {
            let windows = model.tag_windows(text).map_err(|error| error.to_string())?;
            let inputs = windows.inputs.iter().map(|input| Input::Tokens(input.token_ids.clone().into())).collect();
            under_way.borrow_mut().push_back(windows);
            Ok(inputs)
        };
        answer_all(&service, &self.texts, &ItemOptions::default(), &inputs, &mut |index, text, answers| {
            let entities = answers.and_then(|answers| {
                let windows = under_way.borrow_mut().pop_front().ok_or("the windows of the text are lost")?;
                entities(&model, text, &windows, answers, self.aggregation)
            });
            match entities {
                Ok(entities) => json_line(&Line { index, entities }),
                Err(error) => failures.note(index, &error),
            }
        })?;
        Ok(failures.outcome())
    }
}

fn entities(
    model: &Model,
    text: &str,
    windows: &Windows,
    answers: Vec<ItemResult>,
    aggregation: Aggregation,
) -> Result<Vec<Entity>, String> {
    let answers = answers.into_iter().collect::<Result<Vec<_>, _>>().map_err(|error| error.to_string())?;
    let rows = answers.iter().map(|answer| tasks::rows(answer).map(|rows| rows.data.as_slice()));
    let logits = rows.collect::<Result<Vec<_>, _>>().map_err(|error| error.to_string())?;
    model.entities(text, windows, &logits, aggregation).map_err(|error| error.to_string())
}

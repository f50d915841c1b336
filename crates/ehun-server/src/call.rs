//! A request to the engine, awaited. Dropping the future (a client that hung up) cancels the work.

use ehun_engine::{Answer, EngineError, Input, ItemOptions, Request, Response};
use ehun_models::Model;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::app::Served;
use crate::fault::Fault;

/// What the request cost, for headers and usage figures.
#[derive(Debug, Clone, Default)]
pub struct Cost {
    /// Tokens of all items, special tokens included.
    pub tokens: usize,
    /// Characters of all items.
    pub characters: usize,
    /// Time from arrival to the last answer.
    pub total: Duration,
    /// The longest that an item took to be tokenised.
    pub tokenize: Duration,
    /// The longest that an item waited.
    pub queue: Duration,
    /// The longest that an item's batch ran.
    pub run: Duration,
    /// Who answered: `cpu`, or several names.
    pub backend: String,
    /// The attention kernels that ran.
    pub attention: String,
}

impl Cost {
    /// Adds what asking again, or someone else, cost. The names are those of all who answered.
    pub fn add(&mut self, more: Self) {
        self.tokens += more.tokens;
        self.total += more.total;
        self.tokenize += more.tokenize;
        self.queue += more.queue;
        self.run += more.run;
        for (names, more) in [(&mut self.backend, more.backend), (&mut self.attention, more.attention)] {
            let all = names.split(',').chain(more.split(',')).filter(|name| !name.is_empty());
            *names = all.collect::<std::collections::BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(",");
        }
    }
}

/// Runs `inputs` and gives one result for each.
pub async fn each(
    served: &Served,
    inputs: Vec<Input>,
    options: ItemOptions,
) -> Result<(Vec<Result<Answer, EngineError>>, Cost), Fault> {
    let characters = inputs.iter().map(characters).sum();
    let deadline = served.deadline.map(|limit| Instant::now() + limit);
    let (sender, receiver) = tokio::sync::oneshot::channel::<Response>();
    let done = Box::new(move |response| drop(sender.send(response)));
    let ticket = served.service.submit(Request { inputs, options, deadline }, done)?;
    let response = receiver.await.map_err(|_| Fault::from(EngineError::ShuttingDown))?;
    ticket.detach();
    let mut cost = Cost { characters, total: response.elapsed, ..Cost::default() };
    let mut names = std::collections::BTreeSet::new();
    let mut kernels = std::collections::BTreeSet::new();
    for answer in response.items.iter().flatten() {
        cost.tokens += answer.tokens;
        cost.tokenize = cost.tokenize.max(answer.timing.tokenize);
        cost.queue = cost.queue.max(answer.timing.queue);
        cost.run = cost.run.max(answer.timing.run);
        names.insert(answer.output.report.backend.clone());
        kernels.extend(answer.output.report.attention.keys().cloned());
    }
    cost.backend = names.into_iter().collect::<Vec<_>>().join(",");
    cost.attention = kernels.into_iter().collect::<Vec<_>>().join(",");
    Ok((response.items, cost))
}

/// What is answered where every item failed and no item is to blame (late, no backend): a status and not a list of errors.
pub fn none_answered(results: &[Result<Answer, EngineError>]) -> Option<Fault> {
    let blameless = |result: &Result<Answer, EngineError>| result.as_ref().is_err_and(|error| !error.is_of_the_item());
    let first = results.first().filter(|_| results.iter().all(blameless))?;
    first.as_ref().err().map(Fault::from)
}

/// Runs `inputs` where the wire format has one error for all: the first fault is the answer.
pub async fn all(served: &Served, inputs: Vec<Input>, options: ItemOptions) -> Result<(Vec<Answer>, Cost), Fault> {
    let (results, cost) = each(served, inputs, options).await?;
    let many = results.len() > 1;
    let mut answers = Vec::with_capacity(results.len());
    for (i, result) in results.into_iter().enumerate() {
        answers.push(result.map_err(|error| {
            let mut fault = Fault::from(&error);
            if many && error.is_of_the_item() {
                fault.message = format!("item {i}: {}", fault.message);
            }
            fault
        })?);
    }
    Ok((answers, cost))
}

/// The one row of an answer.
pub fn row(answer: Answer) -> Result<Vec<f32>, Fault> {
    Ok(ehun_engine::tasks::row(answer)?)
}

/// The model that gave an answer: a swap or a canary may have put another in place of the service's.
pub fn model<'a>(served: &'a Served, answer: &'a Answer) -> &'a Arc<Model> {
    answer.deployment.model.as_ref().unwrap_or(&served.model)
}

fn characters(input: &Input) -> usize {
    match input {
        Input::Text(text) => text.chars().count(),
        Input::Pair(a, b) => a.chars().count() + b.chars().count(),
        Input::Tokens(_) => 0,
    }
}

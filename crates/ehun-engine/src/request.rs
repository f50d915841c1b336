//! A request of any number of items, and the handle by which it is waited for or given up.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::admission::Admission;
use crate::deployment::Deployment;
use crate::error::EngineError;
use crate::item::{Input, ItemOptions};
use crate::rollout::Stage;
use crate::runner::ItemOutput;

/// What is asked of a service at once.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// The items; answers come in their order.
    pub inputs: Vec<Input>,
    /// How they are tokenised.
    pub options: ItemOptions,
    /// When the answer is of no more use.
    pub deadline: Option<Instant>,
}

impl Request {
    /// A request without deadline.
    pub fn new(inputs: Vec<Input>) -> Self {
        Self { inputs, ..Self::default() }
    }
}

/// Where the time of an item went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Timing {
    /// Tokenising it.
    pub tokenize: Duration,
    /// Waiting for a batch.
    pub queue: Duration,
    /// The batch it was in, failed tries included.
    pub run: Duration,
}

impl Timing {
    /// Time from the queue to the answer.
    pub(crate) fn served(&self) -> Duration {
        self.queue + self.run
    }
}

/// What one item got.
#[derive(Clone)]
pub struct Answer {
    /// The model's results and the report of the run.
    pub output: ItemOutput,
    /// Tokens of the item, special tokens included.
    pub tokens: usize,
    /// Whether tokens were cut off.
    pub truncated: bool,
    /// Where the time went.
    pub timing: Timing,
    /// Which model and backends answered.
    pub deployment: Arc<Deployment>,
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Answer")
            .field("output", &self.output)
            .field("tokens", &self.tokens)
            .field("truncated", &self.truncated)
            .finish_non_exhaustive()
    }
}

/// What one item got, or why it got nothing.
pub type ItemResult = Result<Answer, EngineError>;

/// What a request got: one result for each item, in the order of the items.
#[derive(Debug, Clone)]
pub struct Response {
    /// The results.
    pub items: Vec<ItemResult>,
    /// Time from the request to its last result.
    pub elapsed: Duration,
}

/// Called once, with the response, on a thread of the engine: hand it on and return.
pub type Callback = Box<dyn FnOnce(Response) + Send>;

/// The open ends of a request. Every item is finished once; what comes later for it is thrown away.
pub(crate) struct Group {
    /// Sequence number of the first item; the items are numbered from it.
    pub(crate) first: u64,
    /// Sequence number of the request.
    pub(crate) request: u64,
    pub(crate) count: u64,
    pub(crate) deadline: Option<Instant>,
    /// The canary whose candidate is to answer.
    pub(crate) canary: Option<Arc<Stage>>,
    started: Instant,
    admission: Arc<Admission>,
    state: Mutex<Open>,
}

struct Open {
    results: Vec<Option<ItemResult>>,
    /// Tokens that each item counts for in the queue's limit.
    charges: Vec<usize>,
    remaining: usize,
    done: Option<Callback>,
}

/// The numbers by which a request and its items are known.
pub(crate) struct Numbers {
    pub(crate) first: u64,
    pub(crate) request: u64,
}

impl Group {
    pub(crate) fn new(
        numbers: Numbers,
        charges: Vec<usize>,
        deadline: Option<Instant>,
        canary: Option<Arc<Stage>>,
        admission: Arc<Admission>,
        done: Callback,
    ) -> Arc<Self> {
        let count = charges.len();
        let state = Open { results: vec![None; count], charges, remaining: count, done: Some(done) };
        let (state, started, Numbers { first, request }) = (Mutex::new(state), Instant::now(), numbers);
        Arc::new(Self { first, request, count: count as u64, deadline, canary, started, admission, state })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Open> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nobody waits for the item any more.
    pub(crate) fn is_finished(&self, index: usize) -> bool {
        self.lock().results.get(index).is_none_or(Option::is_some)
    }

    /// Corrects the tokens that an item counts for, now that they are known.
    pub(crate) fn recharge(&self, index: usize, tokens: usize) {
        let mut open = self.lock();
        if open.results[index].is_none() {
            let before = std::mem::replace(&mut open.charges[index], tokens);
            self.admission.adjust(before, tokens);
        }
    }

    /// Gives an item its result. Whether it was still open.
    pub(crate) fn finish(&self, index: usize, result: ItemResult) -> bool {
        let mut open = self.lock();
        let finished = open.finish(index, result, &self.admission);
        self.answer_if_complete(open);
        finished
    }

    /// Gives every open item the same error. How many there were.
    pub(crate) fn finish_open(&self, error: &EngineError) -> usize {
        let mut open = self.lock();
        let count = (0..open.results.len()).filter(|&i| open.finish(i, Err(error.clone()), &self.admission)).count();
        self.answer_if_complete(open);
        count
    }

    /// Takes the callback away, so that the request ends unheard.
    pub(crate) fn silence(&self) {
        self.lock().done = None;
    }

    pub(crate) fn answer_if_done(&self) {
        self.answer_if_complete(self.lock());
    }

    fn answer_if_complete(&self, mut open: std::sync::MutexGuard<'_, Open>) {
        if open.remaining > 0 {
            return;
        }
        let Some(done) = open.done.take() else { return };
        let items = std::mem::take(&mut open.results).into_iter().flatten().collect();
        drop(open);
        done(Response { items, elapsed: self.started.elapsed() });
    }
}

impl Open {
    fn finish(&mut self, index: usize, result: ItemResult, admission: &Admission) -> bool {
        match self.results.get_mut(index) {
            Some(slot @ None) => *slot = Some(result),
            _ => return false,
        }
        self.remaining -= 1;
        admission.release(std::mem::take(&mut self.charges[index]));
        true
    }
}

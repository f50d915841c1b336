//! What the threads of a service share, and what each of them does.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use ehun_backend::RunOptions;

use crate::admission::Admission;
use crate::clock::Clock;
use crate::deployment::{Deployment, Run, latest};
use crate::error::EngineError;
use crate::item::{Input, ItemOptions, Prepared, Tokenize};
use crate::observe::{BatchEvent, Observer};
use crate::queue::{Queue, Work};
use crate::request::{Answer, Callback, Group, ItemResult, Numbers, Request, Timing};
use crate::rollout::{Rollout, Stage};
use crate::service::{ServiceConfig, Ticket};

/// Items that one tokeniser thread takes at once.
const TOKENIZE_ITEMS: usize = 16;

pub(crate) type Untokenized = (Arc<Group>, ItemOptions, Vec<(usize, Input)>);

#[derive(Default)]
pub(crate) struct Inbox {
    pub(crate) waiting: VecDeque<Untokenized>,
    pub(crate) closed: bool,
}

pub(crate) struct Shared {
    pub(crate) config: ServiceConfig,
    pub(crate) deployment: RwLock<Arc<Deployment>>,
    pub(crate) admission: Arc<Admission>,
    pub(crate) inbox: Mutex<Inbox>,
    pub(crate) arrived: Condvar,
    pub(crate) queue: Queue,
    pub(crate) clock: Clock,
    clock_runs: AtomicBool,
    pub(crate) accepting: AtomicBool,
    /// The number of the next item, and that of the next request.
    next: AtomicU64,
    requests: AtomicU64,
    observers: Vec<Arc<dyn Observer>>,
    pub(crate) rollout: Rollout,
}

/// A batch that has been run.
struct Ran {
    works: Vec<Work>,
    items: Vec<Arc<Prepared>>,
    results: Vec<ItemResult>,
    /// Items that the deployment cannot read.
    unfit: Vec<(Work, EngineError)>,
    oldest_wait: Duration,
    elapsed: Duration,
}

impl Shared {
    pub(crate) fn new(config: ServiceConfig, deployment: Arc<Deployment>, observers: Vec<Arc<dyn Observer>>) -> Self {
        Self {
            admission: Arc::new(Admission::new(config.queue_tokens)),
            deployment: RwLock::new(deployment),
            inbox: Mutex::default(),
            arrived: Condvar::new(),
            queue: Queue::default(),
            clock: Clock::default(),
            clock_runs: AtomicBool::new(false),
            accepting: AtomicBool::new(true),
            next: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            observers,
            rollout: Rollout::default(),
            config,
        }
    }

    pub(crate) fn deployment(&self) -> Arc<Deployment> {
        Arc::clone(&self.deployment.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn lock_inbox(&self) -> std::sync::MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn turned_away(&self, error: &EngineError, items: usize) {
        for _ in 0..items {
            self.observers.iter().for_each(|observer| observer.turned_away(&self.config.name, error));
        }
    }

    /// Takes a request, once `acquire` finds room for its tokens.
    pub(crate) fn accept(
        self: &Arc<Self>,
        request: Request,
        done: Callback,
        acquire: impl FnOnce(&Admission, usize) -> Result<(), EngineError>,
    ) -> Result<Ticket, EngineError> {
        if !self.accepting.load(Ordering::SeqCst) {
            return Err(EngineError::ShuttingDown);
        }
        let Request { inputs, options, deadline } = request;
        let longest = self.deployment().tokenizer.max_sequence();
        // Until it is tokenised, an input counts as a token for four bytes: about what English text gives.
        let charges: Vec<usize> = inputs.iter().map(|input| (input.num_bytes() / 4 + 2).min(longest)).collect();
        if let Err(error) = acquire(&self.admission, charges.iter().sum()) {
            self.turned_away(&error, inputs.len());
            return Err(error);
        }
        let first = self.next.fetch_add(inputs.len().max(1) as u64, Ordering::SeqCst);
        let request = self.requests.fetch_add(1, Ordering::SeqCst);
        let canary = self.rollout.stage().filter(|stage| stage.canary.is_some() && stage.share.takes(request));
        let group =
            Group::new(Numbers { first, request }, charges, deadline, canary, Arc::clone(&self.admission), done);
        let ticket = Ticket { shared: Arc::clone(self), group: Arc::clone(&group), kept: false };
        if inputs.is_empty() {
            group.answer_if_done();
            return Ok(ticket);
        }
        if let Some(deadline) = deadline {
            self.start_clock();
            self.clock.add(deadline, Arc::downgrade(&group), first);
        }
        let mut inputs = inputs.into_iter().enumerate().peekable();
        let mut inbox = self.lock_inbox();
        while !inbox.closed && inputs.peek().is_some() {
            let part = inputs.by_ref().take(TOKENIZE_ITEMS).collect();
            inbox.waiting.push_back((Arc::clone(&group), options.clone(), part));
        }
        let closed = inbox.closed;
        drop(inbox);
        if closed {
            group.finish_open(&EngineError::ShuttingDown);
        }
        self.arrived.notify_all();
        Ok(ticket)
    }

    /// Answers what is still open of a request with `error` and takes it out of the queue.
    pub(crate) fn give_up(&self, group: &Group, error: &EngineError) {
        let open = group.finish_open(error);
        if open > 0 {
            self.turned_away(error, open);
            let numbers = group.first..group.first + group.count;
            if let Some(canary) = group.canary.as_ref().and_then(|stage| stage.canary.as_ref()) {
                drop(canary.queue.remove(numbers.clone()));
            }
            drop(self.queue.remove(numbers));
        }
    }

    /// The clock's thread is only there once a request has a deadline.
    fn start_clock(self: &Arc<Self>) {
        if self.clock_runs.swap(true, Ordering::SeqCst) {
            return;
        }
        let shared = Arc::clone(self);
        let body = move || {
            while let Some(group) = shared.clock.next() {
                if let Some(group) = group.upgrade() {
                    shared.give_up(&group, &EngineError::Deadline);
                }
            }
        };
        if std::thread::Builder::new().name("deadlines".to_owned()).spawn(body).is_err() {
            self.clock_runs.store(false, Ordering::SeqCst);
        }
    }

    pub(crate) fn tokenize(self: &Arc<Self>) {
        while let Some((group, options, inputs)) = self.next_untokenized() {
            match group.canary.as_ref().and_then(|stage| Some((stage, stage.canary.as_ref()?))) {
                None => self.queue.push(self.tokenized(&group, &options, inputs, &[&self.deployment().tokenizer])),
                Some((stage, canary)) => {
                    // What the candidate cannot read is read by the baseline, who will also answer it.
                    let readers = [&stage.candidate.deployment.tokenizer, &self.deployment().tokenizer];
                    let works = self.tokenized(&group, &options, inputs, &readers);
                    // A canary that has ended meanwhile: the baseline answers.
                    if let Err(works) = canary.queue.try_push(works) {
                        self.queue.push(works);
                    }
                }
            }
        }
    }

    /// Each input as the first of `readers` that can read it has it.
    fn tokenized(
        &self,
        group: &Arc<Group>,
        options: &ItemOptions,
        inputs: Vec<(usize, Input)>,
        readers: &[&Arc<dyn Tokenize>],
    ) -> Vec<Work> {
        let mut works = Vec::with_capacity(inputs.len());
        for (index, input) in inputs {
            if group.is_finished(index) {
                continue;
            }
            let start = Instant::now();
            let read = |reader: &&Arc<dyn Tokenize>| Prepared::new(input.clone(), options.clone(), Arc::clone(reader));
            let mut last = Err(EngineError::Unavailable(Arc::from([])));
            for reader in readers {
                last = read(reader);
                if last.is_ok() {
                    break;
                }
            }
            match last {
                Ok(item) => {
                    group.recharge(index, item.num_tokens());
                    let (group, queued) = (Arc::clone(group), Instant::now());
                    works.push(Work { group, index, item: Arc::new(item), queued, tokenize: queued - start });
                }
                Err(error) => {
                    self.turned_away(&error, 1);
                    group.finish(index, Err(error));
                }
            }
        }
        works
    }

    fn next_untokenized(&self) -> Option<Untokenized> {
        let mut inbox = self.lock_inbox();
        loop {
            if let Some(part) = inbox.waiting.pop_front() {
                return Some(part);
            }
            if inbox.closed {
                return None;
            }
            inbox = self.arrived.wait(inbox).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(crate) fn work(self: &Arc<Self>) {
        while let Some(works) = self.queue.next(|| self.deployment().shape().within(self.config.batch_tokens)) {
            let batch = std::panic::AssertUnwindSafe(|| self.run(works));
            // The items of a batch that panicked are answered as they are dropped; the next batch runs.
            let _ = std::panic::catch_unwind(batch);
        }
    }

    /// The work of a canary's threads, until its queue is closed.
    pub(crate) fn work_canary(&self, stage: &Arc<Stage>) {
        let Some(canary) = &stage.canary else { return };
        let shape = || stage.candidate.deployment.shape().within(self.config.batch_tokens);
        while let Some(works) = canary.queue.next(shape) {
            let batch = std::panic::AssertUnwindSafe(|| self.run_canary(stage, works));
            let _ = std::panic::catch_unwind(batch);
            self.judge();
        }
    }

    fn run(&self, works: Vec<Work>) {
        let Some(ran) = self.execute(works, &self.deployment()) else { return };
        ran.unfit.into_iter().for_each(|(work, error)| work.finish(Err(error)));
        let requests: Vec<u64> = ran.works.iter().map(|work| work.group.request).collect();
        let event = BatchEvent {
            service: &self.config.name,
            items: &ran.items,
            requests: &requests,
            results: &ran.results,
            oldest_wait: ran.oldest_wait,
            elapsed: ran.elapsed,
        };
        self.observers.iter().for_each(|observer| observer.batch(&event));
        if let Some(stage) = self.rollout.stage() {
            match &stage.canary {
                Some(canary) => {
                    canary.watch.baseline(ran.results.iter().flatten().map(|answer| answer.timing.served()))
                }
                None => stage.mirror.batch(&event),
            }
        }
        for (work, result) in ran.works.into_iter().zip(ran.results) {
            work.finish(result);
        }
    }

    /// Runs a batch on a canary's candidate. What it fails, for whatever reason, the baseline is asked.
    fn run_canary(&self, stage: &Stage, works: Vec<Work>) {
        let (Some(canary), Some(ran)) = (&stage.canary, self.execute(works, &stage.candidate.deployment)) else {
            return;
        };
        let mut failed = Vec::new();
        for (work, error) in ran.unfit {
            canary.watch.failed(1, &error);
            failed.push(work);
        }
        let (mut works, mut items, mut results, mut requests) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for ((work, item), result) in ran.works.into_iter().zip(ran.items).zip(ran.results) {
            match result {
                Ok(answer) => {
                    requests.push(work.group.request);
                    works.push(work);
                    items.push(item);
                    results.push(Ok(answer));
                }
                // Its time was up before, or someone hung up: that says nothing about the candidate.
                Err(_) if work.group.is_finished(work.index) => {}
                Err(error) => {
                    canary.watch.failed(1, &error);
                    failed.push(work);
                }
            }
        }
        self.queue.push(failed);
        canary.watch.answered(results.iter().flatten().map(|answer: &Answer| answer.timing.served()));
        let event = BatchEvent {
            service: &self.config.name,
            items: &items,
            requests: &requests,
            results: &results,
            oldest_wait: ran.oldest_wait,
            elapsed: ran.elapsed,
        };
        self.observers.iter().for_each(|observer| observer.batch(&event));
        stage.mirror.batch(&event);
        for (work, result) in works.into_iter().zip(results) {
            work.finish(result);
        }
    }

    /// Runs what is still open of `works`; `None` where nothing is.
    fn execute(&self, works: Vec<Work>, deployment: &Arc<Deployment>) -> Option<Ran> {
        let start = Instant::now();
        let mut items = Vec::with_capacity(works.len());
        let mut running = Vec::with_capacity(works.len());
        let mut unfit = Vec::new();
        for work in works {
            if work.group.is_finished(work.index) {
                continue;
            }
            match fit(&work.item, deployment) {
                Ok(item) => {
                    items.push(item);
                    running.push(work);
                }
                Err(error) => unfit.push((work, error)),
            }
        }
        if running.is_empty() && unfit.is_empty() {
            return None;
        }
        let options = RunOptions {
            deadline: latest(running.iter().map(|work| work.group.deadline)),
            profile: self.config.profile,
        };
        let run = Run { service: &self.config.name, options, observers: &self.observers };
        let outputs = if items.is_empty() { Vec::new() } else { deployment.run(&items, &run) };
        let elapsed = start.elapsed();
        let results = outputs
            .into_iter()
            .zip(&running)
            .zip(&items)
            .map(|((output, work), item)| {
                let timing = Timing { tokenize: work.tokenize, queue: start - work.queued, run: elapsed };
                let (tokens, truncated) = (item.num_tokens(), item.tokens.truncated);
                output.map(|output| Answer { output, tokens, truncated, timing, deployment: Arc::clone(deployment) })
            })
            .collect();
        let oldest_wait = running.iter().map(|work| start - work.queued).max().unwrap_or_default();
        Some(Ran { works: running, items, results, unfit, oldest_wait, elapsed })
    }
}

/// The item as the deployment's own tokeniser gives it: an item that waited through a swap to another model is tokenised
/// again.
pub(crate) fn fit(item: &Arc<Prepared>, deployment: &Deployment) -> Result<Arc<Prepared>, EngineError> {
    if Arc::ptr_eq(&item.tokenizer, &deployment.tokenizer) {
        return Ok(Arc::clone(item));
    }
    let tokenizer = Arc::clone(&deployment.tokenizer);
    Prepared::new(item.input.clone(), item.options.clone(), tokenizer).map(Arc::new)
}

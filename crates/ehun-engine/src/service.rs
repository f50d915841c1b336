//! A service: a model, its backends, and the threads between a request and its answer.
//!
//! ```text
//! submit -> admission -> tokeniser threads -> queue (by age and by length) -> workers -> backends in order -> answer
//! ```
//!
//! Tokenising runs beside the backend. A worker takes a batch as soon as it is free, so batches grow with the load and
//! nothing waits for company.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock, mpsc};
use std::time::{Duration, Instant};

use ehun_backend::RunOptions;
use serde::{Deserialize, Serialize};

use crate::admission::Admission;
use crate::clock::Clock;
use crate::deployment::{Deployment, Run, latest};
use crate::error::EngineError;
use crate::item::{Input, ItemOptions, Prepared};
use crate::observe::{BatchEvent, Observer};
use crate::queue::{Queue, Work};
use crate::request::{Answer, Callback, Group, ItemResult, Request, Response, Timing};

/// How a service works. None of it changes an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServiceConfig {
    /// The service's name, for observers.
    pub name: String,
    /// Threads that tokenise.
    pub tokenizer_threads: usize,
    /// Batches that are run at the same time: 1 for a backend that has the machine's cores to itself, more for remote ones.
    pub workers: usize,
    /// Most tokens in a batch; the backend's own limit holds too.
    pub batch_tokens: usize,
    /// Most tokens in the service, from arrival to answer; beyond it requests are turned away.
    pub queue_tokens: usize,
    /// Whether backends take the time of each operation.
    pub profile: bool,
}

impl Default for ServiceConfig {
    fn default() -> Self {
        Self {
            name: "default".to_owned(),
            tokenizer_threads: 1,
            workers: 1,
            batch_tokens: 4096,
            queue_tokens: 200_000,
            profile: false,
        }
    }
}

/// Items that one tokeniser thread takes at once.
const TOKENIZE_ITEMS: usize = 16;

type Untokenized = (Arc<Group>, ItemOptions, Vec<(usize, Input)>);

#[derive(Default)]
struct Inbox {
    waiting: VecDeque<Untokenized>,
    closed: bool,
}

struct Shared {
    config: ServiceConfig,
    deployment: RwLock<Arc<Deployment>>,
    admission: Arc<Admission>,
    inbox: Mutex<Inbox>,
    arrived: Condvar,
    queue: Queue,
    clock: Clock,
    clock_runs: AtomicBool,
    accepting: AtomicBool,
    next: AtomicU64,
    observers: Vec<Arc<dyn Observer>>,
}

/// A running service. Dropping it turns away what waits; see [`Service::drain`].
pub struct Service {
    shared: Arc<Shared>,
}

/// A request on its way. Dropping it cancels what has not been answered.
#[must_use = "dropping a ticket cancels its request"]
pub struct Ticket {
    shared: Arc<Shared>,
    group: Arc<Group>,
    kept: bool,
}

impl Ticket {
    /// Lets the request run on without this handle.
    pub fn detach(mut self) {
        self.kept = true;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.kept {
            self.group.silence();
            self.shared.give_up(&self.group, &EngineError::Cancelled);
        }
    }
}

/// A request on its way that is waited for on a thread.
#[must_use = "dropping it cancels the request"]
pub struct Pending {
    response: mpsc::Receiver<Response>,
    ticket: Ticket,
}

impl Pending {
    /// Waits for the response.
    pub fn wait(self) -> Response {
        let Self { response, ticket } = self;
        let answer = response.recv();
        let items = ticket.group.count as usize;
        ticket.detach();
        // Every request is answered; the sender goes unused only where the program is ending under it.
        answer.unwrap_or_else(|_| Response {
            items: vec![Err(EngineError::ShuttingDown); items],
            elapsed: Duration::ZERO,
        })
    }
}

/// What a service is doing now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// Tokens in the service, from arrival to answer (estimated until tokenised).
    pub tokens: usize,
    /// Items that wait for a batch.
    pub waiting_items: usize,
    /// How long the oldest of them has waited.
    pub oldest_wait: Duration,
}

impl Service {
    /// Starts a service on `deployment`.
    pub fn start(
        config: ServiceConfig,
        deployment: Arc<Deployment>,
        observers: Vec<Arc<dyn Observer>>,
    ) -> std::io::Result<Self> {
        let (tokenizers, workers) = (config.tokenizer_threads.max(1), config.workers.max(1));
        let shared = Arc::new(Shared {
            admission: Arc::new(Admission::new(config.queue_tokens)),
            deployment: RwLock::new(deployment),
            inbox: Mutex::default(),
            arrived: Condvar::new(),
            queue: Queue::default(),
            clock: Clock::default(),
            clock_runs: AtomicBool::new(false),
            accepting: AtomicBool::new(true),
            next: AtomicU64::new(0),
            observers,
            config,
        });
        // Made first, so that threads already started end if a later one cannot be.
        let service = Self { shared };
        for _ in 0..tokenizers {
            service.spawn("tokenize", Shared::tokenize)?;
        }
        for _ in 0..workers {
            service.spawn("batch", Shared::work)?;
        }
        Ok(service)
    }

    fn spawn(&self, name: &str, body: fn(&Arc<Shared>)) -> std::io::Result<()> {
        let shared = Arc::clone(&self.shared);
        std::thread::Builder::new().name(name.to_owned()).spawn(move || body(&shared)).map(drop)
    }

    /// The service's name.
    pub fn name(&self) -> &str {
        &self.shared.config.name
    }

    /// What serves now.
    pub fn deployment(&self) -> Arc<Deployment> {
        self.shared.deployment()
    }

    /// Puts another deployment in place, between two batches, and returns the old one, which is of no more use once the
    /// batches that run on it are done: when no one else holds the `Arc`. What waits is run on the new one.
    pub fn deploy(&self, deployment: Arc<Deployment>) -> Arc<Deployment> {
        let mut current = self.shared.deployment.write().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut current, deployment)
    }

    /// Takes a request, or turns it away where the queue is full. `done` is called once with the response, unless the
    /// ticket is dropped before.
    pub fn submit(&self, request: Request, done: Callback) -> Result<Ticket, EngineError> {
        self.shared.accept(request, done, |admission, tokens| admission.try_acquire(tokens))
    }

    /// Takes a request, or turns it away where the queue is full.
    pub fn request(&self, request: Request) -> Result<Pending, EngineError> {
        let (sender, response) = mpsc::sync_channel(1);
        let ticket = self.submit(request, send_to(sender))?;
        Ok(Pending { response, ticket })
    }

    /// Takes a request, waiting for room in the queue: for callers with more work than the queue holds.
    pub fn request_when_room(&self, request: Request) -> Result<Pending, EngineError> {
        let (sender, response) = mpsc::sync_channel(1);
        let deadline = request.deadline;
        let ticket =
            self.shared.accept(request, send_to(sender), |admission, tokens| admission.acquire(tokens, deadline))?;
        Ok(Pending { response, ticket })
    }

    /// What it is doing now.
    pub fn load(&self) -> Load {
        let (waiting_items, oldest_wait) = self.shared.queue.depth();
        Load { tokens: self.shared.admission.used(), waiting_items, oldest_wait }
    }

    /// Takes no more requests and waits until those that are in are answered; `false` where that takes longer than
    /// `timeout`.
    pub fn drain(&self, timeout: Duration) -> bool {
        self.shared.accepting.store(false, Ordering::SeqCst);
        self.shared.admission.wait_empty(Instant::now() + timeout)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.shared.accepting.store(false, Ordering::SeqCst);
        self.shared.clock.close();
        let waiting = {
            let mut inbox = self.shared.lock_inbox();
            inbox.closed = true;
            std::mem::take(&mut inbox.waiting)
        };
        self.shared.arrived.notify_all();
        self.shared.queue.close();
        for (group, ..) in waiting {
            self.shared.give_up(&group, &EngineError::ShuttingDown);
        }
        for work in self.shared.queue.remove(0..u64::MAX) {
            work.finish(Err(EngineError::ShuttingDown));
        }
    }
}

fn send_to(sender: mpsc::SyncSender<Response>) -> Callback {
    // A receiver that is gone has dropped its ticket too: nobody waits.
    Box::new(move |response| drop(sender.send(response)))
}

impl Shared {
    fn deployment(&self) -> Arc<Deployment> {
        Arc::clone(&self.deployment.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn lock_inbox(&self) -> std::sync::MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn turned_away(&self, error: &EngineError, items: usize) {
        for _ in 0..items {
            self.observers.iter().for_each(|observer| observer.turned_away(&self.config.name, error));
        }
    }

    fn accept(
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
        let group = Group::new(first, charges, deadline, Arc::clone(&self.admission), done);
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
    fn give_up(&self, group: &Group, error: &EngineError) {
        let open = group.finish_open(error);
        if open > 0 {
            self.turned_away(error, open);
            drop(self.queue.remove(group.first..group.first + group.count));
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

    fn tokenize(self: &Arc<Self>) {
        while let Some((group, options, inputs)) = self.next_untokenized() {
            let tokenizer = Arc::clone(&self.deployment().tokenizer);
            let mut works = Vec::with_capacity(inputs.len());
            for (index, input) in inputs {
                if group.is_finished(index) {
                    continue;
                }
                let start = Instant::now();
                match Prepared::new(input, options.clone(), Arc::clone(&tokenizer)) {
                    Ok(item) => {
                        group.recharge(index, item.num_tokens());
                        let (group, queued) = (Arc::clone(&group), Instant::now());
                        works.push(Work { group, index, item: Arc::new(item), queued, tokenize: queued - start });
                    }
                    Err(error) => {
                        self.turned_away(&error, 1);
                        group.finish(index, Err(error));
                    }
                }
            }
            self.queue.push(works);
        }
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

    fn work(self: &Arc<Self>) {
        while let Some(works) = self.queue.next(|| self.deployment().shape().within(self.config.batch_tokens)) {
            let batch = std::panic::AssertUnwindSafe(|| self.run(works));
            // The items of a batch that panicked are answered as they are dropped; the next batch runs.
            let _ = std::panic::catch_unwind(batch);
        }
    }

    fn run(&self, works: Vec<Work>) {
        let start = Instant::now();
        let deployment = self.deployment();
        let mut items = Vec::with_capacity(works.len());
        let mut running = Vec::with_capacity(works.len());
        for work in works {
            if work.group.is_finished(work.index) {
                continue;
            }
            match fit(&work.item, &deployment) {
                Ok(item) => {
                    items.push(item);
                    running.push(work);
                }
                Err(error) => work.finish(Err(error)),
            }
        }
        if running.is_empty() {
            return;
        }
        let options = RunOptions {
            deadline: latest(running.iter().map(|work| work.group.deadline)),
            profile: self.config.profile,
        };
        let run = Run { service: &self.config.name, options, observers: &self.observers };
        let outputs = deployment.run(&items, &run);
        let elapsed = start.elapsed();
        let results: Vec<ItemResult> = outputs
            .into_iter()
            .zip(&running)
            .zip(&items)
            .map(|((output, work), item)| {
                let timing = Timing { tokenize: work.tokenize, queue: start - work.queued, run: elapsed };
                let (tokens, truncated) = (item.num_tokens(), item.tokens.truncated);
                output.map(|output| Answer { output, tokens, truncated, timing, deployment: Arc::clone(&deployment) })
            })
            .collect();
        let oldest_wait = running.iter().map(|work| start - work.queued).max().unwrap_or_default();
        let event = BatchEvent { service: &self.config.name, items: &items, results: &results, oldest_wait, elapsed };
        self.observers.iter().for_each(|observer| observer.batch(&event));
        for (work, result) in running.into_iter().zip(results) {
            work.finish(result);
        }
    }
}

/// The item as the deployment's own tokeniser gives it: an item that waited through a swap to another model is tokenised
/// again.
fn fit(item: &Arc<Prepared>, deployment: &Deployment) -> Result<Arc<Prepared>, EngineError> {
    if Arc::ptr_eq(&item.tokenizer, &deployment.tokenizer) {
        return Ok(Arc::clone(item));
    }
    let tokenizer = Arc::clone(&deployment.tokenizer);
    Prepared::new(item.input.clone(), item.options.clone(), tokenizer).map(Arc::new)
}

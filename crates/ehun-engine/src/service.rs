//! A service: a model, its backends, and the threads between a request and its answer.
//!
//! ```text
//! submit -> admission -> tokeniser threads -> queue (by age and by length) -> workers -> backends in order -> answer
//! ```
//!
//! Tokenising runs beside the backend. A worker takes a batch as soon as it is free, so batches grow with the load and
//! nothing waits for company.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, mpsc};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::deployment::Deployment;
use crate::error::EngineError;
use crate::observe::Observer;
use crate::request::{Callback, Group, Request, Response};
use crate::rollout::Outcome;
use crate::shared::Shared;

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

/// A running service. Dropping it turns away what waits; see [`Service::drain`].
pub struct Service {
    shared: Arc<Shared>,
}

/// A request on its way. Dropping it cancels what has not been answered.
#[must_use = "dropping a ticket cancels its request"]
pub struct Ticket {
    pub(crate) shared: Arc<Shared>,
    pub(crate) group: Arc<Group>,
    pub(crate) kept: bool,
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
        let shared = Arc::new(Shared::new(config, deployment, observers));
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

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The service's name.
    pub fn name(&self) -> &str {
        &self.shared.config.name
    }

    /// How it works.
    pub fn config(&self) -> &ServiceConfig {
        &self.shared.config
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
        let (mut waiting_items, mut oldest_wait) = self.shared.queue.depth();
        let stage = self.shared.rollout.stage();
        if let Some(canary) = stage.as_ref().and_then(|stage| stage.canary.as_ref()) {
            let (items, wait) = canary.queue.depth();
            waiting_items += items;
            oldest_wait = oldest_wait.max(wait);
        }
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
        if let Some(stage) = self.shared.rollout.stage() {
            self.shared.end(&stage, Outcome::Aborted);
        }
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

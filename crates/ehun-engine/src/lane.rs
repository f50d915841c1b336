//! A runner with its health, and the thread hop that lets the engine give up on a call that hangs.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use ehun_backend::{BackendError, RunOptions};

use crate::health::{Health, HealthPolicy, HealthReport, HealthState};
use crate::item::Prepared;
use crate::runner::{ItemOutput, Runner};

type Answer = Result<Vec<ItemOutput>, BackendError>;

struct Call {
    items: Vec<Arc<Prepared>>,
    options: RunOptions,
    reply: mpsc::SyncSender<Answer>,
    /// Set by whoever is done with the call first: its thread, or the one who waits.
    left: Arc<AtomicBool>,
}

/// Calls that nobody waits for any more and that have not come back. With so many the runner is not called again: each
/// holds a thread.
const MOST_ABANDONED: usize = 8;

/// Why a call on a lane gave no outputs.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum LaneError {
    /// The runner said so.
    Runner(BackendError),
    /// It did not come back within the latency limit.
    Hung(Duration),
    /// Too many earlier calls have not come back.
    Stuck(usize),
}

impl std::fmt::Display for LaneError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Runner(error) => error.fmt(f),
            Self::Hung(limit) => write!(f, "no answer within {} ms", limit.as_millis()),
            Self::Stuck(calls) => write!(f, "{calls} earlier calls have not come back"),
        }
    }
}

/// A runner in the order of a service.
pub struct Lane {
    runner: Arc<dyn Runner>,
    policy: HealthPolicy,
    health: Mutex<Health>,
    /// Threads that wait for a call. A call that hangs keeps its thread; the next call gets another.
    idle: Mutex<Vec<mpsc::Sender<Call>>>,
    abandoned: Arc<AtomicUsize>,
}

impl Lane {
    /// `runner` under `policy`.
    pub fn new(runner: Arc<dyn Runner>, policy: HealthPolicy) -> Arc<Self> {
        let health = Mutex::new(Health::new(policy));
        Arc::new(Self { runner, policy, health, idle: Mutex::default(), abandoned: Arc::default() })
    }

    /// The runner's name.
    pub fn name(&self) -> &str {
        self.runner.name()
    }

    /// The runner.
    pub fn runner(&self) -> &Arc<dyn Runner> {
        &self.runner
    }

    /// What is known about it.
    pub fn health(&self) -> HealthReport {
        self.lock().report(Instant::now())
    }

    pub(crate) fn state(&self) -> HealthState {
        self.lock().state()
    }

    pub(crate) fn admits(&self) -> bool {
        self.lock().admits(Instant::now())
    }

    pub(crate) fn succeeded(&self) {
        self.lock().succeeded();
    }

    pub(crate) fn failed(&self, error: &str, fatal: bool) {
        self.lock().failed(error.to_owned(), fatal, Instant::now());
    }

    pub(crate) fn unjudged(&self) {
        self.lock().unjudged(Instant::now());
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `items`, and comes back at the deadline or the latency limit even if the runner does not.
    pub(crate) fn run(&self, items: &[Arc<Prepared>], options: &RunOptions) -> Result<Vec<ItemOutput>, LaneError> {
        let remaining = options.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let wait = match (self.policy.latency_limit, remaining) {
            (None, None) => return checked(self.guarded(items, options), items.len()),
            (Some(limit), Some(remaining)) => limit.min(remaining),
            (limit, remaining) => limit.or(remaining).unwrap_or_default(),
        };
        if remaining.is_some_and(|left| left.is_zero()) {
            return Err(LaneError::Runner(BackendError::Deadline));
        }
        let abandoned = self.abandoned.load(Ordering::SeqCst);
        if abandoned >= MOST_ABANDONED {
            return Err(LaneError::Stuck(abandoned));
        }
        let (reply, answer) = mpsc::sync_channel(1);
        let left = Arc::new(AtomicBool::new(false));
        let executor =
            self.dispatch(Call { items: items.to_vec(), options: *options, reply, left: Arc::clone(&left) })?;
        match answer.recv_timeout(wait) {
            Ok(result) => {
                self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(executor);
                checked(result, items.len())
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {
                self.abandoned.fetch_add(1, Ordering::SeqCst);
                if left.swap(true, Ordering::SeqCst) {
                    // It came back at this very moment.
                    self.abandoned.fetch_sub(1, Ordering::SeqCst);
                }
                match self.policy.latency_limit {
                    Some(limit) if remaining.is_none_or(|left| limit <= left) => Err(LaneError::Hung(limit)),
                    _ => Err(LaneError::Runner(BackendError::Deadline)),
                }
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                Err(LaneError::Runner(BackendError::Panicked("the runner's thread ended".into())))
            }
        }
    }

    fn guarded(&self, items: &[Arc<Prepared>], options: &RunOptions) -> Answer {
        run_guarded(self.runner.as_ref(), items, options)
    }

    /// Hands the call to an idle thread, or to a new one.
    fn dispatch(&self, mut call: Call) -> Result<mpsc::Sender<Call>, LaneError> {
        loop {
            let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let Some(executor) = idle else { break };
            match executor.send(call) {
                Ok(()) => return Ok(executor),
                Err(mpsc::SendError(back)) => call = back,
            }
        }
        let (executor, calls) = mpsc::channel::<Call>();
        let (runner, abandoned) = (Arc::clone(&self.runner), Arc::clone(&self.abandoned));
        let spawned = std::thread::Builder::new().name(format!("run {}", self.name())).spawn(move || {
            while let Ok(call) = calls.recv() {
                let answer = run_guarded(runner.as_ref(), &call.items, &call.options);
                if call.left.swap(true, Ordering::SeqCst) {
                    abandoned.fetch_sub(1, Ordering::SeqCst);
                }
                // Nobody waits any more for an answer that came too late.
                let _ = call.reply.send(answer);
            }
        });
        let failed = |message: String| LaneError::Runner(BackendError::Failed(message));
        spawned.map_err(|error| failed(format!("no thread for the call: {error}")))?;
        executor.send(call).map_err(|_| failed("the runner's thread ended".into()))?;
        Ok(executor)
    }
}

/// A runner may be someone else's code: a panic is an error of the batch, wherever the call runs.
fn run_guarded(runner: &dyn Runner, items: &[Arc<Prepared>], options: &RunOptions) -> Answer {
    let call = std::panic::AssertUnwindSafe(|| runner.run(items, options));
    std::panic::catch_unwind(call).unwrap_or_else(|_| Err(BackendError::Panicked(format!("in {}", runner.name()))))
}

fn checked(answer: Answer, items: usize) -> Result<Vec<ItemOutput>, LaneError> {
    match answer {
        Ok(outputs) if outputs.len() != items => {
            Err(LaneError::Runner(BackendError::Failed(format!("{} answers for {items} items", outputs.len()))))
        }
        other => other.map_err(LaneError::Runner),
    }
}

//! Runs answered items again on another deployment, beside the traffic, and compares.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use ehun_backend::RunOptions;

use crate::deployment::{Deployment, Run};
use crate::item::Prepared;
use crate::observe::{BatchEvent, Observer};
use crate::rollout::Share;
use crate::rollout::compare::{Figures, Measure, Pair, Tally};
use crate::runner::ItemOutput;
use crate::shared::fit;

/// How long the other side may take for a batch; what takes longer counts as refused.
const PATIENCE: Duration = Duration::from_secs(30);

/// An answered item that waits to be run again.
struct Mirrored {
    item: Arc<Prepared>,
    request: u64,
    output: ItemOutput,
    /// Its part of the batch's time, by tokens.
    seconds: f64,
}

/// Counters that the thread and those who look at it share.
struct Ledger {
    tally: Mutex<Tally>,
    /// Tokens that wait, at most `limit`.
    waiting: AtomicUsize,
    limit: usize,
    /// What still waits is of no more use.
    closed: AtomicBool,
}

/// Which side was asked first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum First {
    /// The candidate runs what the baseline answered.
    Baseline,
    /// The baseline runs what the candidate answered.
    Candidate,
}

/// An [`Observer`] with a bounded queue and a thread behind it. Ends when it is dropped.
pub(crate) struct Mirror {
    sender: Mutex<mpsc::Sender<Vec<Mirrored>>>,
    ledger: Arc<Ledger>,
    share: Share,
}

/// What the mirror's thread asks for each batch: where to run it, and whom to tell when it was compared.
pub(crate) trait Other: Send + 'static {
    /// The deployment; `None` ends the thread.
    fn deployment(&self) -> Option<Arc<Deployment>>;

    /// Called after each comparison.
    fn compared(&self);
}

impl Mirror {
    /// Starts the thread. At most `limit` tokens wait.
    pub(crate) fn start(
        share: Share,
        limit: usize,
        first: First,
        measure: Measure,
        other: impl Other,
    ) -> std::io::Result<Self> {
        let (sender, receiver) = mpsc::channel::<Vec<Mirrored>>();
        let (waiting, closed) = (AtomicUsize::new(0), AtomicBool::new(false));
        let ledger = Arc::new(Ledger { tally: Mutex::default(), waiting, limit, closed });
        let books = Arc::clone(&ledger);
        std::thread::Builder::new().name("mirror".to_owned()).spawn(move || {
            while let Ok(batch) = receiver.recv() {
                let closed = books.closed.load(Ordering::SeqCst);
                let Some(deployment) = other.deployment().filter(|_| !closed) else { break };
                let work = std::panic::AssertUnwindSafe(|| books.compare(&batch, &deployment, first, measure));
                // A comparison that panics costs its batch: the traffic does not know of it.
                let _ = std::panic::catch_unwind(work);
                books.waiting.fetch_sub(tokens(&batch), Ordering::SeqCst);
                drop((batch, deployment));
                other.compared();
            }
        })?;
        Ok(Self { sender: Mutex::new(sender), ledger, share })
    }

    pub(crate) fn figures(&self) -> Figures {
        self.ledger.lock().figures()
    }
}

fn tokens(batch: &[Mirrored]) -> usize {
    batch.iter().map(|mirrored| mirrored.item.num_tokens().max(1)).sum()
}

impl Drop for Mirror {
    fn drop(&mut self) {
        self.ledger.closed.store(true, Ordering::SeqCst);
    }
}

impl Observer for Mirror {
    fn batch(&self, event: &BatchEvent<'_>) {
        let all: usize = event.items.iter().map(|item| item.num_tokens().max(1)).sum();
        let by_token = event.elapsed.as_secs_f64() / all.max(1) as f64;
        let mut batch = Vec::new();
        for ((item, result), &request) in event.items.iter().zip(event.results).zip(event.requests) {
            if let (Ok(answer), true) = (result, self.share.takes(request)) {
                let seconds = by_token * item.num_tokens().max(1) as f64;
                batch.push(Mirrored { item: Arc::clone(item), request, output: answer.output.clone(), seconds });
            }
        }
        if batch.is_empty() {
            return;
        }
        let tokens = tokens(&batch);
        // A batch larger than the limit is taken where nothing else waits: else it could never be compared.
        let room = |waiting: usize| (waiting == 0 || waiting + tokens <= self.ledger.limit).then(|| waiting + tokens);
        let taken = self.ledger.waiting.fetch_update(Ordering::SeqCst, Ordering::SeqCst, room).is_ok();
        let mut tally = self.ledger.lock();
        tally.mirrored += batch.len() as u64;
        if !taken {
            tally.dropped += batch.len() as u64;
            return;
        }
        drop(tally);
        // A thread that has ended compares nothing any more; its candidate is on its way out.
        let _ = self.sender.lock().unwrap_or_else(PoisonError::into_inner).send(batch);
    }
}

impl Ledger {
    fn lock(&self) -> std::sync::MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn compare(&self, batch: &[Mirrored], deployment: &Deployment, first: First, measure: Measure) {
        let mut places = Vec::with_capacity(batch.len());
        let mut items = Vec::with_capacity(batch.len());
        for (place, mirrored) in batch.iter().enumerate() {
            match fit(&mirrored.item, deployment) {
                Ok(item) => {
                    places.push(place);
                    items.push(item);
                }
                Err(error) => self.lock().refuse(&error),
            }
        }
        let start = Instant::now();
        let options = RunOptions { deadline: Some(start + PATIENCE), profile: false };
        let outputs = deployment.run(&items, &Run { service: "mirror", options, observers: &[] });
        let elapsed = start.elapsed().as_secs_f64();
        let before: f64 = places.iter().map(|&place| batch[place].seconds).sum();
        let mut pairs = Vec::with_capacity(batch.len());
        let mut tally = self.lock();
        for (&place, output) in places.iter().zip(&outputs) {
            let mirrored = &batch[place];
            match output {
                Ok(other) => {
                    let (baseline, candidate) = match first {
                        First::Baseline => (&mirrored.output, other),
                        First::Candidate => (other, &mirrored.output),
                    };
                    pairs.push(Pair { item: &mirrored.item, request: mirrored.request, baseline, candidate });
                }
                Err(error) => tally.refuse(error),
            }
        }
        if pairs.len() == batch.len() {
            match first {
                First::Baseline => tally.time(before, elapsed),
                First::Candidate => tally.time(elapsed, before),
            }
        }
        tally.add(measure, &pairs);
    }
}

//! Tokenised items that wait for a batch: in the order of their arrival, and by length.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::error::EngineError;
use crate::item::Prepared;
use crate::request::{Group, ItemResult};
use crate::shape::{Shape, companions};

/// An item on its way. Whatever becomes of it, it is answered: at the latest when it is dropped.
pub(crate) struct Work {
    pub(crate) group: Arc<Group>,
    pub(crate) index: usize,
    pub(crate) item: Arc<Prepared>,
    pub(crate) queued: Instant,
    pub(crate) tokenize: Duration,
}

impl Work {
    fn number(&self) -> u64 {
        self.group.first + self.index as u64
    }

    pub(crate) fn finish(self, result: ItemResult) {
        self.group.finish(self.index, result);
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let lost = || EngineError::Unavailable(Arc::from(["the thread that ran the batch ended".to_owned()]));
        if !self.group.is_finished(self.index) {
            self.group.finish(self.index, Err(lost()));
        }
    }
}

#[derive(Default)]
struct Waiting {
    by_age: BTreeMap<u64, Work>,
    by_length: BTreeSet<(usize, u64)>,
    closed: bool,
}

#[derive(Default)]
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

impl Queue {
    fn lock(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds items. After [`Queue::close`] they are answered with [`EngineError::ShuttingDown`].
    pub(crate) fn push(&self, works: Vec<Work>) {
        if let Err(works) = self.try_push(works) {
            works.into_iter().for_each(|work| work.finish(Err(EngineError::ShuttingDown)));
        }
    }

    /// Adds items. After [`Queue::close`] they are given back.
    pub(crate) fn try_push(&self, works: Vec<Work>) -> Result<(), Vec<Work>> {
        let mut waiting = self.lock();
        if waiting.closed {
            return Err(works);
        }
        for work in works {
            waiting.by_length.insert((work.item.num_tokens(), work.number()));
            waiting.by_age.insert(work.number(), work);
        }
        drop(waiting);
        self.changed.notify_all();
        Ok(())
    }

    /// The next batch: the oldest item and what fits with it. Waits for one; `None` once the queue is closed and empty.
    pub(crate) fn next(&self, shape: impl Fn() -> Shape) -> Option<Vec<Work>> {
        let mut waiting = self.lock();
        loop {
            if let Some((&number, work)) = waiting.by_age.first_key_value() {
                let oldest = (work.item.num_tokens(), number);
                let chosen = companions(&waiting.by_length, oldest, &shape());
                return Some(chosen.into_iter().filter_map(|number| waiting.take(number)).collect());
            }
            if waiting.closed {
                return None;
            }
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes the items with these numbers out; whoever calls answers them.
    pub(crate) fn remove(&self, numbers: Range<u64>) -> Vec<Work> {
        let mut waiting = self.lock();
        let found: Vec<u64> = waiting.by_age.range(numbers).map(|(&number, _)| number).collect();
        found.into_iter().filter_map(|number| waiting.take(number)).collect()
    }

    /// Lets nothing more in and wakes those who wait.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Number of waiting items, and for how long the oldest has waited.
    pub(crate) fn depth(&self) -> (usize, Duration) {
        let waiting = self.lock();
        let age = waiting.by_age.first_key_value().map(|(_, work)| work.queued.elapsed());
        (waiting.by_age.len(), age.unwrap_or_default())
    }
}

impl Waiting {
    fn take(&mut self, number: u64) -> Option<Work> {
        let work = self.by_age.remove(&number)?;
        self.by_length.remove(&(work.item.num_tokens(), number));
        Some(work)
    }
}

//! The bound on what waits: tokens that are in the service, from the request's arrival to its answer.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

use crate::error::EngineError;

#[derive(Debug)]
pub(crate) struct Admission {
    limit: usize,
    used: Mutex<usize>,
    freed: Condvar,
}

impl Admission {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, used: Mutex::new(0), freed: Condvar::new() }
    }

    pub(crate) fn used(&self) -> usize {
        *self.lock()
    }

    /// A request larger than the whole limit is let in where nothing else is in: else it could never be.
    fn fits(&self, used: usize, tokens: usize) -> bool {
        used == 0 || used + tokens <= self.limit
    }

    pub(crate) fn try_acquire(&self, tokens: usize) -> Result<(), EngineError> {
        let mut used = self.lock();
        if !self.fits(*used, tokens) {
            return Err(EngineError::QueueFull { waiting: *used, limit: self.limit });
        }
        *used += tokens;
        Ok(())
    }

    /// Waits until there is room.
    pub(crate) fn acquire(&self, tokens: usize, deadline: Option<Instant>) -> Result<(), EngineError> {
        let mut used = self.lock();
        while !self.fits(*used, tokens) {
            used = match deadline {
                None => self.freed.wait(used).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(EngineError::Deadline);
                    }
                    self.freed.wait_timeout(used, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        *used += tokens;
        Ok(())
    }

    pub(crate) fn adjust(&self, before: usize, after: usize) {
        let mut used = self.lock();
        *used = *used + after - before;
        drop(used);
        if after < before {
            self.freed.notify_all();
        }
    }

    pub(crate) fn release(&self, tokens: usize) {
        *self.lock() -= tokens;
        self.freed.notify_all();
    }

    /// Waits until nothing is in the service. `false` where it takes longer than until `deadline`.
    pub(crate) fn wait_empty(&self, deadline: Instant) -> bool {
        let mut used = self.lock();
        while *used > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            used = self.freed.wait_timeout(used, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, usize> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

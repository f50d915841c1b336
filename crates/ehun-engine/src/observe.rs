//! What a service tells those who watch: metrics, logs, a shadow that runs the same items elsewhere.

use std::sync::Arc;
use std::time::Duration;

use crate::error::EngineError;
use crate::health::HealthState;
use crate::item::Prepared;
use crate::request::Answer;

/// A batch that has been run.
#[derive(Debug)]
pub struct BatchEvent<'a> {
    /// The service.
    pub service: &'a str,
    /// The items, in the order of `results`.
    pub items: &'a [Arc<Prepared>],
    /// The number of the request that each item belongs to.
    pub requests: &'a [u64],
    /// What each got. An answer names its backend in its report.
    pub results: &'a [Result<Answer, EngineError>],
    /// How long the oldest item of the batch had waited.
    pub oldest_wait: Duration,
    /// Time from the start of the batch to its end, failed tries included.
    pub elapsed: Duration,
}

/// Watches a service. Called on the thread that runs batches, between them: return quickly.
pub trait Observer: Send + Sync {
    /// A batch was run. Called before the requests are answered.
    fn batch(&self, event: &BatchEvent<'_>) {
        let _ = event;
    }

    /// A backend failed in a batch, which then goes to the next.
    fn failure(&self, service: &str, backend: &str, error: &str) {
        let _ = (service, backend, error);
    }

    /// The health of a backend changed.
    fn health(&self, service: &str, backend: &str, from: HealthState, to: HealthState) {
        let _ = (service, backend, from, to);
    }

    /// An item was answered without a batch: refused, cancelled, too late, or not tokenisable.
    fn turned_away(&self, service: &str, error: &EngineError) {
        let _ = (service, error);
    }
}

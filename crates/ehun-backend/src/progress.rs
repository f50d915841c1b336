//! How far a backend is that compiles programs before it is ready.

use std::sync::Arc;
use std::time::Duration;

use crate::executable::Bucket;

/// How far the programs of a model are; told before each program and at the end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// Programs that are ready.
    pub done: usize,
    /// Programs in all.
    pub total: usize,
    /// Time since the start.
    pub elapsed: Duration,
    /// The shape that is next.
    pub next: Option<Bucket>,
}

impl Progress {
    /// Time that is left if the rest is like what was.
    pub fn left(&self) -> Option<Duration> {
        (self.done > 0).then(|| self.elapsed * (self.total - self.done) as u32 / self.done as u32)
    }
}

impl std::fmt::Display for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "program {} of {}", (self.done + 1).min(self.total), self.total)?;
        match (self.next, self.left()) {
            (Some(next), Some(left)) => write!(f, ", {next}, about {:.0} s left", left.as_secs_f64()),
            (Some(next), None) => write!(f, ", {next}"),
            (None, _) => write!(f, " ready after {:.1} s", self.elapsed.as_secs_f64()),
        }
    }
}

/// Told about progress.
pub type OnProgress = Arc<dyn Fn(Progress) + Send + Sync>;

//! What can go wrong, by kind: the engine decides by the kind what to do next.

use serde::{Deserialize, Serialize};

/// Why a backend does not do something: the operation, the limit, and what was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Label of the operation (`encoder.layer.0.attention.self`), or `graph`, or `options`.
    pub operation: String,
    /// The limit and what was asked for, with what would be accepted: `head width 320 is above 256`.
    pub reason: String,
}

impl Refusal {
    /// A refusal of `operation` because of `reason`.
    pub fn new(operation: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { operation: operation.into(), reason: reason.into() }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.operation, self.reason)
    }
}

fn list(refusals: &[Refusal]) -> String {
    refusals.iter().map(Refusal::to_string).collect::<Vec<_>>().join("; ")
}

/// An error of a backend.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BackendError {
    /// The graph or the options cannot be done. Another backend may.
    #[error("refused: {}", list(.0))]
    Refused(Vec<Refusal>),
    /// The batch does not fit the model. No backend can run it.
    #[error("invalid input: {0}")]
    InvalidInput(#[from] ehun_graph::GraphError),
    /// Not enough memory. A smaller batch or another backend may do.
    #[error("out of memory on {device}: {message}")]
    OutOfMemory {
        /// The device.
        device: String,
        /// Needed and available, as far as known.
        message: String,
    },
    /// The device or its process is gone. The executable is of no more use.
    #[error("device lost: {0}")]
    DeviceLost(String),
    /// The deadline of the run had passed.
    #[error("deadline passed")]
    Deadline,
    /// The backend panicked in this batch; caught by [`crate::run`].
    #[error("panic in the backend: {0}")]
    Panicked(String),
    /// Anything else that the runtime below reported, in its words.
    #[error("{0}")]
    Failed(String),
}

impl BackendError {
    /// Whether another backend could answer the same batch.
    pub fn another_may_do(&self) -> bool {
        !matches!(self, Self::InvalidInput(_) | Self::Deadline)
    }
}

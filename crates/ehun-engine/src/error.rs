//! Why an item got no answer.

use std::sync::Arc;

/// An error of one item. Cheap to clone: one failed batch answers many items.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum EngineError {
    /// The item itself is wrong: empty where that is not allowed, too long where cutting was refused, a token outside the
    /// vocabulary. Sending it again gives the same answer.
    #[error("invalid input: {0}")]
    Invalid(Arc<str>),
    /// The queue is full. Try again when some of it is done.
    #[error("the queue is full: {waiting} tokens wait and the limit is {limit}; try again later or raise the limit")]
    QueueFull {
        /// Tokens that wait or run.
        waiting: usize,
        /// The limit.
        limit: usize,
    },
    /// The deadline passed before there was an answer.
    #[error("no answer before the deadline")]
    Deadline,
    /// The request was dropped by the one who made it.
    #[error("cancelled")]
    Cancelled,
    /// No backend answered; one reason for each.
    #[error("no backend answered: {}", .0.join("; "))]
    Unavailable(Arc<[String]>),
    /// Every backend answered with NaN or infinite values for this item.
    #[error("the model's answer is not a finite number on {backend}; the input or the weights are out of range")]
    NotFinite {
        /// The backend that was asked last.
        backend: Arc<str>,
    },
    /// The answer has not the form that the task needs.
    #[error("the model's answer does not fit the task: {0}")]
    Answer(Arc<str>),
    /// The service is being shut down.
    #[error("the service is shutting down")]
    ShuttingDown,
}

impl EngineError {
    /// An [`EngineError::Invalid`] in one call.
    pub fn invalid(message: impl std::fmt::Display) -> Self {
        Self::Invalid(message.to_string().into())
    }

    /// Whether the fault is in the item, so that another item may well succeed.
    pub fn is_of_the_item(&self) -> bool {
        matches!(self, Self::Invalid(_) | Self::NotFinite { .. } | Self::Answer(_))
    }

    /// A short stable name, for counters and columns.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Invalid(_) => "invalid",
            Self::QueueFull { .. } => "queue_full",
            Self::Deadline => "deadline",
            Self::Cancelled => "cancelled",
            Self::Unavailable(_) => "unavailable",
            Self::NotFinite { .. } => "not_finite",
            Self::Answer(_) => "answer",
            Self::ShuttingDown => "shutting_down",
        }
    }
}

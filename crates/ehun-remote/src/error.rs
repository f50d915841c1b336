//! Why a service elsewhere cannot be used at all, and why a call to it gave nothing.

use std::time::Duration;

use ehun_backend::{BackendError, Refusal};
use ehun_models::Task;

/// Why an address cannot be a backend.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// The address is not one.
    #[error("`{address}` is not the address of a backend: {reason}")]
    Address {
        /// What was given.
        address: String,
        /// What is wrong, and what would be right.
        reason: String,
    },
    /// The protocol has no words for the task.
    #[error("{protocol} cannot answer a service with the task {task}; it answers {possible}")]
    Task {
        /// The protocol.
        protocol: &'static str,
        /// The service's task.
        task: Task,
        /// What it can answer.
        possible: &'static str,
    },
    /// A file that the address names.
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Something of this machine: threads, TLS.
    #[error("{0}")]
    Setup(String),
}

/// Why a call gave no answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Failure {
    /// There is no connection: nobody listens, or the name is not known.
    Connect(String),
    /// The connection was cut before the whole answer was there.
    Cut(String),
    /// No answer within this time.
    Timeout(Duration),
    /// The service said no.
    Status { status: u16, excerpt: String },
    /// The service answered something that is no answer.
    Answer(String),
}

impl Failure {
    /// In the engine's words: they decide whether the service is given a rest, and whether another backend is asked.
    pub(crate) fn into_backend(self, deadline_passed: bool) -> BackendError {
        match self {
            Self::Connect(message) => BackendError::DeviceLost(message),
            Self::Timeout(_) if deadline_passed => BackendError::Deadline,
            Self::Timeout(limit) => BackendError::Failed(format!("no answer within {} ms", limit.as_millis())),
            Self::Cut(message) => BackendError::Failed(format!("the connection was cut: {message}")),
            // The request is what it does not like: others may still be answered, and another backend may answer this one.
            Self::Status { status: status @ (400 | 413 | 422), excerpt } => {
                BackendError::Refused(vec![Refusal::new("request", format!("status {status}: {excerpt}"))])
            }
            Self::Status { status, excerpt } => BackendError::Failed(format!("status {status}: {excerpt}")),
            Self::Answer(message) => BackendError::Failed(format!("the answer is of no use: {message}")),
        }
    }
}

/// The beginning of a body, for a message.
pub(crate) fn excerpt(body: &[u8]) -> String {
    const MOST: usize = 200;
    let text = String::from_utf8_lossy(body);
    let shown: String = text.chars().take(MOST).map(|c| if c.is_control() { ' ' } else { c }).collect();
    match shown.trim() {
        "" => "no body".to_owned(),
        text => text.to_owned(),
    }
}

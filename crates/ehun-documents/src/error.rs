//! Why a document gave no text.

use serde::{Deserialize, Serialize};

/// Which bound of [`Limits`](crate::Limits) was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Limit {
    /// `text_bytes`
    TextBytes,
    /// `child_bytes`
    ChildBytes,
    /// `nesting`
    Nesting,
    /// `archive_entries`
    ArchiveEntries,
    /// `unpacked_bytes`
    UnpackedBytes,
    /// `compression_ratio`
    CompressionRatio,
    /// The frame that a worker may answer with (follows from `text_bytes` and `child_bytes`).
    OutputBytes,
}

impl Limit {
    /// The field of [`Limits`](crate::Limits) to raise.
    pub fn name(self) -> &'static str {
        match self {
            Limit::TextBytes => "text_bytes",
            Limit::ChildBytes => "child_bytes",
            Limit::Nesting => "nesting",
            Limit::ArchiveEntries => "archive_entries",
            Limit::UnpackedBytes => "unpacked_bytes",
            Limit::CompressionRatio => "compression_ratio",
            Limit::OutputBytes => "output_bytes",
        }
    }
}

/// Why a document gave no text. Every variant crosses the pipe from a worker unchanged.
#[derive(Debug, Clone, PartialEq, thiserror::Error, Serialize, Deserialize)]
pub enum DocumentError {
    /// Nothing in it, or nothing but whitespace.
    #[error("the document is empty: there is no text to process; remove it or check how it was written")]
    Empty,
    /// A password is needed.
    #[error("the {format} is encrypted: save a copy without the password and process that")]
    Encrypted {
        /// The format, in words.
        format: String,
    },
    /// The bytes break the format's rules beyond repair.
    #[error("malformed {format}: {reason}; open it in its own application and save it again")]
    Malformed {
        /// The format, in words.
        format: String,
        /// What was wrong and where.
        reason: String,
    },
    /// A format that nothing here reads.
    #[error("{format} is not supported: convert it to a supported format (see the list of formats in docs/)")]
    Unsupported {
        /// The format, in words.
        format: String,
    },
    /// An image or a scan: there is no text layer.
    #[error("{format} has no text layer and needs OCR: run an OCR tool over it and process its output")]
    NeedsOcr {
        /// The format, in words.
        format: String,
    },
    /// The input is larger than the limit.
    #[error("the file has {bytes} bytes and the limit is {limit}: raise the input limit or split the file")]
    TooLarge {
        /// Size of the input.
        bytes: u64,
        /// The limit, `input_bytes`.
        limit: u64,
    },
    /// A bound that protects against bombs was reached.
    #[error("the limit {} = {value} was exceeded: if the file is trustworthy, raise it", limit.name())]
    LimitExceeded {
        /// Which bound.
        limit: Limit,
        /// Its value.
        value: u64,
    },
    /// The worker ran out of wall or CPU time and was killed.
    #[error(
        "no result after {seconds:.1} s of {clock} time: the worker was killed; raise the time limit if the file is worth it"
    )]
    Timeout {
        /// The limit that was reached.
        seconds: f64,
        /// `wall` or `CPU`.
        clock: String,
    },
    /// The worker ran out of memory.
    #[error("more than {limit} bytes of memory needed: raise the memory limit of workers or split the file")]
    OutOfMemory {
        /// The limit, bytes.
        limit: u64,
    },
    /// The worker died or broke the protocol.
    #[error("the parser crashed ({reason}): the file is skipped; please report it with the file if you can share it")]
    WorkerCrashed {
        /// Signal, exit status, panic message or protocol fault.
        reason: String,
    },
    /// A worker could not be started.
    #[error(
        "cannot start a parse worker ({reason}): check that the program may start itself and that processes are available"
    )]
    WorkerUnavailable {
        /// What the system said.
        reason: String,
    },
    /// Reading the input failed.
    #[error("cannot read {path}: {reason}")]
    Io {
        /// The file.
        path: String,
        /// What the system said.
        reason: String,
    },
}

impl DocumentError {
    /// A short stable name, for counters and for a column of the output.
    pub fn code(&self) -> &'static str {
        match self {
            DocumentError::Empty => "empty",
            DocumentError::Encrypted { .. } => "encrypted",
            DocumentError::Malformed { .. } => "malformed",
            DocumentError::Unsupported { .. } => "unsupported",
            DocumentError::NeedsOcr { .. } => "needs_ocr",
            DocumentError::TooLarge { .. } => "too_large",
            DocumentError::LimitExceeded { .. } => "limit_exceeded",
            DocumentError::Timeout { .. } => "timeout",
            DocumentError::OutOfMemory { .. } => "out_of_memory",
            DocumentError::WorkerCrashed { .. } => "worker_crashed",
            DocumentError::WorkerUnavailable { .. } => "worker_unavailable",
            DocumentError::Io { .. } => "io",
        }
    }

    /// A [`DocumentError::Malformed`] in one call.
    pub fn malformed(format: &str, reason: impl std::fmt::Display) -> Self {
        DocumentError::Malformed { format: format.to_owned(), reason: reason.to_string() }
    }

    /// A [`DocumentError::Unsupported`] in one call.
    pub fn unsupported(format: &str) -> Self {
        DocumentError::Unsupported { format: format.to_owned() }
    }
}

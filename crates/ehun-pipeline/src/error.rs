//! Why a job or a search stopped. A document that fails does not stop a job: it is a row of the output.

use std::path::PathBuf;

use ehun_engine::EngineError;

/// An error of a whole job or search. Each message names the file and says what to do.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// A file or folder could not be read or written.
    #[error("{path}: cannot {action}: {source}{}", advice(.source))]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// An input does not exist.
    #[error("{path}: no such file or folder; check the spelling")]
    NoInput {
        /// As it was given.
        path: PathBuf,
    },
    /// A Parquet or Arrow file could not be read or written.
    #[error("{path}: {message}{}", if disk_is_full(.message) { FULL } else { "" })]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong and what to do.
        message: String,
    },
    /// Another run holds the folder.
    #[error("{folder} is in use by another run of this command; wait for it to end, or give another folder")]
    Locked {
        /// The output folder.
        folder: PathBuf,
    },
    /// The folder's dataset is not one that this job could go on with.
    #[error("{folder}: {reason}")]
    Conflict {
        /// The output folder.
        folder: PathBuf,
        /// Why, and what to do.
        reason: String,
    },
    /// The settings cannot be worked with.
    #[error("{0}")]
    Settings(String),
    /// No backend answers any more; what is done is kept.
    #[error("{0}; what is done is kept, the same command goes on from there")]
    Engine(EngineError),
    /// The parse workers could not be started.
    #[error("{0}")]
    Workers(#[from] ehun_documents::DocumentError),
}

const FULL: &str = "; the disk is full: free some space and run the same command again, what is done is kept";

fn disk_is_full(message: &str) -> bool {
    message.contains("No space left") || message.contains("os error 28")
}

fn advice(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => FULL,
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
            "; give a folder that you may write to, or change its permissions"
        }
        _ => "",
    }
}

impl JobError {
    /// An [`JobError::Io`] of `path`, for `map_err`.
    pub(crate) fn io(path: impl Into<PathBuf>, action: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, action, source }
    }

    /// A [`JobError::File`] of `path`, for `map_err`.
    pub(crate) fn file<E: std::fmt::Display>(path: impl Into<PathBuf>) -> impl FnOnce(E) -> Self {
        let path = path.into();
        move |error| Self::File { path, message: error.to_string() }
    }
}

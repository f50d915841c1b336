//! What the two processes say to each other.

use ehun_conformance::{Check, ConformOptions, Group, Report};
use serde::{Deserialize, Serialize};

/// What the child is to do, on its standard input.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Job {
    /// Name of the backend.
    pub backend: String,
    /// What is tried on it.
    pub options: ConformOptions,
    /// Whether attention of the CPU backend runs between guard pages.
    pub guard: bool,
    /// What the child's messages begin with, so that nothing a plug-in prints can be taken for one.
    pub mark: String,
}

/// What the child says, a line each on its standard output.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// The backend is open.
    Opened {
        /// Its name.
        backend: String,
        /// The device.
        device: String,
        /// Version of the runtime.
        version: String,
    },
    /// The backend is not to be had, for this reason.
    Unavailable(ehun_backend::Unavailable),
    /// A check begins.
    Begun(Group, String),
    /// A check is done.
    Done(Box<Check>),
    /// All are.
    Report(Box<Report>),
}

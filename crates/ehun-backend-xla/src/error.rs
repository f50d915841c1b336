//! What can go wrong before there is a backend.

use crate::pjrt::{PjrtError, PluginError};

/// An error of this crate outside the contract's own.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum XlaError {
    /// The plugin cannot be used.
    #[error(transparent)]
    Plugin(#[from] PluginError),
    /// The plugin reported an error.
    #[error(transparent)]
    Pjrt(#[from] PjrtError),
    /// Something is not here that compiling ahead of time needs.
    #[error("compiling for {platform} without its device needs what is not here: {}", missing.join("; "))]
    Missing {
        /// `cuda`.
        platform: String,
        /// What is missing, each with where it was looked for.
        missing: Vec<String>,
    },
    /// What to compile for is not known, or not described in full.
    #[error("target `{name}`: {reason}")]
    Target {
        /// The target as it was asked for.
        name: String,
        /// Why it cannot be compiled for.
        reason: String,
    },
    /// The options cannot be done.
    #[error("refused: {0}")]
    Refused(String),
}

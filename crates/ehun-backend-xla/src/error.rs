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
    /// The options cannot be done.
    #[error("refused: {0}")]
    Refused(String),
}

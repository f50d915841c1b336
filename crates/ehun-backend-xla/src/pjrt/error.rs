//! What a plugin reports, and what can be wrong with a file that should be one.

use std::path::PathBuf;

use ehun_backend::BackendError;

use super::sys;

/// An error that a plugin returned from one of its functions.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {message} (code {code})")]
pub struct PjrtError {
    /// The function of the interface.
    pub call: &'static str,
    /// The code, one of `PJRT_Error_Code`, which are those of gRPC.
    pub code: u32,
    /// The plugin's words.
    pub message: String,
}

impl PjrtError {
    /// The error of the contract for this one, on `device`.
    pub fn on_device(&self, device: &str) -> BackendError {
        match self.code {
            sys::PJRT_Error_Code_RESOURCE_EXHAUSTED => {
                BackendError::OutOfMemory { device: device.to_owned(), message: self.message.clone() }
            }
            sys::PJRT_Error_Code_UNAVAILABLE | sys::PJRT_Error_Code_DATA_LOSS | sys::PJRT_Error_Code_ABORTED => {
                BackendError::DeviceLost(format!("{device}: {self}"))
            }
            _ => BackendError::Failed(format!("{device}: {self}")),
        }
    }
}

/// Why a file cannot be used as a plugin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PluginError {
    /// There is no plugin for the platform.
    #[error(
        "no PJRT plugin for {platform}: {variable} is not set and {folder} has no .so file; `ehun backends install xla:{platform}` gets one"
    )]
    NotFound {
        /// `cpu`, `tpu` or `cuda`.
        platform: String,
        /// The environment variable that would name one.
        variable: String,
        /// The folder that was looked into.
        folder: PathBuf,
    },
    /// The file cannot be read.
    #[error("{path}: {reason}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// The file is no shared library.
    #[error("{path} is no shared library: {reason}")]
    NotALibrary {
        /// The file.
        path: PathBuf,
        /// What it is instead.
        reason: String,
    },
    /// The file is a shared library for another machine.
    #[error("{path} is built for {found}, this machine needs {expected}")]
    WrongArchitecture {
        /// The file.
        path: PathBuf,
        /// What it is built for.
        found: String,
        /// What would be needed.
        expected: String,
    },
    /// The file is cut short.
    #[error("{path} is cut short: its header speaks of {expected} bytes, it has {found}; install it again")]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Bytes that the header asks for.
        expected: u64,
        /// Bytes that are there.
        found: u64,
    },
    /// The system's loader refused the file.
    #[error("{path} cannot be loaded: {reason}")]
    Load {
        /// The file.
        path: PathBuf,
        /// The loader's words.
        reason: String,
    },
    /// The library is no PJRT plugin.
    #[error("{path} is no PJRT plugin: {reason}")]
    NotAPlugin {
        /// The file.
        path: PathBuf,
        /// What is missing.
        reason: String,
    },
    /// The plugin's interface is older than what is needed here.
    #[error("{path} has PJRT interface {found}, at least 0.{needed} is needed; install a newer plugin")]
    TooOld {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: String,
        /// The least minor version.
        needed: i32,
    },
    /// The plugin was loaded but could not be initialised or has no device.
    #[error("{path} was loaded, but {source}")]
    Start {
        /// The file.
        path: PathBuf,
        /// The plugin's words.
        source: PjrtError,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_errors_of_the_contract() {
        let error = |code| PjrtError { call: "PJRT_F", code, message: "words".to_owned() }.on_device("chip");
        let out_of_memory = BackendError::OutOfMemory { device: "chip".to_owned(), message: "words".to_owned() };
        assert_eq!(error(sys::PJRT_Error_Code_RESOURCE_EXHAUSTED), out_of_memory);
        for code in [sys::PJRT_Error_Code_UNAVAILABLE, sys::PJRT_Error_Code_DATA_LOSS, sys::PJRT_Error_Code_ABORTED] {
            assert!(matches!(error(code), BackendError::DeviceLost(text) if text.contains("words")));
        }
        for code in [sys::PJRT_Error_Code_INTERNAL, sys::PJRT_Error_Code_INVALID_ARGUMENT, 999] {
            assert!(
                matches!(error(code), BackendError::Failed(text) if text.contains("chip") && text.contains("words"))
            );
        }
    }
}

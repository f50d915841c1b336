//! Backends by name.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::backend::{Backend, BackendInfo};

/// Why a backend is not to be had on this machine, and what would change that.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("backend `{name}` is not available: {reason}")]
pub struct Unavailable {
    /// The name that was asked for.
    pub name: String,
    /// The reason, with what to do.
    pub reason: String,
}

impl Unavailable {
    /// `name` is not to be had because of `reason`.
    pub fn new(name: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { name: name.into(), reason: reason.into() }
    }
}

/// Opens backends of one kind.
pub trait BackendFactory: Send + Sync {
    /// The names that this factory knows, available here or not: `["xla:cpu", "xla:tpu", "xla:cuda"]`.
    fn names(&self) -> Vec<String>;

    /// Whether `name` is one of this factory's, also under another name than the one that it lists.
    fn knows(&self, name: &str) -> bool {
        self.names().iter().any(|known| known == name)
    }

    /// Opens the backend `name`, one that it knows.
    fn open(&self, name: &str) -> Result<Arc<dyn Backend>, Unavailable>;
}

/// A line of `ehun backends`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackendStatus {
    /// The name.
    pub name: String,
    /// What it is, where it could be opened.
    pub info: Option<BackendInfo>,
    /// Why it could not.
    pub unavailable: Option<String>,
}

/// All backends that this program was built with.
#[derive(Default)]
pub struct Registry {
    factories: Vec<Box<dyn BackendFactory>>,
}

impl Registry {
    /// A registry without backends.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the backends of a factory.
    pub fn with(mut self, factory: impl BackendFactory + 'static) -> Self {
        self.factories.push(Box::new(factory));
        self
    }

    /// All names, in the order of registration.
    pub fn names(&self) -> Vec<String> {
        self.factories.iter().flat_map(|factory| factory.names()).collect()
    }

    /// Whether `name` is a backend of this program, to be had here or not.
    pub fn knows(&self, name: &str) -> bool {
        self.factories.iter().any(|factory| factory.knows(name))
    }

    /// Opens the backend `name`.
    pub fn open(&self, name: &str) -> Result<Arc<dyn Backend>, Unavailable> {
        match self.factories.iter().find(|factory| factory.knows(name)) {
            Some(factory) => factory.open(name),
            None => {
                let reason = format!("this program was built with {}", self.names().join(", "));
                Err(Unavailable::new(name, reason))
            }
        }
    }

    /// Tries to open every backend and says what came of it.
    pub fn status(&self) -> Vec<BackendStatus> {
        let one = |name: String| match self.open(&name) {
            Ok(backend) => BackendStatus { name, info: Some(backend.info()), unavailable: None },
            Err(error) => BackendStatus { name, info: None, unavailable: Some(error.reason) },
        };
        self.names().into_iter().map(one).collect()
    }
}

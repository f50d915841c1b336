//! A service whose preferred backend cannot be made ready: the ones that are named after it serve, and what was left out is on
//! record with its reason.

use std::fmt::Display;
use std::sync::Arc;

use ehun_models::Model;
use serde::{Deserialize, Serialize};

use crate::deployment::Deployment;
use crate::lane::Lane;

/// A backend that a service was to have and has not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// The backend's name.
    pub backend: String,
    /// Why it could not be made ready.
    pub reason: String,
}

/// No backend of a list can be made ready: what each said, in their order.
#[derive(Debug)]
pub struct NoBackend<E>(pub Vec<(String, E)>);

impl Deployment {
    /// `model` on those of the backends `names` that `make` can make ready, the preferred first. The others are in
    /// [`Deployment::left_out`] with their reasons; where none is left, that is the error.
    pub fn of_those_ready<E: Display>(
        model: Arc<Model>,
        names: &[String],
        mut make: impl FnMut(&str) -> Result<Arc<Lane>, E>,
    ) -> Result<Arc<Self>, NoBackend<E>> {
        let (mut lanes, mut failed) = (Vec::with_capacity(names.len()), Vec::new());
        for name in names {
            match make(name) {
                Ok(lane) => lanes.push(lane),
                Err(error) => failed.push((name.clone(), error)),
            }
        }
        if lanes.is_empty() {
            return Err(NoBackend(failed));
        }
        let left_out = |(backend, error): (String, E)| LeftOut { backend, reason: error.to_string() };
        Ok(Self::of_lanes_without(model, lanes, failed.into_iter().map(left_out).collect()))
    }
}

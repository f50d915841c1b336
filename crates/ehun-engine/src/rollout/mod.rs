//! Replacing what serves while it serves: swap, shadow, canary.
//!
//! A service answers with its *baseline* deployment. A [`Candidate`] is another one, loaded beside it:
//!
//! - [`Service::swap`] warms the candidate up, compares its answers to stored probes with the baseline's, and puts it in
//!   place between two batches; or refuses, with the figures.
//! - [`Service::shadow`] mirrors a share of the requests to the candidate after they were answered and reports how far the
//!   answers are apart. What cannot be kept up with is dropped and counted: no answer waits for a shadow.
//! - [`Service::canary`] lets the candidate answer a share of the requests. What it fails, the baseline answers; past its
//!   bounds of errors, latency or drift it is taken out by itself.
//! - [`Service::promote`] puts the candidate of a shadow or a canary in place, [`Service::abort`] takes it out.
//!
//! [`Service::rollout`] shows all of it as one value. One rollout is under way at a time.
//!
//! [`Service::swap`]: crate::Service::swap
//! [`Service::shadow`]: crate::Service::shadow
//! [`Service::canary`]: crate::Service::canary
//! [`Service::promote`]: crate::Service::promote
//! [`Service::abort`]: crate::Service::abort
//! [`Service::rollout`]: crate::Service::rollout

mod canary;
mod compare;
mod control;
mod mirror;
mod probes;
mod sample;
mod share;
mod stage;
mod state;

pub use canary::{CanaryBounds, CanaryFigures};
pub use compare::{Bounds, Figures, cosine_drift, kendall_tau};
pub use control::{CanaryPlan, RolloutError, ShadowPlan, SwapPlan, SwapReport};
pub use probes::{LaneCheck, default_probes};
pub use sample::Spread;
pub use share::Share;
pub(crate) use stage::Stage;
pub(crate) use state::Rollout;
pub use state::{Ended, Outcome, Phase, RolloutReport};

use std::sync::Arc;

use crate::deployment::Deployment;

/// A deployment that may take the place of another.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// What would serve.
    pub deployment: Arc<Deployment>,
    /// What it is, for people: model, backends, precision.
    pub description: String,
}

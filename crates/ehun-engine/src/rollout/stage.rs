//! A candidate beside the baseline: a shadow or a canary.

use std::sync::{Arc, Weak};
use std::time::Instant;

use crate::deployment::Deployment;
use crate::queue::Queue;
use crate::rollout::canary::{CanaryBounds, Watch, answers_breach};
use crate::rollout::mirror::{Mirror, Other};
use crate::rollout::state::{Ended, Outcome, Phase, now};
use crate::rollout::{Candidate, Share};
use crate::shared::Shared;

/// A canary's own queue: a candidate that hangs holds up what is its own and nothing else.
pub(crate) struct Canary {
    pub(crate) queue: Queue,
    pub(crate) bounds: CanaryBounds,
    pub(crate) watch: Watch,
}

pub(crate) struct Stage {
    pub(crate) candidate: Candidate,
    pub(crate) share: Share,
    pub(crate) started: Instant,
    pub(crate) mirror: Mirror,
    pub(crate) canary: Option<Canary>,
}

impl Stage {
    pub(crate) fn phase(&self) -> Phase {
        if self.canary.is_some() { Phase::Canary } else { Phase::Shadow }
    }

    /// Why the candidate must go, if it must.
    pub(crate) fn breach(&self) -> Option<String> {
        let canary = self.canary.as_ref()?;
        canary.watch.breach(&canary.bounds).or_else(|| answers_breach(&self.mirror.figures(), &canary.bounds))
    }

    pub(crate) fn ended(&self, outcome: Outcome) -> Ended {
        Ended {
            phase: self.phase(),
            candidate: self.candidate.description.clone(),
            outcome,
            at: now(),
            figures: Some(self.mirror.figures()),
            canary: self.canary.as_ref().map(|canary| canary.watch.figures()),
        }
    }
}

/// A shadow's other side: the candidate.
pub(crate) struct ToCandidate(pub(crate) Arc<Deployment>);

impl Other for ToCandidate {
    fn deployment(&self) -> Option<Arc<Deployment>> {
        Some(Arc::clone(&self.0))
    }

    fn compared(&self) {}
}

/// A canary's other side: what the service answers with.
pub(crate) struct ToBaseline(pub(crate) Weak<Shared>);

impl Other for ToBaseline {
    fn deployment(&self) -> Option<Arc<Deployment>> {
        Some(self.0.upgrade()?.deployment())
    }

    fn compared(&self) {
        if let Some(shared) = self.0.upgrade() {
            shared.judge();
        }
    }
}

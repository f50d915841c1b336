//! What is under way in a service, and how the last of it ended, as one value.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::rollout::canary::CanaryFigures;
use crate::rollout::compare::Figures;
use crate::rollout::stage::Stage;

/// What is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Nothing: the baseline answers.
    Steady,
    /// A candidate is being checked for a swap, or the old deployment is being let go.
    Swapping,
    /// A candidate runs a share of the requests again.
    Shadow,
    /// A candidate answers a share of the requests.
    Canary,
}

impl Phase {
    /// All phases.
    pub const ALL: [Self; 4] = [Self::Steady, Self::Swapping, Self::Shadow, Self::Canary];

    /// The name in reports and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Steady => "steady",
            Self::Swapping => "swapping",
            Self::Shadow => "shadow",
            Self::Canary => "canary",
        }
    }
}

/// How a rollout ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "outcome", content = "reason")]
pub enum Outcome {
    /// The candidate serves.
    Promoted,
    /// It was taken out by hand.
    Aborted,
    /// It was taken out by itself: why.
    Returned(String),
    /// It was not put in place: why.
    Refused(String),
}

/// A rollout that has ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    /// What it was.
    pub phase: Phase,
    /// What the candidate was.
    pub candidate: String,
    /// How it ended.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// When, in seconds since 1970.
    pub at: u64,
    /// What the comparison had found.
    pub figures: Option<Figures>,
    /// What the canary had done.
    pub canary: Option<CanaryFigures>,
}

/// What is under way in a service, as shown to people.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RolloutReport {
    /// What is under way.
    pub phase: Phase,
    /// The candidate.
    pub candidate: Option<String>,
    /// The share of the requests that it gets, in percent.
    pub percent: Option<f64>,
    /// For how long, in seconds.
    pub running_seconds: Option<f64>,
    /// What the comparison found so far.
    pub figures: Option<Figures>,
    /// What the canary did so far.
    pub canary: Option<CanaryFigures>,
    /// How the last one ended.
    pub last: Option<Ended>,
}

#[derive(Default)]
pub(crate) struct Rollout {
    pub(crate) stage: RwLock<Option<Arc<Stage>>>,
    busy: AtomicBool,
    swapping: Mutex<Option<String>>,
    last: Mutex<Option<Ended>>,
}

/// The right to change a service's rollout, until dropped.
pub(crate) struct Turn<'a>(&'a Rollout);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.0.swapping.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.0.busy.store(false, Ordering::SeqCst);
    }
}

impl Rollout {
    /// `None` where someone else has it.
    pub(crate) fn turn(&self) -> Option<Turn<'_>> {
        (!self.busy.swap(true, Ordering::SeqCst)).then_some(Turn(self))
    }

    pub(crate) fn swapping(&self, candidate: &str) {
        *self.swapping.lock().unwrap_or_else(PoisonError::into_inner) = Some(candidate.to_owned());
    }

    pub(crate) fn stage(&self) -> Option<Arc<Stage>> {
        self.stage.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes the stage out and notes how it ended, in one: nobody sees it gone without a reason. Whether it was still there.
    pub(crate) fn take(&self, stage: &Arc<Stage>, outcome: Outcome) -> bool {
        let mut slot = self.stage.write().unwrap_or_else(PoisonError::into_inner);
        let is_current = slot.as_ref().is_some_and(|current| Arc::ptr_eq(current, stage));
        if is_current {
            self.ended(stage.ended(outcome));
            *slot = None;
        }
        is_current
    }

    pub(crate) fn ended(&self, ended: Ended) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(ended);
    }

    pub(crate) fn report(&self) -> RolloutReport {
        let stage = self.stage();
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let steady = RolloutReport {
            phase: Phase::Steady,
            candidate: None,
            percent: None,
            running_seconds: None,
            figures: None,
            canary: None,
            last,
        };
        if let Some(stage) = stage {
            return RolloutReport {
                phase: stage.phase(),
                candidate: Some(stage.candidate.description.clone()),
                percent: Some(stage.share.in_percent()),
                running_seconds: Some(stage.started.elapsed().as_secs_f64()),
                figures: Some(stage.mirror.figures()),
                canary: stage.canary.as_ref().map(|canary| canary.watch.figures()),
                ..steady
            };
        }
        match self.swapping.lock().unwrap_or_else(PoisonError::into_inner).clone() {
            Some(candidate) => RolloutReport { phase: Phase::Swapping, candidate: Some(candidate), ..steady },
            None => steady,
        }
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

//! The commands: swap, shadow, canary, promote, abort.

use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::deployment::Deployment;
use crate::error::EngineError;
use crate::item::Input;
use crate::queue::Queue;
use crate::rollout::canary::{CanaryBounds, Watch};
use crate::rollout::compare::{Bounds, Measure};
use crate::rollout::mirror::{First, Mirror};
use crate::rollout::probes::{self, LaneCheck};
use crate::rollout::stage::{Canary, Stage, ToBaseline, ToCandidate};
use crate::rollout::state::{Ended, Outcome, Phase, RolloutReport, now};
use crate::rollout::{Candidate, Share};
use crate::runner::Runner;
use crate::service::Service;
use crate::shared::Shared;

/// Why a rollout was not begun, or did not end as asked.
#[derive(Debug, thiserror::Error)]
pub enum RolloutError {
    /// Another is under way.
    #[error("a {} of this service is under way; promote or abort it, or wait for it", .0.name())]
    Busy(Phase),
    /// There is nothing to promote or abort.
    #[error("neither a shadow nor a canary of this service is under way")]
    Nothing,
    /// What serves does not answer the probes, so there is nothing to compare with.
    #[error("the baseline does not answer the probes: {0}; force the swap to go without a comparison")]
    Baseline(EngineError),
    /// The candidate cannot read the probes.
    #[error("the candidate cannot read the probes: {0}")]
    Probes(EngineError),
    /// The candidate is not put in place.
    #[error("refused: {}", problems(.0))]
    Refused(Vec<LaneCheck>),
    /// A thread could not be started.
    #[error("no thread for the candidate: {0}")]
    Thread(#[from] std::io::Error),
}

fn problems(lanes: &[LaneCheck]) -> String {
    let found = lanes.iter().filter_map(|lane| Some(format!("{}: {}", lane.backend, lane.problem.as_ref()?)));
    found.collect::<Vec<_>>().join("; ")
}

/// How a swap is done.
#[derive(Debug, Clone, PartialEq)]
pub struct SwapPlan {
    /// What both sides are asked before.
    pub probes: Vec<Input>,
    /// How far their answers may be apart.
    pub bounds: Bounds,
    /// Swap whatever the probes find (a candidate that fails its warm-up is refused all the same).
    pub force: bool,
    /// How long to wait for the old deployment's last batches, so that its memory is given back.
    pub drain: Duration,
}

/// What a swap did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SwapReport {
    /// What each backend of the new deployment did with the probes.
    pub lanes: Vec<LaneCheck>,
    /// Whether nothing holds the old deployment any more: its memory has been given back.
    pub released: bool,
    /// Seconds until it was, or until that was given up.
    pub drain_seconds: f64,
}

/// How a shadow is run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ShadowPlan {
    /// Whose requests are mirrored.
    pub share: Share,
    /// Most tokens that wait to be run again; beyond it they are dropped and counted.
    pub queue_tokens: usize,
}

/// How a canary is run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CanaryPlan {
    /// Whose requests the candidate answers.
    pub share: Share,
    /// Past these it is taken out.
    pub bounds: CanaryBounds,
    /// Most tokens of its answers that wait to be compared; beyond it they are dropped and counted.
    pub queue_tokens: usize,
}

/// What a deployment holds in memory, seen without holding it.
struct Remains {
    deployment: Weak<Deployment>,
    runners: Vec<Weak<dyn Runner>>,
}

impl Remains {
    fn of(deployment: &Arc<Deployment>) -> Self {
        let runners = deployment.lanes.iter().map(|lane| Arc::downgrade(lane.runner())).collect();
        Self { deployment: Arc::downgrade(deployment), runners }
    }

    /// Waits until nothing holds it any more: whether that came before `limit`, and seconds.
    fn released(&self, limit: Duration) -> (bool, f64) {
        let start = Instant::now();
        while self.deployment.strong_count() > 0 || self.runners.iter().any(|runner| runner.strong_count() > 0) {
            if start.elapsed() >= limit {
                return (false, start.elapsed().as_secs_f64());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        (true, start.elapsed().as_secs_f64())
    }
}

impl Service {
    /// Warms `candidate` up, compares its answers to the probes with what serves, puts it in place between two batches, and
    /// waits until the old deployment is let go. What waits runs on the new one; nothing is lost. Blocks.
    pub fn swap(&self, candidate: Candidate, plan: &SwapPlan) -> Result<SwapReport, RolloutError> {
        let rollout = &self.shared().rollout;
        let turn = self.turn()?;
        if let Some(stage) = rollout.stage() {
            return Err(RolloutError::Busy(stage.phase()));
        }
        rollout.swapping(&candidate.description);
        let description = candidate.description;
        let checked = self.checked(&candidate.deployment, plan);
        let ended = |outcome, lanes: &[LaneCheck]| Ended {
            phase: Phase::Swapping,
            candidate: description.clone(),
            outcome,
            at: now(),
            figures: lanes.first().map(|lane| lane.figures.clone()),
            canary: None,
        };
        let lanes = match checked {
            Ok(lanes) => lanes,
            Err(error) => {
                let lanes = if let RolloutError::Refused(lanes) = &error { lanes.as_slice() } else { &[] };
                rollout.ended(ended(Outcome::Refused(error.to_string()), lanes));
                return Err(error);
            }
        };
        let old = Remains::of(&self.deploy(candidate.deployment));
        rollout.ended(ended(Outcome::Promoted, &lanes));
        let (released, drain_seconds) = old.released(plan.drain);
        drop(turn);
        Ok(SwapReport { lanes, released, drain_seconds })
    }

    fn checked(&self, candidate: &Deployment, plan: &SwapPlan) -> Result<Vec<LaneCheck>, RolloutError> {
        let answered = match probes::ask_baseline(&self.deployment(), &plan.probes) {
            Ok(answered) => Some(answered),
            Err(_) if plan.force => None,
            Err(error) => return Err(RolloutError::Baseline(error)),
        };
        let lanes =
            probes::check(candidate, &plan.probes, answered.as_ref(), &plan.bounds).map_err(RolloutError::Probes)?;
        let refused = |lane: &LaneCheck| lane.problem.is_some() && !(plan.force && lane.figures.mirrored > 0);
        if lanes.iter().any(refused) { Err(RolloutError::Refused(lanes)) } else { Ok(lanes) }
    }

    /// Mirrors a share of the requests to `candidate` from now on. No answer waits for it.
    pub fn shadow(&self, candidate: Candidate, plan: &ShadowPlan) -> Result<(), RolloutError> {
        let _turn = self.turn()?;
        let other = ToCandidate(Arc::clone(&candidate.deployment));
        let measure = Measure::of(&candidate.deployment);
        let mirror = Mirror::start(plan.share, plan.queue_tokens, First::Baseline, measure, other)?;
        self.begin(Stage { candidate, share: plan.share, started: Instant::now(), mirror, canary: None }).map(drop)
    }

    /// Lets `candidate` answer a share of the requests from now on, until it is promoted, aborted, or breaches its bounds.
    pub fn canary(&self, candidate: Candidate, plan: &CanaryPlan) -> Result<(), RolloutError> {
        let _turn = self.turn()?;
        let other = ToBaseline(Arc::downgrade(self.shared()));
        let measure = Measure::of(&candidate.deployment);
        let mirror = Mirror::start(Share::ALL, plan.queue_tokens, First::Candidate, measure, other)?;
        let canary = Canary { queue: Queue::default(), bounds: plan.bounds, watch: Watch::default() };
        let (share, started) = (plan.share, Instant::now());
        let stage = self.begin(Stage { candidate, share, started, mirror, canary: Some(canary) })?;
        for _ in 0..self.shared().config.workers.max(1) {
            let (shared, of_worker) = (Arc::clone(self.shared()), Arc::clone(&stage));
            let worker = std::thread::Builder::new().name("canary".to_owned());
            if let Err(error) = worker.spawn(move || shared.work_canary(&of_worker)) {
                self.shared().end(&stage, Outcome::Returned(error.to_string()));
                return Err(error.into());
            }
        }
        Ok(())
    }

    fn begin(&self, stage: Stage) -> Result<Arc<Stage>, RolloutError> {
        let mut slot = self.shared().rollout.stage.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(other) = slot.as_ref() {
            return Err(RolloutError::Busy(other.phase()));
        }
        Ok(Arc::clone(slot.insert(Arc::new(stage))))
    }

    /// Puts the candidate of the shadow or canary in place, and waits up to `drain` until the old deployment is let go.
    pub fn promote(&self, drain: Duration) -> Result<SwapReport, RolloutError> {
        let _turn = self.turn()?;
        let stage = self.shared().rollout.stage().ok_or(RolloutError::Nothing)?;
        if !self.shared().end(&stage, Outcome::Promoted) {
            return Err(RolloutError::Nothing);
        }
        let old = Remains::of(&self.deploy(Arc::clone(&stage.candidate.deployment)));
        drop(stage);
        let (released, drain_seconds) = old.released(drain);
        Ok(SwapReport { lanes: Vec::new(), released, drain_seconds })
    }

    /// Takes the candidate of the shadow or canary out, and waits up to `drain` until it is let go. What it had not answered,
    /// the baseline answers. How it ended.
    pub fn abort(&self, drain: Duration) -> Result<(Ended, SwapReport), RolloutError> {
        let _turn = self.turn()?;
        let stage = self.shared().rollout.stage().ok_or(RolloutError::Nothing)?;
        if !self.shared().end(&stage, Outcome::Aborted) {
            return Err(RolloutError::Nothing);
        }
        let ended = stage.ended(Outcome::Aborted);
        let candidate = Remains::of(&stage.candidate.deployment);
        drop(stage);
        let (released, drain_seconds) = candidate.released(drain);
        Ok((ended, SwapReport { lanes: Vec::new(), released, drain_seconds }))
    }

    /// What is under way, and how the last rollout ended.
    pub fn rollout(&self) -> RolloutReport {
        self.shared().rollout.report()
    }

    fn turn(&self) -> Result<crate::rollout::state::Turn<'_>, RolloutError> {
        self.shared().rollout.turn().ok_or(RolloutError::Busy(Phase::Swapping))
    }
}

impl Shared {
    /// Takes a stage out: what its candidate has not answered goes to the baseline. Whether it was still there.
    pub(crate) fn end(&self, stage: &Arc<Stage>, outcome: Outcome) -> bool {
        let was_there = self.rollout.take(stage, outcome);
        if let (true, Some(canary)) = (was_there, &stage.canary) {
            canary.queue.close();
            self.queue.push(canary.queue.remove(0..u64::MAX));
        }
        was_there
    }

    /// Takes the candidate out where it is past its bounds.
    pub(crate) fn judge(&self) {
        if let Some(stage) = self.rollout.stage()
            && let Some(reason) = stage.breach()
        {
            self.end(&stage, Outcome::Returned(reason));
        }
    }
}

//! Whether a runner is to be asked: closed (yes), open (not until a while has passed), half open (one batch as a trial).

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// When a runner is given a rest, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct HealthPolicy {
    /// Failures in a row after which the runner is not asked for a while.
    pub failures_to_open: u32,
    /// How long it is not asked the first time; doubled each time that the trial fails.
    pub cooldown: Duration,
    /// The longest such time.
    pub max_cooldown: Duration,
    /// A batch that takes longer counts as failed and is run elsewhere; `None` waits as long as the deadline allows.
    pub latency_limit: Option<Duration>,
}

impl Default for HealthPolicy {
    fn default() -> Self {
        Self {
            failures_to_open: 3,
            cooldown: Duration::from_millis(500),
            max_cooldown: Duration::from_secs(30),
            latency_limit: None,
        }
    }
}

/// The state of a runner, as shown to people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HealthState {
    /// It is asked.
    Closed,
    /// It is not asked.
    Open,
    /// One batch is tried.
    HalfOpen,
}

/// What is known about a runner, as shown to people.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HealthReport {
    /// The state.
    pub state: HealthState,
    /// Failures in a row.
    pub consecutive_failures: u32,
    /// All failures so far.
    pub failures: u64,
    /// All batches answered so far.
    pub successes: u64,
    /// What the last failure said.
    pub last_error: Option<String>,
    /// Time until it is tried again, where it is open.
    pub retry_in: Option<Duration>,
}

/// The circuit breaker of one runner. Time is given from outside, so that its law can be tested without waiting.
#[derive(Debug)]
pub(crate) struct Health {
    policy: HealthPolicy,
    state: State,
    consecutive: u32,
    failures: u64,
    successes: u64,
    cooldown: Duration,
    last_error: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    Closed,
    Open { until: Instant },
    HalfOpen,
}

impl Health {
    pub(crate) fn new(policy: HealthPolicy) -> Self {
        let cooldown = policy.cooldown;
        Self { policy, state: State::Closed, consecutive: 0, failures: 0, successes: 0, cooldown, last_error: None }
    }

    /// Whether a batch may be sent now. A `true` in the half-open state is for this caller alone, who must report back
    /// with [`Health::succeeded`], [`Health::failed`] or [`Health::unjudged`].
    pub(crate) fn admits(&mut self, now: Instant) -> bool {
        match self.state {
            State::Closed => true,
            State::HalfOpen => false,
            State::Open { until } if now < until => false,
            State::Open { .. } => {
                self.state = State::HalfOpen;
                true
            }
        }
    }

    pub(crate) fn succeeded(&mut self) {
        self.state = State::Closed;
        self.consecutive = 0;
        self.successes += 1;
        self.cooldown = self.policy.cooldown;
    }

    /// A batch failed. `fatal`: the runner is of no use until something changes (lost device, hung call).
    pub(crate) fn failed(&mut self, error: String, fatal: bool, now: Instant) {
        self.consecutive += 1;
        self.failures += 1;
        self.last_error = Some(error);
        let was_trial = self.state == State::HalfOpen;
        if was_trial {
            self.cooldown = (self.cooldown * 2).min(self.policy.max_cooldown);
        }
        if fatal || was_trial || self.consecutive >= self.policy.failures_to_open {
            self.state = State::Open { until: now + self.cooldown };
        }
    }

    /// The batch said nothing about the runner (its deadline had passed, or it was the batch's own fault).
    pub(crate) fn unjudged(&mut self, now: Instant) {
        if self.state == State::HalfOpen {
            self.state = State::Open { until: now };
        }
    }

    pub(crate) fn state(&self) -> HealthState {
        match self.state {
            State::Closed => HealthState::Closed,
            State::Open { .. } => HealthState::Open,
            State::HalfOpen => HealthState::HalfOpen,
        }
    }

    pub(crate) fn report(&self, now: Instant) -> HealthReport {
        let retry_in = match self.state {
            State::Open { until } => Some(until.saturating_duration_since(now)),
            _ => None,
        };
        HealthReport {
            state: self.state(),
            consecutive_failures: self.consecutive,
            failures: self.failures,
            successes: self.successes,
            last_error: self.last_error.clone(),
            retry_in,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opens_waits_tries_once_and_comes_back() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut health = Health::new(HealthPolicy { failures_to_open: 2, ..HealthPolicy::default() });
        health.failed("one".into(), false, at(0));
        assert!(health.admits(at(0)));
        health.failed("two".into(), false, at(0));
        assert!(!health.admits(at(499)));
        assert!(health.admits(at(500)), "the trial");
        assert!(!health.admits(at(500)), "only one at a time");
        health.failed("trial".into(), false, at(500));
        assert!(!health.admits(at(1499)), "the rest is twice as long");
        assert!(health.admits(at(1500)));
        health.succeeded();
        assert!(health.admits(at(1500)) && health.admits(at(1500)));
        health.failed("lost".into(), true, at(2000));
        assert_eq!(health.report(at(2100)).retry_in, Some(Duration::from_millis(400)));
    }

    #[test]
    fn a_trial_that_says_nothing_is_tried_again() {
        let now = Instant::now();
        let mut health = Health::new(HealthPolicy { cooldown: Duration::ZERO, ..HealthPolicy::default() });
        health.failed("lost".into(), true, now);
        assert!(health.admits(now));
        health.unjudged(now);
        assert!(health.admits(now));
    }
}

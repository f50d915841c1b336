//! A canary's bounds, and what is measured against them.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::rollout::compare::{Bounds, Figures};
use crate::rollout::sample::{Sample, Spread};

/// Past these a canary's candidate is taken out by itself.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CanaryBounds {
    /// Largest share of items that the candidate fails (and the baseline then answers).
    pub error_rate: f64,
    /// Largest ratio of the median times from queue to answer, candidate to baseline.
    pub latency_ratio: f64,
    /// A difference of the medians below this is no breach, whatever the ratio. In milliseconds.
    pub latency_slack_ms: f64,
    /// How far its answers may be apart from the baseline's, which runs some of them again.
    pub answers: Bounds,
    /// Items before latency and drift are judged. Errors are judged from the first item on, as if there had been so many.
    pub min_items: u64,
}

impl Default for CanaryBounds {
    fn default() -> Self {
        Self { error_rate: 0.02, latency_ratio: 2.0, latency_slack_ms: 5.0, answers: Bounds::default(), min_items: 50 }
    }
}

/// What a canary has done so far.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CanaryFigures {
    /// Items that the candidate answered.
    pub answered: u64,
    /// Items that it failed and the baseline answered.
    pub failed: u64,
    /// What the first failure said.
    pub first_failure: Option<String>,
    /// Seconds from queue to answer of its items.
    pub candidate_seconds: Option<Spread>,
    /// Seconds from queue to answer of the baseline's items meanwhile.
    pub baseline_seconds: Option<Spread>,
}

#[derive(Default)]
struct Counts {
    answered: u64,
    failed: u64,
    first_failure: Option<String>,
    candidate: Sample,
    baseline: Sample,
}

/// The measurements of one canary.
#[derive(Default)]
pub(crate) struct Watch {
    counts: Mutex<Counts>,
}

impl Watch {
    fn lock(&self) -> std::sync::MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn baseline(&self, times: impl Iterator<Item = Duration>) {
        let mut counts = self.lock();
        times.for_each(|time| counts.baseline.add(time.as_secs_f64()));
    }

    pub(crate) fn answered(&self, times: impl Iterator<Item = Duration>) {
        let mut counts = self.lock();
        for time in times {
            counts.answered += 1;
            counts.candidate.add(time.as_secs_f64());
        }
    }

    pub(crate) fn failed(&self, items: usize, reason: &dyn std::fmt::Display) {
        let mut counts = self.lock();
        counts.failed += items as u64;
        counts.first_failure.get_or_insert_with(|| reason.to_string());
    }

    pub(crate) fn figures(&self) -> CanaryFigures {
        let counts = self.lock();
        CanaryFigures {
            answered: counts.answered,
            failed: counts.failed,
            first_failure: counts.first_failure.clone(),
            candidate_seconds: counts.candidate.spread(),
            baseline_seconds: counts.baseline.spread(),
        }
    }

    /// Which of errors and latency is out of bounds, in words.
    pub(crate) fn breach(&self, bounds: &CanaryBounds) -> Option<String> {
        let counts = self.lock();
        let all = counts.answered + counts.failed;
        if counts.failed as f64 > bounds.error_rate * all.max(bounds.min_items) as f64 {
            let reason = counts.first_failure.as_deref().unwrap_or_default();
            return Some(format!(
                "{} of {all} items failed, the bound is a share of {}; the first: {reason}",
                counts.failed, bounds.error_rate
            ));
        }
        let enough = |sample: &Sample| sample.count() >= bounds.min_items;
        if !enough(&counts.candidate) || !enough(&counts.baseline) {
            return None;
        }
        let (candidate, baseline) = (counts.candidate.quantile(0.5)?, counts.baseline.quantile(0.5)?);
        let slack = bounds.latency_slack_ms / 1e3;
        (candidate > bounds.latency_ratio * baseline && candidate - baseline > slack).then(|| {
            format!(
                "the median time to an answer is {:.1} ms, the baseline's {:.1} ms, the bound a ratio of {}",
                candidate * 1e3,
                baseline * 1e3,
                bounds.latency_ratio
            )
        })
    }
}

/// Which comparison of answers is out of bounds, in words.
pub(crate) fn answers_breach(figures: &Figures, bounds: &CanaryBounds) -> Option<String> {
    if figures.incomparable > 0 {
        return Some("its answers have another form than the baseline's".to_owned());
    }
    (figures.compared >= bounds.min_items).then(|| figures.breach(&bounds.answers, |spread| spread.p99))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_breaches_a_canary() {
        let bounds = CanaryBounds { min_items: 10, ..CanaryBounds::default() };
        let ms = |ms: u64, count: usize| vec![Duration::from_millis(ms); count].into_iter();
        // (candidate's ms, its items, baseline's ms, its items, failed) and what breaches, if anything.
        for (candidate, baseline, failed, want) in [
            ((10, 100), (10, 100), 0, None),
            ((10, 100), (10, 100), 2, None),
            ((10, 100), (10, 100), 3, Some("3 of 103 items failed")),
            ((10, 0), (10, 0), 1, Some("1 of 1 items failed")),
            ((50, 100), (10, 100), 0, Some("50.0 ms")),
            ((50, 9), (10, 100), 0, None),
            ((50, 100), (10, 9), 0, None),
            ((4, 100), (1, 100), 0, None),
        ] {
            let watch = Watch::default();
            watch.answered(ms(candidate.0, candidate.1));
            watch.baseline(ms(baseline.0, baseline.1));
            if failed > 0 {
                watch.failed(failed, &"planted");
            }
            let found = watch.breach(&bounds);
            match want {
                None => assert_eq!(found, None),
                Some(part) => assert!(found.as_deref().is_some_and(|text| text.contains(part)), "{found:?} {part}"),
            }
        }
    }
}

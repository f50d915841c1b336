//! How far two answers to the same item are apart.

use std::collections::BTreeMap;
use std::sync::Arc;

use ehun_models::Task;
use serde::{Deserialize, Serialize};

use crate::deployment::Deployment;
use crate::item::{Input, Prepared};
use crate::rollout::sample::{Sample, Spread};
use crate::runner::{ItemOutput, ItemRows};

/// Scores of both sides for each list that was ranked together: request and query.
type Lists = BTreeMap<(u64, Arc<str>), (Vec<f32>, Vec<f32>)>;

/// 1 minus the cosine of the angle between two vectors, in float64; 0 for two zero vectors and 1 where one is zero.
pub fn cosine_drift(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum::<f64>();
    let (aa, bb) = (dot(a, a), dot(b, b));
    match (aa > 0.0, bb > 0.0) {
        (true, true) => 1.0 - dot(a, b) / (aa.sqrt() * bb.sqrt()),
        (false, false) => 0.0,
        _ => 1.0,
    }
}

/// Kendall's tau-b of two scorings of the same list: 1 is the same order, -1 the reverse. `None` where a scoring has no order
/// (fewer than two items, all equal).
pub fn kendall_tau(a: &[f32], b: &[f32]) -> Option<f64> {
    let (mut agree, mut only_a, mut only_b) = (0i64, 0i64, 0i64);
    for i in 0..a.len().min(b.len()) {
        for j in 0..i {
            let order = |x: &[f32]| match x[i].partial_cmp(&x[j]) {
                Some(std::cmp::Ordering::Less) => -1i64,
                Some(std::cmp::Ordering::Greater) => 1,
                _ => 0,
            };
            let (of_a, of_b) = (order(a), order(b));
            agree += of_a * of_b;
            only_a += of_a.abs();
            only_b += of_b.abs();
        }
    }
    (only_a > 0 && only_b > 0).then(|| agree as f64 / ((only_a as f64).sqrt() * (only_b as f64).sqrt()))
}

/// How answers are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Measure {
    /// By the angle, row by row.
    Vectors,
    /// By the greatest score of each row, or by each score's sign.
    Labels { several: bool },
    /// By the order among the items of a query.
    Scores,
}

impl Measure {
    pub(crate) fn of(deployment: &Deployment) -> Self {
        match deployment.model.as_ref().map(|model| (model.task(), model.multi_label())) {
            Some((Task::Classify | Task::Tag, several)) => Self::Labels { several },
            Some((Task::Rerank, _)) => Self::Scores,
            _ => Self::Vectors,
        }
    }
}

/// What a comparison found so far.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Items taken for comparison.
    pub mirrored: u64,
    /// Of these, left out because the queue of the comparison was full.
    pub dropped: u64,
    /// Of these, answered by both and compared.
    pub compared: u64,
    /// Of these, not answered by the side that was asked again.
    pub refused: u64,
    /// Of these, answered by both in forms that cannot be compared (vectors of another width).
    pub incomparable: u64,
    /// What the first refusal said.
    pub first_refusal: Option<String>,
    /// 1 - cosine, for each item that of its worst row. For vectors.
    pub cosine_drift: Option<Spread>,
    /// Absolute difference of raw scores, for each item the greatest. For labels and reranking.
    pub score_change: Option<Spread>,
    /// Rows that have labels, and how many of them changed theirs.
    pub labels: u64,
    /// Rows whose label changed.
    pub label_flips: u64,
    /// Lists of a query's passages that were ranked by both.
    pub ranked_lists: u64,
    /// Mean of Kendall's tau-b over these lists.
    pub rank_correlation: Option<f64>,
    /// Time by token of the candidate divided by that of the baseline, as measured by whoever waited for the batches.
    pub latency_ratio: Option<f64>,
}

/// How far answers may be apart.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Bounds {
    /// Most cosine drift: of the worst probe in a swap, of the 99th percentile in a canary.
    pub cosine_drift: f64,
    /// Largest share of labels that change.
    pub label_flips: f64,
    /// Least mean rank correlation.
    pub rank_correlation: f64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { cosine_drift: 0.05, label_flips: 0.1, rank_correlation: 0.8 }
    }
}

impl Figures {
    /// What is out of `bounds`, in words; `drift` picks the figure of the spread that counts.
    pub(crate) fn breach(&self, bounds: &Bounds, drift: fn(&Spread) -> f64) -> Option<String> {
        if let Some(found) = self.cosine_drift.as_ref().map(drift).filter(|found| *found > bounds.cosine_drift) {
            return Some(format!("the cosine drift is {found:.4}, the bound {}", bounds.cosine_drift));
        }
        let flips = self.label_flips as f64 / self.labels.max(1) as f64;
        if flips > bounds.label_flips {
            let (flips, labels) = (self.label_flips, self.labels);
            return Some(format!("{flips} of {labels} labels changed, the bound is a share of {}", bounds.label_flips));
        }
        let tau = self.rank_correlation.filter(|tau| *tau < bounds.rank_correlation)?;
        Some(format!("the rank correlation is {tau:.4}, the bound {}", bounds.rank_correlation))
    }
}

/// One item with both answers.
pub(crate) struct Pair<'a> {
    pub(crate) item: &'a Prepared,
    pub(crate) request: u64,
    pub(crate) baseline: &'a ItemOutput,
    pub(crate) candidate: &'a ItemOutput,
}

/// Comparisons as they are added up.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) mirrored: u64,
    pub(crate) dropped: u64,
    compared: u64,
    refused: u64,
    incomparable: u64,
    first_refusal: Option<String>,
    drift: Sample,
    change: Sample,
    labels: u64,
    flips: u64,
    lists: u64,
    correlation: f64,
    baseline_seconds: f64,
    candidate_seconds: f64,
}

impl Tally {
    pub(crate) fn refuse(&mut self, reason: &dyn std::fmt::Display) {
        self.refused += 1;
        self.first_refusal.get_or_insert_with(|| reason.to_string());
    }

    /// Adds what both took for the same tokens.
    pub(crate) fn time(&mut self, baseline: f64, candidate: f64) {
        self.baseline_seconds += baseline;
        self.candidate_seconds += candidate;
    }

    /// Adds items that were run together.
    pub(crate) fn add(&mut self, measure: Measure, pairs: &[Pair<'_>]) {
        let mut lists: Lists = BTreeMap::new();
        for pair in pairs {
            let (baseline, candidate) = (&pair.baseline.values, &pair.candidate.values);
            let alike = |(a, b): (&ItemRows, &ItemRows)| a.rows == b.rows && a.width == b.width;
            if baseline.len() != candidate.len() || !baseline.iter().zip(candidate).all(alike) {
                self.incomparable += 1;
                continue;
            }
            self.compared += 1;
            match measure {
                Measure::Vectors => self.drift.add(worst(baseline, candidate, cosine_drift)),
                Measure::Labels { several } => {
                    self.change.add(worst(baseline, candidate, greatest_change));
                    for (a, b) in rows(baseline, candidate) {
                        self.labels += 1;
                        self.flips += u64::from(labels_of(a, several) != labels_of(b, several));
                    }
                }
                Measure::Scores => {
                    self.change.add(worst(baseline, candidate, greatest_change));
                    if let (Input::Pair(query, _), Some(a), Some(b)) =
                        (&pair.item.input, baseline.first(), candidate.first())
                    {
                        let list = lists.entry((pair.request, Arc::clone(query))).or_default();
                        list.0.extend(a.data.first());
                        list.1.extend(b.data.first());
                    }
                }
            }
        }
        for tau in lists.values().filter_map(|(a, b)| kendall_tau(a, b)) {
            self.lists += 1;
            self.correlation += tau;
        }
    }

    pub(crate) fn figures(&self) -> Figures {
        Figures {
            mirrored: self.mirrored,
            dropped: self.dropped,
            compared: self.compared,
            refused: self.refused,
            incomparable: self.incomparable,
            first_refusal: self.first_refusal.clone(),
            cosine_drift: self.drift.spread(),
            score_change: self.change.spread(),
            labels: self.labels,
            label_flips: self.flips,
            ranked_lists: self.lists,
            rank_correlation: (self.lists > 0).then(|| self.correlation / self.lists as f64),
            latency_ratio: (self.baseline_seconds > 0.0).then(|| self.candidate_seconds / self.baseline_seconds),
        }
    }
}

fn rows<'a>(a: &'a [ItemRows], b: &'a [ItemRows]) -> impl Iterator<Item = (&'a [f32], &'a [f32])> {
    a.iter().zip(b).flat_map(|(a, b)| a.data.chunks(a.width.max(1)).zip(b.data.chunks(b.width.max(1))))
}

fn worst(a: &[ItemRows], b: &[ItemRows], distance: fn(&[f32], &[f32]) -> f64) -> f64 {
    rows(a, b).map(|(a, b)| distance(a, b)).fold(0.0, f64::max)
}

fn greatest_change(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| (f64::from(a) - f64::from(b)).abs()).fold(0.0, f64::max)
}

/// The places of a row's labels: of the greatest score, or of the positive ones where labels do not exclude each other.
fn labels_of(row: &[f32], several: bool) -> Vec<usize> {
    if several {
        return (0..row.len()).filter(|&i| row[i] > 0.0).collect();
    }
    // Of equal scores the first is the label, as in numpy.
    let greatest = (0..row.len()).reduce(|best, i| if row[i] > row[best] { i } else { best });
    greatest.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn drift_of_known_angles() {
        for (a, b, want) in [
            (&[1.0, 0.0][..], &[2.0, 0.0][..], 0.0),
            (&[1.0, 0.0], &[0.0, 3.0], 1.0),
            (&[1.0, 0.0], &[-1.0, 0.0], 2.0),
            (&[1.0, 0.0], &[1.0, 1.0], 1.0 - 0.5f64.sqrt()),
            (&[0.0, 0.0], &[0.0, 0.0], 0.0),
            (&[0.0, 0.0], &[0.0, 1.0], 1.0),
            (&[3e38, 0.0], &[3e38, 0.0], 0.0),
        ] {
            assert!((cosine_drift(a, b) - want).abs() < 1e-12, "{a:?} {b:?}");
        }
    }

    #[test]
    fn tau_of_known_orders() {
        // The values are scipy.stats.kendalltau's.
        for (a, b, want) in [
            (&[1.0, 2.0, 3.0][..], &[10.0, 20.0, 30.0][..], Some(1.0)),
            (&[1.0, 2.0, 3.0], &[3.0, 2.0, 1.0], Some(-1.0)),
            (&[12.0, 2.0, 1.0, 12.0, 2.0], &[1.0, 4.0, 7.0, 1.0, 0.0], Some(-0.471_404_520_791_031_7)),
            (&[1.0, 1.0], &[1.0, 2.0], None),
            (&[1.0], &[1.0], None),
        ] {
            let found = kendall_tau(a, b);
            assert_eq!(found.is_some(), want.is_some(), "{a:?}");
            assert!((found.unwrap_or(0.0) - want.unwrap_or(0.0)).abs() < 1e-12, "{a:?} {found:?}");
        }
    }

    proptest! {
        #[test]
        fn tau_is_symmetric_and_blind_to_monotone_changes(list in proptest::collection::vec((-9i8..9, -9i8..9), 2..30)) {
            let a: Vec<f32> = list.iter().map(|pair| f32::from(pair.0)).collect();
            let b: Vec<f32> = list.iter().map(|pair| f32::from(pair.1)).collect();
            let stretched: Vec<f32> = a.iter().map(|x| x.powi(3) + 7.0).collect();
            let reversed: Vec<f32> = a.iter().map(|x| -x).collect();
            prop_assert_eq!(kendall_tau(&a, &b), kendall_tau(&b, &a));
            prop_assert_eq!(kendall_tau(&stretched, &b), kendall_tau(&a, &b));
            prop_assert_eq!(kendall_tau(&reversed, &b), kendall_tau(&a, &b).map(|tau| -tau));
        }
    }

    #[test]
    fn labels() {
        assert_eq!(labels_of(&[0.1, 0.7, 0.7], false), [1]);
        assert_eq!(labels_of(&[0.1, -0.7, 0.7], true), [0, 2]);
        assert!(labels_of(&[], false).is_empty());
    }
}

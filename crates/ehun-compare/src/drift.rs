//! How far the candidate's answers are from the baseline's.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::stats::quantile;

/// Cosines between the two vectors of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Cosines {
    /// The median.
    pub median: f64,
    /// What one in a hundred falls below.
    pub p1: f64,
    /// The least.
    pub worst: f64,
    /// Chunks.
    pub compared: usize,
}

/// What search over the two sides' vectors finds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Queries {
    /// Queries.
    pub count: usize,
    /// Spearman's correlation of the documents' scores, the mean over the queries.
    pub rank_correlation: f64,
    /// That of the worst query.
    pub worst_rank_correlation: f64,
    /// nDCG@10 of the baseline, where the file says what is relevant.
    pub baseline_ndcg: Option<f64>,
    /// That of the candidate.
    pub candidate_ndcg: Option<f64>,
}

impl Queries {
    /// nDCG@10 gained.
    pub fn ndcg_change(&self) -> Option<f64> {
        Some(self.candidate_ndcg? - self.baseline_ndcg?)
    }
}

/// Labels that are others.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Flips {
    /// Texts with another best label.
    pub changed: usize,
    /// Texts.
    pub compared: usize,
}

impl Flips {
    /// The share that changed.
    pub fn share(&self) -> f64 {
        self.changed as f64 / self.compared.max(1) as f64
    }
}

/// All that drifted.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Drift {
    /// Chunks that only one side answered.
    pub missing: usize,
    /// Of embeddings.
    pub cosines: Option<Cosines>,
    /// Of search, where queries were given.
    pub queries: Option<Queries>,
    /// Of classifiers.
    pub flips: Option<Flips>,
}

/// The cosine of two vectors; 1 of two that are equal, zeros among them.
pub fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum() };
    let lengths = (dot(a, a) * dot(b, b)).sqrt();
    if lengths > 0.0 { (dot(a, b) / lengths).min(1.0) } else { f64::from(u8::from(a == b)) }
}

/// The cosines of the pairs of vectors; nothing without any.
pub fn cosines<'a>(pairs: impl Iterator<Item = (&'a [f32], &'a [f32])>) -> Option<Cosines> {
    let all: Vec<f64> = pairs.map(|(a, b)| cosine(a, b)).collect();
    let worst = all.iter().copied().min_by(f64::total_cmp)?;
    Some(Cosines { median: quantile(&all, 0.5), p1: quantile(&all, 0.01), worst, compared: all.len() })
}

/// How many best labels differ between the pairs of scores.
pub fn flips<'a>(pairs: impl Iterator<Item = (&'a [f32], &'a [f32])>) -> Flips {
    let best = |scores: &[f32]| scores.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map(|(label, _)| label);
    let (mut changed, mut compared) = (0, 0);
    for (a, b) in pairs {
        compared += 1;
        // A single score is a yes or a no.
        let differs = if a.len() == 1 { (a[0] > 0.0) != (b[0] > 0.0) } else { best(a) != best(b) };
        changed += usize::from(differs);
    }
    Flips { changed, compared }
}

/// Places in rising order, equal values sharing the mean of theirs.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
    let mut ranks = vec![0.0; values.len()];
    let mut first = 0;
    for run in order.chunk_by(|&a, &b| values[a] == values[b]) {
        let mean = first as f64 + (run.len() - 1) as f64 / 2.0;
        run.iter().for_each(|&i| ranks[i] = mean);
        first += run.len();
    }
    ranks
}

/// Spearman's rank correlation; 1 where nothing varies on either side.
pub fn spearman(a: &[f64], b: &[f64]) -> f64 {
    let (a, b) = (ranks(a), ranks(b));
    let mean = (a.len().max(1) - 1) as f64 / 2.0;
    let sum = |x: &[f64], y: &[f64]| -> f64 { x.iter().zip(y).map(|(x, y)| (x - mean) * (y - mean)).sum() };
    let scale = (sum(&a, &a) * sum(&b, &b)).sqrt();
    if scale > 0.0 { sum(&a, &b) / scale } else { f64::from(u8::from(a == b)) }
}

/// nDCG@10 of `scores` by document, with grades of relevance (Järvelin and Kekäläinen 2002; the gain is the grade).
pub fn ndcg(scores: &BTreeMap<&str, f64>, grades: &BTreeMap<&str, f64>) -> f64 {
    let mut order: Vec<(&str, f64)> = scores.iter().map(|(&name, &score)| (name, score)).collect();
    order.sort_by(|a, b| b.1.total_cmp(&a.1));
    let discounted = |gains: &mut dyn Iterator<Item = f64>| -> f64 {
        gains.take(10).enumerate().map(|(place, gain)| gain / (place as f64 + 2.0).log2()).sum()
    };
    let mut best: Vec<f64> = grades.values().copied().filter(|&grade| grade > 0.0).collect();
    best.sort_by(|a, b| b.total_cmp(a));
    let ideal = discounted(&mut best.into_iter());
    let found = discounted(&mut order.iter().map(|(name, _)| grades.get(name).copied().unwrap_or(0.0).max(0.0)));
    if ideal > 0.0 { found / ideal } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cosines_are_of_directions() {
        let pairs: [(&[f32], &[f32]); 3] = [(&[1.0, 0.0], &[2.0, 0.0]), (&[1.0, 0.0], &[1.0, 1.0]), (&[0.0], &[0.0])];
        let found = cosines(pairs.into_iter()).unwrap();
        assert!((found.worst - 0.5f64.sqrt()).abs() < 1e-9 && found.median == 1.0 && found.compared == 3);
        assert_eq!(cosines(std::iter::empty()), None);
    }

    #[test]
    fn ranks_share_their_places() {
        assert_eq!(ranks(&[3.0, 1.0, 3.0, 2.0]), [2.5, 0.0, 2.5, 1.0]);
        // Worked by hand: differences of ranks 1, 1, 1, 1, 0 give 1 - 6 * 4 / (5 * 24).
        assert!((spearman(&[1.0, 2.0, 3.0, 4.0, 5.0], &[2.0, 1.0, 4.0, 3.0, 5.0]) - 0.8).abs() < 1e-12);
        assert_eq!(spearman(&[1.0, 2.0], &[2.0, 1.0]), -1.0);
        assert_eq!(spearman(&[], &[]), 1.0);
    }

    #[test]
    fn ndcg_of_a_known_ranking() {
        let grades = BTreeMap::from([("a", 3.0), ("b", 2.0), ("x", -1.0)]);
        let scores = BTreeMap::from([("b", 0.9), ("c", 0.8), ("a", 0.7)]);
        let want = (2.0 + 3.0 / 2.0) / (3.0 + 2.0 / 3f64.log2());
        assert!((ndcg(&scores, &grades) - want).abs() < 1e-12);
        assert_eq!(ndcg(&scores, &BTreeMap::new()), 0.0);
    }

    #[test]
    fn labels_flip() {
        let pairs: [(&[f32], &[f32]); 4] =
            [(&[1.0, 2.0], &[1.1, 1.0]), (&[1.0, 2.0], &[0.0, 0.1]), (&[0.5], &[-0.5]), (&[0.5], &[0.1])];
        assert_eq!(flips(pairs.into_iter()), Flips { changed: 2, compared: 4 });
    }
}

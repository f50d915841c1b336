//! The numbers that cases are made of: the same on every machine and in every run.

use serde::{Deserialize, Serialize};

use crate::random::Random;

/// What the queries, keys and values of one sequence look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pattern {
    /// Normal deviates: scores of size 1.
    Normal,
    /// Scores of size 1e4, values of size 1e3.
    Large,
    /// Scores of size 1e-4, values of size 1e-3.
    Tiny,
    /// All keys are the same, so all scores of a row are.
    EqualScores,
    /// The last key has by far the largest score of every row.
    LastDominates,
    /// The first key has.
    FirstDominates,
    /// Every key has a larger score than the one before: a running maximum changes all the time.
    Rising,
    /// Values of 1: every element of the result is the sum of a row of the softmax.
    Ones,
    /// NaN everywhere. Never judged: what others must not see.
    Poison,
}

impl Pattern {
    /// All that are judged.
    pub const JUDGED: [Self; 8] = [
        Self::Normal,
        Self::Large,
        Self::Tiny,
        Self::EqualScores,
        Self::LastDominates,
        Self::FirstDominates,
        Self::Rising,
        Self::Ones,
    ];

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Large => "large",
            Self::Tiny => "tiny",
            Self::EqualScores => "equal scores",
            Self::LastDominates => "last key dominates",
            Self::FirstDominates => "first key dominates",
            Self::Rising => "rising scores",
            Self::Ones => "values of 1",
            Self::Poison => "poison",
        }
    }
}

/// Rows of queries, keys and values for one sequence.
#[derive(Debug, Clone, Default)]
pub struct QkvRows {
    /// `[length, q_width]`
    pub q: Vec<f32>,
    /// `[length, k_width]`
    pub k: Vec<f32>,
    /// `[length, v_width]`
    pub v: Vec<f32>,
}

/// The rows of a sequence of `length` tokens. `score_scale` is the attention's factor, `head_dim` the width of a head.
pub fn qkv(
    pattern: Pattern,
    length: usize,
    widths: (usize, usize, usize),
    head_dim: usize,
    score_scale: f32,
    random: &mut Random,
) -> QkvRows {
    let (q_width, k_width, v_width) = widths;
    // q . k of normal deviates has the deviation sqrt(head_dim); this brings scores to size 1 whatever the factor.
    let unit = (1.0 / (f64::from(score_scale).abs() * (head_dim as f64).sqrt()).max(1e-3)).sqrt() as f32;
    let mut rows = QkvRows {
        q: random.normals(length * q_width, unit),
        k: random.normals(length * k_width, unit),
        v: random.normals(length * v_width, 1.0),
    };
    let times = |x: &mut Vec<f32>, by: f32| x.iter_mut().for_each(|x| *x *= by);
    // A direction that every query has in every head: a key along it has a large score in every row.
    let direct = |rows: &mut QkvRows, strength: &dyn Fn(usize) -> f32| {
        let norm = 1.0 / (head_dim as f32).sqrt();
        for row in rows.q.chunks_exact_mut(q_width) {
            row.iter_mut().for_each(|x| *x = 0.3 * *x + unit);
        }
        for (j, row) in rows.k.chunks_exact_mut(k_width).enumerate() {
            row.iter_mut().for_each(|x| *x += strength(j) * unit * norm);
        }
    };
    match pattern {
        Pattern::Normal => {}
        Pattern::Large => {
            times(&mut rows.q, 60.0);
            times(&mut rows.k, 60.0);
            times(&mut rows.v, 1e3);
        }
        Pattern::Tiny => {
            times(&mut rows.q, 1e-2);
            times(&mut rows.k, 1e-2);
            times(&mut rows.v, 1e-3);
        }
        Pattern::EqualScores => {
            let first: Vec<f32> = rows.k.iter().take(k_width).copied().collect();
            rows.k = first.repeat(length);
        }
        Pattern::LastDominates => direct(&mut rows, &|j| if j + 1 == length { 25.0 } else { 0.0 }),
        Pattern::FirstDominates => direct(&mut rows, &|j| if j == 0 { 25.0 } else { 0.0 }),
        Pattern::Rising => direct(&mut rows, &|j| 40.0 * j as f32 / length as f32),
        Pattern::Ones => rows.v = vec![1.0; length * v_width],
        Pattern::Poison => {
            rows = QkvRows {
                q: vec![f32::NAN; length * q_width],
                k: vec![f32::NAN; length * k_width],
                v: vec![f32::NAN; length * v_width],
            };
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_have_the_size_that_the_pattern_promises() {
        for (pattern, low, high) in
            [(Pattern::Normal, 2.0, 6.0), (Pattern::Large, 7e3, 2.5e4), (Pattern::Tiny, 1e-4, 1e-3)]
        {
            let (dim, scale) = (64, 0.125);
            let rows = qkv(pattern, 100, (dim, dim, dim), dim, scale, &mut Random::new(1));
            let mut largest = 0f32;
            for q in rows.q.chunks_exact(dim) {
                for k in rows.k.chunks_exact(dim) {
                    let score: f32 = q.iter().zip(k).map(|(a, b)| a * b).sum::<f32>() * scale;
                    largest = largest.max(score.abs());
                }
            }
            assert!(largest > low && largest < high, "{pattern:?}: {largest}");
        }
    }
}

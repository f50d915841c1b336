//! How much faster, and how sure.
//!
//! Both sides run in every round, in the order A B B A, so that whatever drifts slowly (temperature, other programs) falls
//! on both alike. A round gives one number, the logarithm of the ratio of each side's shorter time: a neighbour can only make a job
//! longer. What the rounds say together is their pseudomedian (Hodges and Lehmann 1963), which a few disturbed rounds do
//! not move; rounds are resampled for its interval (bootstrap, Efron 1979). With few rounds a plain percentile interval is too
//! narrow (Hesterberg, "What teachers should know about the bootstrap", 2015), so its two sides are stretched as Student's t
//! and the spread of a sample of that size ask for.

use serde::{Deserialize, Serialize};

/// Seconds of one round.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// The baseline: first and last of the round.
    pub baseline: [f64; 2],
    /// The candidate: the two between.
    pub candidate: [f64; 2],
}

impl Round {
    /// Logarithm of the baseline's time over the candidate's: above 0 where the candidate is faster.
    fn log_gain(&self) -> f64 {
        let of = |times: [f64; 2]| times[0].min(times[1]).max(f64::MIN_POSITIVE);
        (of(self.baseline) / of(self.candidate)).ln()
    }
}

/// The baseline's time over the candidate's: 1.1 is a candidate that does the same work in 1/1.1 of the time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Gain {
    /// What the rounds say together: their pseudomedian.
    pub estimate: f64,
    /// Lower end of the 95 % interval.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl std::fmt::Display for Gain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.3} ({:.3} to {:.3})", self.estimate, self.low, self.high)
    }
}

/// Quantile 0.975 of the normal distribution.
const NORMAL_975: f64 = 1.959_964;
/// Resamples drawn.
const RESAMPLES: usize = 4_000;

/// The gain over `rounds`; nothing for fewer than two, of which no spread can be told.
pub fn gain(rounds: &[Round]) -> Option<Gain> {
    let logs: Vec<f64> = rounds.iter().map(Round::log_gain).collect();
    let n = logs.len();
    if n < 2 {
        return None;
    }
    let mut pairs = Vec::with_capacity(n * (n + 1) / 2);
    let estimate = pseudomedian(&logs, &mut pairs);
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut drawn = vec![0.0; n];
    let mut estimates: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            drawn.iter_mut().for_each(|value| *value = logs[random.below(n)]);
            pseudomedian(&drawn, &mut pairs)
        })
        .collect();
    estimates.sort_by(f64::total_cmp);
    // No resample lies beyond the extremes of the rounds, so of few rounds the outer quantiles are cut off: the usual ones are
    // taken and stretched instead.
    let stretch = (n as f64 / (n - 1) as f64).sqrt() * student_975(n - 1) / NORMAL_975;
    let place = (0.025 * RESAMPLES as f64) as usize;
    let low = estimate - stretch * (estimate - estimates[place]);
    let high = estimate + stretch * (estimates[RESAMPLES - 1 - place] - estimate);
    Some(Gain { estimate: estimate.exp(), low: low.exp(), high: high.exp() })
}

/// The median of the means of all pairs, each value with itself too (Hodges and Lehmann 1963); `pairs` is working memory.
fn pseudomedian(values: &[f64], pairs: &mut Vec<f64>) -> f64 {
    pairs.clear();
    pairs.extend(values.iter().enumerate().flat_map(|(i, a)| values[i..].iter().map(move |b| (a + b) / 2.0)));
    let middle = pairs.len() / 2;
    let is_odd = !pairs.len().is_multiple_of(2);
    let (below, &mut upper, _) = pairs.select_nth_unstable_by(middle, f64::total_cmp);
    let lower = if is_odd { upper } else { below.iter().copied().fold(f64::NEG_INFINITY, f64::max) };
    (lower + upper) / 2.0
}

/// The median of some numbers; 0 of none.
pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// The value below which the share `q` of some numbers lies, interpolated; 0 of none.
pub fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = q * sorted.len().saturating_sub(1) as f64;
    let (low, high) = (place.floor() as usize, place.ceil() as usize);
    match (sorted.get(low), sorted.get(high)) {
        (Some(a), Some(b)) => a + (b - a) * (place - low as f64),
        _ => 0.0,
    }
}

/// Quantile 0.975 of Student's t: a table, and beyond it the first term of the Cornish-Fisher expansion.
fn student_975(freedom: usize) -> f64 {
    const TABLE: [f64; 20] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
        2.120, 2.110, 2.101, 2.093, 2.086,
    ];
    let z = NORMAL_975;
    TABLE.get(freedom.saturating_sub(1)).copied().unwrap_or(z + (z.powi(3) + z) / (4.0 * freedom as f64))
}

/// SplitMix64 (Steele, Lea and Flood 2014): the same numbers in every run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// A number from 0 to 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Rounds as a busy machine gives them: noise of each job, a slow drift, and now and then a disturbance.
    pub(crate) fn simulated(slower: f64, noise: f64, rounds: usize, random: &mut Random) -> Vec<Round> {
        rounds_with(slower, noise, rounds, random, |random| if random.below(25) == 0 { 1.0 + 4.0 * noise } else { 1.0 })
    }

    /// The same beside neighbours that take the machine for a while: a job in twelve takes up to two fifths longer.
    pub(crate) fn disturbed(slower: f64, noise: f64, rounds: usize, random: &mut Random) -> Vec<Round> {
        rounds_with(
            slower,
            noise,
            rounds,
            random,
            |random| {
                if random.below(12) == 0 { 1.0 + 0.4 * random.unit() } else { 1.0 }
            },
        )
    }

    fn rounds_with(
        slower: f64,
        noise: f64,
        rounds: usize,
        random: &mut Random,
        disturbance: impl Fn(&mut Random) -> f64,
    ) -> Vec<Round> {
        let mut job = |side: f64, drift: f64| {
            let normal: f64 = (0..12).map(|_| random.unit()).sum::<f64>() - 6.0;
            3.0 * side * drift * (noise * normal).exp() * disturbance(random)
        };
        (0..rounds)
            .map(|round| {
                let drift = 1.0 + 0.1 * round as f64 / rounds as f64;
                let (a, b, c, d) = (job(1.0, drift), job(slower, drift), job(slower, drift), job(1.0, drift));
                Round { baseline: [a, d], candidate: [b, c] }
            })
            .collect()
    }

    #[test]
    fn the_interval_holds_the_truth_as_often_as_it_says() {
        for (rounds, slower) in [(5, 1.0), (8, 1.0), (8, 1.2), (20, 0.9)] {
            for simulate in [simulated, disturbed] {
                let mut random = Random(rounds as u64);
                let trials = 400;
                let held = (0..trials).filter(|_| {
                    let gain = gain(&simulate(slower, 0.02, rounds, &mut random)).unwrap();
                    gain.low <= 1.0 / slower && 1.0 / slower <= gain.high
                });
                let share = held.count() as f64 / f64::from(trials);
                assert!((0.92..=0.99).contains(&share), "{rounds} rounds: {share}");
            }
        }
    }

    #[test]
    fn a_fifth_is_found_as_a_fifth() {
        let mut random = Random(7);
        for _ in 0..20 {
            let found = gain(&simulated(1.2, 0.02, 8, &mut random)).unwrap();
            let slower = 1.0 / found.estimate - 1.0;
            assert!((0.15..0.25).contains(&slower) && found.high < 1.0, "{found}");
        }
        for _ in 0..20 {
            let found = gain(&disturbed(1.2, 0.02, 8, &mut random)).unwrap();
            let slower = 1.0 / found.estimate - 1.0;
            assert!((0.15..0.25).contains(&slower), "{found}");
        }
    }

    #[test]
    fn a_pseudomedian_is_the_middle_of_the_means_of_pairs() {
        for (values, want) in
            [(&[3.0][..], 3.0), (&[1.0, 2.0], 1.5), (&[0.0, 1.0, 100.0], 25.5), (&[5.0, 1.0, 2.0, 3.0], 2.75)]
        {
            let mut all: Vec<f64> =
                (0..values.len()).flat_map(|i| (i..values.len()).map(move |j| (values[i] + values[j]) / 2.0)).collect();
            all.sort_by(f64::total_cmp);
            let found = pseudomedian(values, &mut Vec::new());
            assert_eq!((found, found), (median(&all), want), "{values:?}");
        }
    }

    #[test]
    fn known_quantiles() {
        assert!((student_975(21) - 2.080).abs() < 0.01 && (student_975(1000) - 1.962).abs() < 1e-3);
        assert_eq!((median(&[3.0, 1.0, 2.0]), median(&[1.0, 2.0]), median(&[])), (2.0, 1.5, 0.0));
        assert_eq!(gain(&[]), None);
    }
}

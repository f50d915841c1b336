//! Quantiles of a stream in bounded memory.

use serde::{Deserialize, Serialize};

/// Values that are kept: quantiles are exact up to so many, of a uniform sample beyond.
const CAPACITY: usize = 16_384;

/// How values are spread.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Number of values.
    pub count: u64,
    /// Mean of all.
    pub mean: f64,
    /// Median (nearest rank).
    pub median: f64,
    /// 99th percentile (nearest rank).
    pub p99: f64,
    /// The greatest of all.
    pub worst: f64,
}

/// A stream of values.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sample {
    values: Vec<f64>,
    count: u64,
    sum: f64,
    worst: f64,
}

impl Sample {
    pub(crate) fn add(&mut self, value: f64) {
        self.worst = if self.count == 0 { value } else { self.worst.max(value) };
        self.sum += value;
        self.count += 1;
        if self.values.len() < CAPACITY {
            self.values.push(value);
            return;
        }
        // Vitter's algorithm R, with a mixed counter in place of a random number: the same stream gives the same figures.
        let place = mixed(self.count) % self.count;
        if let Some(slot) = usize::try_from(place).ok().and_then(|place| self.values.get_mut(place)) {
            *slot = value;
        }
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// The value at `q` (0 to 1) by nearest rank; `None` where there is none.
    pub(crate) fn quantile(&self, q: f64) -> Option<f64> {
        quantile(&mut self.values.clone(), q)
    }

    pub(crate) fn spread(&self) -> Option<Spread> {
        let mut values = self.values.clone();
        Some(Spread {
            count: self.count,
            mean: self.sum / self.count as f64,
            median: quantile(&mut values, 0.5)?,
            p99: quantile(&mut values, 0.99)?,
            worst: self.worst,
        })
    }
}

fn quantile(values: &mut [f64], q: f64) -> Option<f64> {
    let rank = (q * values.len() as f64).ceil() as usize;
    let place = rank.max(1) - 1;
    (place < values.len()).then(|| *values.select_nth_unstable_by(place, f64::total_cmp).1)
}

/// SplitMix64's finaliser.
fn mixed(n: u64) -> u64 {
    let n = (n ^ (n >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    n ^ (n >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_exact_while_all_is_kept() {
        let mut sample = Sample::default();
        assert_eq!(sample.spread(), None);
        (0..1000).map(|i| f64::from(i * 7919 % 1000)).for_each(|value| sample.add(value));
        let want = Spread { count: 1000, mean: 499.5, median: 499.0, p99: 989.0, worst: 999.0 };
        assert_eq!(sample.spread(), Some(want));
    }

    #[test]
    fn a_long_stream_keeps_its_worst_and_about_its_quantiles() {
        let mut sample = Sample::default();
        // Sorted: a sample that kept only the first or the last would be far off.
        (0..400_000).for_each(|i| sample.add(f64::from(i)));
        let spread = sample.spread().unwrap();
        assert_eq!((spread.count, spread.worst), (400_000, 399_999.0));
        assert!((spread.median / 200_000.0 - 1.0).abs() < 0.05 && (spread.p99 / 396_000.0 - 1.0).abs() < 0.01);
        assert_eq!(sample.values.len(), CAPACITY);
    }
}

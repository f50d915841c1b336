//! Which requests belong to a share of the traffic.

use serde::{Deserialize, Serialize};

/// A share of the requests, in percent, decided by a request's number alone.
///
/// Request `n` belongs to it where the fractional part of `n` times the golden ratio is below the share (a Weyl sequence): after
/// any number of requests the count is right to within a few, and no pattern in the traffic (every second request is of
/// another kind) falls in step with it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Share(f64);

/// 2^64 divided by the golden ratio, made odd.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

impl Share {
    /// All requests.
    pub const ALL: Self = Self(100.0);

    /// `percent` of the requests: above 0, at most 100.
    pub fn percent(percent: f64) -> Result<Self, String> {
        if percent > 0.0 && percent <= 100.0 {
            Ok(Self(percent))
        } else {
            Err(format!("a share of the traffic is above 0 and at most 100 percent, not {percent}"))
        }
    }

    /// The share in percent.
    pub fn in_percent(self) -> f64 {
        self.0
    }

    /// Whether request number `n` belongs to it.
    pub fn takes(self, n: u64) -> bool {
        // 2^-64: the product is read as a fraction of 1.
        let fraction = n.wrapping_mul(STEP) as f64 * 2f64.powi(-64);
        fraction * 100.0 < self.0
    }
}

impl TryFrom<f64> for Share {
    type Error = String;

    fn try_from(percent: f64) -> Result<Self, String> {
        Self::percent(percent)
    }
}

impl From<Share> for f64 {
    fn from(share: Share) -> Self {
        share.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_right_from_the_start_and_in_every_pattern() {
        for percent in [0.5, 1.0, 5.0, 25.0, 50.0, 99.0, 100.0] {
            let share = Share::percent(percent).unwrap();
            for (period, phase) in [(1, 0), (2, 0), (2, 1), (3, 2), (10, 7)] {
                for count in [100u64, 1000, 20_000] {
                    let taken = (0..count).filter(|n| share.takes(n * period + phase)).count() as f64;
                    let want = count as f64 * percent / 100.0;
                    assert!((taken - want).abs() <= 12.0, "{percent} %: {taken} of {count}, period {period}");
                }
            }
        }
        assert!((0..10_000).all(|n| Share::ALL.takes(n)));
    }

    #[test]
    fn what_is_no_share_is_refused() {
        for percent in [0.0, -1.0, 100.1, f64::NAN, f64::INFINITY] {
            assert!(Share::percent(percent).is_err(), "{percent}");
        }
    }
}

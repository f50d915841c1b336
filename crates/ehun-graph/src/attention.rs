//! The specification of attention: one form for every family, so that implementations are interchangeable.

use serde::{Deserialize, Serialize};

use crate::graph::ValueId;

/// How far a row sees: key `j` is visible to query `i` exactly when `i - left <= j <= i + right`.
///
/// `None` is unlimited. Full attention is both unlimited; causal attention is `right = Some(0)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Band {
    /// Positions seen before the row's own.
    pub left: Option<u32>,
    /// Positions seen after the row's own.
    pub right: Option<u32>,
}

impl Band {
    /// Every row sees every row of its sequence.
    pub const FULL: Self = Self { left: None, right: None };
    /// A row sees itself and what is before it.
    pub const CAUSAL: Self = Self { left: None, right: Some(0) };

    /// A window of `each_side` positions to the left and to the right.
    pub const fn window(each_side: u32) -> Self {
        Self { left: Some(each_side), right: Some(each_side) }
    }

    /// The keys that query `i` of a sequence of `len` tokens sees, as a half-open range. Never empty for `i < len`.
    pub fn visible(&self, i: usize, len: usize) -> std::ops::Range<usize> {
        let start = self.left.map_or(0, |left| i.saturating_sub(left as usize));
        let end = self.right.map_or(len, |right| (i + right as usize + 1).min(len));
        start..end
    }

    /// Whether the band hides nothing in a sequence of `len` tokens.
    pub fn is_full(&self, len: usize) -> bool {
        let wide = |side: Option<u32>| side.is_none_or(|n| n as usize + 1 >= len);
        wide(self.left) && wide(self.right)
    }
}

/// The bucket of a relative position in T5 and MPNet (Raffel et al. 2020, `_relative_position_bucket`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BucketRule {
    /// Number of buckets, both directions together.
    pub num_buckets: u32,
    /// Distance from which on all positions share the last bucket.
    pub max_distance: u32,
    /// Whether keys after the query have buckets of their own.
    pub bidirectional: bool,
}

impl BucketRule {
    /// The bucket of `relative = key position - query position`, in `0..num_buckets`.
    ///
    /// The logarithm is taken in float32, as the checkpoints were trained with.
    pub fn bucket(&self, relative: i64) -> usize {
        let mut buckets = i64::from(self.num_buckets);
        let mut base = 0;
        let distance = if self.bidirectional {
            buckets /= 2;
            if relative > 0 {
                base = buckets;
            }
            relative.abs()
        } else {
            (-relative).max(0)
        };
        let max_exact = buckets / 2;
        let bucket = if distance < max_exact {
            distance
        } else {
            let ratio = (distance as f32 / max_exact as f32).ln() / (self.max_distance as f32 / max_exact as f32).ln();
            (max_exact + (ratio * (buckets - max_exact) as f32) as i64).min(buckets - 1)
        };
        (base + bucket) as usize
    }
}

/// The row of a relative position in the tables of disentangled attention (He et al. 2021, DeBERTa).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LogBucketRule {
    /// Half the number of rows of the position tables.
    pub span: u32,
    /// Number of logarithmic buckets; 0 means positions are used as they are and clamped to the span.
    pub buckets: u32,
    /// Largest relative position that the logarithmic buckets tell apart.
    pub max_position: u32,
}

impl LogBucketRule {
    /// The table row for `relative = query position - key position`, in `0..2 * span`.
    pub fn row(&self, relative: i64) -> usize {
        let span = i64::from(self.span);
        (self.bucket(relative) + span).clamp(0, 2 * span - 1) as usize
    }

    fn bucket(&self, relative: i64) -> i64 {
        if self.buckets == 0 || self.max_position == 0 {
            return relative;
        }
        let mid = i64::from(self.buckets) / 2;
        let distance = if relative < mid && relative > -mid { mid - 1 } else { relative.abs() };
        if distance <= mid {
            return relative;
        }
        let ratio = (distance as f32 / mid as f32).ln() / ((i64::from(self.max_position) - 1) as f32 / mid as f32).ln();
        ((ratio * (mid - 1) as f32).ceil() as i64 + mid) * relative.signum()
    }
}

/// What is added to the scores, computed from positions and small tables and never stored as heads x length x length.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Bias {
    /// Nothing.
    None,
    /// `- slope[head] * |i - j|` (Press et al. 2022), after scale and soft cap.
    Alibi {
        /// One slope for each query head.
        slopes: Vec<f32>,
    },
    /// `table[rule.bucket(j - i), head]`, after scale and soft cap.
    Bucketed {
        /// Constant rows `[num_buckets, num_heads]`.
        table: ValueId,
        /// Which row a relative position has.
        rule: BucketRule,
    },
    /// `scale * (q_i . key_positions[row] + k_j . query_positions[row])` with `row = rule.row(i - j)`, added to
    /// `scale * (q_i . k_j)` before the soft cap. At least one of the tables is there.
    Disentangled {
        /// Content to position (c2p): constant rows `[2 * span, num_heads * head_dim]`.
        key_positions: Option<ValueId>,
        /// Position to content (p2c): constant rows `[2 * span, num_heads * head_dim]`.
        query_positions: Option<ValueId>,
        /// Which row a relative position has.
        rule: LogBucketRule,
    },
}

impl Bias {
    /// A short name for reports and refusals.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Alibi { .. } => "alibi",
            Self::Bucketed { .. } => "bucketed",
            Self::Disentangled { .. } => "disentangled",
        }
    }
}

/// Attention over the token rows of each sequence.
///
/// With query head `h`, its key/value head `g = h / (num_heads / num_kv_heads)`, and `visible(i)` by the band:
///
/// ```text
/// s_ij   = scale * (q_ih . k_jg [+ disentangled terms])
/// s_ij   = soft_cap * tanh(s_ij / soft_cap)                 if there is a soft cap
/// s_ij  += additive bias (ALiBi, bucketed)
/// out_ih = sum_j softmax_{j in visible(i)}(s_ij) v_jg
/// ```
///
/// q: `[tokens, num_heads * head_dim]`, k: `[tokens, num_kv_heads * head_dim]`, v: `[tokens, num_kv_heads * value_dim]`,
/// result: `[tokens, num_heads * value_dim]`; all row-major, rotary already applied.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AttentionSpec {
    /// Query heads.
    pub num_heads: usize,
    /// Key and value heads; divides `num_heads`.
    pub num_kv_heads: usize,
    /// Width of a query or key head.
    pub head_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// Factor on the products; usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Bound on the scores, `cap * tanh(s / cap)` (Gemma 2).
    pub soft_cap: Option<f32>,
    /// How far a row sees.
    pub band: Band,
    /// What is added to the scores.
    pub bias: Bias,
}

impl AttentionSpec {
    /// Full bidirectional attention with `num_heads` heads of `head_dim`, scale `1 / sqrt(head_dim)` and no bias.
    pub fn full(num_heads: usize, head_dim: usize) -> Self {
        Self {
            num_heads,
            num_kv_heads: num_heads,
            head_dim,
            value_dim: head_dim,
            scale: (1.0 / (head_dim as f64).sqrt()) as f32,
            soft_cap: None,
            band: Band::FULL,
            bias: Bias::None,
        }
    }

    /// The constant values that the bias reads, in the order key positions, query positions, or the table.
    pub fn bias_values(&self) -> Vec<ValueId> {
        match &self.bias {
            Bias::None | Bias::Alibi { .. } => Vec::new(),
            Bias::Bucketed { table, .. } => vec![*table],
            Bias::Disentangled { key_positions, query_positions, .. } => {
                key_positions.iter().chain(query_positions).copied().collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bands() {
        assert_eq!(Band::FULL.visible(3, 5), 0..5);
        assert_eq!(Band::CAUSAL.visible(3, 5), 0..4);
        assert_eq!(Band::window(1).visible(0, 5), 0..2);
        assert_eq!(Band::window(1).visible(4, 5), 3..5);
        assert!(Band::window(4).is_full(5) && !Band::window(3).is_full(5));
        assert!(Band::CAUSAL.is_full(1) && !Band::CAUSAL.is_full(2));
    }

    #[test]
    fn t5_buckets() {
        // From transformers' T5Attention._relative_position_bucket(bidirectional=True, num_buckets=32, max_distance=128).
        let rule = BucketRule { num_buckets: 32, max_distance: 128, bidirectional: true };
        for (relative, want) in [
            (0, 0),
            (-1, 1),
            (1, 17),
            (-7, 7),
            (-8, 8),
            (8, 24),
            (-15, 9),
            (-16, 10),
            (-127, 15),
            (-500, 15),
            (500, 31),
        ] {
            assert_eq!(rule.bucket(relative), want, "relative {relative}");
        }
    }

    #[test]
    fn log_buckets_are_odd_and_clamped() {
        let rule = LogBucketRule { span: 256, buckets: 256, max_position: 512 };
        assert_eq!(rule.row(0), 256);
        assert_eq!(rule.row(5), 261);
        assert_eq!(rule.row(-128), 128);
        assert_eq!(rule.row(511), 256 + 255);
        assert_eq!(rule.row(10_000), 511);
        for relative in 0..1000 {
            assert_eq!(rule.bucket(relative), -rule.bucket(-relative));
        }
    }
}

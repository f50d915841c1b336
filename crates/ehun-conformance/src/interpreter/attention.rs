//! Attention in float64, one query row at a time: rows are independent, so a sample of them can be judged.

use std::ops::Range;

use ehun_graph::{AttentionSpec, Bias, BucketRule, LogBucketRule, RaggedBatch};

/// The bias of an attention operation with its tables, row-major, in the precision `T`.
#[derive(Debug, Clone, Copy)]
pub enum BiasTables<'a, T> {
    /// Nothing.
    None,
    /// `- slope[head] * |i - j|`.
    Alibi(&'a [f32]),
    /// `table[rule.bucket(j - i), head]` with `table: [num_buckets, num_heads]`.
    Bucketed(&'a [T], BucketRule),
    /// Position rows `[2 * span, num_heads * head_dim]`, read at `rule.row(i - j)`.
    Disentangled {
        /// Content to position: multiplied with the query.
        key_positions: Option<&'a [T]>,
        /// Position to content: multiplied with the key.
        query_positions: Option<&'a [T]>,
        /// Which row.
        rule: LogBucketRule,
    },
}

impl<'a, T> BiasTables<'a, T> {
    /// The bias with the values of [`AttentionSpec::bias_values`].
    pub fn new(bias: &'a Bias, values: &[&'a [T]]) -> Self {
        let mut values = values.iter().copied();
        match bias {
            Bias::None => Self::None,
            Bias::Alibi { slopes } => Self::Alibi(slopes),
            Bias::Bucketed { rule, .. } => Self::Bucketed(values.next().unwrap_or_default(), *rule),
            Bias::Disentangled { key_positions, query_positions, rule } => Self::Disentangled {
                key_positions: key_positions.and_then(|_| values.next()),
                query_positions: query_positions.and_then(|_| values.next()),
                rule: *rule,
            },
        }
    }
}

/// What an attention operation reads. Rows are packed as the batch is.
#[derive(Debug, Clone, Copy)]
pub struct AttentionInputs<'a, T> {
    /// What is computed.
    pub spec: &'a AttentionSpec,
    /// `[tokens, num_heads * head_dim]`
    pub q: &'a [T],
    /// `[tokens, num_kv_heads * head_dim]`
    pub k: &'a [T],
    /// `[tokens, num_kv_heads * value_dim]`
    pub v: &'a [T],
    /// The bias with its tables.
    pub bias: BiasTables<'a, T>,
}

/// The result `[tokens, num_heads * value_dim]`.
pub fn attention(inputs: &AttentionInputs<'_, f64>, batch: &RaggedBatch) -> Vec<f64> {
    let mut out = Vec::new();
    for sequence in 0..batch.num_sequences() {
        for i in 0..batch.len_of(sequence) {
            for head in 0..inputs.spec.num_heads {
                out.extend(row(inputs, batch.rows(sequence), i, head));
            }
        }
    }
    out
}

/// The result of query `i` and query head `head` in the sequence that has the packed rows `sequence`.
pub fn row(inputs: &AttentionInputs<'_, f64>, sequence: Range<usize>, i: usize, head: usize) -> Vec<f64> {
    let spec = inputs.spec;
    let visible = spec.band.visible(i, sequence.len());
    let scores: Vec<f64> = visible.clone().map(|j| score(inputs, &sequence, i, j, head)).collect();
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exps: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
    let sum: f64 = exps.iter().sum();
    let mut out = vec![0.0; spec.value_dim];
    for (j, exp) in visible.zip(exps) {
        let v = head_row(inputs.v, sequence.start + j, spec.num_kv_heads, spec.value_dim, kv_head(spec, head));
        for (out, v) in out.iter_mut().zip(v) {
            *out += exp / sum * v;
        }
    }
    out
}

/// The score of query `i` and key `j`, positions in the sequence, for the query head `head`.
pub fn score(inputs: &AttentionInputs<'_, f64>, sequence: &Range<usize>, i: usize, j: usize, head: usize) -> f64 {
    let spec = inputs.spec;
    let scale = f64::from(spec.scale);
    let relative = j as i64 - i as i64;
    let q = head_row(inputs.q, sequence.start + i, spec.num_heads, spec.head_dim, head);
    let k = head_row(inputs.k, sequence.start + j, spec.num_kv_heads, spec.head_dim, kv_head(spec, head));
    let mut score = scale * dot(q, k);
    if let BiasTables::Disentangled { key_positions, query_positions, rule } = &inputs.bias {
        let row = rule.row(-relative);
        if let Some(positions) = key_positions {
            score += scale * dot(q, head_row(positions, row, spec.num_heads, spec.head_dim, head));
        }
        if let Some(positions) = query_positions {
            score += scale * dot(k, head_row(positions, row, spec.num_heads, spec.head_dim, head));
        }
    }
    if let Some(cap) = spec.soft_cap {
        score = f64::from(cap) * (score / f64::from(cap)).tanh();
    }
    score
        + match &inputs.bias {
            BiasTables::None | BiasTables::Disentangled { .. } => 0.0,
            BiasTables::Alibi(slopes) => -f64::from(slopes[head]) * relative.unsigned_abs() as f64,
            BiasTables::Bucketed(table, rule) => table[rule.bucket(relative) * spec.num_heads + head],
        }
}

/// The key/value head that the query head `head` reads.
pub fn kv_head(spec: &AttentionSpec, head: usize) -> usize {
    head / (spec.num_heads / spec.num_kv_heads)
}

/// The elements of one head in one row of a matrix `[rows, heads * dim]`.
pub fn head_row<T>(x: &[T], row: usize, heads: usize, dim: usize, head: usize) -> &[T] {
    let start = (row * heads + head) * dim;
    &x[start..start + dim]
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

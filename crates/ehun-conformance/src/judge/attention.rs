//! The error that attention may add, one query row at a time.
//!
//! A score is off by `d_ij`: roundings of its dot products, of the factor, the cap and the bias. Softmax forgets what all
//! scores of a row have in common, so to first order the result is off by `sum_j p_ij d_ij |v_j - o_i|`, and by the
//! roundings of two sums over the visible keys.

use std::ops::Range;

use ehun_graph::RaggedBatch;

use super::numerics::{Numerics, UNIT};
use crate::interpreter::attention::{AttentionInputs, BiasTables, head_row, kv_head, score};

/// One row of one head with its bound.
#[derive(Debug, Clone, PartialEq)]
pub struct RowJudgement {
    /// `[value_dim]`
    pub value: Vec<f64>,
    /// `[value_dim]`
    pub error: Vec<f64>,
}

/// The bounds `[tokens, num_heads * value_dim]`; `errors` holds what the operands arrive with.
pub fn errors(
    n: Numerics,
    inputs: &AttentionInputs<'_, f64>,
    errors: &AttentionInputs<'_, f64>,
    batch: &RaggedBatch,
) -> Vec<f64> {
    let mut out = Vec::new();
    for sequence in 0..batch.num_sequences() {
        for i in 0..batch.len_of(sequence) {
            for head in 0..inputs.spec.num_heads {
                out.extend(judge_row(n, inputs, Some(errors), batch.rows(sequence), i, head).error);
            }
        }
    }
    out
}

/// The row of query `i` and query head `head` in the sequence that has the packed rows `sequence`. Without `errors` the
/// operands are exact.
pub fn judge_row(
    n: Numerics,
    inputs: &AttentionInputs<'_, f64>,
    errors: Option<&AttentionInputs<'_, f64>>,
    sequence: Range<usize>,
    i: usize,
    head: usize,
) -> RowJudgement {
    let spec = inputs.spec;
    let visible = spec.band.visible(i, sequence.len());
    let value_of = |of: &AttentionInputs<'_, f64>, j: usize, column: usize| -> f64 {
        head_row(of.v, sequence.start + j, spec.num_kv_heads, spec.value_dim, kv_head(spec, head))[column]
    };
    let scores: Vec<f64> = visible.clone().map(|j| score(inputs, &sequence, i, j, head)).collect();
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = scores.iter().map(|score| (score - max).exp()).sum();
    let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp() / sum).collect();
    let score_errors: Vec<f64> = visible
        .clone()
        .zip(&scores)
        .map(|(j, score)| score_error(n, inputs, errors, &sequence, i, j, head, *score) + UNIT * (score - max).abs())
        .collect();

    let keys = visible.len();
    let operand = n.attention_operand();
    let gamma = n.accumulation(keys + 8);
    let mut judgement = RowJudgement { value: Vec::new(), error: Vec::new() };
    for column in 0..spec.value_dim {
        let value: f64 = visible.clone().zip(&weights).map(|(j, p)| p * value_of(inputs, j, column)).sum();
        let (mut error, mut size, mut largest) = (0.0, 0.0, 0f64);
        for ((j, p), d) in visible.clone().zip(&weights).zip(&score_errors) {
            let v = value_of(inputs, j, column);
            let arriving = errors.map_or(0.0, |errors| value_of(errors, j, column));
            error += p * (d.min(30.0).exp_m1().min(2.0 / p.max(1e-300)) * (v - value).abs() + arriving);
            size += p * v.abs();
            largest = largest.max(v.abs());
        }
        // The numerator's sum, the denominator's, and for 16 bits the weights and the values; below that, underflow.
        error += (2.0 * gamma + 2.0 * operand) * size + 2.0 * UNIT * value.abs();
        error += keys as f64 * (n.floor() + f64::from(f32::MIN_POSITIVE)) * (1.0 + largest);
        judgement.value.push(value);
        judgement.error.push(error);
    }
    judgement
}

#[expect(clippy::too_many_arguments, reason = "the place of a score takes four numbers")]
fn score_error(
    n: Numerics,
    inputs: &AttentionInputs<'_, f64>,
    errors: Option<&AttentionInputs<'_, f64>>,
    sequence: &Range<usize>,
    i: usize,
    j: usize,
    head: usize,
    score: f64,
) -> f64 {
    let spec = inputs.spec;
    let q_of = |x: &AttentionInputs<'_, f64>| -> Vec<f64> {
        head_row(x.q, sequence.start + i, spec.num_heads, spec.head_dim, head).to_vec()
    };
    let k_of = |x: &AttentionInputs<'_, f64>| -> Vec<f64> {
        head_row(x.k, sequence.start + j, spec.num_kv_heads, spec.head_dim, kv_head(spec, head)).to_vec()
    };
    let (q, k) = (q_of(inputs), k_of(inputs));
    let (dq, dk) = (errors.map(&q_of), errors.map(&k_of));
    let mut error = product_error(n, &q, dq.as_deref(), &k, dk.as_deref());
    if let BiasTables::Disentangled { key_positions, query_positions, rule } = &inputs.bias {
        let row = rule.row(i as i64 - j as i64);
        let position = |table: &[f64]| head_row(table, row, spec.num_heads, spec.head_dim, head).to_vec();
        let (dkp, dqp) = match errors.map(|errors| errors.bias) {
            Some(BiasTables::Disentangled { key_positions, query_positions, .. }) => {
                (key_positions.map(position), query_positions.map(position))
            }
            _ => (None, None),
        };
        if let Some(table) = key_positions {
            error += product_error(n, &q, dq.as_deref(), &position(table), dkp.as_deref());
        }
        if let Some(table) = query_positions {
            error += product_error(n, &k, dk.as_deref(), &position(table), dqp.as_deref());
        }
    }
    error *= f64::from(spec.scale).abs();
    let distance = (i as f64 - j as f64).abs();
    let bias = match &inputs.bias {
        BiasTables::Alibi(slopes) => f64::from(slopes[head]).abs() * distance,
        BiasTables::Bucketed(table, rule) => {
            table[rule.bucket(j as i64 - i as i64) * spec.num_heads + head].abs() * (1.0 + n.operand() / UNIT)
        }
        _ => 0.0,
    };
    let arriving = match errors.map(|errors| errors.bias) {
        Some(BiasTables::Bucketed(table, rule)) => table[rule.bucket(j as i64 - i as i64) * spec.num_heads + head],
        _ => 0.0,
    };
    let cap = spec.soft_cap.map_or(0.0, |_| 8.0 * UNIT * (score.abs() + bias));
    // Three sums and the factor; log2(e) folded into the factor or multiplied later is one more, and exp has its own.
    error + 6.0 * UNIT * (score.abs() + 2.0 * bias) + cap + 4.0 * UNIT + arriving
}

fn product_error(n: Numerics, a: &[f64], da: Option<&[f64]>, b: &[f64], db: Option<&[f64]>) -> f64 {
    let relative = n.accumulation(a.len()) + 2.0 * n.attention_operand();
    let mut error = 0.0;
    for (index, (x, y)) in a.iter().zip(b).enumerate() {
        let dx = da.map_or(0.0, |da| da[index]) + n.floor();
        let dy = db.map_or(0.0, |db| db[index]) + n.floor();
        error += relative * (x * y).abs() + dx * y.abs() + (x.abs() + dx) * dy;
    }
    error
}

//! Every operation that works row by row, and pooling. All matrices are row-major.

use ehun_graph::{Activation, Index, PoolingMode, RaggedBatch, RotaryLayout, RotarySpec};

/// Rows of `table: [entries, width]`, one for each token.
pub fn embedding(table: &[f64], width: usize, index: Index, batch: &RaggedBatch) -> Vec<f64> {
    let mut out = Vec::new();
    for sequence in 0..batch.num_sequences() {
        for (position, token) in batch.rows(sequence).enumerate() {
            let entry = match index {
                Index::TokenId => batch.token_ids()[token] as usize,
                Index::TokenType => batch.token_types()[token] as usize,
                Index::Position { offset } => position + offset,
            };
            out.extend_from_slice(&table[entry * width..(entry + 1) * width]);
        }
    }
    out
}

/// `x W^T + b` with `x: [rows, width]`, `weight: [out, width]`, `bias: [out]`.
pub fn linear(x: &[f64], width: usize, weight: &[f64], bias: Option<&[f64]>) -> Vec<f64> {
    let mut out = Vec::new();
    for row in x.chunks_exact(width) {
        for (channel, weights) in weight.chunks_exact(width).enumerate() {
            let mut sum = 0.0;
            for (a, w) in row.iter().zip(weights) {
                sum += a * w;
            }
            out.push(sum + bias.map_or(0.0, |bias| bias[channel]));
        }
    }
    out
}

/// `(x - mean) / sqrt(variance + eps) * weight + bias` over each row, variance without Bessel's correction.
pub fn layer_norm(x: &[f64], width: usize, weight: Option<&[f64]>, bias: Option<&[f64]>, eps: f32) -> Vec<f64> {
    let mut out = Vec::new();
    for row in x.chunks_exact(width) {
        let mean = row.iter().sum::<f64>() / width as f64;
        let variance = row.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / width as f64;
        let deviation = (variance + f64::from(eps)).sqrt();
        for (column, x) in row.iter().enumerate() {
            let scale = weight.map_or(1.0, |weight| weight[column]);
            let shift = bias.map_or(0.0, |bias| bias[column]);
            out.push((x - mean) / deviation * scale + shift);
        }
    }
    out
}

/// `x / sqrt(mean(x^2) + eps) * (weight + offset)` over each group of `group` elements.
pub fn rms_norm(x: &[f64], group: usize, weight: Option<&[f64]>, offset: f32, eps: f32) -> Vec<f64> {
    let mut out = Vec::new();
    for elements in x.chunks_exact(group) {
        let mean_square = elements.iter().map(|x| x * x).sum::<f64>() / group as f64;
        let root = (mean_square + f64::from(eps)).sqrt();
        for (column, x) in elements.iter().enumerate() {
            let scale = weight.map_or(1.0, |weight| weight[column] + f64::from(offset));
            out.push(x / root * scale);
        }
    }
    out
}

/// The function of each element.
pub fn activation(x: &[f64], function: Activation) -> Vec<f64> {
    x.iter().map(|&x| function.eval(x)).collect()
}

/// `function(gate) * up`.
pub fn gate(gate: &[f64], up: &[f64], function: Activation) -> Vec<f64> {
    gate.iter().zip(up).map(|(&gate, up)| function.eval(gate) * up).collect()
}

/// `a + b`; a `b` of one row is added to every row.
pub fn add(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b.iter().cycle()).map(|(a, b)| a + b).collect()
}

/// `a * b`; a `b` of one row multiplies every row.
pub fn multiply(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b.iter().cycle()).map(|(a, b)| a * b).collect()
}

/// `x * by`.
pub fn scale(x: &[f64], by: f32) -> Vec<f64> {
    x.iter().map(|x| x * f64::from(by)).collect()
}

/// Rotary position embedding of every head of each token row, by the token's position in its sequence.
pub fn rotary(x: &[f64], width: usize, spec: &RotarySpec, batch: &RaggedBatch) -> Vec<f64> {
    let mut out = x.to_vec();
    for sequence in 0..batch.num_sequences() {
        let frequencies = spec.inverse_frequencies(batch.len_of(sequence));
        for (position, token) in batch.rows(sequence).enumerate() {
            let row = &mut out[token * width..(token + 1) * width];
            for head in row.chunks_exact_mut(spec.head_dim) {
                for (i, &frequency) in frequencies.iter().enumerate() {
                    let angle = position as f64 * f64::from(frequency);
                    let cos = angle.cos() * spec.attention_factor();
                    let sin = angle.sin() * spec.attention_factor();
                    let (first, second) = match spec.layout {
                        RotaryLayout::HalfSplit => (i, i + spec.rotary_dim / 2),
                        RotaryLayout::Interleaved => (2 * i, 2 * i + 1),
                    };
                    let (a, b) = (head[first], head[second]);
                    head[first] = a * cos - b * sin;
                    head[second] = b * cos + a * sin;
                }
            }
        }
    }
    out
}

/// The columns of each part, given with its width, side by side.
pub fn concat(parts: &[(&[f64], usize)], num_rows: usize) -> Vec<f64> {
    let mut out = Vec::new();
    for row in 0..num_rows {
        for (part, width) in parts {
            out.extend_from_slice(&part[row * width..(row + 1) * width]);
        }
    }
    out
}

/// The columns `start..start + count` of each row.
pub fn columns(x: &[f64], width: usize, start: usize, count: usize) -> Vec<f64> {
    x.chunks_exact(width).flat_map(|row| &row[start..start + count]).copied().collect()
}

/// `x / max(|x|_2, 1e-12)` for each row.
pub fn l2_normalize(x: &[f64], width: usize) -> Vec<f64> {
    let mut out = Vec::new();
    for row in x.chunks_exact(width) {
        let norm = row.iter().map(|x| x * x).sum::<f64>().sqrt().max(1e-12);
        out.extend(row.iter().map(|x| x / norm));
    }
    out
}

/// One row for each sequence; zeros for an empty one.
pub fn pooling(x: &[f64], width: usize, mode: PoolingMode, batch: &RaggedBatch) -> Vec<f64> {
    let mut out = Vec::new();
    for sequence in 0..batch.num_sequences() {
        let start = batch.rows(sequence).start;
        let row = |position: usize| &x[(start + position) * width..(start + position + 1) * width];
        let range = batch.pooling_range(sequence);
        if range.is_empty() {
            out.resize(out.len() + width, 0.0);
            continue;
        }
        let weighted_sum = |weight: fn(usize) -> f64, divisor: f64| -> Vec<f64> {
            let mut sum = vec![0.0; width];
            for position in range.clone() {
                for (sum, x) in sum.iter_mut().zip(row(position)) {
                    *sum += weight(position) * x;
                }
            }
            sum.iter().map(|sum| sum / divisor).collect()
        };
        match mode {
            PoolingMode::Cls => out.extend_from_slice(row(range.start)),
            PoolingMode::LastToken => out.extend_from_slice(row(range.end - 1)),
            PoolingMode::Max => {
                for column in 0..width {
                    out.push(range.clone().map(|position| row(position)[column]).fold(f64::NEG_INFINITY, f64::max));
                }
            }
            PoolingMode::Mean => out.extend(weighted_sum(|_| 1.0, range.len() as f64)),
            PoolingMode::MeanSqrtLen => out.extend(weighted_sum(|_| 1.0, (range.len() as f64).sqrt())),
            PoolingMode::WeightedMean => {
                let total = range.clone().map(|position| (position + 1) as f64).sum();
                out.extend(weighted_sum(|position| (position + 1) as f64, total));
            }
        }
    }
    out
}

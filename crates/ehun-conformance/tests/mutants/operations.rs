//! Faults of the operations beside attention, each as a replacement of one operation.

use ehun_conformance::NodeInputs;
use ehun_graph::{Activation, Index, Op, PoolingMode, RaggedBatch, RotaryLayout};

pub type Replacement = fn(&NodeInputs<'_>) -> Option<Vec<f32>>;

/// The faults by name, with the part of the suite that is to find each.
pub fn faults() -> Vec<(&'static str, &'static str, Replacement)> {
    vec![
        ("tanh for erf", "activation", |n| swap_activation(n, Activation::Gelu, Activation::GeluTanh)),
        ("erf for tanh", "activation", |n| swap_activation(n, Activation::GeluTanh, Activation::Gelu)),
        ("silu for quick gelu", "activation", |n| swap_activation(n, Activation::QuickGelu, Activation::Silu)),
        ("sigmoid in bf16", "activation", |n| activation(n, Activation::Sigmoid, |x| bf16(1.0 / (1.0 + (-x).exp())))),
        ("ln without the 1", "activation", |n| activation(n, Activation::Log1pRelu, |x| x.max(0.0).ln().max(0.0))),
        ("relu lets small negative numbers through", "activation", |n| {
            activation(n, Activation::Relu, |x| if x > -1e-3 { x } else { 0.0 })
        }),
        ("gate and up exchanged", "gate", |n| match &n.node.op {
            Op::Gate { function, .. } => {
                Some(zip(n.operands[1], n.operands[0], |g, u| function.eval(g.into()) as f32 * u))
            }
            _ => None,
        }),
        ("gate without the function", "gate", |n| match &n.node.op {
            Op::Gate { .. } => Some(zip(n.operands[0], n.operands[1], |g, u| g * u)),
            _ => None,
        }),
        ("layer norm without eps", "layer norm", |n| layer_norm(n, |m| m.eps = 0.0)),
        ("layer norm with eps outside the root", "layer norm", |n| layer_norm(n, |m| m.eps_outside = true)),
        ("layer norm with Bessel's correction", "layer norm", |n| layer_norm(n, |m| m.bessel = true)),
        ("layer norm from sums of squares", "layer norm", |n| layer_norm(n, |m| m.sums_of_squares = true)),
        ("layer norm without its bias", "layer norm", |n| layer_norm(n, |m| m.bias = false)),
        ("layer norm without its mean", "layer norm", |n| layer_norm(n, |m| m.mean = false)),
        ("rms norm without the offset", "rms norm", |n| rms_norm(n, |m| m.offset = 0.0)),
        ("rms norm of the row, not the head", "rms norm", |n| rms_norm(n, |m| m.group = None)),
        ("rms norm by the sum, not the mean", "rms norm", |n| rms_norm(n, |m| m.sum = true)),
        ("linear without its bias", "linear", |n| linear(n, |sum, _| sum)),
        ("linear with sums in bf16", "linear", |n| linear(n, |sum, bias| bf16(sum) + bias)),
        ("linear with the bias twice", "linear", |n| linear(n, |sum, bias| sum + 2.0 * bias)),
        ("linear of the whole weight's first rows", "linear", |n| match &n.node.op {
            // A slice of a weight read from the weight's start: the rows are shifted by one here.
            Op::Linear { bias: None, .. } if n.node.width == 11 => linear(n, |sum, _| sum).map(|mut y| {
                let by = y.len().min(1);
                y.rotate_left(by);
                y
            }),
            _ => None,
        }),
        ("a constant row added to the first row only", "constant row", |n| match &n.node.op {
            Op::Add { .. } if n.operands[1].len() < n.operands[0].len() => {
                let mut y = n.operands[0].to_vec();
                y.iter_mut().zip(n.operands[1]).for_each(|(y, b)| *y += b);
                Some(y)
            }
            _ => None,
        }),
        ("add in bf16", "add", |n| match &n.node.op {
            Op::Add { .. } if n.operands[0].len() == n.operands[1].len() => {
                Some(zip(n.operands[0], n.operands[1], |a, b| bf16(a + b)))
            }
            _ => None,
        }),
        ("scale with half the digits", "scale", |n| match &n.node.op {
            Op::Scale { by, .. } => Some(n.operands[0].iter().map(|x| x * bf16(*by)).collect()),
            _ => None,
        }),
        ("columns from one too far", "columns", |n| match &n.node.op {
            Op::Columns { start, width, .. } => Some(
                n.operands[0]
                    .chunks_exact(n.widths[0])
                    .flat_map(|row| &row[start + 1..start + 1 + width])
                    .copied()
                    .collect(),
            ),
            _ => None,
        }),
        ("concat in another order", "concat", |n| match &n.node.op {
            Op::Concat { .. } => {
                let rows = n.operands[0].len() / n.widths[0];
                let part = |p: usize, r: usize| &n.operands[p][r * n.widths[p]..(r + 1) * n.widths[p]];
                Some(
                    (0..rows)
                        .flat_map(|r| (0..n.operands.len()).rev().flat_map(move |p| part(p, r)))
                        .copied()
                        .collect(),
                )
            }
            _ => None,
        }),
        ("normalize by the largest element", "l2 normalize", |n| match &n.node.op {
            Op::L2Normalize { .. } => Some(
                n.operands[0]
                    .chunks_exact(n.widths[0])
                    .flat_map(|row| {
                        let largest = row.iter().fold(1e-12f32, |m, x| m.max(x.abs()));
                        row.iter().map(move |x| x / largest)
                    })
                    .collect(),
            ),
            _ => None,
        }),
        ("normalize with 1e-5 added", "l2 normalize", |n| match &n.node.op {
            Op::L2Normalize { .. } => Some(
                n.operands[0]
                    .chunks_exact(n.widths[0])
                    .flat_map(|row| {
                        let norm = row.iter().map(|x| x * x).sum::<f32>().sqrt() + 1e-5;
                        row.iter().map(move |x| x / norm)
                    })
                    .collect(),
            ),
            _ => None,
        }),
        ("rotary layouts exchanged", "rotary", |n| rotary(n, |m| m.exchange = true)),
        ("rotary turns the other way", "rotary", |n| rotary(n, |m| m.sign = -1.0)),
        ("rotary positions from 1", "rotary", |n| rotary(n, |m| m.first = 1)),
        ("rotary positions continued over the batch", "rotary", |n| rotary(n, |m| m.continued = true)),
        ("rotary by the longest sequence of the batch", "rotary", |n| rotary(n, |m| m.longest = true)),
        ("rotary angles in float32", "rotary", |n| rotary(n, |m| m.angles32 = true)),
        ("rotary without the attention factor", "rotary", |n| rotary(n, |m| m.factor = false)),
        ("positions continued over the batch", "position", |n| {
            positions(n, |position, token, _| {
                let _ = position;
                token
            })
        }),
        ("positions without their offset", "position", |n| {
            positions(n, |position, _, offset| position.saturating_sub(offset))
        }),
        ("pooling over the prompt too", "pooling", |n| pooling(n, |p| p.whole = true)),
        ("cls of the whole sequence", "pooling", |n| pooling(n, |p| p.cls_of_sequence = true)),
        ("weighted mean from 0", "pooling", |n| pooling(n, |p| p.weight_from = 0.0)),
        ("weighted mean counted from the range", "pooling", |n| pooling(n, |p| p.weight_in_range = true)),
        ("mean by the whole length", "pooling", |n| pooling(n, |p| p.whole_divisor = true)),
        ("mean for the mean by the root", "pooling", |n| pooling(n, |p| p.root = false)),
        ("max from 0", "pooling", |n| pooling(n, |p| p.max_from_zero = true)),
        ("the last token but one", "pooling", |n| pooling(n, |p| p.last = 2)),
        ("NaN for an empty sequence", "pooling", |n| pooling(n, |p| p.empty = f32::NAN)),
        ("pooling shifted by one sequence", "pooling", |n| match &n.node.op {
            Op::Pooling { .. } => pooling(n, |_| ()).map(|mut y| {
                let by = n.node.width.min(y.len());
                y.rotate_right(by);
                y
            }),
            _ => None,
        }),
    ]
}

fn bf16(x: f32) -> f32 {
    f32::from_bits(((u64::from(x.to_bits()) + 0x8000) & 0xffff_0000) as u32)
}

fn zip(a: &[f32], b: &[f32], f: impl Fn(f32, f32) -> f32) -> Vec<f32> {
    a.iter().zip(b).map(|(&a, &b)| f(a, b)).collect()
}

fn activation(n: &NodeInputs<'_>, which: Activation, f: impl Fn(f32) -> f32) -> Option<Vec<f32>> {
    match &n.node.op {
        Op::Activation { function, .. } if *function == which => Some(n.operands[0].iter().map(|&x| f(x)).collect()),
        _ => None,
    }
}

fn swap_activation(n: &NodeInputs<'_>, from: Activation, to: Activation) -> Option<Vec<f32>> {
    activation(n, from, |x| to.eval(x.into()) as f32)
}

fn linear(n: &NodeInputs<'_>, finish: impl Fn(f32, f32) -> f32) -> Option<Vec<f32>> {
    let Op::Linear { bias, .. } = &n.node.op else { return None };
    let mut out = Vec::new();
    for row in n.operands[0].chunks_exact(n.widths[0]) {
        for (channel, w) in n.weights[0].chunks_exact(n.widths[0]).enumerate() {
            let sum: f64 = row.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
            out.push(finish(sum as f32, bias.map_or(0.0, |_| n.weights[1][channel])));
        }
    }
    Some(out)
}

struct LayerNorm {
    eps: f64,
    eps_outside: bool,
    bessel: bool,
    sums_of_squares: bool,
    bias: bool,
    mean: bool,
}

fn layer_norm(n: &NodeInputs<'_>, change: impl Fn(&mut LayerNorm)) -> Option<Vec<f32>> {
    let Op::LayerNorm { weight, bias, eps, .. } = &n.node.op else { return None };
    let mut m = LayerNorm {
        eps: f64::from(*eps),
        eps_outside: false,
        bessel: false,
        sums_of_squares: false,
        bias: true,
        mean: true,
    };
    change(&mut m);
    let width = n.widths[0];
    let mut out = Vec::new();
    for row in n.operands[0].chunks_exact(width) {
        let mean = if m.mean { row.iter().map(|&x| f64::from(x)).sum::<f64>() / width as f64 } else { 0.0 };
        let variance = if m.sums_of_squares {
            let squares = row.iter().map(|x| x * x).sum::<f32>() / width as f32;
            f64::from((squares - mean as f32 * mean as f32).max(0.0))
        } else {
            let divisor = if m.bessel { (width - 1).max(1) } else { width };
            row.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / divisor as f64
        };
        let sigma = if m.eps_outside { variance.sqrt() + m.eps } else { (variance + m.eps).sqrt() };
        for (column, &x) in row.iter().enumerate() {
            let scale = weight.map_or(1.0, |_| f64::from(n.weights[0][column]));
            let shift = if m.bias { bias.map_or(0.0, |_| f64::from(n.weights[1][column])) } else { 0.0 };
            out.push(((f64::from(x) - mean) / sigma * scale + shift) as f32);
        }
    }
    Some(out)
}

struct RmsNorm {
    offset: f64,
    group: Option<usize>,
    sum: bool,
}

fn rms_norm(n: &NodeInputs<'_>, change: impl Fn(&mut RmsNorm)) -> Option<Vec<f32>> {
    let Op::RmsNorm { offset, group, eps, .. } = &n.node.op else { return None };
    let mut m = RmsNorm { offset: f64::from(*offset), group: Some(*group), sum: false };
    change(&mut m);
    let normalised = m.group.unwrap_or(n.widths[0]);
    let mut out = Vec::new();
    for row in n.operands[0].chunks_exact(normalised) {
        let squares: f64 = row.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
        let mean = if m.sum { squares } else { squares / normalised as f64 };
        let root = (mean + f64::from(*eps)).sqrt();
        for (column, &x) in row.iter().enumerate() {
            let scale = n.weights.first().map_or(1.0, |w| f64::from(w[column % group]) + m.offset);
            out.push((f64::from(x) / root * scale) as f32);
        }
    }
    Some(out)
}

struct Rotary {
    exchange: bool,
    sign: f64,
    first: usize,
    continued: bool,
    longest: bool,
    angles32: bool,
    factor: bool,
}

fn rotary(n: &NodeInputs<'_>, change: impl Fn(&mut Rotary)) -> Option<Vec<f32>> {
    let Op::Rotary { spec, .. } = &n.node.op else { return None };
    let mut m = Rotary {
        exchange: false,
        sign: 1.0,
        first: 0,
        continued: false,
        longest: false,
        angles32: false,
        factor: true,
    };
    change(&mut m);
    let width = n.widths[0];
    let mut out = n.operands[0].to_vec();
    for sequence in 0..n.batch.num_sequences() {
        let length = if m.longest { n.batch.max_len() } else { n.batch.len_of(sequence) };
        let frequencies = spec.inverse_frequencies(length);
        for (position, token) in n.batch.rows(sequence).enumerate() {
            let position = m.first + if m.continued { token } else { position };
            for head in out[token * width..(token + 1) * width].chunks_exact_mut(spec.head_dim) {
                for (i, &frequency) in frequencies.iter().enumerate() {
                    let angle = if m.angles32 {
                        f64::from(position as f32 * frequency)
                    } else {
                        position as f64 * f64::from(frequency)
                    };
                    let factor = if m.factor { spec.attention_factor() } else { 1.0 };
                    let (cos, sin) = (angle.cos() * factor, m.sign * angle.sin() * factor);
                    let interleaved = (spec.layout == RotaryLayout::Interleaved) != m.exchange;
                    let (a, b) = if interleaved { (2 * i, 2 * i + 1) } else { (i, i + spec.rotary_dim / 2) };
                    let (x, y) = (f64::from(head[a]), f64::from(head[b]));
                    head[a] = (x * cos - y * sin) as f32;
                    head[b] = (y * cos + x * sin) as f32;
                }
            }
        }
    }
    Some(out)
}

fn positions(n: &NodeInputs<'_>, entry: impl Fn(usize, usize, usize) -> usize) -> Option<Vec<f32>> {
    let Op::Embedding { index: Index::Position { offset }, .. } = &n.node.op else { return None };
    let width = n.node.width;
    let rows = n.weights[0].len() / width;
    let mut out = Vec::new();
    for sequence in 0..n.batch.num_sequences() {
        for (position, token) in n.batch.rows(sequence).enumerate() {
            let entry = entry(position + offset, token + offset, *offset).min(rows - 1);
            out.extend_from_slice(&n.weights[0][entry * width..(entry + 1) * width]);
        }
    }
    Some(out)
}

struct Pooling {
    whole: bool,
    cls_of_sequence: bool,
    weight_from: f64,
    weight_in_range: bool,
    whole_divisor: bool,
    root: bool,
    max_from_zero: bool,
    last: usize,
    empty: f32,
}

fn pooling(n: &NodeInputs<'_>, change: impl Fn(&mut Pooling)) -> Option<Vec<f32>> {
    let Op::Pooling { mode, .. } = &n.node.op else { return None };
    let mut m = Pooling {
        whole: false,
        cls_of_sequence: false,
        weight_from: 1.0,
        weight_in_range: false,
        whole_divisor: false,
        root: true,
        max_from_zero: false,
        last: 1,
        empty: 0.0,
    };
    change(&mut m);
    let mut out = Vec::new();
    for sequence in 0..n.batch.num_sequences() {
        out.extend(pool_one(&m, *mode, n.operands[0], n.node.width, n.batch, sequence));
    }
    Some(out)
}

fn pool_one(m: &Pooling, mode: PoolingMode, x: &[f32], width: usize, batch: &RaggedBatch, sequence: usize) -> Vec<f32> {
    let length = batch.len_of(sequence);
    let range = if m.whole { 0..length } else { batch.pooling_range(sequence) };
    if range.is_empty() {
        return vec![m.empty; width];
    }
    let start = batch.rows(sequence).start;
    let row = |position: usize| &x[(start + position) * width..(start + position + 1) * width];
    let sum = |column: usize, weight: &dyn Fn(usize) -> f64| -> f64 {
        range.clone().map(|position| weight(position) * f64::from(row(position)[column])).sum()
    };
    let count = if m.whole_divisor { length } else { range.len() } as f64;
    let weight =
        |position: usize| (if m.weight_in_range { position - range.start } else { position }) as f64 + m.weight_from;
    (0..width)
        .map(|column| match mode {
            PoolingMode::Cls => row(if m.cls_of_sequence { 0 } else { range.start })[column],
            PoolingMode::LastToken => row(range.end.saturating_sub(m.last))[column],
            PoolingMode::Max => {
                let from = if m.max_from_zero { 0.0 } else { f32::NEG_INFINITY };
                range.clone().map(|position| row(position)[column]).fold(from, f32::max)
            }
            PoolingMode::Mean => (sum(column, &|_| 1.0) / count) as f32,
            PoolingMode::MeanSqrtLen => (sum(column, &|_| 1.0) / if m.root { count.sqrt() } else { count }) as f32,
            PoolingMode::WeightedMean => (sum(column, &weight) / range.clone().map(weight).sum::<f64>()) as f32,
        })
        .collect()
}

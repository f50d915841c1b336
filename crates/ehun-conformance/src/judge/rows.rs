//! The error that each row operation and pooling may add. `u` is the unit roundoff; every function gives, for each
//! element of the result, a bound on the distance to the interpreter.

use ehun_graph::{Activation, PoolingMode, RaggedBatch, RotarySpec};

use super::numerics::{Numerics, UNIT};
use crate::interpreter::rows as exact;

/// Roundings allowed to the evaluation of one transcendental function, in units of the last place.
const FUNCTION: f64 = 8.0;
/// No activation is steeper: the largest slope of GELU.
const STEEPEST: f64 = 1.13;

/// A value with the errors that it arrives with.
#[derive(Debug, Clone, Copy)]
pub struct Operand<'a> {
    /// `[rows, width]`
    pub value: &'a [f64],
    /// `[rows, width]`
    pub error: &'a [f64],
    /// Columns.
    pub width: usize,
}

impl<'a> Operand<'a> {
    fn rows(&self) -> impl Iterator<Item = (&'a [f64], &'a [f64])> {
        self.value.chunks_exact(self.width).zip(self.error.chunks_exact(self.width))
    }

    fn cycle(&self) -> impl Iterator<Item = (f64, f64)> {
        self.value.iter().copied().zip(self.error.iter().copied()).cycle()
    }
}

fn largest(x: &[f64]) -> f64 {
    x.iter().fold(0.0, |max, x| x.abs().max(max))
}

fn mean(x: impl Iterator<Item = f64>, count: usize) -> f64 {
    x.sum::<f64>() / count as f64
}

/// Products of rounded operands, summed: `(gamma_k + 2 operand) sum |x w|`, and what arrives: `sum e |w|`.
pub fn linear(n: Numerics, x: Operand<'_>, weight: &[f64], y: &[f64]) -> Vec<f64> {
    let gamma = n.accumulation(x.width + 1) + 2.0 * n.operand();
    let steps: Vec<f64> = weight.chunks_exact(x.width).map(|channel| n.quantised(largest(channel))).collect();
    let mut out = Vec::with_capacity(y.len());
    for (row, errors) in x.rows() {
        let step = n.quantised(largest(row));
        for (channel, dw) in weight.chunks_exact(x.width).zip(&steps) {
            let mut error = 0.0;
            for ((x, e), w) in row.iter().zip(errors).zip(channel) {
                let dx = e + step + n.floor();
                error += gamma * (x * w).abs() + dx * (w.abs() + dw) + (dw + n.floor()) * x.abs();
            }
            out.push(error);
        }
    }
    for (out, y) in out.iter_mut().zip(y) {
        *out += 2.0 * UNIT * y.abs();
    }
    out
}

/// The mean is off by `d = gamma_n mean|x|` and what arrives; the deviation, from differences to the mean, by
/// `gamma_n / 2 + d / sigma` of itself. A variance from sums of squares loses more where the mean is large, and fails.
pub fn layer_norm(
    n: Numerics,
    x: Operand<'_>,
    weight: Option<&[f64]>,
    bias: Option<&[f64]>,
    eps: f32,
    y: &[f64],
) -> Vec<f64> {
    let gamma = n.accumulation(x.width);
    let mut out = Vec::with_capacity(y.len());
    for (row, errors) in x.rows() {
        let center = mean(row.iter().copied(), x.width);
        let variance = mean(row.iter().map(|x| (x - center) * (x - center)), x.width);
        let sigma = (variance + f64::from(eps)).sqrt();
        let shift = gamma * mean(row.iter().map(|x| x.abs()), x.width) + mean(errors.iter().copied(), x.width);
        let arriving = (mean(errors.iter().map(|e| e * e), x.width)).sqrt() + shift;
        let relative = gamma / 2.0 + 6.0 * UNIT + (arriving / sigma) * (variance.sqrt() / sigma + arriving / sigma);
        for (column, (x, e)) in row.iter().zip(errors).enumerate() {
            let scale = weight.map_or(1.0, |weight| weight[column]).abs();
            let offset = bias.map_or(0.0, |bias| bias[column]).abs();
            let normal = (x - center).abs() / sigma;
            let error =
                scale * ((shift + e + UNIT * (x - center).abs()) / sigma * (1.0 + relative) + normal * relative);
            out.push(error + 2.0 * UNIT * offset + n.operand() * (2.0 * scale * normal + offset));
        }
    }
    for (out, y) in out.iter_mut().zip(y) {
        *out += 2.0 * UNIT * y.abs();
    }
    out
}

/// `gamma_n / 2` of the root, a few roundings of the element, and what arrives.
pub fn rms_norm(
    n: Numerics,
    x: Operand<'_>,
    group: usize,
    weight: Option<&[f64]>,
    offset: f32,
    eps: f32,
    y: &[f64],
) -> Vec<f64> {
    let mut out = Vec::with_capacity(y.len());
    for (row, errors) in x.value.chunks_exact(group).zip(x.error.chunks_exact(group)) {
        let square = mean(row.iter().map(|x| x * x), group);
        let root = (square + f64::from(eps)).sqrt();
        let arriving = mean(errors.iter().map(|e| e * e), group).sqrt() / root;
        let relative = n.accumulation(group) / 2.0 + 6.0 * UNIT + arriving * (square.sqrt() / root + arriving);
        for (column, (x, e)) in row.iter().zip(errors).enumerate() {
            let stored = weight.map_or(0.0, |weight| weight[column].abs());
            let scale = weight.map_or(1.0, |weight| weight[column] + f64::from(offset)).abs();
            let normal = x.abs() / root;
            out.push(scale * (normal * relative + e / root) + (UNIT + 2.0 * n.operand()) * (stored + scale) * normal);
        }
    }
    out
}

/// Some roundings of the result; of the argument too where the function is a product with it, since `1 + erf(x)` cancels
/// for negative x in float32; what arrives, by the slope.
pub fn activation(x: Operand<'_>, function: Activation, y: &[f64]) -> Vec<f64> {
    let cancelling = |x: f64| match function {
        Activation::Gelu | Activation::GeluTanh => x.abs(),
        Activation::QuickGelu | Activation::Silu => x.abs().min(1.0) * function.eval(x).abs() + function.eval(x).abs(),
        Activation::Relu => 0.0,
        Activation::Tanh => 0.0,
        Activation::Sigmoid | Activation::Log1pRelu => x.abs().min(1.0),
    };
    let rounding = if function == Activation::Relu { 0.0 } else { FUNCTION * UNIT };
    let underflow = if function == Activation::Relu { 0.0 } else { f64::from(f32::MIN_POSITIVE) };
    let elements = x.value.iter().zip(x.error).zip(y);
    elements
        .map(|((&x, e), y)| {
            // exp(x) has the relative error |x| u through its rounded argument.
            let argument = match function {
                Activation::QuickGelu | Activation::Silu | Activation::Sigmoid => x.abs().min(100.0) * y.abs(),
                _ => 0.0,
            };
            rounding * (y.abs() + cancelling(x)) + 2.0 * UNIT * argument + STEEPEST * e + underflow
        })
        .collect()
}

/// The activation's error times the other operand, and the product's own.
pub fn gate(gate: Operand<'_>, up: Operand<'_>, function: Activation, y: &[f64]) -> Vec<f64> {
    let activated = exact::activation(gate.value, function);
    let errors = activation(gate, function, &activated);
    let left = activated.iter().zip(&errors);
    let elements = left.zip(up.value.iter().zip(up.error)).zip(y);
    elements.map(|(((a, da), (b, db)), y)| da * b.abs() + (a.abs() + da) * db + 2.0 * UNIT * y.abs()).collect()
}

/// One rounding.
pub fn add(a: Operand<'_>, b: Operand<'_>, y: &[f64]) -> Vec<f64> {
    a.error.iter().zip(b.cycle()).zip(y).map(|((da, (_, db)), y)| da + db + UNIT * y.abs()).collect()
}

/// One rounding.
pub fn multiply(a: Operand<'_>, b: Operand<'_>, y: &[f64]) -> Vec<f64> {
    let elements = a.value.iter().zip(a.error).zip(b.cycle()).zip(y);
    elements.map(|(((a, da), (b, db)), y)| da * b.abs() + (a.abs() + da) * db + UNIT * y.abs()).collect()
}

/// One rounding.
pub fn scale(x: Operand<'_>, by: f32, y: &[f64]) -> Vec<f64> {
    x.error.iter().zip(y).map(|(e, y)| e * f64::from(by).abs() + UNIT * y.abs()).collect()
}

/// Cosine and sine are rounded once from float64, so the angle adds nothing however far the position.
pub fn rotary(x: Operand<'_>, spec: &RotarySpec) -> Vec<f64> {
    let mut out = x.error.to_vec();
    let factor = spec.attention_factor().abs();
    for (row, errors) in x.value.chunks_exact(spec.head_dim).zip(out.chunks_exact_mut(spec.head_dim)) {
        let half = spec.rotary_dim / 2;
        for i in 0..half {
            let (first, second) = match spec.layout {
                ehun_graph::RotaryLayout::HalfSplit => (i, i + half),
                ehun_graph::RotaryLayout::Interleaved => (2 * i, 2 * i + 1),
            };
            let size = row[first].abs() + row[second].abs();
            let error = factor * (errors[first] + errors[second] + 4.0 * UNIT * size);
            (errors[first], errors[second]) = (error, error);
        }
    }
    out
}

/// `gamma_n / 2` of the root, and what arrives.
pub fn l2_normalize(n: Numerics, x: Operand<'_>) -> Vec<f64> {
    let mut out = Vec::with_capacity(x.value.len());
    for (row, errors) in x.rows() {
        let norm = row.iter().map(|x| x * x).sum::<f64>().sqrt().max(1e-12);
        let arriving = errors.iter().map(|e| e * e).sum::<f64>().sqrt() / norm;
        let relative = n.accumulation(x.width) / 2.0 + 6.0 * UNIT + arriving;
        out.extend(row.iter().zip(errors).map(|(x, e)| x.abs() / norm * relative + e / norm));
    }
    out
}

/// Sums over the range; picking rows and maxima round nothing.
pub fn pooling(n: Numerics, x: Operand<'_>, mode: PoolingMode, batch: &RaggedBatch) -> Vec<f64> {
    let arriving = exact::pooling(x.error, x.width, mode, batch);
    match mode {
        PoolingMode::Cls | PoolingMode::LastToken => arriving,
        PoolingMode::Max => exact::pooling(x.error, x.width, PoolingMode::Max, batch),
        PoolingMode::Mean | PoolingMode::MeanSqrtLen | PoolingMode::WeightedMean => {
            let sizes: Vec<f64> = x.value.iter().map(|x| x.abs()).collect();
            let sums = exact::pooling(&sizes, x.width, mode, batch);
            let mut out = Vec::with_capacity(sums.len());
            for (sequence, (sums, arriving)) in
                sums.chunks_exact(x.width).zip(arriving.chunks_exact(x.width)).enumerate()
            {
                let gamma = n.accumulation(batch.pooling_range(sequence).len()) + 4.0 * UNIT;
                out.extend(sums.iter().zip(arriving).map(|(sum, arriving)| gamma * sum + arriving));
            }
            out
        }
    }
}

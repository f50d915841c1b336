//! The operations that work row by row, and pooling: one function for each. Token rows are `[batch, length, width]`, sequence
//! rows `[batch, width]`, constant rows `[rows, width]`: the columns are always the last dimension.

use ehun_graph::{Activation, PoolingMode, RotaryLayout, RotarySpec};

use super::emit::{Emitter, Val};
use super::scene::Scene;
use crate::proto::{Attribute, Element};

/// `x W^T + b`; `weight: [in, out]`, turned when it was read.
pub fn linear(e: &mut Emitter<'_>, x: &Val, weight: &Val, bias: Option<&Val>) -> Val {
    let y = e.binary("MatMul", x, weight);
    bias.map_or(y.clone(), |bias| e.binary("Add", &y, bias))
}

/// Layer norm. `weight` and `bias` may be absent.
pub fn layer_norm(
    e: &mut Emitter<'_>,
    x: &Val,
    weight: Option<&Val>,
    bias: Option<&Val>,
    width: usize,
    eps: f32,
) -> Val {
    let ones;
    let weight = match weight {
        Some(weight) => weight,
        None => {
            ones = e.floats(&format!("ones_{width}"), &[width], &vec![1.0; width]);
            &ones
        }
    };
    let inputs: Vec<&Val> = [x, weight].into_iter().chain(bias).collect();
    e.node("LayerNormalization", &inputs, &[("axis", Attribute::Int(-1)), ("epsilon", Attribute::Float(eps))])
}

/// RMS norm over groups of `group` elements; `batched` says whether rows have two dimensions before the columns.
pub fn rms_norm(
    e: &mut Emitter<'_>,
    x: &Val,
    weight: Option<&Val>,
    (offset, eps): (f32, f32),
    (width, group): (usize, usize),
    batched: bool,
) -> Val {
    let lead: &[i64] = if batched { &[0, 0] } else { &[0] };
    let shape = |last: &[usize]| -> Vec<i64> { lead.iter().copied().chain(last.iter().map(|&n| n as i64)).collect() };
    let grouped = if group == width { x.clone() } else { e.reshape(x, &shape(&[width / group, group])) };
    let squares = e.binary("Mul", &grouped, &grouped);
    let mean = e.reduce("ReduceMean", &squares, -1);
    let mean = e.with_number("Add", &mean, eps);
    let root = e.unary("Sqrt", &mean);
    let mut y = e.binary("Div", &grouped, &root);
    if let Some(weight) = weight {
        let weight = if offset == 0.0 { weight.clone() } else { e.with_number("Add", weight, offset) };
        y = e.binary("Mul", &y, &weight);
    } else if offset != 0.0 {
        y = e.with_number("Mul", &y, 1.0 + offset);
    }
    if group == width { y } else { e.reshape(&y, &shape(&[width])) }
}

/// An activation function.
pub fn activation(e: &mut Emitter<'_>, x: &Val, function: Activation) -> Val {
    match function {
        Activation::Gelu => {
            let inner = e.with_number("Mul", x, std::f32::consts::FRAC_1_SQRT_2);
            let erf = e.unary("Erf", &inner);
            let one_more = e.with_number("Add", &erf, 1.0);
            let half = e.with_number("Mul", x, 0.5);
            e.binary("Mul", &half, &one_more)
        }
        Activation::GeluTanh => {
            let square = e.binary("Mul", x, x);
            let cube = e.binary("Mul", &square, x);
            let cube = e.with_number("Mul", &cube, 0.044715);
            let inner = e.binary("Add", x, &cube);
            let inner = e.with_number("Mul", &inner, (2.0 / std::f64::consts::PI).sqrt() as f32);
            let tanh = e.unary("Tanh", &inner);
            let one_more = e.with_number("Add", &tanh, 1.0);
            let half = e.with_number("Mul", x, 0.5);
            e.binary("Mul", &half, &one_more)
        }
        Activation::QuickGelu => swish(e, x, 1.702),
        Activation::Silu => swish(e, x, 1.0),
        Activation::Relu => e.unary("Relu", x),
        Activation::Tanh => e.unary("Tanh", x),
        Activation::Sigmoid => {
            let below = one_plus_exp_of_minus(e, x);
            e.unary("Reciprocal", &below)
        }
        Activation::Log1pRelu => log_one_plus(e, x),
    }
}

fn one_plus_exp_of_minus(e: &mut Emitter<'_>, x: &Val) -> Val {
    let minus = e.unary("Neg", x);
    let exp = e.unary("Exp", &minus);
    e.with_number("Add", &exp, 1.0)
}

/// `x / (1 + exp(-beta x))`. Written out, because the runtime's sigmoid is cut off at 18 and loses what is left of it.
fn swish(e: &mut Emitter<'_>, x: &Val, beta: f32) -> Val {
    let inner = if beta == 1.0 { x.clone() } else { e.with_number("Mul", x, beta) };
    let below = one_plus_exp_of_minus(e, &inner);
    e.binary("Div", x, &below)
}

/// `ln(1 + max(x, 0))`, right for small x too: the error of the sum divides out (Kahan; Goldberg 1991, theorem 4).
fn log_one_plus(e: &mut Emitter<'_>, x: &Val) -> Val {
    let x = e.unary("Relu", x);
    let sum = e.with_number("Add", &x, 1.0);
    let log = e.unary("Log", &sum);
    let kept = e.with_number("Sub", &sum, 1.0);
    let product = e.binary("Mul", &log, &x);
    let quotient = e.binary("Div", &product, &kept);
    let one = e.float(1.0);
    let none = e.binary("Equal", &sum, &one);
    let endless = e.unary("IsInf", &x);
    let plain = e.node("Where", &[&endless, &x, &quotient], &[]);
    e.node("Where", &[&none, &x, &plain], &[])
}

/// `x / max(|x|, 1e-12)`.
pub fn l2_normalize(e: &mut Emitter<'_>, x: &Val) -> Val {
    let squares = e.binary("Mul", x, x);
    let sum = e.reduce("ReduceSum", &squares, -1);
    let length = e.unary("Sqrt", &sum);
    let least = e.float(1e-12);
    let length = e.binary("Max", &length, &least);
    e.binary("Div", x, &length)
}

/// Rotary embedding of `x: [batch, length, width]`.
pub fn rotary(e: &mut Emitter<'_>, scene: &Scene, x: &Val, spec: &RotarySpec, width: usize) -> Val {
    let (head, turned, pairs) = (spec.head_dim as i64, spec.rotary_dim as i64, spec.rotary_dim as i64 / 2);
    let heads = width as i64 / head;
    let (cos, sin) = scene.rotary(e, spec);
    let x = e.reshape(x, &[0, 0, heads, head]);
    let (first, second) = match spec.layout {
        RotaryLayout::HalfSplit => (e.slice(&x, 3, 0, pairs), e.slice(&x, 3, pairs, turned)),
        RotaryLayout::Interleaved => {
            // Every second element, from 0 and from 1.
            let mut every_second = |start: i64| {
                let (from, to) = (e.ints(&[start]), e.ints(&[turned]));
                let (axis, step) = (e.ints(&[3]), e.ints(&[2]));
                e.node("Slice", &[&x, &from, &to, &axis, &step], &[])
            };
            (every_second(0), every_second(1))
        }
    };
    let (a, b) = (e.binary("Mul", &first, &cos), e.binary("Mul", &second, &sin));
    let new_first = e.binary("Sub", &a, &b);
    let (a, b) = (e.binary("Mul", &second, &cos), e.binary("Mul", &first, &sin));
    let new_second = e.binary("Add", &a, &b);
    let mut parts = match spec.layout {
        RotaryLayout::HalfSplit => vec![new_first, new_second],
        RotaryLayout::Interleaved => {
            let (a, b) = (e.unsqueeze(&new_first, &[4]), e.unsqueeze(&new_second, &[4]));
            let both = e.concat(&[&a, &b], 4);
            vec![e.reshape(&both, &[0, 0, heads, turned])]
        }
    };
    if turned < head {
        parts.push(e.slice(&x, 3, turned, head));
    }
    let whole = match parts.as_slice() {
        [one] => one.clone(),
        parts => e.concat(&parts.iter().collect::<Vec<_>>(), 3),
    };
    e.reshape(&whole, &[0, 0, width as i64])
}

/// Pooling of `x: [batch, length, width]`. What lies outside of a sequence's range is left out by selection, so that not
/// even a NaN there reaches the result.
pub fn pooling(e: &mut Emitter<'_>, scene: &Scene, x: &Val, mode: PoolingMode) -> Val {
    let lengths = e.unsqueeze(&scene.lengths, &[1]);
    let zero = e.int(0);
    let not_empty = e.binary("Greater", &lengths, &zero);
    let starts = scene.starts(e);
    let one = e.int(1);
    let inside = match mode {
        PoolingMode::LastToken => {
            let last = e.binary("Sub", &lengths, &one);
            e.binary("Equal", &scene.positions, &last)
        }
        PoolingMode::Cls => {
            let first = e.binary("Equal", &scene.positions, &starts);
            let to = e.binary("Less", &scene.positions, &lengths);
            e.binary("And", &first, &to)
        }
        _ => {
            let from = e.binary("GreaterOrEqual", &scene.positions, &starts);
            let to = e.binary("Less", &scene.positions, &lengths);
            e.binary("And", &from, &to)
        }
    };
    let inside = e.unsqueeze(&inside, &[2]);
    if mode == PoolingMode::Max {
        let chosen = e.select(&inside, x, f32::NEG_INFINITY);
        let largest = e.reduce_away("ReduceMax", &chosen, 1);
        return e.select(&not_empty, &largest, 0.0);
    }
    let mut chosen = e.select(&inside, x, 0.0);
    let divisor = match mode {
        PoolingMode::LastToken | PoolingMode::Max | PoolingMode::Cls => None,
        PoolingMode::Mean | PoolingMode::MeanSqrtLen => {
            let count = e.binary("Sub", &lengths, &starts);
            let count = e.binary("Max", &count, &one);
            let count = e.cast(&count, Element::F32);
            Some(if mode == PoolingMode::Mean { count } else { e.unary("Sqrt", &count) })
        }
        PoolingMode::WeightedMean => {
            let weight = e.binary("Add", &scene.positions, &one);
            let weight = e.cast(&weight, Element::F32);
            let weight = e.unsqueeze(&weight, &[1]);
            chosen = e.binary("Mul", &chosen, &weight);
            // The sum of p + 1 for p in start..end, exact in integers: (end (end + 1) - start (start + 1)) / 2.
            let mut triangle = |n: &Val| {
                let next = e.binary("Add", n, &one);
                e.binary("Mul", n, &next)
            };
            let (upper, lower) = (triangle(&lengths), triangle(&starts));
            let twice = e.binary("Sub", &upper, &lower);
            let two = e.int(2);
            let twice = e.binary("Max", &twice, &two);
            let twice = e.cast(&twice, Element::F32);
            Some(e.with_number("Mul", &twice, 0.5))
        }
    };
    let sum = e.reduce_away("ReduceSum", &chosen, 1);
    divisor.map_or(sum.clone(), |divisor| e.binary("Div", &sum, &divisor))
}

//! The operations that work row by row, and pooling: one function for each.

use ehun_graph::{Activation, PoolingMode, RotaryLayout, RotarySpec};

use super::emit::{Elem, Emitter, Val};

fn last(x: &Val) -> usize {
    x.dims.len() - 1
}

/// A vector repeated for every row of `like`.
fn every_row(e: &mut Emitter, vector: &Val, like: &Val) -> Val {
    let dims = like.dims.clone();
    let width = dims[last(like)];
    let vector = e.reshape(vector, &[width]);
    let vector = e.convert(&vector, like.elem);
    e.broadcast(&vector, &[dims.len() - 1], &dims)
}

/// One number for each row repeated over the columns of `like`.
fn every_column(e: &mut Emitter, column: &Val, like: &Val) -> Val {
    let at: Vec<usize> = (0..last(like)).collect();
    e.broadcast(column, &at, &like.dims.clone())
}

/// `x W^T + b` with the products in `product`'s type and the sums in float32.
pub fn linear(e: &mut Emitter, x: &Val, weight: &Val, bias: Option<&Val>) -> Val {
    let x = e.convert(x, weight.elem);
    let mut y = e.dot(&x, weight, (&[], &[]), (last(&x), 1));
    if let Some(bias) = bias {
        let bias = every_row(e, bias, &y);
        y = e.binary("add", &y, &bias);
    }
    y
}

/// Layer norm in float32.
pub fn layer_norm(e: &mut Emitter, x: &Val, weight: Option<&Val>, bias: Option<&Val>, eps: f32) -> Val {
    let x = e.convert(x, Elem::F32);
    let width = x.dims[last(&x)] as f64;
    let mean = e.reduce("add", &x, last(&x));
    let mean = e.binary_number("divide", &mean, width);
    let mean = every_column(e, &mean, &x);
    let centred = e.binary("subtract", &x, &mean);
    let squares = e.binary("multiply", &centred, &centred);
    let variance = e.reduce("add", &squares, last(&x));
    let variance = e.binary_number("divide", &variance, width);
    let variance = e.binary_number("add", &variance, f64::from(eps));
    let factor = e.unary("rsqrt", &variance);
    let factor = every_column(e, &factor, &x);
    let mut y = e.binary("multiply", &centred, &factor);
    if let Some(weight) = weight {
        let weight = every_row(e, weight, &y);
        y = e.binary("multiply", &y, &weight);
    }
    if let Some(bias) = bias {
        let bias = every_row(e, bias, &y);
        y = e.binary("add", &y, &bias);
    }
    y
}

/// RMS norm over groups of `group` elements, in float32.
pub fn rms_norm(e: &mut Emitter, x: &Val, weight: Option<&Val>, offset: f32, group: usize, eps: f32) -> Val {
    let whole = x.dims.clone();
    let mut grouped = whole.clone();
    let width = grouped.pop().unwrap_or(0);
    grouped.extend([width / group, group]);
    let x = e.convert(x, Elem::F32);
    let x = e.reshape(&x, &grouped);
    let squares = e.binary("multiply", &x, &x);
    let mean = e.reduce("add", &squares, last(&x));
    let mean = e.binary_number("divide", &mean, group as f64);
    let mean = e.binary_number("add", &mean, f64::from(eps));
    let factor = e.unary("rsqrt", &mean);
    let factor = every_column(e, &factor, &x);
    let mut y = e.binary("multiply", &x, &factor);
    if let Some(weight) = weight {
        let weight = e.convert(weight, Elem::F32);
        let weight = if offset == 0.0 { weight } else { e.binary_number("add", &weight, f64::from(offset)) };
        let weight = every_row(e, &weight, &y);
        y = e.binary("multiply", &y, &weight);
    } else if offset != 0.0 {
        y = e.binary_number("multiply", &y, 1.0 + f64::from(offset));
    }
    e.reshape(&y, &whole)
}

/// An activation function in float32.
pub fn activation(e: &mut Emitter, x: &Val, function: Activation) -> Val {
    let x = e.convert(x, Elem::F32);
    match function {
        Activation::Gelu => {
            let inner = e.binary_number("multiply", &x, std::f64::consts::FRAC_1_SQRT_2);
            let erf = e.unary("chlo.erf", &inner);
            let one_more = e.binary_number("add", &erf, 1.0);
            let half = e.binary_number("multiply", &x, 0.5);
            e.binary("multiply", &half, &one_more)
        }
        Activation::GeluTanh => {
            let square = e.binary("multiply", &x, &x);
            let cube = e.binary("multiply", &square, &x);
            let cube = e.binary_number("multiply", &cube, 0.044715);
            let inner = e.binary("add", &x, &cube);
            let inner = e.binary_number("multiply", &inner, (2.0 / std::f64::consts::PI).sqrt());
            let tanh = e.unary("tanh", &inner);
            let one_more = e.binary_number("add", &tanh, 1.0);
            let half = e.binary_number("multiply", &x, 0.5);
            e.binary("multiply", &half, &one_more)
        }
        Activation::QuickGelu => swish(e, &x, 1.702),
        Activation::Silu => swish(e, &x, 1.0),
        Activation::Relu => e.binary_number("maximum", &x, 0.0),
        Activation::Tanh => e.unary("tanh", &x),
        Activation::Sigmoid => e.unary("logistic", &x),
        Activation::Log1pRelu => {
            let positive = e.binary_number("maximum", &x, 0.0);
            e.unary("log_plus_one", &positive)
        }
    }
}

/// `x * sigmoid(beta x)`. Left of 0 the sigmoid is taken as the square of `exp(-|beta x| / 2)` over a sum: compilers flush
/// subnormal numbers, and a sigmoid that is one would lose a product that is none.
fn swish(e: &mut Emitter, x: &Val, beta: f64) -> Val {
    let inner = if beta == 1.0 { x.clone() } else { e.binary_number("multiply", x, beta) };
    let gate = e.unary("logistic", &inner);
    let positive = e.binary_number("maximum", x, 0.0);
    let right = e.binary("multiply", &positive, &gate);

    let size = e.unary("abs", &inner);
    let half = e.binary_number("multiply", &size, -0.5);
    let root = e.unary("exponential", &half);
    let square = e.binary("multiply", &root, &root);
    let below = e.binary_number("add", &square, 1.0);
    let quotient = e.binary("divide", &root, &below);
    let negative = e.binary_number("minimum", x, 0.0);
    let part = e.binary("multiply", &negative, &root);
    let left = e.binary("multiply", &part, &quotient);
    e.binary("add", &right, &left)
}

/// `add` or `multiply`; `b` may be one row for all.
pub fn element_wise(e: &mut Emitter, op: &str, a: &Val, b: &Val) -> Val {
    let a = e.convert(a, Elem::F32);
    let b = e.convert(b, Elem::F32);
    let b = if b.dims == a.dims { b } else { every_row(e, &b, &a) };
    e.binary(op, &a, &b)
}

/// `x / max(|x|, 1e-12)` in float32.
pub fn l2_normalize(e: &mut Emitter, x: &Val) -> Val {
    let x = e.convert(x, Elem::F32);
    let squares = e.binary("multiply", &x, &x);
    let sum = e.reduce("add", &squares, last(&x));
    let length = e.unary("sqrt", &sum);
    let length = e.binary_number("maximum", &length, 1e-12);
    let length = every_column(e, &length, &x);
    e.binary("divide", &x, &length)
}

/// Rotary embedding of `x: [batch, length, heads * head_dim]`. `cos` and `sin` are `[length, rotary_dim / 2]`, or have the
/// batch before them.
pub fn rotary(e: &mut Emitter, x: &Val, spec: &RotarySpec, cos: &Val, sin: &Val) -> Val {
    let (batch, length, width) = (x.dims[0], x.dims[1], x.dims[2]);
    let heads = width / spec.head_dim;
    let pairs = spec.rotary_dim / 2;
    let x = e.convert(x, Elem::F32);
    let x = e.reshape(&x, &[batch, length, heads, spec.head_dim]);
    let turned = e.slice_dim(&x, 3, 0, spec.rotary_dim);
    let (first, second) = match spec.layout {
        RotaryLayout::HalfSplit => (e.slice_dim(&turned, 3, 0, pairs), e.slice_dim(&turned, 3, pairs, pairs)),
        RotaryLayout::Interleaved => {
            let split = e.reshape(&turned, &[batch, length, heads, pairs, 2]);
            let first = e.slice_dim(&split, 4, 0, 1);
            let second = e.slice_dim(&split, 4, 1, 1);
            (e.reshape(&first, &[batch, length, heads, pairs]), e.reshape(&second, &[batch, length, heads, pairs]))
        }
    };
    let at: &[usize] = if cos.dims.len() == 2 { &[1, 3] } else { &[0, 1, 3] };
    let cos = e.broadcast(cos, at, &first.dims.clone());
    let sin = e.broadcast(sin, at, &first.dims.clone());
    let (a, b) = (e.binary("multiply", &first, &cos), e.binary("multiply", &second, &sin));
    let new_first = e.binary("subtract", &a, &b);
    let (a, b) = (e.binary("multiply", &second, &cos), e.binary("multiply", &first, &sin));
    let new_second = e.binary("add", &a, &b);
    let turned = match spec.layout {
        RotaryLayout::HalfSplit => e.concat(&[new_first, new_second], 3),
        RotaryLayout::Interleaved => {
            let dims = [batch, length, heads, pairs, 1];
            let (a, b) = (e.reshape(&new_first, &dims), e.reshape(&new_second, &dims));
            let both = e.concat(&[a, b], 4);
            e.reshape(&both, &[batch, length, heads, spec.rotary_dim])
        }
    };
    let whole = if spec.rotary_dim == spec.head_dim {
        turned
    } else {
        let rest = e.slice_dim(&x, 3, spec.rotary_dim, spec.head_dim - spec.rotary_dim);
        e.concat(&[turned, rest], 3)
    };
    e.reshape(&whole, &[batch, length, width])
}

/// Pooling of `x: [batch, length, width]` over the positions `starts..lengths` of each sequence, in float32. What lies
/// outside is left out by selection, so that not even a NaN there reaches the result.
pub fn pooling(e: &mut Emitter, x: &Val, mode: PoolingMode, starts: &Val, lengths: &Val) -> Val {
    let x = e.convert(x, Elem::F32);
    let (batch, length, width) = (x.dims[0], x.dims[1], x.dims[2]);
    let result = [batch, width];
    let not_empty = e.compare_number("GT", lengths, 0);
    let not_empty = e.broadcast(&not_empty, &[0], &result);
    let position = e.iota(1, &[batch, length]);
    let (start, end) = (e.broadcast(starts, &[0], &[batch, length]), e.broadcast(lengths, &[0], &[batch, length]));
    let inside = match mode {
        PoolingMode::Cls => {
            let first = e.compare("EQ", &position, &start);
            let to = e.compare("LT", &position, &end);
            e.binary("and", &first, &to)
        }
        PoolingMode::LastToken => {
            let last = e.binary_number("subtract", &end, 1.0);
            e.compare("EQ", &position, &last)
        }
        _ => {
            let from = e.compare("GE", &position, &start);
            let to = e.compare("LT", &position, &end);
            e.binary("and", &from, &to)
        }
    };
    let inside = e.broadcast(&inside, &[0, 1], &x.dims.clone());
    if mode == PoolingMode::Max {
        let chosen = e.select_number(&inside, &x, f64::NEG_INFINITY);
        let largest = e.reduce("maximum", &chosen, 1);
        return e.select_number(&not_empty, &largest, 0.0);
    }
    let mut chosen = e.select_number(&inside, &x, 0.0);
    let count = e.binary("subtract", lengths, starts);
    let count = e.binary_number("maximum", &count, 1.0);
    let count = e.convert(&count, Elem::F32);
    let divisor = match mode {
        PoolingMode::Mean => Some(count),
        PoolingMode::MeanSqrtLen => Some(e.unary("sqrt", &count)),
        PoolingMode::WeightedMean => {
            let weight = e.convert(&position, Elem::F32);
            let weight = e.binary_number("add", &weight, 1.0);
            let weight = e.broadcast(&weight, &[0, 1], &x.dims.clone());
            chosen = e.binary("multiply", &chosen, &weight);
            // The sum of p + 1 for p in start..end, exact in int32: (end (end + 1) - start (start + 1)) / 2.
            let triangle = |e: &mut Emitter, n: &Val| {
                let next = e.binary_number("add", n, 1.0);
                e.binary("multiply", n, &next)
            };
            let (upper, lower) = (triangle(e, lengths), triangle(e, starts));
            let twice = e.binary("subtract", &upper, &lower);
            let twice = e.binary_number("maximum", &twice, 2.0);
            let twice = e.convert(&twice, Elem::F32);
            Some(e.binary_number("multiply", &twice, 0.5))
        }
        PoolingMode::LastToken | PoolingMode::Max | PoolingMode::Cls => None,
    };
    let sum = e.reduce("add", &chosen, 1);
    match divisor {
        Some(divisor) => {
            let divisor = e.broadcast(&divisor, &[0], &result);
            e.binary("divide", &sum, &divisor)
        }
        None => sum,
    }
}

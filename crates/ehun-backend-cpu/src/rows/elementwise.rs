//! Element-wise operations and softmax.

use ehun_graph::Activation;

use crate::simd::{Isa, Kernel, Simd};
use crate::vmath::{self, Apply};

/// An operation on each element of one slice, with the elements of another.
trait Binary: Copy {
    fn apply<S: Simd>(self, s: S, x: S::V, y: S::V) -> S::V;
}

/// `x[i] = op(x[i], y[i])` for slices of one length.
struct Map<'a, B> {
    op: B,
    x: &'a mut [f32],
    y: &'a [f32],
}

impl<B: Binary> Kernel for Map<'_, B> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        assert_eq!(self.x.len(), self.y.len(), "element-wise operands differ in length");
        let mut xs = self.x.chunks_exact_mut(S::LANES);
        let mut ys = self.y.chunks_exact(S::LANES);
        for (x, y) in (&mut xs).zip(&mut ys) {
            let value = self.op.apply(s, s.load(x), s.load(y));
            s.store(x, value);
        }
        let (x, y) = (xs.into_remainder(), ys.remainder());
        let value = self.op.apply(s, s.load_head(x), s.load_head(y));
        s.store_head(x, value);
    }
}

/// `x[i] = op(x[i])`
struct MapOne<'a, U> {
    op: U,
    x: &'a mut [f32],
}

/// An operation on each element of a slice.
trait Unary: Copy {
    fn apply<S: Simd>(self, s: S, x: S::V) -> S::V;
}

impl<U: Unary> Kernel for MapOne<'_, U> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut xs = self.x.chunks_exact_mut(S::LANES);
        for x in &mut xs {
            let value = self.op.apply(s, s.load(x));
            s.store(x, value);
        }
        let x = xs.into_remainder();
        let value = self.op.apply(s, s.load_head(x));
        s.store_head(x, value);
    }
}

#[derive(Clone, Copy)]
struct Add;
#[derive(Clone, Copy)]
struct Multiply;
#[derive(Clone, Copy)]
struct Gate(Activation);
#[derive(Clone, Copy)]
struct Scale(f32);

impl Binary for Add {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, x: S::V, y: S::V) -> S::V {
        s.add(x, y)
    }
}

impl Binary for Multiply {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, x: S::V, y: S::V) -> S::V {
        s.mul(x, y)
    }
}

impl Binary for Gate {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, x: S::V, y: S::V) -> S::V {
        s.mul(Apply::apply(self.0, s, x), y)
    }
}

impl Unary for Activation {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, x: S::V) -> S::V {
        Apply::apply(self, s, x)
    }
}

impl Unary for Scale {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, x: S::V) -> S::V {
        s.mul(x, s.splat(self.0))
    }
}

/// `x = activation(x)`
pub fn activation_in_place(isa: Isa, activation: Activation, x: &mut [f32]) {
    isa.run(MapOne { op: activation, x });
}

/// `x = x * by`
pub fn scale_in_place(isa: Isa, by: f32, x: &mut [f32]) {
    isa.run(MapOne { op: Scale(by), x });
}

/// `gate = activation(gate) * up`
///
/// # Panics
/// When the lengths differ.
pub fn gate_in_place(isa: Isa, activation: Activation, gate: &mut [f32], up: &[f32]) {
    isa.run(Map { op: Gate(activation), x: gate, y: up });
}

/// `x = x + y`
///
/// # Panics
/// When the lengths differ.
pub fn add_in_place(isa: Isa, x: &mut [f32], y: &[f32]) {
    isa.run(Map { op: Add, x, y });
}

/// `x = x * y`
///
/// # Panics
/// When the lengths differ.
pub fn multiply_in_place(isa: Isa, x: &mut [f32], y: &[f32]) {
    isa.run(Map { op: Multiply, x, y });
}

/// Adds `row` to every row of `x`.
///
/// # Panics
/// When `x` is no whole number of rows.
pub fn add_row_in_place(isa: Isa, x: &mut [f32], row: &[f32]) {
    assert_eq!(x.len() % row.len().max(1), 0, "no whole number of rows of {}", row.len());
    x.chunks_exact_mut(row.len().max(1)).for_each(|x| add_in_place(isa, x, row));
}

/// Multiplies every row of `x` by `row`, element by element.
///
/// # Panics
/// When `x` is no whole number of rows.
pub fn multiply_row_in_place(isa: Isa, x: &mut [f32], row: &[f32]) {
    assert_eq!(x.len() % row.len().max(1), 0, "no whole number of rows of {}", row.len());
    x.chunks_exact_mut(row.len().max(1)).for_each(|x| multiply_in_place(isa, x, row));
}

/// Softmax of each row of `width` values.
///
/// # Panics
/// When `x` is no whole number of rows.
pub fn softmax_in_place(isa: Isa, x: &mut [f32], width: usize) {
    assert_eq!(x.len() % width.max(1), 0, "no whole number of rows of {width}");
    isa.run(Softmax { x, width });
}

struct Softmax<'a> {
    x: &'a mut [f32],
    width: usize,
}

impl Kernel for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for row in self.x.chunks_exact_mut(self.width.max(1)) {
            let max = max_of(s, row);
            let sum = exp_and_sum(s, row, max);
            let by = s.splat(1.0 / sum);
            let mut at = 0;
            while at < row.len() {
                let x = s.load_head(&row[at..]);
                s.store_head(&mut row[at..], s.mul(x, by));
                at += S::LANES;
            }
        }
    }
}

/// The largest value of a row; minus infinity for an empty one.
#[inline(always)]
pub(crate) fn max_of<S: Simd>(s: S, row: &[f32]) -> f32 {
    let mut max = s.splat(f32::NEG_INFINITY);
    let mut chunks = row.chunks_exact(S::LANES);
    for x in &mut chunks {
        max = s.max(max, s.load(x));
    }
    chunks.remainder().iter().copied().fold(s.max_lane(max), |m, x| if m > x { m } else { x })
}

/// `row = exp(row - max)`, and the sum of the row. Where `max` is minus infinity (nothing is visible) all become zero.
#[inline(always)]
pub(crate) fn exp_and_sum<S: Simd>(s: S, row: &mut [f32], max: f32) -> f32 {
    // exp(-inf - 0) is zero, where exp(-inf + inf) would be NaN.
    let max = s.splat(if max == f32::NEG_INFINITY { 0.0 } else { max });
    let mut sum = s.zero();
    let mut chunks = row.chunks_exact_mut(S::LANES);
    for x in &mut chunks {
        let e = vmath::exp(s, s.sub(s.load(x), max));
        s.store(x, e);
        sum = s.add(sum, e);
    }
    let rest = chunks.into_remainder();
    if !rest.is_empty() {
        let mut e = [0.0; 16];
        let values = vmath::exp(s, s.sub(s.load_head(rest), max));
        s.store_head(&mut e[..rest.len()], values);
        s.store_head(rest, values);
        sum = s.add(sum, s.load(&e));
    }
    s.sum(sum)
}

//! Rows of scores: what is done to them between the two products.

use std::ops::Range;

use super::bias::HeadBias;
use crate::rows::{exp_and_sum, max_of};
use crate::simd::{Kernel, Simd};
use crate::vmath;
use ehun_graph::AttentionSpec;

/// A tile of scores: `rows` of the sequence against a range of its keys.
pub(super) struct ScoreTile<'a> {
    pub(super) spec: &'a AttentionSpec,
    pub(super) bias: &'a HeadBias<'a>,
    /// Length of the sequence.
    pub(super) len: usize,
    /// Query rows, counted in the sequence.
    pub(super) queries: Range<usize>,
    /// Keys of the tile's columns, counted in the sequence.
    pub(super) keys: Range<usize>,
    /// First key of the block that the tile is in.
    pub(super) block: usize,
    /// The scores, already scaled; row `r` starts at `r * stride`.
    pub(super) scores: &'a mut [f32],
    pub(super) stride: usize,
}

impl ScoreTile<'_> {
    /// Adds bias, caps, and applies `softmax` to the visible part of each row: `softmax(r, visible part)`. The rest of the
    /// row becomes zero.
    #[inline(always)]
    fn each_row<S: Simd, F: RowStep>(&mut self, s: S, step: &mut F) {
        for (r, i) in self.queries.clone().enumerate() {
            let row = &mut self.scores[r * self.stride..][..self.keys.len()];
            let visible = self.spec.band.visible(i, self.len);
            let start = visible.start.max(self.keys.start).min(self.keys.end);
            let end = visible.end.min(self.keys.end).max(start);
            row[..start - self.keys.start].fill(0.0);
            row[end - self.keys.start..].fill(0.0);
            if start == end {
                continue;
            }
            let part = &mut row[start - self.keys.start..end - self.keys.start];
            if let HeadBias::Disentangled(d) = self.bias {
                d.add(part, r, i, start..end, self.block);
            }
            if let Some(cap) = self.spec.soft_cap {
                soft_cap(s, part, cap);
            }
            if let HeadBias::Relative { values, center } = self.bias {
                add(s, part, &values[center + start - i..][..end - start]);
            }
            step.run(s, r, part);
        }
    }
}

/// What is done to the visible part of a row.
trait RowStep {
    fn run<S: Simd>(&mut self, s: S, r: usize, part: &mut [f32]);
}

/// `x = cap * tanh(x / cap)`
#[inline(always)]
fn soft_cap<S: Simd>(s: S, x: &mut [f32], cap: f32) {
    let (cap, inverse) = (s.splat(cap), s.splat(1.0 / cap));
    let mut at = 0;
    while at < x.len() {
        let y = s.mul(vmath::tanh(s, s.mul(s.load_head(&x[at..]), inverse)), cap);
        s.store_head(&mut x[at..], y);
        at += S::LANES;
    }
}

/// `x = x + y`
#[inline(always)]
fn add<S: Simd>(s: S, x: &mut [f32], y: &[f32]) {
    let mut at = 0;
    while at < x.len() {
        let sum = s.add(s.load_head(&x[at..]), s.load_head(&y[at..]));
        s.store_head(&mut x[at..], sum);
        at += S::LANES;
    }
}

/// `x = x * by`
#[inline(always)]
fn scale<S: Simd>(s: S, x: &mut [f32], by: f32) {
    let by = s.splat(by);
    let mut at = 0;
    while at < x.len() {
        let y = s.mul(s.load_head(&x[at..]), by);
        s.store_head(&mut x[at..], y);
        at += S::LANES;
    }
}

/// The softmax of whole rows.
pub(super) struct WholeRows<'a>(pub(super) ScoreTile<'a>);

struct Whole;

impl RowStep for Whole {
    #[inline(always)]
    fn run<S: Simd>(&mut self, s: S, _: usize, part: &mut [f32]) {
        let max = max_of(s, part);
        let sum = exp_and_sum(s, part, max);
        scale(s, part, 1.0 / sum);
    }
}

impl Kernel for WholeRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        self.0.each_row(s, &mut Whole);
    }
}

/// One step of the softmax of rows that come in blocks: scores become weights relative to the running maximum, and what
/// was summed so far is scaled to it.
pub(super) struct RunningRows<'a> {
    pub(super) tile: ScoreTile<'a>,
    pub(super) running: Running<'a>,
}

/// The state of the rows of a tile.
pub(super) struct Running<'a> {
    /// Maximum and sum of each row.
    pub(super) state: &'a mut [(f32, f32)],
    /// Sums of weighted values, `width` to a row.
    pub(super) o: &'a mut [f32],
    pub(super) width: usize,
}

impl RowStep for Running<'_> {
    #[inline(always)]
    fn run<S: Simd>(&mut self, s: S, r: usize, part: &mut [f32]) {
        let (max, sum) = self.state[r];
        let block_max = max_of(s, part);
        if block_max > max {
            let mut factor = [0.0; 16];
            s.store(&mut factor, vmath::exp(s, s.splat(max - block_max)));
            // The first block finds no sums yet: exp(-inf) is zero, and so are they.
            if max > f32::NEG_INFINITY {
                scale(s, &mut self.o[r * self.width..][..self.width], factor[0]);
            }
            self.state[r] = (block_max, sum * factor[0] + exp_and_sum(s, part, block_max));
        } else {
            self.state[r].1 = sum + exp_and_sum(s, part, max);
        }
    }
}

impl Kernel for RunningRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        self.tile.each_row(s, &mut self.running);
    }
}

//! Rotary position embedding of rows of heads.

use ehun_graph::RotaryLayout;

use crate::simd::{Isa, Kernel, Simd};

/// Rotary embedding with tables of cosines and sines, see [`ehun_graph::RotarySpec::tables`].
#[derive(Clone, Copy, Debug)]
pub struct Rotary<'a> {
    /// Heads to turn in a row.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Leading elements of each head that are turned; even. The rest stays.
    pub rotary_dim: usize,
    /// Which elements are paired.
    pub layout: RotaryLayout,
    /// Cosines `[positions, rotary_dim / 2]`.
    pub cos: &'a [f32],
    /// Sines `[positions, rotary_dim / 2]`.
    pub sin: &'a [f32],
}

/// Turns the heads of each row in place. Row `i` starts at `x[i * stride]` and has position `positions[i]`.
///
/// # Panics
/// When a row, or a position's row in the tables, is not there.
pub fn rotary_in_place(isa: Isa, rotary: &Rotary<'_>, x: &mut [f32], stride: usize, positions: &[u32]) {
    assert!(rotary.rotary_dim.is_multiple_of(2) && rotary.rotary_dim <= rotary.head_dim);
    isa.run(Turn { rotary, x, stride, positions });
}

struct Turn<'a> {
    rotary: &'a Rotary<'a>,
    x: &'a mut [f32],
    stride: usize,
    positions: &'a [u32],
}

impl Kernel for Turn<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let r = self.rotary;
        let half = r.rotary_dim / 2;
        for (i, position) in self.positions.iter().enumerate() {
            let cos = &r.cos[*position as usize * half..][..half];
            let sin = &r.sin[*position as usize * half..][..half];
            let row = &mut self.x[i * self.stride..][..r.heads * r.head_dim];
            for head in row.chunks_exact_mut(r.head_dim.max(1)) {
                match r.layout {
                    RotaryLayout::HalfSplit => {
                        let (first, second) = head[..r.rotary_dim].split_at_mut(half);
                        half_split(s, first, second, cos, sin);
                    }
                    RotaryLayout::Interleaved => {
                        for (j, pair) in head[..r.rotary_dim].chunks_exact_mut(2).enumerate() {
                            let (a, b) = (pair[0], pair[1]);
                            pair[0] = a * cos[j] - b * sin[j];
                            pair[1] = b * cos[j] + a * sin[j];
                        }
                    }
                }
            }
        }
    }
}

/// `(first, second) = (first cos - second sin, second cos + first sin)`
#[inline(always)]
fn half_split<S: Simd>(s: S, first: &mut [f32], second: &mut [f32], cos: &[f32], sin: &[f32]) {
    let mut at = 0;
    while at < first.len() {
        let (a, b) = (s.load_head(&first[at..]), s.load_head(&second[at..]));
        let (c, d) = (s.load_head(&cos[at..]), s.load_head(&sin[at..]));
        s.store_head(&mut first[at..], s.fnma(b, d, s.mul(a, c)));
        s.store_head(&mut second[at..], s.fma(a, d, s.mul(b, c)));
        at += S::LANES;
    }
}

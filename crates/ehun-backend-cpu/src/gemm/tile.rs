//! The micro-kernel: one tile of a product, in registers.

#![expect(
    clippy::needless_range_loop,
    reason = "register tiles: constant bounds and plain indices are what keeps them in registers"
)]

use crate::simd::{Kernel, Simd};

/// Panel values and how they become f32.
pub(crate) trait PanelValue: crate::aligned::Plain {
    /// Widens `LANES` values.
    ///
    /// # Safety
    /// `p` is valid for reading `LANES` values.
    unsafe fn load<S: Simd>(s: S, p: *const Self) -> S::V;
}

impl PanelValue for f32 {
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, p: *const f32) -> S::V {
        // SAFETY: as the caller's.
        unsafe { s.load_ptr(p) }
    }
}

/// Bits of an IEEE half-precision value.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct HalfBits(pub(super) u16);

/// Bits of a bfloat16 value.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct BrainBits(pub(super) u16);

impl crate::aligned::Plain for HalfBits {}
impl crate::aligned::Plain for BrainBits {}

impl PanelValue for HalfBits {
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, p: *const Self) -> S::V {
        // SAFETY: as the caller's; the type is 16 bits.
        unsafe { s.load_f16_ptr(p.cast()) }
    }
}

impl PanelValue for BrainBits {
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, p: *const Self) -> S::V {
        // SAFETY: as the caller's; the type is 16 bits.
        unsafe { s.load_bf16_ptr(p.cast()) }
    }
}

/// What a tile starts from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// Zero.
    Zero,
    /// What `c` holds.
    Output,
}

/// The micro-kernel: `c[rows, tile] = start + a[rows, depth] x panel[depth, tile]`, each element one chain of multiply-adds
/// over the depth in rising order, for a tile of `S::LANES * S::TILE_VECS` columns. It is a [`Kernel`] of its own, so that
/// each instruction set has it once and not in every place that calls it.
pub(crate) struct Tile<P> {
    start: Start,
    rows: usize,
    depth: usize,
    a: *const f32,
    lda: usize,
    b: *const P,
    c: *mut f32,
    ldc: usize,
}

impl<P> Tile<P> {
    /// # Safety
    /// `rows` is at most `S::TILE_ROWS`. `a` is valid for reading `rows` rows of `depth` values, `lda` apart; `b` for
    /// `depth` times a tile's columns; `c` for reading and writing `rows` rows of a tile's columns, `ldc` apart.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "a product has this many: three matrices, their strides and sizes")]
    pub(crate) unsafe fn new(
        start: Start,
        rows: usize,
        depth: usize,
        a: *const f32,
        lda: usize,
        b: *const P,
        c: *mut f32,
        ldc: usize,
    ) -> Self {
        Self { start, rows, depth, a, lda, b, c, ldc }
    }
}

impl<P: PanelValue> Kernel for Tile<P> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        debug_assert!(self.rows <= S::TILE_ROWS);
        macro_rules! by_rows {
            ($vecs:literal: $($m:literal)*) => {
                match self.rows {
                    $(
                        $m if $m <= S::TILE_ROWS => {
                            // SAFETY: as `Tile::new`'s caller vouches; $m is the number of rows.
                            unsafe { fixed::<S, P, $m, $vecs>(s, &self) }
                        }
                    )*
                    _ => {}
                }
            };
        }
        if S::TILE_VECS == 4 {
            by_rows!(4: 1 2 3 4 5 6);
        } else {
            by_rows!(2: 1 2 3 4 5 6 7 8 9 10 11 12 13 14);
        }
    }
}

/// [`Tile`] for a fixed number of rows and vectors.
///
/// # Safety
/// As [`Tile::new`].
#[inline(always)]
unsafe fn fixed<S: Simd, P: PanelValue, const ROWS: usize, const VECS: usize>(s: S, t: &Tile<P>) {
    let Tile { start, depth, a, lda, b, c, ldc, .. } = *t;
    // SAFETY: every access is inside what the caller vouches for: rows i < ROWS, inputs p < depth, columns below the tile.
    unsafe {
        let mut acc = [[s.zero(); VECS]; ROWS];
        if start == Start::Output {
            for i in 0..ROWS {
                for j in 0..VECS {
                    acc[i][j] = s.load_ptr(c.add(i * ldc + j * S::LANES));
                }
            }
        }
        let mut b = b;
        for p in 0..depth {
            let mut bv = [s.zero(); VECS];
            for j in 0..VECS {
                bv[j] = P::load(s, b.add(j * S::LANES));
            }
            for i in 0..ROWS {
                let av = s.splat(*a.add(i * lda + p));
                for j in 0..VECS {
                    acc[i][j] = s.fma(av, bv[j], acc[i][j]);
                }
            }
            b = b.add(VECS * S::LANES);
        }
        for i in 0..ROWS {
            for j in 0..VECS {
                s.store_ptr(c.add(i * ldc + j * S::LANES), acc[i][j]);
            }
        }
    }
}

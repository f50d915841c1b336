//! Products of bytes: weights quantised symmetrically per output channel when they are packed, activations per row when
//! they arrive, by the row's own range. A row's bytes, and so its results, depend on that row alone; the sums are exact
//! integers, so every instruction set gives the same ones.
//!
//! With `x ~ s_x (q - z)`, q in 0..=255, and `w ~ s_w r`, r in -127..=127:
//! `sum x w ~ s_x s_w (sum q r - z sum r)`, where `sum r` of a channel is known when it is packed.
//!
//! **Error**: each activation is off by at most `s_x / 2` (twice that where the range starts at a rounded zero point), each
//! weight by `s_w / 2`; both errors scatter around zero, so their sum grows with the square root of k.

#![expect(
    clippy::needless_range_loop,
    reason = "register tiles: constant bounds and plain indices are what keeps them in registers"
)]

use super::run::{Cut, Finish, TILE_VALUES, Target, TileBuffer, check, part};
use super::{Epilogue, MatMut, MatRef, pack::TileShape};
use crate::aligned::Aligned;
use crate::pool::{SyncPtr, ThreadPool};
use crate::simd::int8::{DotInt8, Int8Kernel};
use crate::simd::{Isa, Kernel, Simd};

/// Weights `[n, k]` as bytes, cut into panels as [`PackedWeights`](super::PackedWeights) are.
pub struct PackedInt8 {
    isa: Isa,
    n: usize,
    k: usize,
    gated: bool,
    tile: usize,
    tile_rows: usize,
    group: usize,
    /// Panels `[k / group, tile, group]`.
    panels: Aligned<i8>,
    /// Scale of each column of the panels; 0 for those that fill them up.
    scales: Vec<f32>,
    /// Sum of each column's bytes.
    sums: Vec<i32>,
}

/// Rows of activations as bytes, for one instruction set. Several products may share them.
pub struct QuantizedRows {
    isa: Isa,
    rows: usize,
    k: usize,
    /// Groups of 4 bytes in a row.
    groups: usize,
    data: Aligned<u8>,
    scales: Vec<f32>,
    zeros: Vec<i32>,
}

/// Asks an instruction set for its group and rows.
struct DotShape;

impl Int8Kernel for DotShape {
    type Output = (usize, usize);
    #[inline(always)]
    fn run<D: DotInt8>(self, _: D) -> (usize, usize) {
        (D::GROUP, D::TILE_ROWS)
    }
}

impl PackedInt8 {
    /// Quantises and packs weights `[n, k]`.
    ///
    /// # Panics
    /// When `w` does not hold `n * k` values, or k is above 2^16 (sums of 255 * 127 * k must fit 32 bits).
    #[must_use]
    pub fn pack(isa: Isa, w: &[f32], n: usize, k: usize) -> Self {
        Self::pack_all(isa, &[w], n, k)
    }

    /// Quantises and packs a gate and its partner, as [`PackedWeights::pack_gated`](super::PackedWeights::pack_gated).
    ///
    /// # Panics
    /// As [`PackedInt8::pack`].
    #[must_use]
    pub fn pack_gated(isa: Isa, gate: &[f32], up: &[f32], n: usize, k: usize) -> Self {
        Self::pack_all(isa, &[gate, up], n, k)
    }

    fn pack_all(isa: Isa, matrices: &[&[f32]], n: usize, k: usize) -> Self {
        assert!(matrices.iter().all(|w| w.len() == n * k), "weights of {n} x {k}");
        assert!(k <= 1 << 16, "{k} inputs: a sum of that many products of bytes does not fit 32 bits");
        let (_, tile) = isa.run(TileShape);
        let (group, tile_rows) = isa.run_int8(DotShape);
        let gated = matrices.len() == 2;
        let outputs = tile / matrices.len();
        let (count, depth) = (n.div_ceil(outputs), k.next_multiple_of(group));
        let mut packed = Self {
            isa,
            n,
            k,
            gated,
            tile,
            tile_rows,
            group,
            panels: Aligned::zeroed(count * tile * depth),
            scales: vec![0.0; count * tile],
            sums: vec![0; count * tile],
        };
        let panels = packed.panels.as_mut_slice();
        for column in 0..count * tile {
            let (panel, c) = (column / tile, column % tile);
            let channel = panel * outputs + c % outputs;
            if channel >= n {
                continue;
            }
            let w = &matrices[c / outputs][channel * k..][..k];
            let scale = w.iter().fold(0f32, |max, x| max.max(x.abs())) / 127.0;
            packed.scales[column] = scale;
            for (p, x) in w.iter().enumerate() {
                let byte = if scale > 0.0 { (x / scale).round_ties_even().clamp(-127.0, 127.0) as i8 } else { 0 };
                panels[panel * tile * depth + (p / group * tile + c) * group + p % group] = byte;
                packed.sums[column] += i32::from(byte);
            }
        }
        packed
    }

    /// Output channels.
    #[must_use]
    pub fn n(&self) -> usize {
        self.n
    }

    /// Inputs.
    #[must_use]
    pub fn k(&self) -> usize {
        self.k
    }

    /// The instruction set that they were packed for.
    pub(super) fn isa(&self) -> Isa {
        self.isa
    }

    /// Whether they were packed by [`PackedInt8::pack_gated`].
    #[must_use]
    pub fn is_gated(&self) -> bool {
        self.gated
    }

    /// Bytes of memory that they take.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.panels.as_slice().len() + 8 * self.scales.len()
    }
}

impl QuantizedRows {
    /// Quantises rows, each by its own range. A row with a value that is not finite gets the scale NaN, so that its results
    /// are NaN and not plausible numbers.
    #[must_use]
    pub fn new(isa: Isa, pool: &ThreadPool, a: MatRef<'_>) -> Self {
        let (group, _) = isa.run_int8(DotShape);
        let groups = a.cols.div_ceil(group);
        let mut q = Self {
            isa,
            rows: a.rows,
            k: a.cols,
            groups,
            data: Aligned::zeroed(a.rows * groups * 4),
            scales: vec![0.0; a.rows],
            zeros: vec![0; a.rows],
        };
        let (scales, zeros) = (SyncPtr(q.scales.as_mut_ptr()), SyncPtr(q.zeros.as_mut_ptr()));
        pool.run_rows(q.data.as_mut_slice(), groups * 4, 32, |first, block| {
            for (i, bytes) in block.chunks_exact_mut(groups * 4).enumerate() {
                let row = first + i;
                let (scale, zero) = isa.run(Quantize { row: a.row(row), to: bytes, wide: group == 2 });
                // SAFETY: each row belongs to one task.
                unsafe {
                    *scales.get().add(row) = scale;
                    *zeros.get().add(row) = zero;
                }
            }
        });
        q
    }
}

/// Quantises a row. Plain loops: inlined where the instruction set is enabled, they become vectors.
struct Quantize<'a> {
    row: &'a [f32],
    to: &'a mut [u8],
    /// Whether values take 16 bits.
    wide: bool,
}

impl Kernel for Quantize<'_> {
    /// Scale and zero point.
    type Output = (f32, i32);

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> (f32, i32) {
        let (mut low, mut high, mut check) = ([0f32; 16], [0f32; 16], [0f32; 16]);
        let mut chunks = self.row.chunks_exact(16);
        for x in &mut chunks {
            for i in 0..16 {
                low[i] = if x[i] < low[i] { x[i] } else { low[i] };
                high[i] = if x[i] > high[i] { x[i] } else { high[i] };
                check[i] += x[i] * 0.0;
            }
        }
        for (i, x) in chunks.remainder().iter().enumerate() {
            low[i] = low[i].min(*x);
            high[i] = high[i].max(*x);
            check[i] += x * 0.0;
        }
        let low = low.into_iter().fold(0.0, f32::min);
        let high = high.into_iter().fold(0.0, f32::max);
        let check: f32 = check.into_iter().sum();
        let scale = (high - low) / 255.0;
        // A row of zeros, or of values so small that their range underflows, is zero.
        let inverse = if scale > 0.0 && scale.is_finite() { 1.0 / scale } else { 0.0 };
        let inverse = if inverse.is_finite() { inverse } else { 0.0 };
        let zero = (-low * inverse).round_ties_even();
        // Adding 1.5 * 2^23 rounds to nearest even and leaves the integer in the low bits: no conversion with its checks.
        // NaN becomes 0 here; its row has the scale NaN.
        let quantize = |x: f32| {
            let y = x * inverse + zero;
            let y = if y > 0.0 { y } else { 0.0 };
            let y = if y < 255.0 { y } else { 255.0 };
            (y + 12_582_912.0).to_bits()
        };
        if self.wide {
            for (to, x) in self.to.chunks_exact_mut(2).zip(self.row) {
                to.copy_from_slice(&(quantize(*x) as u8 as u16).to_le_bytes());
            }
        } else {
            for (to, x) in self.to.iter_mut().zip(self.row) {
                *to = quantize(*x) as u8;
            }
        }
        (scale + check, zero as i32)
    }
}

/// `out = epilogue(a x w^T)` in bytes. Bits of a row depend on that row and the weights alone.
///
/// # Panics
/// When shapes, or the instruction sets of rows and weights, do not agree.
pub fn gemm_int8(pool: &ThreadPool, a: &QuantizedRows, w: &PackedInt8, epilogue: &Epilogue<'_>, mut out: MatMut<'_>) {
    assert_eq!((a.k, a.isa), (w.k, w.isa), "rows and weights do not fit each other");
    check(epilogue, &out, a.rows, w.n, w.gated);
    if a.rows == 0 || w.n == 0 {
        return;
    }
    let panels = w.scales.len() / w.tile;
    // A byte costs about a quarter of what an f32 does.
    let cut = Cut::new(a.rows, w.tile_rows, panels, a.groups * 4, w.tile * w.k / 4, pool.threads());
    let c = SyncPtr(out.as_mut_ptr());
    let ldc = out.stride;
    let panel_len = w.tile * a.groups * w.group;
    pool.run(cut.row_blocks * cut.panel_blocks, |task| {
        let target = Target { epilogue, n: w.n, gated: w.gated, c: c.get(), ldc };
        let tiles = part(cut.tiles, cut.row_blocks, task / cut.panel_blocks);
        let mut sums = TileBuffer([0i32; TILE_VALUES]);
        let mut values = TileBuffer([0f32; TILE_VALUES]);
        for panel in part(panels, cut.panel_blocks, task % cut.panel_blocks) {
            for t in tiles.clone() {
                let rows = part(a.rows, cut.tiles, t);
                w.isa.run_int8(TileInt8 {
                    a: &a.data.as_slice()[rows.start * a.groups * 4..rows.end * a.groups * 4],
                    rows: rows.len(),
                    groups: a.groups,
                    b: &w.panels.as_slice()[panel * panel_len..][..panel_len],
                    sums: &mut sums.0,
                });
                w.isa.run(Dequantize {
                    sums: &sums.0,
                    scales: &a.scales[rows.clone()],
                    zeros: &a.zeros[rows.clone()],
                    column_scales: &w.scales[panel * w.tile..][..w.tile],
                    column_sums: &w.sums[panel * w.tile..][..w.tile],
                    to: &mut values.0,
                });
                w.isa.run(Finish { target, buffer: &values.0, rows, panel });
            }
        }
    });
}

/// The micro-kernel: `sums[rows, tile] = a[rows, k] x panel[k, tile]`.
struct TileInt8<'a> {
    a: &'a [u8],
    rows: usize,
    groups: usize,
    b: &'a [i8],
    sums: &'a mut [i32; TILE_VALUES],
}

impl Int8Kernel for TileInt8<'_> {
    type Output = ();

    #[inline(always)]
    fn run<D: DotInt8>(self, d: D) {
        let width = D::LANES * D::TILE_VECS;
        assert!(self.rows <= D::TILE_ROWS && self.rows * width <= TILE_VALUES);
        assert!(self.a.len() >= self.rows * self.groups * 4 && self.b.len() >= self.groups * width * D::GROUP);
        macro_rules! by_rows {
            ($vecs:literal: $($m:literal)*) => {
                match self.rows {
                    $(
                        $m if $m <= D::TILE_ROWS => {
                            // SAFETY: measured above; $m is the number of rows.
                            unsafe {
                                fixed::<D, $m, $vecs>(d, self.groups, self.a.as_ptr(), self.b.as_ptr(), self.sums.as_mut_ptr())
                            }
                        }
                    )*
                    _ => {}
                }
            };
        }
        if D::TILE_VECS == 4 {
            by_rows!(4: 1 2 3);
        } else {
            by_rows!(2: 1 2 3 4 5 6 7 8 9 10 11 12 13 14);
        }
    }
}

/// [`TileInt8`] for a fixed number of rows and vectors.
///
/// # Safety
/// `a` holds `ROWS * groups` groups of 4 bytes, `b` as many times a tile's right operands as there are groups, `c` a tile.
#[inline(always)]
unsafe fn fixed<D: DotInt8, const ROWS: usize, const VECS: usize>(
    d: D,
    groups: usize,
    a: *const u8,
    b: *const i8,
    c: *mut i32,
) {
    // SAFETY: every access is inside what the caller vouches for.
    unsafe {
        let mut acc = [[d.zero(); VECS]; ROWS];
        let mut b = b;
        for p in 0..groups {
            let mut bv = [d.zero(); VECS];
            for j in 0..VECS {
                bv[j] = d.load(b.add(j * D::LANES * D::GROUP));
            }
            for i in 0..ROWS {
                let av = d.group(a.add((i * groups + p) * 4));
                for j in 0..VECS {
                    acc[i][j] = d.dot(acc[i][j], av, bv[j]);
                }
            }
            b = b.add(VECS * D::LANES * D::GROUP);
        }
        for i in 0..ROWS {
            for j in 0..VECS {
                d.store(c.add((i * VECS + j) * D::LANES), acc[i][j]);
            }
        }
    }
}

/// From sums of bytes to values. Plain loops, as [`Quantize`].
struct Dequantize<'a> {
    sums: &'a [i32; TILE_VALUES],
    scales: &'a [f32],
    zeros: &'a [i32],
    column_scales: &'a [f32],
    column_sums: &'a [i32],
    to: &'a mut [f32; TILE_VALUES],
}

impl Kernel for Dequantize<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let width = S::LANES * S::TILE_VECS;
        let (column_scales, column_sums) = (&self.column_scales[..width], &self.column_sums[..width]);
        for (i, (scale, zero)) in self.scales.iter().zip(self.zeros).enumerate() {
            let sums = &self.sums[i * width..][..width];
            let to = &mut self.to[i * width..][..width];
            for c in 0..width {
                to[c] = (sums[c] - zero * column_sums[c]) as f32 * (scale * column_scales[c]);
            }
        }
    }
}

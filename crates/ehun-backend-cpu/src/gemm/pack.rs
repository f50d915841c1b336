//! Weights in the order in which the micro-kernel reads them.

use half::{bf16, f16};

use super::tile::{BrainBits, HalfBits};
use crate::aligned::Aligned;
use crate::simd::{Isa, Kernel, Simd};

/// How packed weights are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightBits {
    /// IEEE single precision.
    F32,
    /// IEEE half precision, widened exactly in the kernel.
    F16,
    /// bfloat16, widened exactly in the kernel.
    Bf16,
}

/// The panels' values.
pub(super) enum Panels {
    F32(Aligned<f32>),
    F16(Aligned<HalfBits>),
    Bf16(Aligned<BrainBits>),
}

/// Weights `[n, k]` (a row per output channel) for one instruction set, cut into panels of `tile` channels. A panel holds
/// for each of the k inputs the `tile` channels side by side; the last panel is filled up with zeros.
///
/// Gated weights are two matrices `gate` and `up` of n channels each. A panel holds `tile / 2` channels of the gate, then
/// the same channels of the other, so that a tile of the product has both where the epilogue needs them.
pub struct PackedWeights {
    pub(super) isa: Isa,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) gated: bool,
    /// Channels (columns) in a panel.
    pub(super) tile: usize,
    /// Most rows in a tile of the product.
    pub(super) tile_rows: usize,
    pub(super) panels: Panels,
}

/// Asks an instruction set for the rows and columns of its micro-kernel.
pub(crate) struct TileShape;

impl Kernel for TileShape {
    type Output = (usize, usize);
    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> (usize, usize) {
        (S::TILE_ROWS, S::LANES * S::TILE_VECS)
    }
}

impl PackedWeights {
    /// Packs f32 weights, stored as `bits`. To 16 bits they are rounded to nearest even.
    ///
    /// # Panics
    /// When `w` does not hold `n * k` values.
    #[must_use]
    pub fn pack_f32(isa: Isa, w: &[f32], n: usize, k: usize, bits: WeightBits) -> Self {
        Self::pack(isa, w, None, n, k, bits, |x| x)
    }

    /// Packs half-precision weights, stored as `bits`.
    ///
    /// # Panics
    /// When `w` does not hold `n * k` values.
    #[must_use]
    pub fn pack_f16(isa: Isa, w: &[f16], n: usize, k: usize, bits: WeightBits) -> Self {
        Self::pack(isa, w, None, n, k, bits, f16::to_f32)
    }

    /// Packs bfloat16 weights, stored as `bits`.
    ///
    /// # Panics
    /// When `w` does not hold `n * k` values.
    #[must_use]
    pub fn pack_bf16(isa: Isa, w: &[bf16], n: usize, k: usize, bits: WeightBits) -> Self {
        Self::pack(isa, w, None, n, k, bits, bf16::to_f32)
    }

    /// Packs a gate and its partner, `[n, k]` each, for the epilogue `activation(a x gate^T) * (a x up^T)`.
    ///
    /// # Panics
    /// When either does not hold `n * k` values.
    #[must_use]
    pub fn pack_gated(isa: Isa, gate: &[f32], up: &[f32], n: usize, k: usize, bits: WeightBits) -> Self {
        Self::pack(isa, gate, Some(up), n, k, bits, |x| x)
    }

    /// Output channels: columns of the product.
    #[must_use]
    pub fn n(&self) -> usize {
        self.n
    }

    /// Inputs.
    #[must_use]
    pub fn k(&self) -> usize {
        self.k
    }

    /// Whether they were packed by [`PackedWeights::pack_gated`].
    #[must_use]
    pub fn is_gated(&self) -> bool {
        self.gated
    }

    /// How they are stored.
    #[must_use]
    pub fn bits(&self) -> WeightBits {
        match self.panels {
            Panels::F32(_) => WeightBits::F32,
            Panels::F16(_) => WeightBits::F16,
            Panels::Bf16(_) => WeightBits::Bf16,
        }
    }

    /// Bytes of memory that they take.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match &self.panels {
            Panels::F32(p) => size_of_val(p.as_slice()),
            Panels::F16(p) => size_of_val(p.as_slice()),
            Panels::Bf16(p) => size_of_val(p.as_slice()),
        }
    }

    /// Output channels that one panel yields.
    pub(super) fn panel_outputs(&self) -> usize {
        if self.gated { self.tile / 2 } else { self.tile }
    }

    /// Number of panels.
    pub(super) fn panel_count(&self) -> usize {
        self.n.div_ceil(self.panel_outputs())
    }

    fn pack<T: Copy>(
        isa: Isa,
        w: &[T],
        up: Option<&[T]>,
        n: usize,
        k: usize,
        bits: WeightBits,
        widen: impl Fn(T) -> f32,
    ) -> Self {
        for matrix in [Some(w), up].into_iter().flatten() {
            assert_eq!(matrix.len(), n * k, "weights of {n} x {k} come with {} values", matrix.len());
        }
        let (tile_rows, tile) = isa.run(TileShape);
        let layout = Layout { n, k, tile, gated: up.is_some() };
        let value = |matrix: usize, index: usize| match (matrix, up) {
            (1, Some(up)) => widen(up[index]),
            _ => widen(w[index]),
        };
        let panels = match bits {
            WeightBits::F32 => Panels::F32(layout.fill(value)),
            WeightBits::F16 => Panels::F16(layout.fill(|m, i| HalfBits(f16::from_f32(value(m, i)).to_bits()))),
            WeightBits::Bf16 => Panels::Bf16(layout.fill(|m, i| BrainBits(bf16::from_f32(value(m, i)).to_bits()))),
        };
        Self { isa, n, k, gated: up.is_some(), tile, tile_rows, panels }
    }
}

/// Where a weight goes.
struct Layout {
    n: usize,
    k: usize,
    tile: usize,
    gated: bool,
}

impl Layout {
    /// Fills panels with `value(matrix, index)`.
    fn fill<T: crate::aligned::Plain>(&self, value: impl Fn(usize, usize) -> T) -> Aligned<T> {
        let outputs = if self.gated { self.tile / 2 } else { self.tile };
        let mut packed = Aligned::zeroed(self.n.div_ceil(outputs) * self.tile * self.k);
        if self.k == 0 {
            return packed;
        }
        for (panel, dst) in packed.as_mut_slice().chunks_exact_mut(self.tile * self.k).enumerate() {
            for column in 0..self.tile {
                let channel = panel * outputs + column % outputs;
                if channel < self.n {
                    for i in 0..self.k {
                        dst[i * self.tile + column] = value(column / outputs, channel * self.k + i);
                    }
                }
            }
        }
        packed
    }
}

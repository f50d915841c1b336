//! Matrix products with weights that are packed once: `out[m, n] = epilogue(a[m, k] x w[n, k]^T)`.
//!
//! **The law**: every element of the product is one chain of multiply-adds over k, in rising order, started at zero. So a
//! row's bits depend on that row and the weights alone: not on the number of rows, its place among them, the threads, or
//! how the work is cut. Where the instruction set fuses multiply and add, all instruction sets give the same product;
//! `generic` rounds twice a step and differs from them.
//!
//! **Error** of the product before its epilogue: with u = 2^-24, `|computed - exact| <= g sum_i |a_i w_i|`,
//! `g = k u / (1 - k u)` fused and `(k + 1) u / (1 - (k + 1) u)` not fused (Higham, Accuracy and Stability of Numerical
//! Algorithms, section 3.1).
//!
//! **Widths of weights**: [`PackedWeights`] keeps f32, or 16-bit values that are widened, exactly, on the way into the
//! registers: half the memory traffic, which bounds products of a few rows. Which one is fixed when weights are packed.
//!
//! **Others**: [`PackedProduct`] is all that the executor knows of a product, and [`Products`] says who computes it: these kernels,
//! or a published crate as the reference beside them.
//!
//! **int8** is [`gemm_int8`]: weights rounded to bytes per output channel, rows to bytes each by its own range.

mod int8;
mod matrixmultiply;
pub(crate) mod pack;
mod products;
mod run;
pub(crate) mod tile;

pub use int8::{PackedInt8, QuantizedRows, gemm_int8};
pub use pack::{PackedWeights, WeightBits};
pub use products::{PackedProduct, ProductShape, Products, UnknownProducts};
pub use run::gemm;

pub use ehun_graph::Activation;

/// A matrix of f32 in row-major order whose rows start `stride` values apart.
#[derive(Clone, Copy, Debug)]
pub struct MatRef<'a> {
    data: &'a [f32],
    rows: usize,
    cols: usize,
    stride: usize,
}

/// A matrix to write, as [`MatRef`]. Values between the rows (`cols..stride`) are left alone.
#[derive(Debug)]
pub struct MatMut<'a> {
    data: &'a mut [f32],
    rows: usize,
    cols: usize,
    stride: usize,
}

/// Whether `len` values hold `rows` rows.
fn fits(len: usize, rows: usize, cols: usize, stride: usize) -> bool {
    cols <= stride && (rows == 0 || (rows - 1) * stride + cols <= len)
}

impl<'a> MatRef<'a> {
    /// A view of `rows` rows of `cols` values, `stride` values apart. To read columns `c..c + cols` of wider rows, pass
    /// `&data[c..]`.
    ///
    /// # Panics
    /// When `data` is too short or `stride < cols`.
    #[must_use]
    pub fn new(data: &'a [f32], rows: usize, cols: usize, stride: usize) -> Self {
        assert!(fits(data.len(), rows, cols, stride), "{rows} x {cols} (stride {stride}) in {} values", data.len());
        Self { data, rows, cols, stride }
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Values in a row.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Values from the start of a row to the start of the next.
    #[must_use]
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Row `i`.
    #[must_use]
    pub fn row(&self, i: usize) -> &'a [f32] {
        &self.data[i * self.stride..][..self.cols]
    }

    /// The part with these rows and columns.
    pub(crate) fn part(&self, rows: std::ops::Range<usize>, cols: std::ops::Range<usize>) -> MatRef<'a> {
        let start = (rows.start * self.stride + cols.start).min(self.data.len());
        MatRef::new(&self.data[start..], rows.len(), cols.len(), self.stride)
    }

    pub(crate) fn as_ptr(&self) -> *const f32 {
        self.data.as_ptr()
    }
}

impl<'a> MatMut<'a> {
    /// As [`MatRef::new`].
    ///
    /// # Panics
    /// As [`MatRef::new`].
    #[must_use]
    pub fn new(data: &'a mut [f32], rows: usize, cols: usize, stride: usize) -> Self {
        assert!(fits(data.len(), rows, cols, stride), "{rows} x {cols} (stride {stride}) in {} values", data.len());
        Self { data, rows, cols, stride }
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Values in a row.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Values from the start of a row to the start of the next.
    #[must_use]
    pub fn stride(&self) -> usize {
        self.stride
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut f32 {
        self.data.as_mut_ptr()
    }
}

/// What is added to a product's rows after the activation.
#[derive(Clone, Copy, Debug, Default)]
pub enum Residual<'a> {
    /// Nothing.
    #[default]
    None,
    /// What the output holds already: `out += ...`.
    Output,
    /// Another matrix of the output's shape.
    Matrix(MatRef<'a>),
}

/// What is done to a tile of the product before it is written: `out = activation(scale * product + bias) + residual`.
///
/// For weights packed by [`PackedWeights::pack_gated`] it is
/// `out = activation(scale * gate + bias[..n]) * (scale * up + bias[n..]) + residual`.
#[derive(Clone, Copy, Debug)]
pub struct Epilogue<'a> {
    /// Factor of the product.
    pub scale: f32,
    /// One value per output channel: n of them, 2n for gated weights.
    pub bias: Option<&'a [f32]>,
    /// Applied after the bias.
    pub activation: Option<Activation>,
    /// Added last.
    pub residual: Residual<'a>,
}

impl Default for Epilogue<'_> {
    fn default() -> Self {
        Self { scale: 1.0, bias: None, activation: None, residual: Residual::None }
    }
}

#[cfg(test)]
mod int8_tests;
#[cfg(test)]
mod tests;

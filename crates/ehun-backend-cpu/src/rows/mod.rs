//! Operations on rows, on one thread: a caller cuts the rows with [`ThreadPool::run_rows`](crate::pool::ThreadPool::run_rows).
//!
//! Matrices are packed (`rows * width` values, row-major) unless a stride is named. What a row becomes depends on that row
//! alone. Sums over a row are taken in `2 * LANES` partial sums, then by the tree of [`Simd::sum`](crate::simd::Simd::sum).

mod elementwise;
mod norm;
mod rotary;

pub use elementwise::{
    activation_in_place, add_in_place, add_row_in_place, gate_in_place, multiply_in_place, multiply_row_in_place,
    scale_in_place, softmax_in_place,
};
pub(crate) use elementwise::{exp_and_sum, max_of};
pub use norm::{
    LayerNorm, RmsNorm, add_layer_norm_in_place, add_rms_norm_in_place, l2_normalize_in_place, layer_norm,
    layer_norm_in_place, rms_norm, rms_norm_in_place,
};
pub use rotary::{Rotary, rotary_in_place};

#[cfg(test)]
mod tests;

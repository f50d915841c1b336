//! A product with its weights packed, in the precision that was asked for.

use ehun_backend::Precision;
use ehun_graph::Activation;

use crate::gemm::{Epilogue, MatMut, MatRef, PackedInt8, PackedProduct, ProductShape, Products, Residual, WeightBits};
use crate::pool::ThreadPool;
use crate::simd::Isa;

/// Most inputs of a product in bytes: the sums of more need not fit 32 bits.
pub(crate) const MAX_INT8_INPUTS: usize = 1 << 16;

/// Weights `[n, k]`, a row for each output channel, one matrix or a gate and its partner.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    pub(crate) values: &'a [f32],
    pub(crate) up: Option<&'a [f32]>,
    pub(crate) n: usize,
    pub(crate) k: usize,
    /// How the checkpoint stores them: what has 16 bits stays so and is widened exactly on its way into the registers.
    pub(crate) bits: WeightBits,
}

/// Packed weights and bias.
pub(crate) struct Product {
    weights: Box<dyn PackedProduct>,
    bias: Option<Vec<f32>>,
}

impl Product {
    /// Packs for `isa`. The backend has refused other precisions than f32 and int8, and int8 where others than our own kernels
    /// multiply.
    pub(crate) fn pack(
        isa: Isa,
        products: Products,
        precision: Precision,
        matrix: Matrix<'_>,
        bias: Option<Vec<f32>>,
    ) -> Self {
        let Matrix { values, up, n, k, bits } = matrix;
        let weights: Box<dyn PackedProduct> = match (precision, up) {
            (Precision::Int8, None) => Box::new(PackedInt8::pack(isa, values, n, k)),
            (Precision::Int8, Some(up)) => Box::new(PackedInt8::pack_gated(isa, values, up, n, k)),
            (_, up) => products.pack(isa, values, up, (n, k), bits),
        };
        Self { weights, bias }
    }

    /// Columns of the result.
    pub(crate) fn n(&self) -> usize {
        self.weights.shape().n
    }

    /// Floating-point operations (or the integer ones in their stead) for each row.
    pub(crate) fn flops_per_row(&self) -> u64 {
        let ProductShape { n, k, gated } = self.weights.shape();
        2 * (n * k * if gated { 2 } else { 1 }) as u64
    }

    /// `out = activation(x W^T + b) + residual`
    pub(crate) fn multiply(
        &self,
        pool: &ThreadPool,
        x: MatRef<'_>,
        activation: Option<Activation>,
        residual: Residual<'_>,
        out: MatMut<'_>,
    ) {
        let epilogue = Epilogue { bias: self.bias.as_deref(), activation, residual, ..Epilogue::default() };
        self.weights.multiply(pool, x, &epilogue, out);
    }
}

//! A product with its weights packed, in the precision that was asked for.

use ehun_backend::Precision;
use ehun_graph::Activation;

use crate::gemm::{
    Epilogue, MatMut, MatRef, PackedInt8, PackedWeights, QuantizedRows, Residual, WeightBits, gemm, gemm_int8,
};
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

enum Weights {
    Float(PackedWeights),
    Bytes(PackedInt8),
}

/// Packed weights and bias.
pub(crate) struct Product {
    weights: Weights,
    bias: Option<Vec<f32>>,
}

impl Product {
    /// Packs for `isa`. The backend has refused other precisions than f32 and int8.
    pub(crate) fn pack(isa: Isa, precision: Precision, matrix: Matrix<'_>, bias: Option<Vec<f32>>) -> Self {
        let Matrix { values, up, n, k, bits } = matrix;
        let weights = match (precision, up) {
            (Precision::Int8, None) => Weights::Bytes(PackedInt8::pack(isa, values, n, k)),
            (Precision::Int8, Some(up)) => Weights::Bytes(PackedInt8::pack_gated(isa, values, up, n, k)),
            (_, None) => Weights::Float(PackedWeights::pack_f32(isa, values, n, k, bits)),
            (_, Some(up)) => Weights::Float(PackedWeights::pack_gated(isa, values, up, n, k, bits)),
        };
        Self { weights, bias }
    }

    /// Columns of the result.
    pub(crate) fn n(&self) -> usize {
        match &self.weights {
            Weights::Float(weights) => weights.n(),
            Weights::Bytes(weights) => weights.n(),
        }
    }

    /// Floating-point operations (or the integer ones in their stead) for each row.
    pub(crate) fn flops_per_row(&self) -> u64 {
        let (k, gated) = match &self.weights {
            Weights::Float(weights) => (weights.k(), weights.is_gated()),
            Weights::Bytes(weights) => (weights.k(), weights.is_gated()),
        };
        2 * (self.n() * k * if gated { 2 } else { 1 }) as u64
    }

    /// `out = activation(x W^T + b) + residual`
    pub(crate) fn multiply(
        &self,
        isa: Isa,
        pool: &ThreadPool,
        x: MatRef<'_>,
        activation: Option<Activation>,
        residual: Residual<'_>,
        out: MatMut<'_>,
    ) {
        let epilogue = Epilogue { bias: self.bias.as_deref(), activation, residual, ..Epilogue::default() };
        match &self.weights {
            Weights::Float(weights) => gemm(pool, x, weights, &epilogue, out),
            Weights::Bytes(weights) => gemm_int8(pool, &QuantizedRows::new(isa, pool, x), weights, &epilogue, out),
        }
    }
}

//! Who multiplies: our own kernels, or a published crate behind the same interface.

use super::matrixmultiply::CrateWeights;
use super::{Epilogue, MatMut, MatRef, PackedInt8, PackedWeights, QuantizedRows, WeightBits, gemm, gemm_int8};
use crate::pool::ThreadPool;
use crate::simd::Isa;

/// Size of a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProductShape {
    /// Output channels: columns of the product.
    pub n: usize,
    /// Inputs.
    pub k: usize,
    /// Whether the weights are a gate and its partner, of n channels each.
    pub gated: bool,
}

/// Weights `[n, k]` made ready once, and the product with them: all that the executor knows of a product.
///
/// What an implementor promises: the bits of a row of the output depend on that row and the weights alone, not on the number of
/// rows, its place among them, or the threads.
pub trait PackedProduct: Send + Sync {
    /// Its size.
    fn shape(&self) -> ProductShape;

    /// `out = epilogue(a x w^T)`: `a` is `[m, k]`, `out` is `[m, n]`.
    ///
    /// # Panics
    /// When shapes do not agree.
    fn multiply(&self, pool: &ThreadPool, a: MatRef<'_>, epilogue: &Epilogue<'_>, out: MatMut<'_>);
}

impl PackedProduct for PackedWeights {
    fn shape(&self) -> ProductShape {
        ProductShape { n: self.n(), k: self.k(), gated: self.is_gated() }
    }

    fn multiply(&self, pool: &ThreadPool, a: MatRef<'_>, epilogue: &Epilogue<'_>, out: MatMut<'_>) {
        gemm(pool, a, self, epilogue, out);
    }
}

impl PackedProduct for PackedInt8 {
    fn shape(&self) -> ProductShape {
        ProductShape { n: self.n(), k: self.k(), gated: self.is_gated() }
    }

    fn multiply(&self, pool: &ThreadPool, a: MatRef<'_>, epilogue: &Epilogue<'_>, out: MatMut<'_>) {
        gemm_int8(pool, &QuantizedRows::new(self.isa(), pool, a), self, epilogue, out);
    }
}

/// Who computes products of f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Products {
    /// The kernels of this crate.
    #[default]
    Own,
    /// The crate matrixmultiply: slower, and the reference beside our own.
    Matrixmultiply,
}

/// `EHUN_GEMM` names nobody who multiplies.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{0}` multiplies nothing here (EHUN_GEMM): use own or matrixmultiply, or unset it")]
pub struct UnknownProducts(String);

impl Products {
    /// As the environment variable `EHUN_GEMM` says, or else our own.
    ///
    /// # Errors
    /// When it names something else.
    pub fn detect() -> Result<Self, UnknownProducts> {
        std::env::var("EHUN_GEMM").map_or(Ok(Self::Own), |name| Self::from_name(&name))
    }

    fn from_name(name: &str) -> Result<Self, UnknownProducts> {
        match name {
            "" | "own" => Ok(Self::Own),
            "matrixmultiply" => Ok(Self::Matrixmultiply),
            _ => Err(UnknownProducts(name.to_owned())),
        }
    }

    /// Its name, as `EHUN_GEMM` takes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Matrixmultiply => "matrixmultiply",
        }
    }

    /// Makes f32 weights ready, which the checkpoint stores as `bits`: `[n, k]`, with `up` those of a gate's partner. The crate takes
    /// them as f32; to 16 bits, where our own keeps them, they go exactly.
    ///
    /// # Panics
    /// When a matrix does not hold `n * k` values.
    #[must_use]
    pub fn pack(
        self,
        isa: Isa,
        values: &[f32],
        up: Option<&[f32]>,
        (n, k): (usize, usize),
        bits: WeightBits,
    ) -> Box<dyn PackedProduct> {
        match (self, up) {
            (Self::Matrixmultiply, up) => Box::new(CrateWeights::new(isa, values, up, n, k)),
            (Self::Own, None) => Box::new(PackedWeights::pack_f32(isa, values, n, k, bits)),
            (Self::Own, Some(up)) => Box::new(PackedWeights::pack_gated(isa, values, up, n, k, bits)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_others_refused() {
        for products in [Products::Own, Products::Matrixmultiply] {
            assert_eq!(Products::from_name(products.name()), Ok(products));
        }
        let message = Products::from_name("blas").unwrap_err().to_string();
        assert!(message.contains("`blas`") && message.contains("own or matrixmultiply"), "{message}");
    }
}

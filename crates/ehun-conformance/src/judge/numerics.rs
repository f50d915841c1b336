//! How much rounding a precision allows. `docs/conformance.md` derives the figures.

use ehun_backend::Precision;

/// Unit roundoff of binary32, `2^-24`.
pub const UNIT: f64 = 5.960_464_477_539_063e-8;

/// The standard model of floating-point arithmetic (Higham 2002, section 2.2) for one precision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numerics {
    /// In what products are computed.
    pub precision: Precision,
}

impl Numerics {
    /// Relative error of a sum of `n` rounded products in binary32 in any order. Never more than `n` roundings, and, since
    /// roundings are as good as independent, with overwhelming probability no more than `8 sqrt(n)` (Higham and Mary 2019,
    /// with lambda = 8).
    pub fn accumulation(self, n: usize) -> f64 {
        let n = n as f64 + 1.0;
        UNIT * n.min(8.0 * n.sqrt())
    }

    /// Relative error of an operand that is stored or multiplied in the precision, beside binary32.
    pub fn operand(self) -> f64 {
        match self.precision {
            Precision::F32 | Precision::Int8 => 0.0,
            Precision::Bf16 => 2f64.powi(-8),
            Precision::F16 => 2f64.powi(-11),
        }
    }

    /// Absolute error of an operand that underflows in the precision.
    pub fn floor(self) -> f64 {
        match self.precision {
            Precision::F16 => 2f64.powi(-25),
            _ => 0.0,
        }
    }

    /// Relative error of the operands of attention's products. Int8 quantises weights and what is multiplied with them;
    /// attention has none, and may use 16 bits.
    pub fn attention_operand(self) -> f64 {
        match self.precision {
            Precision::Int8 => 2f64.powi(-8),
            _ => self.operand(),
        }
    }

    /// Error of a value of size `|x|` in the precision.
    pub fn stored(self, x: f64) -> f64 {
        self.operand() * x.abs() + self.floor()
    }

    /// Error of an element of a row whose largest element is `max`, quantised to int8 for the row: half a step.
    pub fn quantised(self, max: f64) -> f64 {
        match self.precision {
            Precision::Int8 => max / 254.0 * 1.01,
            _ => 0.0,
        }
    }

    /// Whether values of this size are in the range of every storage type of the precision, sums and squares of them too.
    pub fn has_range(self, size: f64) -> bool {
        match self.precision {
            Precision::F32 | Precision::Bf16 => true,
            Precision::F16 | Precision::Int8 => (1e-4..=1e4).contains(&size),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_sums_grow_with_the_root() {
        let numerics = Numerics { precision: Precision::F32 };
        assert_eq!(numerics.accumulation(0), UNIT);
        assert_eq!(numerics.accumulation(15), 16.0 * UNIT);
        assert_eq!(numerics.accumulation(1023), 256.0 * UNIT);
    }
}

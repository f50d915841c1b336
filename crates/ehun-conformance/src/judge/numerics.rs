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

    /// Relative error of an operand that is stored or multiplied in the precision, beside binary32: its unit roundoff.
    ///
    /// A format with `p` bits of significand, the hidden one counted, has a spacing of `2^(1-p)` in `[1, 2)`. Rounding to
    /// nearest is off by half of that at most, `u = 2^-p`, and by `u / (1 + u)` of `x`, which is reached half-way between 1
    /// and its successor (Higham 2002, theorem 2.2; Jeannerod and Rump 2018). binary32 has p = 24, binary16 p = 11. bfloat16
    /// stores 7 bits of fraction, so p = 8 and u is `2^-8`; `2^-9` would be half of what correct rounding does.
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

    /// Rounding to nearest, ties to even, to the upper 16 bits of binary32 reaches the bound and stays within it.
    #[test]
    fn the_roundoff_of_bf16_is_what_rounding_does() {
        let round = |x: f32| {
            let bits = x.to_bits();
            f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
        };
        let u = Numerics { precision: Precision::Bf16 }.operand();
        let error = |x: f32| (f64::from(round(x)) - f64::from(x)).abs() / f64::from(x);
        // All numbers of one binade; the others are these times a power of two.
        let worst = (1f32.to_bits()..2f32.to_bits()).map(|bits| error(f32::from_bits(bits))).fold(0.0, f64::max);
        assert_eq!(worst, u / (1.0 + u));
        assert_eq!(worst, error(1.0 + 2f32.powi(-8)));
    }

    #[test]
    fn long_sums_grow_with_the_root() {
        let numerics = Numerics { precision: Precision::F32 };
        assert_eq!(numerics.accumulation(0), UNIT);
        assert_eq!(numerics.accumulation(15), 16.0 * UNIT);
        assert_eq!(numerics.accumulation(1023), 256.0 * UNIT);
    }
}

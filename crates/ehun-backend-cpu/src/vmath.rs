//! Elementary functions on vectors.
//!
//! | function | error, over all finite f32 | how |
//! | --- | --- | --- |
//! | [`exp`] | 2 units in the last place, subnormal results included | Cody-Waite reduction, polynomial of degree 6 |
//! | [`erf`] | 1e-7 absolute | polynomial below 0.9277, `1 - exp(polynomial)` above |
//! | [`tanh`] | 2e-7 relative | polynomial below 0.625, `1 - 2 / (exp(2x) + 1)` above |
//!
//! The tests of this module sweep them against float64.

use crate::simd::Simd;

/// An activation function, applied element by element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x / 2 * (1 + erf(x / sqrt(2)))`
    Gelu,
    /// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`
    GeluTanh,
    /// `x * sigmoid(1.702 x)`
    QuickGelu,
    /// `max(x, 0)`
    Relu,
    /// `max(x, 0)^2`
    ReluSquared,
    /// `x * sigmoid(x)`
    Silu,
    /// Hyperbolic tangent.
    Tanh,
    /// `1 / (1 + exp(-x))`
    Sigmoid,
    /// `ln(1 + max(x, 0))`
    Log1pRelu,
}

/// `exp(x)`: 0 below -104, infinity above 88.73, NaN for NaN.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::V) -> S::V {
    // The constant first: where x is NaN, min and max return their second argument.
    let x = s.max(s.splat(-105.0), s.min(s.splat(89.0), x));
    let n = s.round(s.mul(x, s.splat(std::f32::consts::LOG2_E)));
    // ln 2 in two parts; the first has 9 bits, so that n times it is exact even without a fused multiply-add.
    let r = s.fnma(n, s.splat(0.693_359_375), x);
    let r = s.fnma(n, s.splat(-2.121_944_4e-4), r);
    // The minimax polynomial of Cephes' expf.
    let p = s.splat(1.987_569_1e-4);
    let p = s.fma(p, r, s.splat(1.398_199_9e-3));
    let p = s.fma(p, r, s.splat(8.333_452e-3));
    let p = s.fma(p, r, s.splat(4.166_579_6e-2));
    let p = s.fma(p, r, s.splat(1.666_666_5e-1));
    let p = s.fma(p, r, s.splat(0.5));
    let p = s.fma(s.mul(r, r), p, r);
    s.scale_pow2(s.add(p, s.splat(1.0)), n)
}

/// The error function. Coefficients: N. Juffa, "my_erff", whose error is below 1 unit in the last place.
#[inline(always)]
pub(crate) fn erf<S: Simd>(s: S, x: S::V) -> S::V {
    let t = s.abs(x);
    let sq = s.mul(x, x);
    // Above: 1 - exp(polynomial(t)), where the exponential is small, so that its error is too.
    let r = s.fma(s.splat(-1.728_534_7e-5), t, s.splat(3.831_971_3e-4));
    let u = s.fma(s.splat(-3.883_964_4e-3), t, s.splat(2.425_462_2e-2));
    let r = s.fma(r, sq, u);
    let r = s.fma(r, t, s.splat(-1.067_778_8e-1));
    let r = s.fma(r, t, s.splat(-6.348_468_7e-1));
    let r = s.fma(r, t, s.splat(-1.287_175_1e-1));
    let r = s.fma(r, t, s.sub(s.zero(), t));
    let far = s.copysign(s.sub(s.splat(1.0), exp(s, r)), x);
    // Below: an odd polynomial.
    let q = s.fma(s.splat(-5.967_617_0e-4), sq, s.splat(4.991_194_2e-3));
    let q = s.fma(q, sq, s.splat(-2.676_813_5e-2));
    let q = s.fma(q, sq, s.splat(1.128_199_3e-1));
    let q = s.fma(q, sq, s.splat(-3.761_253_4e-1));
    let q = s.fma(q, sq, s.splat(1.283_791_7e-1));
    let near = s.fma(q, x, x);
    // Written so that NaN takes the near branch, which passes it on.
    s.select(s.lt(s.splat(0.927_734_4), t), far, near)
}

/// `1 / (1 + exp(-x))`
#[inline(always)]
pub(crate) fn sigmoid<S: Simd>(s: S, x: S::V) -> S::V {
    let one = s.splat(1.0);
    s.div(one, s.add(one, exp(s, s.sub(s.zero(), x))))
}

/// Hyperbolic tangent.
#[inline(always)]
pub(crate) fn tanh<S: Simd>(s: S, x: S::V) -> S::V {
    let t = s.abs(x);
    let one = s.splat(1.0);
    let e = exp(s, s.add(t, t));
    let far = s.copysign(s.sub(one, s.div(s.splat(2.0), s.add(e, one))), x);
    // Cephes' tanhf.
    let sq = s.mul(x, x);
    let q = s.fma(s.splat(-5.704_988_7e-3), sq, s.splat(2.063_908_9e-2));
    let q = s.fma(q, sq, s.splat(-5.373_971_6e-2));
    let q = s.fma(q, sq, s.splat(1.333_144_2e-1));
    let q = s.fma(q, sq, s.splat(-3.333_328_2e-1));
    let near = s.fma(s.mul(q, sq), x, x);
    s.select(s.lt(s.splat(0.625), t), far, near)
}

/// `ln(1 + x)` for `x >= 0`: 3e-7 relative.
#[inline(always)]
fn log1p_positive<S: Simd>(s: S, x: S::V) -> S::V {
    // Newton's step on exp(y) = 1 + x would need a first guess by bits; atanh's series needs none. With 1 + x = 2^n m,
    // ln(1 + x) = n ln 2 + 2 atanh((m - 1) / (m + 1)). Halving by comparisons keeps to the operations at hand.
    let one = s.splat(1.0);
    let mut scale = one;
    let mut log = s.zero();
    // 1 + x = u / scale; u = scale + scale * x stays exact in the part that matters while scale is a power of two.
    for step in [64u8, 32, 16, 8, 4, 2, 1] {
        let limit = s.splat(2f32.powi(i32::from(step)));
        let u = s.fma(scale, x, scale);
        let large = s.lt(limit, u);
        scale = s.select(large, s.mul(scale, s.splat(2f32.powi(-i32::from(step)))), scale);
        log = s.select(large, s.add(log, s.splat(f32::from(step))), log);
    }
    // m = (1 + x) scale in (1, 2]; z = (m - 1) / (m + 1), with m - 1 = x scale + (scale - 1) free of cancellation where
    // scale is 1.
    let above = s.fma(x, scale, s.sub(scale, one));
    let z = s.div(above, s.add(above, s.splat(2.0)));
    let sq = s.mul(z, z);
    let q = s.fma(s.splat(2.0 / 13.0), sq, s.splat(2.0 / 11.0));
    let q = s.fma(q, sq, s.splat(2.0 / 9.0));
    let q = s.fma(q, sq, s.splat(2.0 / 7.0));
    let q = s.fma(q, sq, s.splat(2.0 / 5.0));
    let q = s.fma(q, sq, s.splat(2.0 / 3.0));
    let series = s.fma(s.mul(q, sq), z, s.add(z, z));
    s.fma(log, s.splat(std::f32::consts::LN_2), series)
}

impl Activation {
    /// Applies it to a vector.
    #[inline(always)]
    pub(crate) fn apply<S: Simd>(self, s: S, x: S::V) -> S::V {
        let half = s.splat(0.5);
        match self {
            Self::Gelu => {
                let e = erf(s, s.mul(x, s.splat(std::f32::consts::FRAC_1_SQRT_2)));
                let h = s.mul(x, half);
                s.fma(h, e, h)
            }
            // x / 2 * (1 + tanh(u)) is x * sigmoid(2u).
            Self::GeluTanh => {
                const SCALE: f32 = 1.595_769_1; // 2 sqrt(2 / pi)
                let inner = s.fma(s.mul(s.mul(x, x), x), s.splat(0.044_715), x);
                s.mul(x, sigmoid(s, s.mul(inner, s.splat(SCALE))))
            }
            Self::QuickGelu => s.mul(x, sigmoid(s, s.mul(x, s.splat(1.702)))),
            Self::Relu => s.max(s.zero(), x),
            Self::ReluSquared => {
                let y = s.max(s.zero(), x);
                s.mul(y, y)
            }
            Self::Silu => s.mul(x, sigmoid(s, x)),
            Self::Tanh => tanh(s, x),
            Self::Sigmoid => sigmoid(s, x),
            Self::Log1pRelu => log1p_positive(s, s.max(s.zero(), x)),
        }
    }
}

//! Elementary functions on vectors.
//!
//! | function | error, over all finite f32 | how |
//! | --- | --- | --- |
//! | [`exp`] | 2 units in the last place, subnormal results included | Cody-Waite reduction, polynomial of degree 6 |
//! | [`erf`] | 1e-7 absolute | polynomial below 0.9277, `1 - exp(polynomial)` above |
//! | [`tanh`] | 2e-7 relative | polynomial below 0.625, `1 - 2 / (exp(2x) + 1)` above |
//!
//! The tests of this module sweep them against float64.

#![expect(clippy::excessive_precision, reason = "coefficients with the digits that their source prints")]

use ehun_graph::Activation;

use crate::simd::Simd;

/// `exp(x)`: 0 below -104, infinity above 88.73, NaN for NaN.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::V) -> S::V {
    // The constant first: where x is NaN, min and max return their second argument.
    let x = s.max(s.splat(-105.0), s.min(s.splat(89.0), x));
    let (p, n) = exp_reduced(s, x);
    s.scale_pow2(p, n)
}

/// `exp(x)` for x in -87..=88, where the result is a normal number.
#[inline(always)]
fn exp_normal<S: Simd>(s: S, x: S::V) -> S::V {
    let (p, n) = exp_reduced(s, x);
    s.scale_pow2_normal(p, n)
}

/// `(p, n)` with `exp(x) = p * 2^n`, n integer-valued and p in [0.7, 1.5].
#[inline(always)]
fn exp_reduced<S: Simd>(s: S, x: S::V) -> (S::V, S::V) {
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
    (s.add(p, s.splat(1.0)), n)
}

/// The error function. Coefficients: N. Juffa, "my_erff", whose error is below 1 unit in the last place.
#[inline(always)]
pub(crate) fn erf<S: Simd>(s: S, x: S::V) -> S::V {
    // From 4 on the result is 1; without the bound the exponential would go through subnormals, which are slow.
    let t = s.min(s.splat(4.0), s.abs(x));
    let sq = s.mul(t, t);
    // Above: 1 - exp(polynomial(t)), where the exponential is small, so that its error is too.
    let r = s.fma(s.splat(-1.728_534_7e-5), t, s.splat(3.831_971_3e-4));
    let u = s.fma(s.splat(-3.883_964_4e-3), t, s.splat(2.425_462_2e-2));
    let r = s.fma(r, sq, u);
    let r = s.fma(r, t, s.splat(-1.067_778_8e-1));
    let r = s.fma(r, t, s.splat(-6.348_468_7e-1));
    let r = s.fma(r, t, s.splat(-1.287_175_1e-1));
    let r = s.fma(r, t, s.sub(s.zero(), t));
    let far = s.copysign(s.sub(s.splat(1.0), exp_normal(s, r)), x);
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

/// Activation functions on vectors.
pub(crate) trait Apply {
    /// The function of each lane.
    fn apply<S: Simd>(self, s: S, x: S::V) -> S::V;
}

impl Apply for Activation {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, x: S::V) -> S::V {
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
            Self::Silu => s.mul(x, sigmoid(s, x)),
            Self::Tanh => tanh(s, x),
            Self::Sigmoid => sigmoid(s, x),
            Self::Log1pRelu => log1p_positive(s, s.max(s.zero(), x)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Kernel;
    use crate::testing::{self, isas};

    #[derive(Clone, Copy, Debug)]
    enum Function {
        Exp,
        Erf,
        Tanh,
        Activation(Activation),
    }

    struct Sweep<'a>(Function, &'a mut [f32]);

    impl Kernel for Sweep<'_> {
        type Output = ();
        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            for x in self.1.chunks_exact_mut(S::LANES) {
                let v = s.load(x);
                let y = match self.0 {
                    Function::Exp => exp(s, v),
                    Function::Erf => erf(s, v),
                    Function::Tanh => tanh(s, v),
                    Function::Activation(a) => a.apply(s, v),
                };
                s.store(x, y);
            }
        }
    }

    /// About 800,000 values: every 5,003rd of all finite f32.
    fn sweep() -> Vec<f32> {
        let mut x: Vec<f32> = (0..u32::MAX).step_by(5_003).map(f32::from_bits).filter(|x| x.is_finite()).collect();
        x.extend((-100_000..100_000).map(|i| i as f32 * 1e-3));
        x.resize(x.len().next_multiple_of(16), 0.0);
        x
    }

    /// The worst of `measure(x, computed)` over the sweep.
    fn worst(isa: crate::simd::Isa, function: Function, measure: impl Fn(f64, f32) -> f64) -> (f64, f32) {
        let x = sweep();
        let mut y = x.clone();
        isa.run(Sweep(function, &mut y));
        let errors = x.iter().zip(&y).map(|(x, y)| (measure(f64::from(*x), *y), *x));
        errors.fold((0.0, 0.0), |worst, this| if this.0 > worst.0 || this.0.is_nan() { this } else { worst })
    }

    /// The spacing of f32 at `y`.
    fn ulp(y: f64) -> f64 {
        let exponent = y.abs().max(f64::from(f32::MIN_POSITIVE)).log2().floor();
        2f64.powf(exponent - 23.0)
    }

    #[test]
    fn exp_is_within_two_units_in_the_last_place() {
        for isa in isas() {
            let (error, at) = worst(isa, Function::Exp, |x, y| {
                let want = x.exp();
                if want >= 2f64.powi(128) {
                    return if y == f32::INFINITY || f64::from(f32::MAX) - f64::from(y) < 2.0 * ulp(3e38) {
                        0.0
                    } else {
                        9.0
                    };
                }
                (f64::from(y) - want).abs() / ulp(want)
            });
            assert!(error <= 2.0, "{isa:?}: {error} at {at}");
        }
    }

    #[test]
    fn erf_is_within_1e7_absolute_and_tanh_within_2e7_relative() {
        for isa in isas() {
            let (error, at) = worst(isa, Function::Erf, |x, y| (f64::from(y) - testing::erf(x)).abs());
            assert!(error <= 1e-7, "{isa:?}: erf {error} at {at}");
            let (error, at) = worst(isa, Function::Tanh, |x, y| {
                let want = x.tanh();
                (f64::from(y) - want).abs() / want.abs().max(f64::from(f32::MIN_POSITIVE))
            });
            assert!(error <= 2e-7, "{isa:?}: tanh {error} at {at}");
        }
    }

    #[test]
    fn activations_follow_their_definitions() {
        use Activation::{Gelu, GeluTanh, Log1pRelu, QuickGelu, Relu, Sigmoid, Silu, Tanh};
        for isa in isas() {
            for kind in [Gelu, GeluTanh, QuickGelu, Relu, Silu, Tanh, Sigmoid, Log1pRelu] {
                let (error, at) = worst(isa, Function::Activation(kind), |x, y| {
                    if x.abs() > 1e12 {
                        return 0.0;
                    }
                    let want = kind.eval(x);
                    (f64::from(y) - want).abs() / (1.0 + want.abs())
                });
                assert!(error <= 6e-7, "{isa:?}: {kind:?} {error} at {at}");
            }
        }
    }

    #[test]
    fn nan_and_infinity_go_through() {
        for isa in isas() {
            for function in [Function::Exp, Function::Erf, Function::Tanh] {
                let mut x = [f32::NAN; 16];
                isa.run(Sweep(function, &mut x));
                assert!(x.iter().all(|x| x.is_nan()), "{isa:?} {function:?}");
            }
            for (function, low, high) in
                [(Function::Exp, 0.0, f32::INFINITY), (Function::Erf, -1.0, 1.0), (Function::Tanh, -1.0, 1.0)]
            {
                let mut x = [f32::NEG_INFINITY; 32];
                x[16..].fill(f32::INFINITY);
                isa.run(Sweep(function, &mut x));
                assert!(
                    x[..16].iter().all(|x| *x == low) && x[16..].iter().all(|x| *x == high),
                    "{isa:?} {function:?}"
                );
            }
        }
    }
}

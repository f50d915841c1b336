//! Activation functions, exactly as checkpoints name them.

use serde::{Deserialize, Serialize};

/// An element-wise function. `gelu` is the erf form and `gelu_new` / `gelu_pytorch_tanh` the tanh form; they differ in
/// the third digit and are never exchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `x * 0.5 * (1 + erf(x / sqrt(2)))`
    Gelu,
    /// `0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`
    GeluTanh,
    /// `x * sigmoid(1.702 x)`
    QuickGelu,
    /// `max(x, 0)`
    Relu,
    /// `x * sigmoid(x)`, also called swish
    Silu,
    /// `tanh(x)`
    Tanh,
    /// `1 / (1 + exp(-x))`
    Sigmoid,
    /// `ln(1 + max(x, 0))`: the saturation of SPLADE (Formal et al., 2021)
    Log1pRelu,
}

impl Activation {
    /// The activation that Hugging Face's `ACT2FN` gives for `name`, or `None` where this crate has no such function.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "gelu" | "gelu_python" => Self::Gelu,
            "gelu_new" | "gelu_pytorch_tanh" | "gelu_python_tanh" | "gelu_fast" | "gelu_accurate" => Self::GeluTanh,
            "quick_gelu" => Self::QuickGelu,
            "relu" => Self::Relu,
            "silu" | "swish" => Self::Silu,
            "tanh" => Self::Tanh,
            "sigmoid" => Self::Sigmoid,
            _ => return None,
        })
    }

    /// The function in float64 with the standard library's `exp` and `tanh`: the definition that kernels are judged by.
    pub fn eval(self, x: f64) -> f64 {
        match self {
            Self::Gelu => 0.5 * x * erfc(-x * std::f64::consts::FRAC_1_SQRT_2),
            Self::GeluTanh => {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
                0.5 * x * (1.0 + inner.tanh())
            }
            Self::QuickGelu => x / (1.0 + (-1.702 * x).exp()),
            Self::Relu => x.max(0.0),
            Self::Silu => x / (1.0 + (-x).exp()),
            Self::Tanh => x.tanh(),
            Self::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            Self::Log1pRelu => x.max(0.0).ln_1p(),
        }
    }
}

/// The complementary error function in float64, to about 1e-15 relative: the Maclaurin series of erf for `|x| < 3`,
/// the continued fraction (Abramowitz and Stegun 7.1.14) beyond.
pub fn erfc(x: f64) -> f64 {
    if x < 0.0 {
        return 2.0 - erfc(-x);
    }
    if x < 3.0 {
        // erf x = 2/sqrt(pi) exp(-x^2) sum 2^n x^(2n+1) / (2n+1)!!: all terms positive, so nothing cancels.
        let (mut term, mut sum, mut n) = (x, x, 0.0);
        while term > sum * 1e-17 {
            n += 1.0;
            term *= 2.0 * x * x / (2.0 * n + 1.0);
            sum += term;
        }
        return 1.0 - 2.0 / std::f64::consts::PI.sqrt() * (-x * x).exp() * sum;
    }
    let mut fraction = x;
    for n in (1..=60).rev() {
        fraction = x + f64::from(n) / 2.0 / fraction;
    }
    (-x * x).exp() / (std::f64::consts::PI.sqrt() * fraction)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erfc_matches_tabulated_values() {
        // Values from mpmath at 30 digits.
        for (x, want) in [
            (0.0, 1.0),
            (0.5, 0.479_500_122_186_953_5),
            (1.0, 0.157_299_207_050_285_1),
            (-1.0, 1.842_700_792_949_715),
            (2.9, 4.109_787_809_945_847e-5),
            (3.5, 7.430_983_723_414_128e-7),
            (6.0, 2.151_973_671_249_891e-17),
        ] {
            assert!((erfc(x) - want).abs() <= 2e-15_f64.max(want * 1e-11), "erfc({x}) = {}", erfc(x));
        }
    }

    #[test]
    fn the_two_gelus_are_told_apart() {
        assert!((Activation::Gelu.eval(1.0) - 0.841_344_746_068_543).abs() < 1e-14);
        assert!((Activation::GeluTanh.eval(1.0) - 0.841_191_990_608_276).abs() < 1e-12);
        assert_eq!(Activation::from_name("gelu"), Some(Activation::Gelu));
        assert_eq!(Activation::from_name("gelu_new"), Some(Activation::GeluTanh));
        assert_eq!(Activation::from_name("mish"), None);
    }
}

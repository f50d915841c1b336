//! Rotary position embedding (Su et al. 2021) as a row operation, with the scaling kinds that checkpoints name.

use serde::{Deserialize, Serialize};

/// Which two elements of a head are turned together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RotaryLayout {
    /// Element `i` with element `i + rotary_dim / 2` (GPT-NeoX, Llama in Hugging Face's layout).
    HalfSplit,
    /// Element `2 i` with element `2 i + 1` (GPT-J).
    Interleaved,
}

/// How frequencies are changed for contexts longer than the model was trained on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum RotaryScaling {
    /// As they are.
    None,
    /// Divided by `factor`.
    Linear {
        /// Divisor of every frequency.
        factor: f64,
    },
    /// The base grows with the length of the *sequence* once that is beyond `original_max_position`.
    DynamicNtk {
        /// Growth of the base.
        factor: f64,
        /// Length that the model was trained on.
        original_max_position: u32,
    },
    /// YaRN (Peng et al. 2023).
    Yarn {
        /// Extension of the context.
        factor: f64,
        /// Length that the model was trained on.
        original_max_position: u32,
        /// Rotations above which a frequency stays.
        beta_fast: f64,
        /// Rotations below which a frequency is divided by `factor`.
        beta_slow: f64,
        /// Factor on cosine and sine.
        attention_factor: f64,
        /// Whether the bounds of the ramp are rounded outwards to whole dimensions.
        truncate: bool,
    },
    /// Llama 3.1's piecewise scaling.
    Llama3 {
        /// Divisor of the low frequencies.
        factor: f64,
        /// Wavelengths above `original / low_freq_factor` are divided.
        low_freq_factor: f64,
        /// Wavelengths below `original / high_freq_factor` stay.
        high_freq_factor: f64,
        /// Length that the model was trained on.
        original_max_position: u32,
    },
}

/// Rotary embedding of every head of a row: `x' = x cos(p f) + rotate(x) sin(p f)` with the token's position `p`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RotarySpec {
    /// Width of a head; the row is a whole number of heads.
    pub head_dim: usize,
    /// Leading elements of each head that are turned; even, at most `head_dim`. The rest passes through.
    pub rotary_dim: usize,
    /// Which elements are paired.
    pub layout: RotaryLayout,
    /// Base of the geometric series of frequencies (`rope_theta`).
    pub theta: f64,
    /// Scaling for long contexts.
    pub scaling: RotaryScaling,
}

impl RotarySpec {
    /// The plain form: all of the head, half-split, no scaling.
    pub fn plain(head_dim: usize, theta: f64) -> Self {
        Self { head_dim, rotary_dim: head_dim, layout: RotaryLayout::HalfSplit, theta, scaling: RotaryScaling::None }
    }

    /// Whether the frequencies depend on the length of the sequence (dynamic NTK only).
    pub fn depends_on_length(&self) -> bool {
        matches!(self.scaling, RotaryScaling::DynamicNtk { .. })
    }

    /// Factor on cosine and sine.
    pub fn attention_factor(&self) -> f64 {
        match self.scaling {
            RotaryScaling::Yarn { attention_factor, .. } => attention_factor,
            _ => 1.0,
        }
    }

    /// The `rotary_dim / 2` inverse frequencies in radians per position for a sequence of `len` tokens, rounded to
    /// float32 as every published implementation has them.
    pub fn inverse_frequencies(&self, len: usize) -> Vec<f32> {
        let dim = self.rotary_dim as f64;
        let theta = match self.scaling {
            RotaryScaling::DynamicNtk { factor, original_max_position } => {
                let original = f64::from(original_max_position);
                let len = (len as f64).max(original);
                self.theta * ((factor * len / original) - (factor - 1.0)).powf(dim / (dim - 2.0))
            }
            _ => self.theta,
        };
        let plain = (0..self.rotary_dim / 2).map(|i| theta.powf(-2.0 * i as f64 / dim));
        match self.scaling {
            RotaryScaling::None | RotaryScaling::DynamicNtk { .. } => plain.map(|f| f as f32).collect(),
            RotaryScaling::Linear { factor } => plain.map(|f| (f / factor) as f32).collect(),
            RotaryScaling::Yarn { factor, original_max_position, beta_fast, beta_slow, truncate, .. } => {
                let correction = |rotations: f64| {
                    dim * (f64::from(original_max_position) / (rotations * 2.0 * std::f64::consts::PI)).ln()
                        / (2.0 * theta.ln())
                };
                let (mut low, mut high) = (correction(beta_fast), correction(beta_slow));
                if truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                let (low, mut high) = (low.max(0.0), high.min(dim - 1.0));
                if low == high {
                    high += 0.001;
                }
                plain
                    .enumerate()
                    .map(|(i, f)| {
                        let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                        (f / factor * ramp + f * (1.0 - ramp)) as f32
                    })
                    .collect()
            }
            RotaryScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position } => {
                let original = f64::from(original_max_position);
                plain
                    .map(|f| {
                        let wavelength = 2.0 * std::f64::consts::PI / f;
                        let scaled = if wavelength > original / low_freq_factor {
                            f / factor
                        } else if wavelength < original / high_freq_factor {
                            f
                        } else {
                            let smooth =
                                (original / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor);
                            (1.0 - smooth) * f / factor + smooth * f
                        };
                        scaled as f32
                    })
                    .collect()
            }
        }
    }

    /// Cosine and sine tables `[len, rotary_dim / 2]`, row-major, for the positions of a sequence of `len` tokens. The
    /// angle is computed in float64 from the float32 frequencies and only the result is rounded.
    pub fn tables(&self, len: usize) -> (Vec<f32>, Vec<f32>) {
        let frequencies = self.inverse_frequencies(len);
        let factor = self.attention_factor();
        let mut cos = Vec::with_capacity(len * frequencies.len());
        let mut sin = Vec::with_capacity(len * frequencies.len());
        for position in 0..len {
            for &frequency in &frequencies {
                let angle = position as f64 * f64::from(frequency);
                cos.push((angle.cos() * factor) as f32);
                sin.push((angle.sin() * factor) as f32);
            }
        }
        (cos, sin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_halves_and_dynamic_starts_beyond_the_original_length() {
        let plain = RotarySpec::plain(8, 10_000.0);
        let mut linear = plain.clone();
        linear.scaling = RotaryScaling::Linear { factor: 2.0 };
        let halves: Vec<f32> = plain.inverse_frequencies(4).iter().map(|f| f / 2.0).collect();
        assert_eq!(linear.inverse_frequencies(4), halves);
        let mut dynamic = plain.clone();
        dynamic.scaling = RotaryScaling::DynamicNtk { factor: 2.0, original_max_position: 16 };
        assert_eq!(dynamic.inverse_frequencies(16), plain.inverse_frequencies(16));
        assert!(dynamic.inverse_frequencies(32)[1] < plain.inverse_frequencies(32)[1]);
    }

    #[test]
    fn llama3_keeps_high_and_divides_low_frequencies() {
        let mut spec = RotarySpec::plain(64, 500_000.0);
        let plain = spec.inverse_frequencies(1);
        spec.scaling = RotaryScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position: 8192,
        };
        let scaled = spec.inverse_frequencies(1);
        assert_eq!(scaled[0], plain[0]);
        assert!((scaled[31] * 8.0 / plain[31] - 1.0).abs() < 1e-6);
    }
}

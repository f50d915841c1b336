//! What tests of several modules share.

use crate::simd::Isa;

/// All instruction sets that can run here, the emulation among them.
pub(crate) fn isas() -> Vec<Isa> {
    let mut list = Isa::available();
    list.extend(Isa::from_name("emulated16"));
    list
}

/// `len` values in [-1, 1), from a fixed sequence per seed.
pub(crate) fn random(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x1234_5678_9abc_def1);
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / 8_388_608.0 - 1.0
        })
        .collect()
}

/// The error function to 1e-15: Maclaurin's series below 3, the continued fraction of erfc above.
pub(crate) fn erf(x: f64) -> f64 {
    let t = x.abs();
    let value = if t < 3.0 {
        let (mut term, mut sum) = (t, t);
        for n in 1..100 {
            term *= 2.0 * t * t / f64::from(2 * n + 1);
            sum += term;
        }
        sum * (-t * t).exp() * 2.0 / std::f64::consts::PI.sqrt()
    } else {
        let mut fraction = t;
        for n in (1..=60).rev() {
            fraction = t + f64::from(n) / 2.0 / fraction;
        }
        1.0 - (-t * t).exp() / (fraction * std::f64::consts::PI.sqrt())
    };
    value.copysign(x)
}

//! Every instruction set that this machine has, and the emulated one, against the definition of each operation.

use half::{bf16, f16};

use super::{Isa, IsaError, Kernel, Simd};
use crate::testing::isas;

/// Runs every operation on the same inputs, and returns the results by name.
struct Operations<'a>(&'a [f32], &'a [f32], &'a [f32]);

impl Kernel for Operations<'_> {
    type Output = Vec<(&'static str, Vec<f32>)>;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Self::Output {
        let (x, y, z) = (self.0, self.1, self.2);
        let mut out: Self::Output = Vec::new();
        let mut record = |name: &'static str, at: usize, v: S::V| {
            if at == 0 {
                out.push((name, Vec::new()));
            }
            let mut lanes = vec![0.0; S::LANES];
            s.store(&mut lanes, v);
            let found = out.iter_mut().find(|(n, _)| *n == name);
            found.expect("pushed at 0").1.extend(lanes);
        };
        for at in (0..x.len()).step_by(S::LANES) {
            let (a, b, c) = (s.load(&x[at..]), s.load(&y[at..]), s.load(&z[at..]));
            record("add", at, s.add(a, b));
            record("sub", at, s.sub(a, b));
            record("mul", at, s.mul(a, b));
            record("div", at, s.div(a, b));
            record("max", at, s.max(a, b));
            record("min", at, s.min(a, b));
            record("abs", at, s.abs(a));
            record("copysign", at, s.copysign(a, b));
            record("sqrt", at, s.sqrt(a));
            record("round", at, s.round(a));
            record("select", at, s.select(s.lt(a, b), c, a));
            record("fma", at, s.fma(a, b, c));
            record("fnma", at, s.fnma(a, b, c));
        }
        out
    }
}

/// Inputs with signs, ties, zeros and NaN.
fn inputs() -> [Vec<f32>; 3] {
    let special = [0.0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, 1e-40, 3.0e6, -7.25, f32::NAN, 1e30, -1e-30, 4.0, 9.0, 2.0];
    let mut state = 1u32;
    let mut make = |shift: usize| -> Vec<f32> {
        let random = (0..64).map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / 8_388_608.0 - 1.0
        });
        let random: Vec<_> = random.collect();
        (0..16).map(|i| special[(i + shift) % 16]).chain(random).collect()
    };
    [make(0), make(3), make(7)]
}

fn definition(name: &str, fused: bool, a: f32, b: f32, c: f32) -> f32 {
    match name {
        "add" => a + b,
        "sub" => a - b,
        "mul" => a * b,
        "div" => a / b,
        "max" => {
            if a > b {
                a
            } else {
                b
            }
        }
        "min" => {
            if a < b {
                a
            } else {
                b
            }
        }
        "abs" => a.abs(),
        "copysign" => a.copysign(b),
        "sqrt" => a.sqrt(),
        "round" => {
            if a.abs() < 4e6 || a.is_nan() {
                a.round_ties_even()
            } else {
                a
            }
        }
        "select" => {
            if a < b {
                c
            } else {
                a
            }
        }
        "fma" if fused => a.mul_add(b, c),
        "fma" => a * b + c,
        "fnma" if fused => (-a).mul_add(b, c),
        "fnma" => c - a * b,
        other => unreachable!("{other}"),
    }
}

#[test]
fn every_operation_is_what_it_says_on_every_instruction_set() {
    let [x, y, z] = inputs();
    for isa in isas() {
        for (name, got) in isa.run(Operations(&x, &y, &z)) {
            assert_eq!(got.len(), x.len());
            for i in 0..x.len() {
                if name == "round" && x[i].abs() > 4e6 {
                    continue; // outside of what `round` promises
                }
                let want = definition(name, isa != Isa::generic(), x[i], y[i], z[i]);
                let same = got[i].to_bits() == want.to_bits() || (got[i].is_nan() && want.is_nan());
                assert!(same, "{isa:?} {name}({}, {}, {}) = {}, not {want}", x[i], y[i], z[i], got[i]);
            }
        }
    }
}

struct Folds<'a>(&'a [f32]);

impl Kernel for Folds<'_> {
    type Output = (usize, f32, f32);
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> (usize, f32, f32) {
        let v = s.load(self.0);
        (S::LANES, s.sum(v), s.max_lane(v))
    }
}

#[test]
fn lanes_are_summed_by_halves() {
    let x: Vec<f32> = (0..16).map(|i| 1.0 + (i as f32 * 0.37).sin() * 1e-3 * (i as f32)).collect();
    for isa in isas() {
        let (lanes, sum, max) = isa.run(Folds(&x));
        let mut tree = x[..lanes].to_vec();
        while tree.len() > 1 {
            let (low, high) = tree.split_at(tree.len() / 2);
            tree = low.iter().zip(high).map(|(a, b)| a + b).collect();
        }
        assert_eq!(sum.to_bits(), tree[0].to_bits(), "{isa:?}");
        assert_eq!(max, x[..lanes].iter().copied().fold(f32::MIN, f32::max), "{isa:?}");
    }
}

struct Memory<'a>(&'a [f32], &'a [u16]);

impl Kernel for Memory<'_> {
    type Output = Result<(), String>;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Result<(), String> {
        for n in 0..=S::LANES {
            let mut whole = vec![f32::NAN; S::LANES];
            s.store(&mut whole, s.load_head(&self.0[..n]));
            let mut part = vec![-1.0; S::LANES + 1];
            s.store_head(&mut part[..n], s.load(self.0));
            for i in 0..=S::LANES {
                if i < S::LANES && whole[i] != if i < n { self.0[i] } else { 0.0 } {
                    return Err(format!("load_head of {n}: lane {i} is {}", whole[i]));
                }
                if part[i] != if i < n { self.0[i] } else { -1.0 } {
                    return Err(format!("store_head of {n}: value {i} is {}", part[i]));
                }
            }
        }
        for at in (0..=self.1.len() - S::LANES).step_by(S::LANES) {
            let mut lanes = vec![0.0; 2 * S::LANES];
            // SAFETY: LANES values follow `at`.
            unsafe {
                s.store(&mut lanes, s.load_f16_ptr(self.1[at..].as_ptr()));
                s.store(&mut lanes[S::LANES..], s.load_bf16_ptr(self.1[at..].as_ptr()));
            }
            for i in 0..S::LANES {
                let bits = self.1[at + i];
                let (half, brain) = (f16::from_bits(bits).to_f32(), bf16::from_bits(bits).to_f32());
                if !half.is_nan() && lanes[i].to_bits() != half.to_bits() {
                    return Err(format!("f16 {bits:#x} is {half}, not {}", lanes[i]));
                }
                if !brain.is_nan() && lanes[S::LANES + i].to_bits() != brain.to_bits() {
                    return Err(format!("bf16 {bits:#x} is {brain}, not {}", lanes[S::LANES + i]));
                }
            }
        }
        Ok(())
    }
}

#[test]
fn loads_and_stores_touch_what_they_should_and_every_half_is_widened_exactly() {
    let x: Vec<f32> = (1..=16).map(|i| i as f32).collect();
    let all: Vec<u16> = (0..=u16::MAX).collect();
    for isa in isas() {
        assert_eq!(isa.run(Memory(&x, &all)), Ok(()), "{isa:?}");
    }
}

#[test]
fn names_are_checked() {
    assert_eq!(Isa::from_name("sse9"), Err(IsaError::Unknown("sse9".into())));
    assert_eq!(Isa::from_name("generic"), Ok(Isa::generic()));
    #[cfg(target_arch = "x86_64")]
    assert!(matches!(Isa::from_name("neon"), Err(IsaError::Unavailable { .. })));
    for isa in isas() {
        assert_eq!(Isa::from_name(isa.name()), Ok(isa));
    }
}

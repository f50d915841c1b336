//! Products against float64, and the law.

use half::{bf16, f16};
use proptest::prelude::*;

use super::*;
use crate::pool::ThreadPool;
use crate::simd::Isa;
use crate::testing::{isas, random};

/// The product in float64, and the sum of the magnitudes of its terms.
fn exact(a: &[f32], w: &[f32], n: usize, k: usize) -> (Vec<f64>, Vec<f64>) {
    let m = a.len() / k;
    let mut sums = (vec![0.0; m * n], vec![0.0; m * n]);
    for i in 0..m {
        for j in 0..n {
            for p in 0..k {
                let term = f64::from(a[i * k + p]) * f64::from(w[j * k + p]);
                sums.0[i * n + j] += term;
                sums.1[i * n + j] += term.abs();
            }
        }
    }
    sums
}

fn run(pool: &ThreadPool, a: &[f32], w: &PackedWeights, epilogue: &Epilogue<'_>) -> Vec<f32> {
    let (n, k) = (w.n(), w.k());
    let m = a.len() / k;
    let mut out = vec![f32::NAN; m * n];
    gemm(pool, MatRef::new(a, m, k, k), w, epilogue, MatMut::new(&mut out, m, n, n));
    out
}

#[test]
fn products_stay_within_the_stated_error_on_every_instruction_set() {
    let pool = ThreadPool::new(2);
    let shapes = [(1, 1, 1), (3, 5, 7), (14, 32, 64), (15, 33, 65), (29, 100, 384), (64, 70, 512), (2, 31, 1536)];
    for isa in isas() {
        for (m, n, k) in shapes {
            let (a, w) = (random(m * k, 1), random(n * k, 2));
            for bits in [WeightBits::F32, WeightBits::F16, WeightBits::Bf16] {
                let stored: Vec<f32> = match bits {
                    WeightBits::F32 => w.clone(),
                    WeightBits::F16 => w.iter().map(|x| f16::from_f32(*x).to_f32()).collect(),
                    WeightBits::Bf16 => w.iter().map(|x| bf16::from_f32(*x).to_f32()).collect(),
                };
                let packed = PackedWeights::pack_f32(isa, &w, n, k, bits);
                let got = run(&pool, &a, &packed, &Epilogue::default());
                let (want, magnitude) = exact(&a, &stored, n, k);
                let unit = f64::from(f32::EPSILON) / 2.0;
                let bound = (k + 1) as f64 * unit * 1.01;
                for i in 0..got.len() {
                    let error = (f64::from(got[i]) - want[i]).abs();
                    assert!(error <= bound * magnitude[i], "{isa:?} {bits:?} {m}x{n}x{k} at {i}: {error}");
                }
            }
        }
    }
}

#[test]
fn instruction_sets_that_fuse_give_the_same_product() {
    let pool = ThreadPool::new(1);
    let (m, n, k) = (17, 50, 384);
    let (a, w) = (random(m * k, 3), random(n * k, 4));
    let mut results = isas()
        .into_iter()
        .filter(|isa| *isa != Isa::generic())
        .map(|isa| run(&pool, &a, &PackedWeights::pack_f32(isa, &w, n, k, WeightBits::F32), &Epilogue::default()));
    let first = results.next().expect("the emulation is always there");
    assert!(results.all(|other| other == first));
}

#[test]
fn sixteen_bit_sources_pack_as_their_values() {
    let w = random(40 * 24, 5);
    let halves: Vec<f16> = w.iter().map(|x| f16::from_f32(*x)).collect();
    let brains: Vec<bf16> = w.iter().map(|x| bf16::from_f32(*x)).collect();
    let pool = ThreadPool::new(1);
    let a = random(3 * 24, 6);
    for isa in isas() {
        let out = |w: PackedWeights| run(&pool, &a, &w, &Epilogue::default());
        let half = out(PackedWeights::pack_f16(isa, &halves, 40, 24, WeightBits::F16));
        assert_eq!(half, out(PackedWeights::pack_f32(isa, &w, 40, 24, WeightBits::F16)));
        assert_eq!(half, out(PackedWeights::pack_f16(isa, &halves, 40, 24, WeightBits::F32)));
        let brain = out(PackedWeights::pack_bf16(isa, &brains, 40, 24, WeightBits::Bf16));
        assert_eq!(brain, out(PackedWeights::pack_f32(isa, &w, 40, 24, WeightBits::Bf16)));
    }
}

const ACTIVATIONS: [Activation; 8] = [
    Activation::Gelu,
    Activation::GeluTanh,
    Activation::QuickGelu,
    Activation::Relu,
    Activation::Silu,
    Activation::Tanh,
    Activation::Sigmoid,
    Activation::Log1pRelu,
];

#[test]
fn the_epilogue_is_scale_bias_activation_residual_in_that_order() {
    let pool = ThreadPool::new(2);
    let (m, n, k) = (19, 45, 32);
    let (a, w, bias, extra) = (random(m * k, 7), random(2 * n * k, 8), random(2 * n, 9), random(m * (n + 3), 10));
    for isa in isas() {
        for kind in ACTIVATIONS {
            for gated in [false, true] {
                let packed = if gated {
                    PackedWeights::pack_gated(isa, &w[..n * k], &w[n * k..], n, k, WeightBits::F32)
                } else {
                    PackedWeights::pack_f32(isa, &w[..n * k], n, k, WeightBits::F32)
                };
                let residual = MatRef::new(&extra, m, n, n + 3);
                let mut epilogue = Epilogue {
                    scale: 0.75,
                    bias: Some(if gated { &bias } else { &bias[..n] }),
                    activation: Some(kind),
                    residual: Residual::Matrix(residual),
                };
                let got = run(&pool, &a, &packed, &epilogue);
                epilogue.residual = Residual::Output;
                let mut in_place = extra.clone();
                gemm(&pool, MatRef::new(&a, m, k, k), &packed, &epilogue, MatMut::new(&mut in_place, m, n, n + 3));
                let (gate, _) = exact(&a, &w[..n * k], n, k);
                let (up, _) = exact(&a, &w[n * k..], n, k);
                for i in 0..m {
                    for j in 0..n {
                        let at = i * n + j;
                        let mut want = kind.eval(0.75 * gate[at] + f64::from(bias[j]));
                        if gated {
                            want *= 0.75 * up[at] + f64::from(bias[n + j]);
                        }
                        want += f64::from(residual.row(i)[j]);
                        let error = (f64::from(got[at]) - want).abs();
                        assert!(
                            error < 1e-5 * (1.0 + want.abs()),
                            "{isa:?} {kind:?} gated {gated} ({i}, {j}): {error}"
                        );
                        assert_eq!(in_place[i * (n + 3) + j].to_bits(), got[at].to_bits(), "{isa:?} in place");
                    }
                    assert_eq!(in_place[i * (n + 3) + n..(i + 1) * (n + 3)], extra[i * (n + 3) + n..(i + 1) * (n + 3)]);
                }
            }
        }
    }
}

#[test]
fn no_rows_and_no_inputs_are_fine() {
    let pool = ThreadPool::new(2);
    let w = PackedWeights::pack_f32(Isa::best(), &[], 3, 0, WeightBits::F32);
    let bias = [1.0, 2.0, 3.0];
    let epilogue = Epilogue { bias: Some(&bias), ..Epilogue::default() };
    let mut out = [0.0; 6];
    gemm(&pool, MatRef::new(&[], 2, 0, 0), &w, &epilogue, MatMut::new(&mut out, 2, 3, 3));
    assert_eq!(out, [1.0, 2.0, 3.0, 1.0, 2.0, 3.0]);
    gemm(&pool, MatRef::new(&[], 0, 0, 0), &w, &epilogue, MatMut::new(&mut [], 0, 3, 3));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// A row's bits are the same alone, anywhere among others, at any stride, for any number of threads.
    #[test]
    fn a_row_depends_on_itself_alone(
        m in 1usize..90, n in 1usize..140, k in prop_oneof![1usize..70, Just(512), Just(1000)],
        threads in 1usize..4, bits in 0usize..3, pad in 0usize..3, seed in 0u64..1000,
    ) {
        let bits = [WeightBits::F32, WeightBits::F16, WeightBits::Bf16][bits];
        let (one, many) = (ThreadPool::new(1), ThreadPool::new(threads));
        let (w, bias) = (random(n * k, seed), random(n, seed + 1));
        let stride = k + pad;
        let a = random(m * stride, seed + 2);
        for isa in isas() {
            let packed = PackedWeights::pack_f32(isa, &w, n, k, bits);
            let epilogue = Epilogue { bias: Some(&bias), activation: Some(Activation::Gelu), ..Epilogue::default() };
            let mut all = vec![f32::NAN; m * n];
            gemm(&many, MatRef::new(&a, m, k, stride), &packed, &epilogue, MatMut::new(&mut all, m, n, n));
            for row in [0, m / 3, m - 1] {
                let alone = run(&one, &a[row * stride..][..k], &packed, &epilogue);
                prop_assert!(alone.iter().zip(&all[row * n..]).all(|(x, y)| x.to_bits() == y.to_bits()), "{isa:?} row {row}");
            }
        }
    }
}

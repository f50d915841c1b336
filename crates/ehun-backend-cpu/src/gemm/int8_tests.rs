//! The int8 product against float64, and its promises.

use proptest::prelude::*;

use super::*;
use crate::pool::ThreadPool;
use crate::simd::Isa;
use crate::testing::{isas, random};

fn run(isa: Isa, pool: &ThreadPool, a: &[f32], w: &PackedInt8, epilogue: &Epilogue<'_>) -> Vec<f32> {
    let (n, k) = (w.n(), w.k());
    let m = a.len() / k;
    let rows = QuantizedRows::new(isa, pool, MatRef::new(a, m, k, k));
    let mut out = vec![f32::NAN; m * n];
    gemm_int8(pool, &rows, w, epilogue, MatMut::new(&mut out, m, n, n));
    out
}

#[test]
fn close_to_the_exact_product_and_the_same_on_every_instruction_set() {
    let pool = ThreadPool::new(2);
    for (m, n, k) in [(1, 1, 1), (3, 5, 7), (15, 33, 65), (29, 100, 384), (4, 40, 1536)] {
        let (mut a, w) = (random(m * k, 1), random(n * k, 2));
        a.iter_mut().for_each(|x| *x = x.max(-0.2)); // a lopsided range, as after an activation
        let mut first: Option<Vec<f32>> = None;
        for isa in isas() {
            let got = run(isa, &pool, &a, &PackedInt8::pack(isa, &w, n, k), &Epilogue::default());
            for i in 0..m {
                for j in 0..n {
                    let want: f64 = (0..k).map(|p| f64::from(a[i * k + p]) * f64::from(w[j * k + p])).sum();
                    // Steps of at most 1.2 / 255 and 1 / 127, half of each at most, times values of at most 1.
                    let worst = k as f64 * (1.2 / 255.0 + 0.5 / 127.0);
                    let usual = 6.0 * (k as f64).sqrt() * (0.6 / 255.0 + 0.5 / 127.0);
                    let error = (f64::from(got[i * n + j]) - want).abs();
                    assert!(error <= worst.min(usual), "{isa:?} {m}x{n}x{k} ({i}, {j}): {error}");
                }
            }
            // Sums are exact; only a fused epilogue may round differently, and this one has nothing to fuse.
            let first = first.get_or_insert_with(|| got.clone());
            assert_eq!(&got, first, "{isa:?}");
        }
    }
}

#[test]
fn extremes_do_not_saturate() {
    let pool = ThreadPool::new(1);
    let k = 300;
    for isa in isas() {
        let got =
            run(isa, &pool, &vec![1.0; k], &PackedInt8::pack(isa, &vec![-1.0; 40 * k], 40, k), &Epilogue::default());
        assert!(got.iter().all(|x| (x + k as f32).abs() < 1e-2), "{isa:?}: {}", got[0]);
    }
}

#[test]
fn zeros_stay_zero_and_what_is_not_finite_shows() {
    let pool = ThreadPool::new(1);
    for isa in isas() {
        let w = PackedInt8::pack(isa, &random(20 * 10, 3), 20, 10);
        assert!(run(isa, &pool, &[0.0; 10], &w, &Epilogue::default()).iter().all(|x| *x == 0.0));
        assert!(run(isa, &pool, &[1e-44; 10], &w, &Epilogue::default()).iter().all(|x| x.abs() < 1e-40));
        for bad in [f32::NAN, f32::INFINITY] {
            let mut a = [0.5; 10];
            a[3] = bad;
            assert!(run(isa, &pool, &a, &w, &Epilogue::default()).iter().all(|x| x.is_nan()), "{isa:?} {bad}");
        }
    }
}

#[test]
fn gated_weights_hold_both_matrices() {
    let pool = ThreadPool::new(2);
    let (m, n, k) = (17, 37, 48);
    let (a, gate, up) = (random(m * k, 4), random(n * k, 5), random(n * k, 6));
    let bias = random(2 * n, 7);
    for isa in isas() {
        let plain = |w: &[f32], bias: &[f32], activation| {
            let epilogue = Epilogue { bias: Some(bias), activation, ..Epilogue::default() };
            run(isa, &pool, &a, &PackedInt8::pack(isa, w, n, k), &epilogue)
        };
        let g = plain(&gate, &bias[..n], Some(Activation::Silu));
        let u = plain(&up, &bias[n..], None);
        let epilogue = Epilogue { bias: Some(&bias), activation: Some(Activation::Silu), ..Epilogue::default() };
        let both = run(isa, &pool, &a, &PackedInt8::pack_gated(isa, &gate, &up, n, k), &epilogue);
        assert!(both.iter().zip(g.iter().zip(&u)).all(|(b, (g, u))| *b == g * u), "{isa:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// A row's bits are the same alone and anywhere among others, for any number of threads.
    #[test]
    fn a_row_depends_on_itself_alone(
        m in 1usize..80, n in 1usize..90, k in 1usize..200, threads in 1usize..4, seed in 0u64..1000,
    ) {
        let (one, many) = (ThreadPool::new(1), ThreadPool::new(threads));
        let (a, w, bias) = (random(m * k, seed), random(n * k, seed + 1), random(n, seed + 2));
        let epilogue = Epilogue { bias: Some(&bias), activation: Some(Activation::Gelu), ..Epilogue::default() };
        for isa in isas() {
            let packed = PackedInt8::pack(isa, &w, n, k);
            let all = run(isa, &many, &a, &packed, &epilogue);
            for row in [0, m / 2, m - 1] {
                let alone = run(isa, &one, &a[row * k..][..k], &packed, &epilogue);
                prop_assert!(alone.iter().zip(&all[row * n..]).all(|(x, y)| x.to_bits() == y.to_bits()), "{isa:?} row {row}");
            }
        }
    }
}

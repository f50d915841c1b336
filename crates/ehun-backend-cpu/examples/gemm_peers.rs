//! The matrix product against published crates and against the machine's multiply-add rate, in one run.
//!
//! `cargo run --release -p ehun-backend-cpu --example gemm_peers [-- M,M,... [KxN,KxN,...]]`
//!
//! Prints GFLOP/s for each shape: ours with weights packed once as f32 and as f16, the `gemm` crate and `matrixmultiply`,
//! which pack at every call. Runs alternate, and each figure is the best of its rounds: on a shared machine the slower ones
//! measure the neighbours.

use std::hint::black_box;
use std::time::{Duration, Instant};

use ehun_backend_cpu::gemm::{self as ours, Epilogue, MatMut, MatRef, PackedWeights, WeightBits};
use ehun_backend_cpu::pool::ThreadPool;
use ehun_backend_cpu::simd::{Isa, Kernel, Simd};

/// Multiply-adds on registers alone, as many chains as hide their latency.
struct FmaLoop(u64);

const CHAINS: usize = 12;

impl Kernel for FmaLoop {
    /// Floating-point operations done.
    type Output = u64;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> u64 {
        let (a, b) = (s.splat(black_box(0.999)), s.splat(black_box(1e-3)));
        let mut acc = [s.zero(); CHAINS];
        for _ in 0..self.0 {
            for chain in &mut acc {
                *chain = s.fma(*chain, a, b);
            }
        }
        let mut sum = s.zero();
        for chain in acc {
            sum = s.add(sum, chain);
        }
        black_box(s.sum(sum));
        self.0 * (CHAINS * S::LANES * 2) as u64
    }
}

/// GFLOP/s of the multiply-add loop on all threads.
fn fma_rate(isa: Isa, pool: &ThreadPool) -> f64 {
    let best = (0..5).map(|_| {
        let start = Instant::now();
        let flops = std::sync::atomic::AtomicU64::new(0);
        pool.run(pool.threads(), |_| {
            flops.fetch_add(isa.run(FmaLoop(1_000_000)), std::sync::atomic::Ordering::Relaxed);
        });
        flops.into_inner() as f64 / start.elapsed().as_secs_f64() / 1e9
    });
    best.fold(0.0, f64::max)
}

/// The shortest time of a call, within about `budget`.
fn best_time(budget: Duration, mut call: impl FnMut()) -> f64 {
    let (start, mut best) = (Instant::now(), f64::MAX);
    while start.elapsed() < budget || best == f64::MAX {
        let one = Instant::now();
        call();
        best = best.min(one.elapsed().as_secs_f64());
    }
    best
}

fn values(len: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 7919) % 1009) as f32 / 504.5 - 1.0).collect()
}

fn main() {
    let mut args = std::env::args().skip(1);
    let list = |arg: Option<String>, default: &str| -> Vec<String> {
        arg.unwrap_or_else(|| default.into()).split(',').map(Into::into).collect()
    };
    let rows = list(args.next(), "1,4,16,64,256,1024,4096");
    let shapes = list(args.next(), "384x384,384x1536,1536x384,768x768,768x3072,3072x768");
    let isa = match Isa::detect() {
        Ok(isa) => isa,
        Err(error) => return eprintln!("{error}"),
    };
    for threads in [1, 2] {
        let pool = ThreadPool::new(threads);
        let _busy = pool.busy();
        let parallelism = if threads == 1 { gemm::Parallelism::None } else { gemm::Parallelism::Rayon(threads) };
        println!("{isa:?}, {threads} threads; multiply-add loop {:.0} GFLOP/s", fma_rate(isa, &pool));
        println!("{:>5} {:>10} {:>8} {:>8} {:>8} {:>8}  of loop", "m", "k x n", "f32", "f16", "gemm", "matrixm");
        for shape in &shapes {
            let Some((k, n)) = shape.split_once('x').and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?))) else {
                return eprintln!("`{shape}` is no KxN");
            };
            let (k, n): (usize, usize) = (k, n);
            let w = values(n * k);
            let packed = PackedWeights::pack_f32(isa, &w, n, k, WeightBits::F32);
            let half = PackedWeights::pack_f32(isa, &w, n, k, WeightBits::F16);
            for m in &rows {
                let Ok(m) = m.parse::<usize>() else { return eprintln!("`{m}` is no number of rows") };
                let (a, mut out) = (values(m * k), vec![0.0f32; m * n]);
                let mut rates = [0f64; 4];
                let flops = 2.0 * (m * n * k) as f64;
                let rate = fma_rate(isa, &pool);
                for _ in 0..3 {
                    let budget = Duration::from_millis(40);
                    let mut record = |i: usize, time: f64| rates[i] = rates[i].max(flops / time / 1e9);
                    for (i, w) in [&packed, &half].into_iter().enumerate() {
                        record(
                            i,
                            best_time(budget, || {
                                let to = MatMut::new(&mut out, m, n, n);
                                ours::gemm(&pool, MatRef::new(&a, m, k, k), w, &Epilogue::default(), to);
                            }),
                        );
                    }
                    record(
                        2,
                        best_time(budget, || {
                            // SAFETY: the matrices have these sizes and strides.
                            unsafe {
                                gemm::gemm(
                                    m,
                                    n,
                                    k,
                                    out.as_mut_ptr(),
                                    1,
                                    n as isize,
                                    false,
                                    a.as_ptr(),
                                    1,
                                    k as isize,
                                    w.as_ptr(),
                                    k as isize,
                                    1,
                                    0.0,
                                    1.0,
                                    false,
                                    false,
                                    false,
                                    parallelism,
                                );
                            }
                        }),
                    );
                    record(
                        3,
                        best_time(budget, || {
                            // SAFETY: the matrices have these sizes and strides.
                            unsafe {
                                matrixmultiply::sgemm(
                                    m,
                                    k,
                                    n,
                                    1.0,
                                    a.as_ptr(),
                                    k as isize,
                                    1,
                                    w.as_ptr(),
                                    1,
                                    k as isize,
                                    0.0,
                                    out.as_mut_ptr(),
                                    n as isize,
                                    1,
                                );
                            }
                        }),
                    );
                }
                println!(
                    "{m:>5} {shape:>10} {:>8.1} {:>8.1} {:>8.1} {:>8.1}  {:.2} {:.2}",
                    rates[0],
                    rates[1],
                    rates[2],
                    rates[3],
                    rates[0] / rate,
                    rates[1] / rate,
                );
            }
        }
    }
}

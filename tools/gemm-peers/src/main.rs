//! The CPU backend's matrix product beside published crates, in one run.
//!
//! `cargo xtask bench kernels [THREADS [M,M,... [KxN,KxN,...]]]`
//!
//! For `out[m, n] = a[m, k] * w[n, k]^T` it prints GFLOP/s: ours with weights packed once (as f32, as f16), rten-gemm with
//! weights packed once, and gemm, faer and matrixmultiply, which pack both sides at every call. Runs alternate and each figure is
//! the best of its rounds: on a shared machine the slower ones measure the neighbours. Then it says of each whether the bits of
//! a row depend on how many rows the matrix has.

mod peers;

use std::hint::black_box;
use std::time::{Duration, Instant};

use ehun_backend_cpu::pool::ThreadPool;
use ehun_backend_cpu::simd::{Isa, Kernel, Simd};
use peers::{Problem, all};

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

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let threads: usize = args.next().unwrap_or_else(|| "1".into()).parse()?;
    // The crates read their number of threads once, from the environment: a process for each number.
    let names = ["RAYON_NUM_THREADS", "MATMUL_NUM_THREADS", "RTEN_NUM_THREADS"];
    if names.iter().any(|name| std::env::var(name).as_deref() != Ok(&threads.to_string())) {
        let mut again = std::process::Command::new(std::env::current_exe()?);
        again.args(std::env::args().skip(1)).envs(names.map(|name| (name, threads.to_string())));
        std::process::exit(again.status()?.code().unwrap_or(1));
    }
    let list = |arg: Option<String>, default: &str| -> Vec<String> {
        arg.unwrap_or_else(|| default.into()).split(',').map(Into::into).collect()
    };
    let rows =
        list(args.next(), "1,4,16,64,256,1024,4096").iter().map(|m| m.parse()).collect::<Result<Vec<usize>, _>>()?;
    let shapes = list(args.next(), "384x384,384x1536,1536x384,768x768,768x3072,3072x768");
    let isa = Isa::detect()?;
    let pool = ThreadPool::new(threads);
    let _busy = pool.busy();
    let mut peers = all(isa, threads, &pool);
    println!("{isa:?}, {threads} threads; multiply-add loop {:.0} GFLOP/s\n", fma_rate(isa, &pool));
    println!("| m | k x n |{}", peers.iter().map(|p| format!(" {} |", p.name)).collect::<String>());
    println!("| --- | --- |{}", " --- |".repeat(peers.len()));
    let mut ratios = vec![Vec::new(); peers.len()];
    for shape in &shapes {
        let (k, n) = shape.split_once('x').ok_or(format!("`{shape}` is no KxN"))?;
        let (k, n): (usize, usize) = (k.parse()?, n.parse()?);
        let w = values(n * k);
        for peer in &mut peers {
            (peer.load)(&w, k, n);
        }
        for &m in &rows {
            let (a, mut out) = (values(m * k), vec![0.0f32; m * n]);
            let mut rates = vec![0f64; peers.len()];
            for _ in 0..3 {
                for (rate, peer) in rates.iter_mut().zip(&mut peers) {
                    let time = best_time(Duration::from_millis(25), || {
                        (peer.multiply)(Problem { a: &a, w: &w, out: &mut out, m, k, n });
                    });
                    *rate = rate.max(2.0 * (m * n * k) as f64 / time / 1e9);
                }
            }
            for (list, rate) in ratios.iter_mut().zip(&rates) {
                list.push(rates[0] / rate);
            }
            println!("| {m} | {shape} |{}", rates.iter().map(|r| format!(" {r:.1} |")).collect::<String>());
        }
    }
    println!(
        "\nOurs in float32 by each, geometric mean over the table; do a row's bits depend on the number of rows?\n"
    );
    for (peer, ratios) in peers.iter_mut().zip(&ratios) {
        let mean = (ratios.iter().map(|r| r.ln()).sum::<f64>() / ratios.len() as f64).exp();
        let (name, bits) = (peer.name, row_bits(peer));
        println!("- {name}: {mean:.2}; {bits}");
    }
    Ok(())
}

/// Whether the first row of a product has the same bits for every number of rows.
fn row_bits(peer: &mut peers::Peer) -> String {
    let (k, n) = (1536, 384);
    let (w, a) = (values(n * k), values(1024 * k));
    (peer.load)(&w, k, n);
    let mut first = |m: usize| {
        let mut out = vec![0.0f32; m * n];
        (peer.multiply)(Problem { a: &a[..m * k], w: &w, out: &mut out, m, k, n });
        out[..n].iter().map(|x| x.to_bits()).collect::<Vec<_>>()
    };
    let alone = first(1);
    let other: Vec<usize> = [2, 3, 4, 7, 8, 16, 31, 64, 255, 1024].into_iter().filter(|&m| first(m) != alone).collect();
    if other.is_empty() { "no".into() } else { format!("yes: not the bits of 1 row at {other:?} rows") }
}

//! The two attention kernels over the length: where `auto` should change from one to the other.
//!
//! `cargo run --release -p ehun-backend-cpu --example attention_curve [-- KEY=VALUE...]`
//!
//! Keys: `lengths` (8,...,8192), `widths` of a head (32,64,128), `heads` (12), `isa` (all that the machine has), `threads`
//! (1), `milliseconds` for each figure (60).
//!
//! For each instruction set and head width: nanoseconds a token of `naive` and of `flash`, alternated, the best of the rounds,
//! and how many times faster `flash` is.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ehun_backend_cpu::attention::{AttentionKernel, BiasTables, Choice, Inputs, attention};
use ehun_backend_cpu::gemm::{MatMut, MatRef};
use ehun_backend_cpu::pool::ThreadPool;
use ehun_backend_cpu::simd::Isa;
use ehun_graph::AttentionSpec;

/// Rows of a batch: short sequences are measured by many at once, as they come.
const TOKENS: usize = 2048;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let asked: HashMap<String, String> = std::env::args()
        .skip(1)
        .filter_map(|arg| arg.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned())))
        .collect();
    let text = |key: &str, default: &str| asked.get(key).cloned().unwrap_or_else(|| default.to_owned());
    let numbers = |key: &str, default: &str| -> Result<Vec<usize>, std::num::ParseIntError> {
        text(key, default).split(',').map(str::parse).collect()
    };
    let lengths = numbers("lengths", "8,16,32,48,64,96,128,192,256,384,512,1024,2048,4096,8192")?;
    let heads = numbers("heads", "12")?[0];
    let budget = Duration::from_millis(numbers("milliseconds", "60")?[0] as u64);
    let pool = ThreadPool::new(numbers("threads", "1")?[0]);
    let _busy = pool.busy();
    let isas = match asked.get("isa") {
        Some(name) => vec![Isa::from_name(name)?],
        None => Isa::available(),
    };
    println!("| instruction set | head width | length | naive, ns/token | flash, ns/token | naive/flash |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for isa in isas {
        for width in numbers("widths", "32,64,128")? {
            for &len in &lengths {
                let [naive, flash] = pair(isa, &pool, heads, width, len, budget);
                println!("| {} | {width} | {len} | {naive:.0} | {flash:.0} | {:.2} |", isa.name(), naive / flash);
            }
        }
    }
    Ok(())
}

/// Nanoseconds a token of both kernels.
fn pair(isa: Isa, pool: &ThreadPool, heads: usize, width: usize, len: usize, budget: Duration) -> [f64; 2] {
    let sequences = (TOKENS / len).max(1);
    let (tokens, row) = (sequences * len, heads * width);
    let values: Vec<f32> = (0..tokens * 3 * row).map(|i| ((i * 7919) % 1009) as f32 / 504.5 - 1.0).collect();
    let cu_seqlens: Vec<usize> = (0..=sequences).map(|i| i * len).collect();
    let mut out = vec![0.0f32; tokens * row];
    let view = |from: usize| MatRef::new(&values[from..], tokens, row, 3 * row);
    let inputs = Inputs { q: view(0), k: view(row), v: view(2 * row) };
    let spec = AttentionSpec::full(heads, width);
    let mut best = [f64::INFINITY; 2];
    let until = Instant::now() + 2 * budget;
    let mut rounds = 0;
    while Instant::now() < until || rounds < 3 {
        for (best, kernel) in best.iter_mut().zip([AttentionKernel::Naive, AttentionKernel::Flash]) {
            let to = MatMut::new(&mut out, tokens, row, row);
            let started = Instant::now();
            attention(isa, pool, Choice::Fixed(kernel), &spec, &BiasTables::default(), inputs, &cu_seqlens, to);
            *best = best.min(started.elapsed().as_secs_f64() * 1e9 / tokens as f64);
        }
        rounds += 1;
    }
    best
}

//! A whole forward pass: tokens and texts a second, GFLOP/s, the share of the machine's multiply-add rate, and where the
//! time goes.
//!
//! `cargo run --release -p ehun-backend-cpu --example forward [-- KEY=VALUE...]`
//!
//! Keys: `width` (384), `inner` (4 x width), `heads` (width / 32), `layers` (6), `pooling` (`mean`, `cls`), `lengths`
//! (`mixed`, or a number), `texts` (32 a batch), `threads` (all), `attention` (`auto`), `bits` (32 or 16), `seconds` (3).
//!
//! Weights are random. Figures are of the best and of the median batch: on a shared machine the slower ones measure the
//! neighbours.

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ehun_backend::{Backend, Options, RunOptions};
use ehun_backend_cpu::CpuBackend;
use ehun_backend_cpu::pool::ThreadPool;
use ehun_backend_cpu::simd::{Isa, Kernel, Simd};
use ehun_graph::{
    Activation, AttentionSpec, Graph, GraphBuilder, GraphError, Index, PoolingMode, RaggedBatch, ValueId, WeightRef,
    WeightStore,
};

const VOCABULARY: usize = 1000;

/// What is asked for on the command line.
struct Asked(HashMap<String, String>);

impl Asked {
    fn text(&self, key: &str, default: &str) -> String {
        self.0.get(key).cloned().unwrap_or_else(|| default.to_owned())
    }

    fn number(&self, key: &str, default: usize) -> usize {
        self.0.get(key).and_then(|text| text.parse().ok()).unwrap_or(default)
    }
}

struct Model {
    b: GraphBuilder,
    tensors: Vec<(String, Vec<usize>)>,
}

impl Model {
    fn weight(&mut self, name: String, shape: &[usize]) -> WeightRef {
        self.tensors.push((name.clone(), shape.to_vec()));
        WeightRef::whole(name, shape)
    }

    fn linear(&mut self, x: ValueId, name: &str, out: usize) -> Result<ValueId, GraphError> {
        let width = self.b.width(x);
        let weight = self.weight(format!("{name}.weight"), &[out, width]);
        let bias = self.weight(format!("{name}.bias"), &[out]);
        self.b.linear(name, x, weight, Some(bias))
    }

    fn norm(&mut self, x: ValueId, name: &str) -> Result<ValueId, GraphError> {
        let width = self.b.width(x);
        let weight = self.weight(format!("{name}.weight"), &[width]);
        let bias = self.weight(format!("{name}.bias"), &[width]);
        self.b.layer_norm(name, x, Some(weight), Some(bias), 1e-12)
    }
}

/// Tensors by name with their shapes.
type Shapes = Vec<(String, Vec<usize>)>;

/// A BERT with pooling and L2 norm: the shape of all-MiniLM-L6-v2 unless asked otherwise.
fn model(asked: &Asked) -> Result<(Graph, Shapes), GraphError> {
    let width = asked.number("width", 384);
    let (inner, heads) = (asked.number("inner", 4 * width), asked.number("heads", width / 32));
    let mut m = Model { b: GraphBuilder::new(), tensors: Vec::new() };
    let word = m.weight("word".into(), &[VOCABULARY, width]);
    let position = m.weight("position".into(), &[8192, width]);
    let word = m.b.embedding("word", word, Index::TokenId)?;
    let position = m.b.embedding("position", position, Index::Position { offset: 0 })?;
    let sum = m.b.add("sum", word, position)?;
    let mut x = m.norm(sum, "norm")?;
    for layer in 0..asked.number("layers", 6) {
        m.b.scope(format!("layer.{layer}"));
        let name = |part: &str| format!("{layer}.{part}");
        let (q, k, v) =
            (m.linear(x, &name("q"), width)?, m.linear(x, &name("k"), width)?, m.linear(x, &name("v"), width)?);
        let context = m.b.attention("self", q, k, v, AttentionSpec::full(heads, width / heads))?;
        let out = m.linear(context, &name("out"), width)?;
        let sum = m.b.add("residual", out, x)?;
        let attended = m.norm(sum, &name("attended"))?;
        let up = m.linear(attended, &name("up"), inner)?;
        let up = m.b.activation("gelu", up, Activation::Gelu)?;
        let down = m.linear(up, &name("down"), width)?;
        let sum = m.b.add("residual", down, attended)?;
        x = m.norm(sum, &name("end"))?;
    }
    let mode = if asked.text("pooling", "mean") == "cls" { PoolingMode::Cls } else { PoolingMode::Mean };
    let pooled = m.b.pooling("pooling", x, mode)?;
    let unit = m.b.l2_normalize("normalize", pooled)?;
    m.b.output("embedding", unit);
    Ok((m.b.finish()?, m.tensors))
}

/// Numbers from a fixed sequence.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / 8_388_608.0 - 1.0
    }
}

/// Random weights as a safetensors file, in 32 or in 16 bits.
fn weights(tensors: &[(String, Vec<usize>)], bits: usize) -> Vec<u8> {
    let mut random = Random(1);
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, shape) in tensors {
        let start = data.len();
        let scale = if shape.len() == 2 { 1.0 / (shape[1] as f32).sqrt() } else { 0.5 };
        for _ in 0..shape.iter().product() {
            let x = scale * random.uniform();
            match bits {
                16 => data.extend_from_slice(&half::f16::from_f32(x).to_le_bytes()),
                _ => data.extend_from_slice(&x.to_le_bytes()),
            }
        }
        let entry =
            serde_json::json!({"dtype": format!("F{bits}"), "shape": shape, "data_offsets": [start, data.len()]});
        header.insert(name.clone(), entry);
    }
    let header = serde_json::Value::Object(header).to_string();
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat()
}

/// Multiply-adds on registers alone.
struct FmaLoop(u64);

impl Kernel for FmaLoop {
    type Output = u64;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> u64 {
        let (a, b) = (s.splat(black_box(0.999)), s.splat(black_box(1e-3)));
        let mut acc = [s.zero(); 12];
        for _ in 0..self.0 {
            for chain in &mut acc {
                *chain = s.fma(*chain, a, b);
            }
        }
        let sum = acc.into_iter().fold(s.zero(), |sum, chain| s.add(sum, chain));
        black_box(s.sum(sum));
        self.0 * (12 * S::LANES * 2) as u64
    }
}

/// GFLOP/s of the multiply-add loop on all threads, the best of some rounds.
fn fma_rate(isa: Isa, pool: &ThreadPool) -> f64 {
    let once = |_| {
        let start = Instant::now();
        let flops = std::sync::atomic::AtomicU64::new(0);
        pool.run(pool.threads(), |_| {
            flops.fetch_add(isa.run(FmaLoop(400_000)), std::sync::atomic::Ordering::Relaxed);
        });
        flops.into_inner() as f64 / start.elapsed().as_secs_f64() / 1e9
    };
    (0..10).map(once).fold(0.0, f64::max)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pairs = std::env::args().skip(1).filter_map(|arg| {
        let (key, value) = arg.split_once('=')?;
        Some((key.to_owned(), value.to_owned()))
    });
    let asked = Asked(pairs.collect());
    let isa = Isa::detect()?;
    let (graph, tensors) = model(&asked)?;
    let store = WeightStore::from_bytes(weights(&tensors, asked.number("bits", 32)))?;
    let threads = asked.number("threads", std::thread::available_parallelism()?.get());
    let options = Options {
        threads: Some(threads),
        attention: asked.text("attention", "auto").parse()?,
        max_sequence: 8192,
        ..Options::default()
    };
    let started = Instant::now();
    let executable = CpuBackend::new(isa).compile(Arc::new(graph), &store, &options)?;
    println!("compiled in {:.1} ms", started.elapsed().as_secs_f64() * 1e3);

    let mut random = Random(7);
    let mut lengths: Vec<usize> = (0..asked.number("texts", 32))
        .map(|_| match asked.text("lengths", "mixed").parse() {
            Ok(len) => len,
            // Paragraphs: most are short, some are long; the mean is near 63.
            Err(_) => (12.0 * (1.6 * (f64::from(random.uniform()) + 1.0)).exp() * 0.9) as usize + 4,
        })
        .collect();
    lengths.sort_unstable();
    let ids = lengths.iter().map(|len| (0..*len).map(|_| (random.next() % VOCABULARY as u64) as u32).collect());
    let batch = RaggedBatch::from_ids(&ids.collect::<Vec<Vec<u32>>>());

    let pool = ThreadPool::new(threads);
    let (mut times, mut rate) = (Vec::new(), fma_rate(isa, &pool));
    let until = Instant::now() + Duration::from_secs(asked.number("seconds", 3) as u64);
    let mut operations = Vec::new();
    let mut best = f64::INFINITY;
    while Instant::now() < until || times.len() < 5 {
        let profile = times.len() % 2 == 1;
        let started = Instant::now();
        let outputs = ehun_backend::run(&*executable, &batch, &RunOptions { deadline: None, profile })?;
        let time = started.elapsed().as_secs_f64();
        times.push(time);
        if profile && time < best {
            best = time;
            operations = outputs.report.operations;
        }
    }
    rate = rate.max(fma_rate(isa, &pool));
    times.sort_by(f64::total_cmp);

    let flops: u64 = operations.iter().map(|operation| operation.flops).sum();
    println!(
        "{} texts, {} tokens, {:.3} GFLOP a batch; multiply-add loop {rate:.0} GFLOP/s ({}, {threads} threads)",
        batch.num_sequences(),
        batch.num_tokens(),
        flops as f64 / 1e9,
        isa.name(),
    );
    for (name, time) in [("best", times[0]), ("median", times[times.len() / 2])] {
        let gflops = flops as f64 / time / 1e9;
        println!(
            "{name:>7}: {:8.3} ms, {:7.0} tokens/s, {:6.0} texts/s, {gflops:6.1} GFLOP/s, {:3.0} % of the loop",
            time * 1e3,
            batch.num_tokens() as f64 / time,
            batch.num_sequences() as f64 / time,
            100.0 * gflops / rate,
        );
    }
    let all: f64 = operations.iter().map(|operation| operation.seconds).sum();
    for operation in &operations {
        println!(
            "{:>18} x{:<3} {:8.3} ms {:5.1} % {:7.1} GFLOP/s",
            operation.operation,
            operation.count,
            operation.seconds * 1e3,
            100.0 * operation.seconds / all,
            operation.flops as f64 / operation.seconds / 1e9,
        );
    }
    println!("{:>18}      {:8.3} ms of {:.3} ms", "all", all * 1e3, best * 1e3);
    Ok(())
}

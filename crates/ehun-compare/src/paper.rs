//! Attention alone: what a benchmark of a kernel would show.

use std::sync::Arc;
use std::time::Instant;

use ehun_backend::{BucketChoice, Executable, Options, RunOptions};
use ehun_graph::{
    AttentionSpec, Bias, Graph, GraphBuilder, GraphError, Index, PoolingMode, RaggedBatch, WeightRef, WeightStore,
};
use serde::{Deserialize, Serialize};

use crate::error::CompareError;
use crate::side::{Local, Side};
use crate::stats::{Gain, Random, Round, gain, median};

/// Attention alone at one length.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AttentionTime {
    /// Tokens of a sequence.
    pub length: usize,
    /// Sequences of a batch.
    pub batch: usize,
    /// Microseconds of one operation for one sequence, the median.
    pub baseline_us: f64,
    /// The same of the candidate.
    pub candidate_us: f64,
    /// The baseline's time over the candidate's.
    pub gain: Option<Gain>,
    /// Why there are no figures, where a side refuses the length.
    pub refused: Option<String>,
}

/// Rows of the tables that queries, keys and values are looked up in.
const ROWS: usize = 256;
/// Tokens of a batch, about.
const TOKENS: usize = 2048;
/// Least time of one measurement, in seconds: several runs of what takes less.
const LEAST: f64 = 0.02;

/// Measures one attention operation with `spec` on both sides, at each of `lengths`, in `rounds` rounds.
pub(crate) fn measure(
    spec: &AttentionSpec,
    sides: [&Side; 2],
    lengths: &[usize],
    rounds: usize,
) -> Result<Vec<AttentionTime>, CompareError> {
    let [Some(baseline), Some(candidate)] = sides.map(|side| side.local.as_ref()) else { return Ok(Vec::new()) };
    let mut all = Vec::new();
    for &length in lengths {
        let batch = (TOKENS / length).max(1);
        let mut time = AttentionTime { length, batch, baseline_us: 0.0, candidate_us: 0.0, gain: None, refused: None };
        let opened = [(baseline, sides[0]), (candidate, sides[1])].map(|(local, side)| {
            let failed = |message| CompareError::Paper { side: side.name.clone(), message };
            Alone::compile(spec, local, length, batch).map_err(failed)
        });
        match opened {
            [Ok(a), Ok(b)] => one(&a, &b, rounds, &mut time)?,
            [a, b] => {
                let why: Vec<String> = [a.err(), b.err()].into_iter().flatten().map(|e| e.to_string()).collect();
                time.refused = Some(why.join("; "));
            }
        }
        all.push(time);
    }
    Ok(all)
}

fn one(a: &Alone, b: &Alone, rounds: usize, time: &mut AttentionTime) -> Result<(), CompareError> {
    let repeats = [a, b].map(|side| (LEAST / side.seconds(1).max(1e-7)).ceil().clamp(1.0, 200.0) as usize);
    let all: Vec<Round> = (0..rounds.max(2))
        .map(|_| {
            let (first, second) = (a.seconds(repeats[0]), b.seconds(repeats[1]));
            let (third, fourth) = (b.seconds(repeats[1]), a.seconds(repeats[0]));
            Round { baseline: [first, fourth], candidate: [second, third] }
        })
        .collect();
    let micros = |times: Vec<f64>| median(&times) / time.batch as f64 * 1e6;
    time.baseline_us = micros(all.iter().flat_map(|round| round.baseline).collect());
    time.candidate_us = micros(all.iter().flat_map(|round| round.candidate).collect());
    time.gain = gain(&all);
    Ok(())
}

/// A graph of one attention operation, and the same graph without it.
struct Alone {
    with: Box<dyn Executable>,
    without: Box<dyn Executable>,
    batch: RaggedBatch,
}

impl Alone {
    fn compile(spec: &AttentionSpec, local: &Local, length: usize, batch: usize) -> Result<Self, String> {
        let options = Options {
            max_sequence: length,
            max_batch_tokens: (length * batch).max(length),
            buckets: BucketChoice::List(vec![(batch, length)]),
            ..local.options.clone()
        };
        let compile = |attends: bool| {
            let (graph, weights) = graph(spec, attends)?;
            let compiled = local.backend.compile(Arc::new(graph), &weights, &options);
            compiled.map_err(|error| error.to_string())
        };
        let mut random = Random(length as u64);
        let ids: Vec<Vec<u32>> = (0..batch).map(|_| (0..length).map(|_| random.below(ROWS) as u32).collect()).collect();
        let alone = Self { with: compile(true)?, without: compile(false)?, batch: RaggedBatch::from_ids(&ids) };
        // What fails or has to warm up does it now.
        for executable in [&alone.with, &alone.without] {
            ehun_backend::run(executable.as_ref(), &alone.batch, &RunOptions::default()).map_err(|e| e.to_string())?;
        }
        Ok(alone)
    }

    /// Mean seconds of attention over `repeats` runs: as the backend's own profile says, or else the time of the graph with
    /// it less that of the graph without.
    fn seconds(&self, repeats: usize) -> f64 {
        let run = |executable: &dyn Executable, profile: bool| {
            let start = Instant::now();
            let outputs = ehun_backend::run(executable, &self.batch, &RunOptions { deadline: None, profile });
            (start.elapsed().as_secs_f64(), outputs)
        };
        let mut sum = 0.0;
        for _ in 0..repeats {
            let (elapsed, outputs) = run(self.with.as_ref(), true);
            let operations = outputs.map(|outputs| outputs.report.operations).unwrap_or_default();
            let known = operations.iter().find(|operation| operation.operation == "attention");
            sum += match known {
                Some(attention) => attention.seconds,
                None => (elapsed - run(self.without.as_ref(), false).0).max(0.0),
            };
        }
        sum / repeats as f64
    }
}

/// Rows looked up, attention over them, one row of each sequence as the result.
fn graph(spec: &AttentionSpec, attends: bool) -> Result<(Graph, WeightStore), String> {
    let (graph, tensors) = build(spec, attends).map_err(|error| error.to_string())?;
    Ok((graph, WeightStore::from_tensors(tensors).map_err(|error| error.to_string())?))
}

type Tensors = Vec<(String, Vec<usize>, Vec<f32>)>;

fn build(spec: &AttentionSpec, attends: bool) -> Result<(Graph, Tensors), GraphError> {
    let mut random = Random(1);
    let mut tensors = Tensors::new();
    let mut tensor = |name: &str, rows: usize, width: usize| {
        let values = (0..rows * width).map(|_| (random.unit() * 2.0 - 1.0) as f32).collect();
        tensors.push((name.to_owned(), vec![rows, width], values));
        WeightRef::whole(name, &[rows, width])
    };
    let mut b = GraphBuilder::new();
    let (q_width, kv_heads) = (spec.num_heads * spec.head_dim, spec.num_kv_heads);
    let q = tensor("q", ROWS, q_width);
    let q = b.embedding("q", q, Index::TokenId)?;
    let k = tensor("k", ROWS, kv_heads * spec.head_dim);
    let k = b.embedding("k", k, Index::TokenId)?;
    let v = tensor("v", ROWS, kv_heads * spec.value_dim);
    let v = b.embedding("v", v, Index::TokenId)?;
    let mut last = v;
    if attends {
        let bias = match &spec.bias {
            Bias::None => Bias::None,
            Bias::Alibi { slopes } => Bias::Alibi { slopes: slopes.clone() },
            Bias::Bucketed { rule, .. } => {
                let table = tensor("buckets", rule.num_buckets as usize, spec.num_heads);
                Bias::Bucketed { table: b.constant("buckets", table)?, rule: *rule }
            }
            Bias::Disentangled { key_positions, query_positions, rule } => {
                let rows = 2 * rule.span as usize;
                let keys = key_positions.map(|_| tensor("key_positions", rows, q_width));
                let queries = query_positions.map(|_| tensor("query_positions", rows, q_width));
                Bias::Disentangled {
                    key_positions: keys.map(|table| b.constant("key_positions", table)).transpose()?,
                    query_positions: queries.map(|table| b.constant("query_positions", table)).transpose()?,
                    rule: *rule,
                }
            }
        };
        last = b.attention("attention", q, k, v, AttentionSpec { bias, ..spec.clone() })?;
    } else {
        let (queries, keys) = (b.pooling("q_row", q, PoolingMode::Cls)?, b.pooling("k_row", k, PoolingMode::Cls)?);
        b.output("q", queries);
        b.output("k", keys);
    }
    let row = b.pooling("row", last, PoolingMode::Cls)?;
    b.output("out", row);
    Ok((b.finish()?, tensors))
}

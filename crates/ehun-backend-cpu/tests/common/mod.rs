//! What the integration tests share: graphs, random weights, batches.

use std::sync::Arc;

use ehun_backend::{Attention, Backend, Executable, Options, Outputs, RunOptions};
use ehun_backend_cpu::{CpuBackend, simd::Isa};
use ehun_graph::{
    Activation, AttentionSpec, Graph, GraphBuilder, GraphError, Index, RaggedBatch, SequenceInput, ValueId, WeightRef,
    WeightStore,
};

/// The shape of a BERT.
#[derive(Debug, Clone, Copy)]
pub struct Bert {
    pub width: usize,
    pub inner: usize,
    pub heads: usize,
    pub layers: usize,
    pub vocabulary: usize,
    pub positions: usize,
    pub types: usize,
    pub eps: f32,
    pub activation: Activation,
}

impl Bert {
    /// A small one.
    pub const SMALL: Self = Self {
        width: 48,
        inner: 96,
        heads: 4,
        layers: 2,
        vocabulary: 100,
        positions: 600,
        types: 2,
        eps: 1e-12,
        activation: Activation::Gelu,
    };
}

fn matrix(name: &str, rows: usize, columns: usize) -> WeightRef {
    WeightRef::whole(format!("{name}.weight"), &[rows, columns])
}

fn bias(name: &str, len: usize) -> Option<WeightRef> {
    Some(WeightRef::whole(format!("{name}.bias"), &[len]))
}

/// `x W^T + b` with the tensors `name.weight` and `name.bias`.
pub fn linear(b: &mut GraphBuilder, x: ValueId, name: &str, out: usize) -> Result<ValueId, GraphError> {
    let width = b.width(x);
    b.linear(name, x, matrix(name, out, width), bias(name, out))
}

/// Layer norm with the tensors `name.weight` and `name.bias`.
pub fn norm(b: &mut GraphBuilder, x: ValueId, name: &str, eps: f32) -> Result<ValueId, GraphError> {
    let width = b.width(x);
    let weight = Some(WeightRef::whole(format!("{name}.weight"), &[width]));
    b.layer_norm(name, x, weight, bias(name, width), eps)
}

/// BERT from the published architecture up to the last hidden state.
pub fn bert(b: &mut GraphBuilder, shape: &Bert) -> Result<ValueId, GraphError> {
    let Bert { width, inner, heads, layers, vocabulary, positions, types, eps, activation } = *shape;
    let word = b.embedding("word", matrix("embeddings.word_embeddings", vocabulary, width), Index::TokenId)?;
    let position = matrix("embeddings.position_embeddings", positions, width);
    let position = b.embedding("position", position, Index::Position { offset: 0 })?;
    let kind = b.embedding("type", matrix("embeddings.token_type_embeddings", types, width), Index::TokenType)?;
    let sum = b.add("sum", word, kind)?;
    let sum = b.add("sum", sum, position)?;
    let mut x = norm(b, sum, "embeddings.LayerNorm", eps)?;
    for layer in 0..layers {
        let name = |part: &str| format!("encoder.layer.{layer}.{part}");
        let q = linear(b, x, &name("attention.self.query"), width)?;
        let k = linear(b, x, &name("attention.self.key"), width)?;
        let v = linear(b, x, &name("attention.self.value"), width)?;
        let context = b.attention("self", q, k, v, AttentionSpec::full(heads, width / heads))?;
        let out = linear(b, context, &name("attention.output.dense"), width)?;
        let sum = b.add("residual", out, x)?;
        let attended = norm(b, sum, &name("attention.output.LayerNorm"), eps)?;
        let up = linear(b, attended, &name("intermediate.dense"), inner)?;
        let up = b.activation("activation", up, activation)?;
        let out = linear(b, up, &name("output.dense"), width)?;
        let sum = b.add("residual", out, attended)?;
        x = norm(b, sum, &name("output.LayerNorm"), eps)?;
    }
    Ok(x)
}

/// Numbers from a fixed sequence for each seed.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// In `0..bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.bits() >> 33) as usize % bound
    }

    /// In -1..1.
    pub fn uniform(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / 8_388_608.0 - 1.0
    }
}

/// Random weights for every tensor of `graph`, of a size that keeps activations near 1.
pub fn weights(graph: &Graph, seed: u64) -> WeightStore {
    let mut random = Random::new(seed);
    let mut known = std::collections::BTreeMap::new();
    for weight in graph.weights() {
        known.entry(weight.name.clone()).or_insert_with(|| weight.shape.clone());
    }
    let tensors = known.into_iter().map(|(name, shape)| {
        let scale = if shape.len() == 2 { 1.7 / (shape[1] as f32).sqrt() } else { 0.3 };
        let center = if name.contains("orm.weight") { 1.0 } else { 0.0 };
        let count = shape.iter().product();
        let data = (0..count).map(|_| center + scale * random.uniform()).collect();
        (name, shape, data)
    });
    WeightStore::from_tensors(tensors.collect()).expect("generated weights")
}

/// Sequences of these lengths with random ids below `vocabulary` and types of 0 and 1.
pub fn sequences(lengths: &[usize], vocabulary: usize, seed: u64) -> Vec<SequenceInput> {
    let mut random = Random::new(seed);
    lengths
        .iter()
        .map(|len| SequenceInput {
            token_ids: (0..*len).map(|_| random.below(vocabulary) as u32).collect(),
            token_types: (0..*len).map(|i| u32::from(i > len / 2)).collect(),
            pooling_start: 0,
        })
        .collect()
}

/// Compiles for `threads` threads and the attention kernel `attention`.
pub fn compile(graph: &Graph, weights: &WeightStore, threads: usize, attention: &str) -> Box<dyn Executable> {
    let attention: Attention = attention.parse().expect("never fails");
    let options = Options { threads: Some(threads), attention, max_sequence: 9000, ..Options::default() };
    CpuBackend::new(Isa::best()).compile(Arc::new(graph.clone()), weights, &options).expect("a graph that compiles")
}

/// Runs a batch of sequences.
pub fn run(executable: &dyn Executable, sequences: &[SequenceInput]) -> Outputs {
    let batch = RaggedBatch::pack(sequences).expect("a batch");
    ehun_backend::run(executable, &batch, &RunOptions::default()).expect("a result")
}

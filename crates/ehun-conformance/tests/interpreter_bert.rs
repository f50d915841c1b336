//! The interpreter against transformers: BERT built by hand from the published architecture, on golden checkpoints.

use std::path::{Path, PathBuf};

use ehun_conformance::Interpreter;
use ehun_graph::{
    Activation, AttentionSpec, Graph, GraphBuilder, GraphError, Index, RaggedBatch, SequenceInput, ValueId, WeightRef,
    WeightStore,
};
use serde::Deserialize;

#[derive(Deserialize)]
struct Config {
    hidden_size: usize,
    intermediate_size: usize,
    num_attention_heads: usize,
    num_hidden_layers: usize,
    vocab_size: usize,
    max_position_embeddings: usize,
    type_vocab_size: usize,
    layer_norm_eps: f32,
    hidden_act: String,
}

#[derive(Deserialize)]
struct Expected {
    tolerance: f64,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    input_ids: Vec<u32>,
    token_type_ids: Option<Vec<u32>>,
    last_hidden_state: Vec<Vec<f64>>,
}

fn matrix(name: &str, rows: usize, columns: usize) -> WeightRef {
    WeightRef::whole(format!("{name}.weight"), &[rows, columns])
}

fn bias(name: &str, len: usize) -> Option<WeightRef> {
    Some(WeightRef::whole(format!("{name}.bias"), &[len]))
}

fn linear(b: &mut GraphBuilder, x: ValueId, name: &str, out: usize) -> Result<ValueId, GraphError> {
    let width = b.width(x);
    b.linear(name, x, matrix(name, out, width), bias(name, out))
}

fn norm(b: &mut GraphBuilder, x: ValueId, name: &str, eps: f32) -> Result<ValueId, GraphError> {
    let width = b.width(x);
    let weight = Some(WeightRef::whole(format!("{name}.weight"), &[width]));
    b.layer_norm(name, x, weight, bias(name, width), eps)
}

fn bert(config: &Config) -> Result<Graph, GraphError> {
    let width = config.hidden_size;
    let activation = Activation::from_name(&config.hidden_act).expect("a known activation");
    let mut b = GraphBuilder::new();
    let word = matrix("embeddings.word_embeddings", config.vocab_size, width);
    let position = matrix("embeddings.position_embeddings", config.max_position_embeddings, width);
    let kind = matrix("embeddings.token_type_embeddings", config.type_vocab_size, width);
    let word = b.embedding("word", word, Index::TokenId)?;
    let position = b.embedding("position", position, Index::Position { offset: 0 })?;
    let kind = b.embedding("type", kind, Index::TokenType)?;
    let sum = b.add("sum", word, kind)?;
    let sum = b.add("sum", sum, position)?;
    let mut x = norm(&mut b, sum, "embeddings.LayerNorm", config.layer_norm_eps)?;
    for layer in 0..config.num_hidden_layers {
        let name = |part: &str| format!("encoder.layer.{layer}.{part}");
        let q = linear(&mut b, x, &name("attention.self.query"), width)?;
        let k = linear(&mut b, x, &name("attention.self.key"), width)?;
        let v = linear(&mut b, x, &name("attention.self.value"), width)?;
        let heads = config.num_attention_heads;
        let context = b.attention("self", q, k, v, AttentionSpec::full(heads, width / heads))?;
        let out = linear(&mut b, context, &name("attention.output.dense"), width)?;
        let sum = b.add("residual", out, x)?;
        let attended = norm(&mut b, sum, &name("attention.output.LayerNorm"), config.layer_norm_eps)?;
        let inner = linear(&mut b, attended, &name("intermediate.dense"), config.intermediate_size)?;
        let inner = b.activation("activation", inner, activation)?;
        let out = linear(&mut b, inner, &name("output.dense"), width)?;
        let sum = b.add("residual", out, attended)?;
        x = norm(&mut b, sum, &name("output.LayerNorm"), config.layer_norm_eps)?;
    }
    b.output("last_hidden_state", x);
    b.finish()
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../goldens").join(name)
}

#[test]
fn bert_goldens() {
    for name in ["bert", "bert-gelu-new", "bert-relu-eps"] {
        let read = |file: &str| std::fs::read_to_string(golden(name).join(file)).expect("a golden file");
        let config: Config = serde_json::from_str(&read("config.json")).expect("a configuration");
        let expected: Expected = serde_json::from_str(&read("expected.json")).expect("expected answers");
        let weights = WeightStore::open(&[golden(name).join("model.safetensors")]).expect("weights");
        let graph = bert(&config).expect("a graph");
        let interpreter = Interpreter::new(&graph, &weights).expect("matching weights");
        let sequences: Vec<SequenceInput> = expected
            .cases
            .iter()
            .map(|case| SequenceInput {
                token_ids: case.input_ids.clone(),
                token_types: case.token_type_ids.clone().unwrap_or_default(),
                pooling_start: 0,
            })
            .collect();
        let batch = RaggedBatch::pack(&sequences).expect("a batch");
        let outputs = interpreter.run(&batch).expect("a result");
        let found = outputs[0].data.iter();
        let wanted = expected.cases.iter().flat_map(|case| case.last_hidden_state.iter().flatten());
        assert_eq!(outputs[0].data.len(), wanted.clone().count());
        for (found, want) in found.zip(wanted) {
            assert!((found - want).abs() <= expected.tolerance * (1.0 + want.abs()), "{name}: {found} is not {want}");
        }
    }
}

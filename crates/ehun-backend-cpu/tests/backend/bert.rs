//! The BERT goldens: what transformers answers, through the graph as it is published.

use std::path::{Path, PathBuf};

use crate::common::{Bert, bert, compile, run};
use ehun_graph::{Activation, GraphBuilder, SequenceInput, WeightStore};
use serde_json::Value;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../goldens").join(name)
}

fn read(name: &str, file: &str) -> Value {
    let text = std::fs::read_to_string(golden(name).join(file)).expect("a golden file");
    serde_json::from_str(&text).expect("JSON")
}

fn number(value: &Value, key: &str) -> usize {
    value[key].as_u64().expect("a number") as usize
}

fn ids(value: &Value) -> Vec<u32> {
    let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter().map(|id| id.as_u64().expect("an id") as u32).collect()
}

#[test]
fn bert_goldens() {
    for name in ["bert", "bert-gelu-new", "bert-relu-eps"] {
        let config = read(name, "config.json");
        let shape = Bert {
            width: number(&config, "hidden_size"),
            inner: number(&config, "intermediate_size"),
            heads: number(&config, "num_attention_heads"),
            layers: number(&config, "num_hidden_layers"),
            vocabulary: number(&config, "vocab_size"),
            positions: number(&config, "max_position_embeddings"),
            types: number(&config, "type_vocab_size"),
            eps: config["layer_norm_eps"].as_f64().expect("a number") as f32,
            activation: Activation::from_name(config["hidden_act"].as_str().expect("a name")).expect("a known one"),
        };
        let mut b = GraphBuilder::new();
        let x = bert(&mut b, &shape).expect("a graph");
        b.output("last_hidden_state", x);
        let graph = b.finish().expect("a graph");
        let weights = WeightStore::open(&[golden(name).join("model.safetensors")]).expect("weights");
        graph.check_weights(&weights).expect("weights of this graph");
        let expected = read(name, "expected.json");
        let tolerance = expected["tolerance"].as_f64().expect("a number");
        let cases = expected["cases"].as_array().expect("cases");
        let sequences: Vec<SequenceInput> = cases
            .iter()
            .map(|case| SequenceInput {
                token_ids: ids(&case["input_ids"]),
                token_types: ids(&case["token_type_ids"]),
                pooling_start: 0,
            })
            .collect();
        for (threads, attention) in [(1, "naive"), (2, "flash"), (2, "auto")] {
            let executable = compile(&graph, &weights, threads, attention);
            let outputs = run(&*executable, &sequences);
            let rows = cases.iter().flat_map(|case| case["last_hidden_state"].as_array().expect("rows"));
            let wanted: Vec<f64> =
                rows.flat_map(|row| row.as_array().expect("a row")).map(|x| x.as_f64().expect("a number")).collect();
            let found = &outputs.values[0].data;
            assert_eq!(found.len(), wanted.len());
            let worst = found.iter().zip(&wanted).map(|(x, want)| (f64::from(*x) - want).abs() / (1.0 + want.abs()));
            let worst = worst.fold(0.0, f64::max);
            assert!(worst <= tolerance, "{name}, {attention}: {worst} is above {tolerance}");
        }
    }
}

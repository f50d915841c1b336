//! The graphs of the goldens with head widths, windows, rotary kinds and lengths that the goldens lack: the CPU backend against
//! the float64 interpreter. The weights are a golden's; options that leave their shapes as they are change in `config.json`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ehun_backend::{BackendFactory, Options, RunOptions};
use ehun_backend_cpu::CpuFactory;
use ehun_conformance::Interpreter;
use ehun_graph::{RaggedBatch, SequenceInput};
use ehun_models::{Checkpoint, LoadOptions, Model, Task};
use serde_json::{Value, json};

/// A golden, what changes in its configuration, and the width of its windows where it has some.
fn cases() -> Vec<(&'static str, Value, usize)> {
    let mut all = Vec::new();
    for golden in ["bert", "roberta", "xlm-roberta", "camembert", "electra", "albert", "deberta-v2", "gte", "jina-v3"] {
        for heads in [1, 2, 3, 6, 12] {
            all.push((golden, json!({"num_attention_heads": heads}), 0));
        }
    }
    for (heads, head_dim) in [(1, 48), (2, 24), (3, 16), (6, 8)] {
        all.push(("distilbert", json!({"n_heads": heads}), 0));
        all.push(("nomic-bert", json!({"num_attention_heads": heads, "head_dim": head_dim}), 0));
        let heads_of_all = json!({"num_attention_heads": heads, "num_key_value_heads": heads, "head_dim": head_dim});
        all.push(("eurobert", heads_of_all, 0));
    }
    for golden in ["llama", "mistral", "qwen2"] {
        all.push((golden, json!({"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 24}), 12));
    }
    for function in ["gelu", "gelu_new", "quick_gelu", "relu", "silu", "tanh", "sigmoid"] {
        all.push(("bert", json!({"hidden_act": function}), 0));
    }
    for window in [2, 3, 8, 15, 16, 40, 128] {
        all.push(("modernbert", json!({"local_attention": window}), window / 2));
        all.push(("mistral", json!({"sliding_window": window}), window));
        all.push(("gemma3", json!({"sliding_window": window}), window / 2));
        all.push(("gemma3", json!({"sliding_window": window, "use_bidirectional_attention": false}), window));
        let types = json!(["full_attention", "sliding_attention"]);
        all.push((
            "qwen3",
            json!({"use_sliding_window": true, "sliding_window": window, "layer_types": types}),
            window,
        ));
    }
    let kinds = [
        json!({"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5}),
        json!({"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}),
        json!({"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 40}),
        json!({"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 32}),
    ];
    for kind in &kinds {
        for golden in ["llama", "mistral", "qwen2", "qwen3", "eurobert", "nomic-bert", "gte", "jina-v3"] {
            all.push((golden, json!({"rope_parameters": kind, "max_position_embeddings": 100}), 12));
        }
        let both = json!({"full_attention": kind, "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0}});
        let types = json!(["full_attention", "sliding_attention", "sliding_attention", "full_attention"]);
        all.push(("modernbert", json!({"rope_parameters": both, "layer_types": types}), 8));
        all.push(("gemma3", json!({"rope_parameters": both, "layer_types": types}), 4));
    }
    for kinds in ["c2p", "p2c", "c2p|p2c", ""] {
        all.push(("deberta-v2", json!({"pos_att_type": kinds, "position_buckets": 8}), 8));
    }
    for function in ["gated-gelu", "gated-silu", "gated-relu"] {
        all.push(("t5-encoder", json!({"feed_forward_proj": function, "relative_attention_max_distance": 30}), 30));
    }
    all.push(("albert", json!({"num_hidden_layers": 7}), 0));
    all
}

/// A copy of the golden's directory with a changed configuration. Its table of positions, of relative ones too, stays as long.
fn changed(golden: &str, change: &Value, to: &Path) {
    let from: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../goldens").join(golden);
    for file in ["model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(from.join(file), to.join(file)).unwrap();
    }
    let mut config: Value = serde_json::from_slice(&std::fs::read(from.join("config.json")).unwrap()).unwrap();
    for (key, value) in change.as_object().unwrap() {
        config[key] = value.clone();
    }
    if golden == "deberta-v2" && change.get("position_buckets").is_some() {
        // The table has a row for each of twice sixteen buckets.
        config["position_buckets"] = json!(16);
    }
    std::fs::write(to.join("config.json"), config.to_string()).unwrap();
}

fn inputs(model: &Model, window: usize, seed: u64) -> Vec<SequenceInput> {
    let most = model.max_tokens();
    let mut lengths = vec![1, 2, window.max(2) - 1, window, window + 1, 2 * window + 3, 65, most - 1, most];
    lengths.retain(|&length| length > 0 && length <= most);
    let mut state = seed | 1;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as u32
    };
    let sequence = |length: usize| SequenceInput {
        token_ids: (0..length).map(|_| 5 + next() % 600).collect(),
        ..SequenceInput::default()
    };
    lengths.into_iter().map(sequence).collect()
}

/// How far the backend is from the interpreter, as a share of the largest number, and how many tokens were looked at.
fn apart(golden: &str, change: &Value, window: usize, seed: u64) -> (f64, usize) {
    let folder = tempfile::tempdir().unwrap();
    changed(golden, change, folder.path());
    let options = LoadOptions { task: Some(Task::Tokens), ..LoadOptions::default() };
    let model = Model::load(&Checkpoint::open(folder.path()).unwrap(), &options).unwrap();
    let inputs = inputs(&model, window, seed);
    let batch = RaggedBatch::pack(&inputs).unwrap();
    let exact = Interpreter::new(model.graph(), model.weights()).unwrap().run(&batch).unwrap().remove(0).data;
    let options = Options { threads: Some(2), max_sequence: model.max_tokens(), ..Options::default() };
    let backend = CpuFactory.open("cpu").unwrap();
    let executable = backend.compile(Arc::clone(model.graph()), model.weights(), &options).unwrap();
    let got = ehun_backend::run(&*executable, &batch, &RunOptions::default()).unwrap().values.remove(0).data;
    assert_eq!(got.len(), exact.len());
    let largest = exact.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
    let worst = exact.iter().zip(&got).map(|(a, &b)| (a - f64::from(b)).abs());
    // A NaN is as far as can be.
    (worst.fold(0.0, |a: f64, b| if b.is_nan() { f64::INFINITY } else { a.max(b) }) / largest, inputs.len())
}

#[test]
fn the_backend_gives_what_float64_gives() {
    let all = cases();
    assert!(all.len() > 130, "{}", all.len());
    let mut failures = Vec::new();
    for (seed, (golden, change, window)) in all.iter().enumerate() {
        let (apart, sequences) = apart(golden, change, *window, seed as u64 * 7919);
        assert!(sequences >= 4, "{golden} {change}");
        if apart > 1e-5 {
            failures.push(format!("{golden} {change}: {apart:.1e}"));
        }
    }
    assert!(failures.is_empty(), "{} of {} differ:\n{}", failures.len(), all.len(), failures.join("\n"));
}

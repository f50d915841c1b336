//! Every golden checkpoint on XLA's CPU plugin: what transformers and sentence-transformers answer.

mod common;

use std::path::{Path, PathBuf};

use ehun_backend::{BucketChoice, Options, Precision, RunOptions};
use ehun_backend_xla::XlaBackend;
use ehun_graph::{RaggedBatch, SequenceInput};
use ehun_models::{Checkpoint, LoadOptions, Model, Task, TextInput};
use serde_json::Value;

/// Rows of fewer columns are logits.
const VECTOR: usize = 16;

fn numbers(value: &Value) -> Vec<f64> {
    match value {
        Value::Array(list) => list.iter().flat_map(numbers).collect(),
        Value::Number(number) => vec![number.as_f64().unwrap()],
        other => panic!("no number: {other}"),
    }
}

fn task(head: &str) -> (Task, &'static str) {
    match head {
        "base" => (Task::Tokens, "last_hidden_state"),
        "sequence-classification" => (Task::Classify, "logits"),
        "token-classification" => (Task::Tag, "logits"),
        "masked-lm" => (Task::Sparse, "splade"),
        "embedding" => (Task::Embed, "embedding"),
        "rerank" => (Task::Rerank, "raw"),
        other => panic!("unknown head {other}"),
    }
}

fn input(model: &Model, task: Task, case: &Value, query: Option<&str>) -> SequenceInput {
    let text = case["text"].as_str().unwrap();
    if task == Task::Embed {
        let prompt = model.prompt(case["prompt_name"].as_str()).unwrap();
        return model.embed_input(text, prompt).unwrap();
    }
    let tokens = match (query, case.get("pair").and_then(Value::as_str)) {
        (Some(query), _) => model.tokenize(TextInput::Pair(query, text)),
        (None, Some(pair)) => model.tokenize(TextInput::Pair(text, pair)),
        (None, None) => model.tokenize(text),
    };
    tokens.unwrap().into_input(0)
}

/// 1 less the cosine.
fn apart(got: &[f64], want: &[f64]) -> f64 {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    1.0 - dot(got, want) / (dot(got, got) * dot(want, want)).sqrt()
}

/// The share of the tolerance at f32, the worst of all cases. At bf16 1 less the cosine: of each case where the output is
/// a vector, of all cases together where it is logits, as a few numbers alone are no direction.
fn worst(backend: &XlaBackend, folder: &Path, precision: Precision) -> f64 {
    let expected: Value = serde_json::from_slice(&std::fs::read(folder.join("expected.json")).unwrap()).unwrap();
    let tolerance = expected["tolerance"].as_f64().unwrap();
    let (task, key) = task(expected["head"].as_str().unwrap());
    let options = LoadOptions { task: Some(task), ..LoadOptions::default() };
    let model = Model::load(&Checkpoint::open(folder).unwrap(), &options).unwrap();
    let cases = expected["cases"].as_array().unwrap();
    let inputs: Vec<SequenceInput> =
        cases.iter().map(|case| input(&model, task, case, expected["query"].as_str())).collect();
    // All cases in one bucket: most of them in padding.
    let longest = inputs.iter().map(|input| input.token_ids.len()).max().unwrap_or(1);
    let options = Options {
        precision,
        buckets: BucketChoice::List(vec![(cases.len(), longest)]),
        cache: Some(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("programs")),
        ..Options::default()
    };
    let executable = backend.compile_xla(model.graph().clone(), model.weights(), &options).unwrap();
    let batch = RaggedBatch::pack(&inputs).unwrap();
    let outputs = ehun_backend::run(&executable, &batch, &RunOptions::default()).unwrap();
    let value = &outputs.values[0];
    let mut most = 0.0f64;
    let mut together = (Vec::new(), Vec::new());
    for (number, case) in cases.iter().enumerate() {
        let rows = match value.rows {
            ehun_graph::Rows::Tokens => batch.rows(number),
            _ => number..number + 1,
        };
        let got: Vec<f64> =
            value.data[rows.start * value.width..rows.end * value.width].iter().map(|&x| f64::from(x)).collect();
        let want = if task == Task::Sparse {
            let mut want = vec![0.0; got.len()];
            for entry in case[key].as_array().unwrap() {
                want[entry[0].as_u64().unwrap() as usize] = entry[1].as_f64().unwrap();
            }
            want
        } else {
            numbers(&case[key])
        };
        assert_eq!(got.len(), want.len(), "{}", folder.display());
        let worst = match precision {
            Precision::F32 => {
                let share = |(got, want): (&f64, &f64)| (got - want).abs() / (tolerance * (1.0 + want.abs()));
                let most = |a: f64, b: f64| if b.is_nan() { f64::INFINITY } else { a.max(b) };
                got.iter().zip(&want).map(share).fold(0.0, most)
            }
            _ if value.width >= VECTOR => apart(&got, &want),
            _ => 0.0,
        };
        most = if worst.is_nan() { f64::INFINITY } else { most.max(worst) };
        together.0.extend(got);
        together.1.extend(want);
    }
    if precision != Precision::F32 {
        let all = apart(&together.0, &together.1);
        most = if all.is_nan() { f64::INFINITY } else { most.max(all) };
    }
    most
}

fn all(precision: Precision, allowed: f64) {
    let Some(backend) = common::backend() else { return };
    let goldens = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../goldens");
    let mut folders: Vec<PathBuf> = std::fs::read_dir(goldens).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.retain(|folder| folder.join("expected.json").exists());
    folders.sort();
    assert!(!folders.is_empty());
    let mut failed = Vec::new();
    for folder in folders {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let worst = worst(&backend, &folder, precision);
        println!("{name:<40} {worst:.2e}");
        if worst > allowed {
            failed.push(format!("{name} {worst:.2e}"));
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn every_golden_is_met_in_f32() {
    all(Precision::F32, 1.0);
}

#[test]
fn bf16_keeps_the_direction() {
    all(Precision::Bf16, 1e-3);
}

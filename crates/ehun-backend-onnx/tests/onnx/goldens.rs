//! Every golden checkpoint on ONNX Runtime's CPU provider: what transformers and sentence-transformers answer.

use crate::common;

use std::path::{Path, PathBuf};

use ehun_backend::{Attention, BackendError, BucketChoice, Options, RunOptions};
use ehun_backend_onnx::OnnxBackend;
use ehun_graph::{RaggedBatch, SequenceInput};
use ehun_models::{Checkpoint, LoadOptions, Model, Task, TextInput};
use serde_json::Value;

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

/// The worst of all cases as the share of the tolerance, or nothing where the form is refused.
fn worst(backend: &OnnxBackend, folder: &Path, attention: &Attention) -> Option<f64> {
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
        attention: attention.clone(),
        buckets: BucketChoice::List(vec![(cases.len(), longest)]),
        ..Options::default()
    };
    let executable = match backend.compile_onnx(model.graph().clone(), model.weights(), &options) {
        Err(BackendError::Refused(_)) if *attention != Attention::Auto => return None,
        compiled => compiled.unwrap(),
    };
    let batch = RaggedBatch::pack(&inputs).unwrap();
    let outputs = ehun_backend::run(&executable, &batch, &RunOptions::default()).unwrap();
    let value = &outputs.values[0];
    let mut most = 0.0f64;
    for (number, case) in cases.iter().enumerate() {
        let rows = match value.rows {
            ehun_graph::Rows::Tokens => batch.rows(number),
            _ => number..number + 1,
        };
        let got = &value.data[rows.start * value.width..rows.end * value.width];
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
        for (got, want) in got.iter().zip(&want) {
            let share = (f64::from(*got) - want).abs() / (tolerance * (1.0 + want.abs()));
            most = if share.is_nan() { f64::INFINITY } else { most.max(share) };
        }
    }
    Some(most)
}

/// Every golden in a form; returns how many there are and how many were run.
fn all(attention: &Attention) -> Option<(usize, usize)> {
    let backend = common::backend()?;
    let goldens = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../goldens");
    let mut folders: Vec<PathBuf> = std::fs::read_dir(goldens).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.retain(|folder| folder.join("expected.json").exists());
    folders.sort();
    assert!(!folders.is_empty());
    let (mut ran, mut failed) = (0, Vec::new());
    for folder in &folders {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let Some(worst) = worst(&backend, folder, attention) else {
            println!("{name:<40} refused");
            continue;
        };
        println!("{name:<40} {worst:.2e}");
        ran += 1;
        if worst > 1.0 {
            failed.push(format!("{name} {worst:.2e}"));
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
    Some((folders.len(), ran))
}

#[test]
fn every_golden_is_met_with_native_attention() {
    if let Some((there, ran)) = all(&Attention::Named("native".into())) {
        assert_eq!(ran, there, "the native form takes every specification");
    }
}

#[test]
fn every_golden_is_met_with_the_fused_operator_where_it_can() {
    if let Some((there, ran)) = all(&Attention::Named("fused".into())) {
        assert!(ran > there / 2, "{ran} of {there}");
    }
}

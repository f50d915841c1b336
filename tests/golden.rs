//! A golden checkpoint as a backend's tests read it: the model, one batch of all its cases, and what transformers or
//! sentence-transformers answers to each. A module of those tests, by `#[path]`.

use std::path::{Path, PathBuf};

use ehun_backend::Outputs;
use ehun_graph::{RaggedBatch, Rows, SequenceInput};
use ehun_models::{Checkpoint, LoadOptions, Model, Task, TextInput};
use serde_json::Value;

/// A checkpoint and its cases.
pub struct Golden {
    pub name: String,
    pub model: Model,
    /// A sequence for each case.
    pub batch: RaggedBatch,
    /// Of the difference by 1 and the magnitude of what is wanted, in float32.
    pub tolerance: f64,
    cases: Vec<Value>,
    key: &'static str,
}

/// The folders of all goldens, by name.
pub fn folders() -> Vec<PathBuf> {
    let goldens = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../goldens");
    let mut folders: Vec<PathBuf> = std::fs::read_dir(goldens).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.retain(|folder| folder.join("expected.json").exists());
    folders.sort();
    assert!(!folders.is_empty());
    folders
}

impl Golden {
    pub fn read(folder: &Path) -> Self {
        let expected: Value = serde_json::from_slice(&std::fs::read(folder.join("expected.json")).unwrap()).unwrap();
        let (task, key) = task(expected["head"].as_str().unwrap());
        let options = LoadOptions { task: Some(task), ..LoadOptions::default() };
        let model = Model::load(&Checkpoint::open(folder).unwrap(), &options).unwrap();
        let cases = expected["cases"].as_array().unwrap().clone();
        let inputs: Vec<SequenceInput> =
            cases.iter().map(|case| input(&model, case, expected["query"].as_str())).collect();
        Self {
            name: folder.file_name().unwrap().to_string_lossy().into_owned(),
            batch: RaggedBatch::pack(&inputs).unwrap(),
            tolerance: expected["tolerance"].as_f64().unwrap(),
            model,
            cases,
            key,
        }
    }

    /// A bucket that holds all cases: most of them are padding in it.
    pub fn bucket(&self) -> (usize, usize) {
        (self.batch.num_sequences(), self.batch.max_len())
    }

    /// For each case the numbers that a backend gave and those that are wanted.
    pub fn answers(&self, outputs: &Outputs) -> Vec<(Vec<f64>, Vec<f64>)> {
        let value = &outputs.values[0];
        let answer = |(number, case): (usize, &Value)| {
            let rows = match value.rows {
                Rows::Tokens => self.batch.rows(number),
                _ => number..number + 1,
            };
            let got = &value.data[rows.start * value.width..rows.end * value.width];
            let want = match self.model.task() {
                Task::Sparse => {
                    let mut want = vec![0.0; got.len()];
                    for entry in case[self.key].as_array().unwrap() {
                        want[entry[0].as_u64().unwrap() as usize] = entry[1].as_f64().unwrap();
                    }
                    want
                }
                _ => numbers(&case[self.key]),
            };
            assert_eq!(got.len(), want.len(), "{}", self.name);
            (got.iter().map(|&x| f64::from(x)).collect(), want)
        };
        self.cases.iter().enumerate().map(answer).collect()
    }
}

/// The larger of two shares of a tolerance; NaN is beyond any.
pub fn larger(a: f64, b: f64) -> f64 {
    if b.is_nan() { f64::INFINITY } else { a.max(b) }
}

/// The worst element of an answer, as the share of the tolerance that it takes.
pub fn share(got: &[f64], want: &[f64], tolerance: f64) -> f64 {
    got.iter().zip(want).map(|(got, want)| (got - want).abs() / (tolerance * (1.0 + want.abs()))).fold(0.0, larger)
}

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

fn input(model: &Model, case: &Value, query: Option<&str>) -> SequenceInput {
    let text = case["text"].as_str().unwrap();
    if model.task() == Task::Embed {
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

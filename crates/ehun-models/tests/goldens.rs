//! Every golden checkpoint through the float64 interpreter and the CPU backend: what transformers and sentence-transformers
//! answer. `EHUN_GOLDENS=DIR` checks the checkpoints of another folder (`tools/reference/goldens.py` makes more).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ehun_backend::{BackendFactory, Executable, Options, RunOptions};
use ehun_backend_cpu::CpuFactory;
use ehun_conformance::Interpreter;
use ehun_graph::{Activation, RaggedBatch, Rows, SequenceInput};
use ehun_models::tasks::embed;
use ehun_models::{Checkpoint, LoadOptions, Model, Task, TextInput};
use serde_json::Value;

fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../goldens")
}

fn load(folder: &Path, task: Option<Task>, max_tokens: Option<usize>) -> Model {
    let options = LoadOptions { task, max_tokens, ..LoadOptions::default() };
    Model::load(&Checkpoint::open(folder).unwrap(), &options).unwrap_or_else(|error| panic!("{error}"))
}

fn numbers(value: &Value) -> Vec<f64> {
    match value {
        Value::Array(list) => list.iter().flat_map(numbers).collect(),
        Value::Number(number) => vec![number.as_f64().unwrap()],
        other => panic!("no number: {other}"),
    }
}

fn ids(value: &Value) -> Vec<u32> {
    numbers(value).into_iter().map(|id| id as u32).collect()
}

/// The largest excess of `|got - want|` over `tolerance * (1 + |want|)`, as a share of it.
fn worst(got: &[f64], want: &[f64], tolerance: f64) -> f64 {
    assert_eq!(got.len(), want.len(), "number of elements");
    got.iter().zip(want).map(|(got, want)| (got - want).abs() / (tolerance * (1.0 + want.abs()))).fold(0.0, f64::max)
}

struct Judge {
    model: Model,
    interpreter: Interpreter,
    executable: Box<dyn Executable>,
}

/// What a case gives: in float64, and on the CPU backend.
struct Rows64 {
    exact: Vec<f64>,
    cpu: Vec<f64>,
}

impl Rows64 {
    fn map(&self, function: impl Fn(f64) -> f64) -> Self {
        let all = |rows: &[f64]| rows.iter().map(|&x| function(x)).collect();
        Self { exact: all(&self.exact), cpu: all(&self.cpu) }
    }

    fn worst(&self, want: &[f64], tolerance: f64) -> f64 {
        worst(&self.exact, want, tolerance).max(worst(&self.cpu, want, tolerance))
    }
}

impl Judge {
    fn new(folder: &Path, task: Option<Task>, max_tokens: Option<usize>) -> Self {
        let model = load(folder, task, max_tokens);
        let interpreter = Interpreter::new(model.graph(), model.weights()).unwrap();
        let options = Options { threads: Some(1), max_sequence: model.max_tokens(), ..Options::default() };
        let backend = CpuFactory.open("cpu").unwrap();
        let executable = backend.compile(Arc::clone(model.graph()), model.weights(), &options).unwrap();
        Self { model, interpreter, executable }
    }

    fn run(&self, input: &SequenceInput) -> Rows64 {
        let batch = RaggedBatch::pack([input]).unwrap();
        let outputs = self.interpreter.run(&batch).unwrap();
        assert_eq!(outputs[0].name, self.model.task().output());
        assert_ne!(outputs[0].rows, Rows::Constant(1));
        let exact = outputs[0].data.clone();
        let on_cpu = ehun_backend::run(&*self.executable, &batch, &RunOptions::default()).unwrap();
        let cpu: Vec<f64> = on_cpu.values[0].data.iter().map(|&x| f64::from(x)).collect();
        let largest = exact.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
        let apart = exact.iter().zip(&cpu).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        // The terms of a logit cancel: what is left may be much smaller than they are.
        let size = if matches!(self.model.task(), Task::Embed | Task::Tokens) { largest } else { largest.max(1.0) };
        assert!(apart <= 1e-5 * size, "the CPU backend is off by {apart:.1e} where the largest is {largest:.2}");
        Rows64 { exact, cpu }
    }

    /// The share of the tolerance that the worst element of a case takes.
    fn case(&self, head: &str, case: &Value, query: Option<&str>, tolerance: f64) -> f64 {
        let text = case["text"].as_str().unwrap();
        let pair = case.get("pair").and_then(Value::as_str);
        let tokens = match (query, pair) {
            (Some(query), _) => {
                let query = Model::prompted(query, self.model.prompt(None).unwrap());
                self.model.tokenize(TextInput::Pair(&query, text)).unwrap()
            }
            (None, Some(pair)) => self.model.tokenize(TextInput::Pair(text, pair)).unwrap(),
            (None, None) => self.model.tokenize(text).unwrap(),
        };
        if let Some(expected) = case.get("input_ids") {
            assert_eq!(tokens.ids, ids(expected), "token ids of {text:?}");
        }
        match head {
            "embedding" => {
                let prompt = case["prompt_name"].as_str();
                let prompt = self.model.prompt(prompt).unwrap();
                let input = self.model.embed_input(text, prompt).unwrap();
                self.run(&input).worst(&numbers(&case["embedding"]), tolerance)
            }
            "rerank" => {
                let raw = self.run(&tokens.into_input(0));
                let activation = self.model.score_activation();
                let score = raw.map(|x| activation.map_or(x, |function| function.eval(x)));
                let of_raw = raw.worst(&numbers(&case["raw"]), tolerance);
                of_raw.max(score.worst(&numbers(&case["score"]), tolerance))
            }
            "masked-lm" => {
                let got = self.run(&tokens.into_input(0));
                let mut want = vec![0.0; got.exact.len()];
                for entry in case["splade"].as_array().unwrap() {
                    want[entry[0].as_u64().unwrap() as usize] = entry[1].as_f64().unwrap();
                }
                got.worst(&want, tolerance)
            }
            "token-classification" => {
                let chars = char_offsets(text, &tokens.offsets);
                let want: Vec<_> =
                    numbers(&case["offsets"]).chunks(2).map(|c| (c[0] as usize, c[1] as usize)).collect();
                assert_eq!(chars, want, "offsets of {text:?}");
                self.run(&tokens.into_input(0)).worst(&numbers(&case["logits"]), tolerance)
            }
            _ => {
                let key = if head == "base" { "last_hidden_state" } else { "logits" };
                self.run(&tokens.into_input(0)).worst(&numbers(&case[key]), tolerance)
            }
        }
    }
}

fn char_offsets(text: &str, offsets: &[std::ops::Range<usize>]) -> Vec<(usize, usize)> {
    let chars = |byte: usize| text[..byte].chars().count();
    offsets.iter().map(|range| (chars(range.start), chars(range.end))).collect()
}

fn check(folder: &Path) -> Result<f64, String> {
    let expected: Value = serde_json::from_slice(&std::fs::read(folder.join("expected.json")).unwrap()).unwrap();
    let tolerance = expected["tolerance"].as_f64().unwrap();
    let head = expected["head"].as_str().unwrap();
    let task = match head {
        "base" => Task::Tokens,
        "sequence-classification" => Task::Classify,
        "token-classification" => Task::Tag,
        "masked-lm" => Task::Sparse,
        "embedding" => Task::Embed,
        "rerank" => Task::Rerank,
        other => panic!("unknown head {other}"),
    };
    let max_tokens = expected["max_tokens"].as_u64().map(|most| most as usize);
    let judge = Judge::new(folder, Some(task), max_tokens);
    let query = expected["query"].as_str();
    let mut most = 0.0f64;
    for case in expected["cases"].as_array().unwrap() {
        let share = judge.case(head, case, query, tolerance);
        if share > 1.0 {
            return Err(format!("{}: off by {share:.1} times the tolerance", case["text"]));
        }
        most = most.max(share);
    }
    Ok(most)
}

#[test]
fn every_golden_is_met() {
    let mut failures = Vec::new();
    let other = std::env::var_os("EHUN_GOLDENS").map(PathBuf::from);
    let mut folders: Vec<_> = std::fs::read_dir(other.clone().unwrap_or_else(goldens))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("expected.json").is_file())
        .collect();
    folders.sort();
    assert!(folders.len() >= 60 || other.is_some(), "only {} goldens", folders.len());
    for folder in folders {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let outcome = std::panic::catch_unwind(|| check(&folder));
        match outcome {
            Ok(Ok(share)) => println!("{name}: {:.1} % of the tolerance", share * 100.0),
            Ok(Err(reason)) => failures.push(format!("{name}: {reason}")),
            Err(panic) => {
                let message = panic.downcast_ref::<String>().cloned().unwrap_or_default();
                failures.push(format!("{name}: {message}"));
            }
        }
    }
    assert!(failures.is_empty(), "{} of the goldens fail:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn the_task_is_inferred() {
    for (folder, task) in [
        ("bert", Task::Tokens),
        ("bert.masked-lm", Task::Sparse),
        ("bert.sequence-classification", Task::Classify),
        ("bert.token-classification", Task::Tag),
        ("ce-bert-3", Task::Rerank),
        ("ce-roberta", Task::Rerank),
        ("st-mean", Task::Embed),
        ("st-mean.old-layout", Task::Embed),
    ] {
        assert_eq!(load(&goldens().join(folder), None, None).task(), task, "{folder}");
    }
}

#[test]
fn vectors_of_fewer_dimensions_have_length_one() {
    let judge = Judge::new(&goldens().join("st-mean"), None, None);
    let mut vector: Vec<f32> =
        judge.run(&judge.model.embed_input("Short.", None).unwrap()).exact.iter().map(|&x| x as f32).collect();
    embed::truncate(&mut vector, 7).unwrap();
    let length: f32 = vector.iter().map(|x| x * x).sum();
    assert!(vector.len() == 7 && (length - 1.0).abs() < 1e-6);
    assert_eq!(judge.model.score_activation(), None::<Activation>);
}

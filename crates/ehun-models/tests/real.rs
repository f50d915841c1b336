//! Real weights, which `cargo xtask models` fetches: what is published about them comes out, and what transformers and
//! sentence-transformers give for them (`tests/reference/real.json`, made by `tools/reference/real.py`).
//!
//! The figures in the code are those of the models' own pages (sentence-transformers' output for the first sentence of their
//! example, the scores of the cross-encoder's example). Computed by the float64 interpreter, so that nothing here depends on a
//! backend.

use std::path::Path;

use ehun_conformance::Interpreter;
use ehun_graph::{RaggedBatch, SequenceInput};
use ehun_models::tasks::tag::Aggregation;
use ehun_models::{Checkpoint, LoadOptions, Model, Task, TextInput};
use serde_json::Value;

/// The model `name` of the cache, or `None` where it was not fetched.
fn model(name: &str) -> Option<Model> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/models").join(name);
    if !folder.is_dir() {
        println!("not run: {name} not fetched (cargo xtask models)");
        return None;
    }
    Some(Model::load(&Checkpoint::open(folder).unwrap(), &LoadOptions::default()).unwrap())
}

fn rows(model: &Model, input: &SequenceInput) -> Vec<f32> {
    let interpreter = Interpreter::new(model.graph(), model.weights()).unwrap();
    let outputs = interpreter.run(&RaggedBatch::pack([input]).unwrap()).unwrap();
    outputs[0].data.iter().map(|&x| x as f32).collect()
}

fn close(got: &[f32], want: &[f32], tolerance: f32) {
    for (got, want) in got.iter().zip(want) {
        assert!((got - want).abs() <= tolerance, "{got} is not {want}");
    }
}

/// The cases of a model in the reference file.
fn reference(name: &str) -> Vec<Value> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference/real.json");
    let all: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    all[name].as_array().unwrap().clone()
}

fn numbers(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

/// Every vector of the reference, to `tolerance` in each component.
fn embeds(model: &Model, name: &str, tolerance: f32) {
    for case in reference(name) {
        let text = case["text"].as_str().unwrap();
        let (got, want) = (rows(model, &model.embed_input(text, None).unwrap()), numbers(&case["embedding"]));
        assert_eq!(got.len(), want.len());
        close(&got, &want, tolerance);
    }
}

#[test]
fn all_minilm_l6_v2() {
    let Some(model) = model("all-MiniLM-L6-v2") else { return };
    assert_eq!((model.task(), model.dimension(), model.max_tokens()), (Task::Embed, 384, 256));
    let vector = rows(&model, &model.embed_input("This is an example sentence", None).unwrap());
    close(&vector, &[6.765_69e-2, 6.349_59e-2, 4.871_31e-2, 7.930_5e-2], 2e-6);
    embeds(&model, "all-MiniLM-L6-v2", 1e-6);
}

#[test]
fn all_mpnet_base_v2() {
    let Some(model) = model("all-mpnet-base-v2") else { return };
    assert_eq!((model.task(), model.dimension(), model.max_tokens()), (Task::Embed, 768, 384));
    let vector = rows(&model, &model.embed_input("This is an example sentence", None).unwrap());
    close(&vector, &[2.250_26e-2, -7.829_17e-2, -2.303_07e-2, -5.100_1e-3], 2e-6);
    embeds(&model, "all-mpnet-base-v2", 1e-6);
}

#[test]
fn the_ms_marco_reranker() {
    let Some(model) = model("ms-marco-MiniLM-L-12-v2") else { return };
    assert_eq!(model.task(), Task::Rerank);
    let score = |passage: &str| {
        let pair = TextInput::Pair("How many people live in Berlin?", passage);
        let tokens = model.tokenize(pair).unwrap();
        assert!(tokens.types.contains(&1), "the passage has the second type");
        model.rerank_score(&rows(&model, &tokens.into_input(0)), true).unwrap()
    };
    let relevant =
        score("Berlin had a population of 3,520,031 registered inhabitants in an area of 891.82 square kilometers.");
    let irrelevant = score("New York City is famous for its Metropolitan Museum of Art.");
    println!("relevant {relevant}, irrelevant {irrelevant}");
    assert!((relevant - 9.3).abs() < 0.3 && (irrelevant + 11.2).abs() < 0.3, "{relevant} and {irrelevant}");
    for case in reference("ms-marco-MiniLM-L-12-v2") {
        let pair = TextInput::Pair(case["query"].as_str().unwrap(), case["text"].as_str().unwrap());
        let got = rows(&model, &model.tokenize(pair).unwrap().into_input(0));
        close(&got, &numbers(&case["logits"]), 1e-4);
    }
}

#[test]
fn the_personal_data_tagger() {
    let Some(model) = model("rampart") else { return };
    let text = "Dear Ms. Okafor 🙂,\n\nmy name is Johanna Lindqvist and I have moved. My new address is 482 Maple Street, \
                Springfield, Illinois 62704. Please write to johanna.lindqvist@example.com.\n\nYours, Johanna";
    let windows = model.tag_windows(text).unwrap();
    let logits: Vec<Vec<f32>> = windows.inputs.iter().map(|input| rows(&model, input)).collect();
    let logits: Vec<&[f32]> = logits.iter().map(Vec::as_slice).collect();
    let found = model.entities(text, &windows, &logits, Aggregation::First).unwrap();
    let characters: Vec<char> = text.chars().collect();
    for entity in &found {
        println!("{} {:.3} {:?} {}..{}", entity.label, entity.score, entity.word, entity.start, entity.end);
        assert_eq!(text[entity.bytes.clone()], characters[entity.start..entity.end].iter().collect::<String>());
    }
    let has = |label: &str, word: &str| {
        let of_label = found.iter().filter(|entity| entity.label == label);
        assert!(of_label.clone().any(|e| text[e.bytes.clone()].contains(word)), "{label} {word} is not in {found:?}");
    };
    has("GIVEN_NAME", "Johanna");
    has("SURNAME", "Lindqvist");
    // The model begins the address anew after some of its signs, so it is found in parts.
    let parts: Vec<&str> = found.iter().filter(|e| e.label == "EMAIL").map(|e| &text[e.bytes.clone()]).collect();
    assert_eq!(parts.concat(), "johanna.lindqvist@example.com");
    has("STREET_NAME", "Maple");
    has("CITY", "Springfield");
    has("STATE", "Illinois");
    has("ZIP_CODE", "62704");
    for case in reference("rampart") {
        let (got, want) = (
            rows(&model, &model.tokenize(case["text"].as_str().unwrap()).unwrap().into_input(0)),
            numbers(&case["logits"]),
        );
        assert_eq!(got.len(), want.len());
        close(&got, &want, 1e-4);
    }
}

#[test]
fn splade_tiny() {
    let Some(model) = model("splade-tiny") else { return };
    assert_eq!((model.task(), model.dimension()), (Task::Sparse, 30_522));
    let tokens = model.tokenize("berlin is the capital of germany").unwrap();
    let mut terms = model.sparse_terms(&rows(&model, &tokens.into_input(0)));
    terms.sort_by(|a, b| b.value.total_cmp(&a.value));
    let first: Vec<&str> = terms.iter().take(8).map(|term| term.token.as_str()).collect();
    println!("{first:?} of {}", terms.len());
    for word in ["berlin", "germany", "capital"] {
        assert!(first.contains(&word), "{word} is not in {first:?}");
    }
    for case in reference("splade-tiny") {
        let tokens = model.tokenize(case["text"].as_str().unwrap()).unwrap();
        let got = rows(&model, &tokens.into_input(0));
        let mut want = vec![0.0; got.len()];
        for term in case["terms"].as_array().unwrap() {
            want[term[0].as_u64().unwrap() as usize] = term[1].as_f64().unwrap() as f32;
        }
        close(&got, &want, 1e-5);
    }
}

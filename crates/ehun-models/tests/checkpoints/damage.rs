//! Damaged files end in an error, whatever the damage: no panic, no memory beyond the file's size.

use proptest::prelude::*;
use serde_json::Value;

use crate::copy::{Copy, golden};

/// Changes the `place`-th value of a JSON document, counted through all of it, into `new`.
fn mutate(value: &mut Value, place: &mut usize, new: &Value) {
    if *place == 0 {
        *value = new.clone();
    }
    *place = place.wrapping_sub(1);
    match value {
        Value::Object(map) => map.values_mut().for_each(|value| mutate(value, place, new)),
        Value::Array(list) => list.iter_mut().for_each(|value| mutate(value, place, new)),
        _ => {}
    }
}

fn values() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0u64..100).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z]{0,6}".prop_map(Value::from),
        Just(serde_json::json!([])),
        Just(serde_json::json!({})),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn configurations(place in 1usize..60, new in values()) {
        for name in ["albert", "deberta-v2", "gemma3", "modernbert", "nomic-bert", "t5-encoder"] {
            let copy = Copy::of(name);
            copy.edit("config.json", |config| {
                let mut value = Value::Object(std::mem::take(config));
                mutate(&mut value, &mut { place }, &new);
                *config = value.as_object().cloned().unwrap_or_default();
            });
            drop(copy.load());
        }
    }

    #[test]
    fn modules(file in 0usize..5, place in 0usize..12, new in values()) {
        let files = ["modules.json", "1_Pooling/config.json", "2_Dense/config.json", "sentence_bert_config.json", "tokenizer_config.json"];
        let copy = Copy::of("st-sqrt-dense");
        let path = golden("st-sqrt-dense").join(files[file]);
        let mut value: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        mutate(&mut value, &mut { place }, &new);
        copy.write(files[file], value.to_string());
        drop(copy.load());
    }

    #[test]
    fn bytes(file in 0usize..3, at in 0.0f64..1.0, byte: u8, cut in any::<bool>()) {
        let name = ["config.json", "model.safetensors", "tokenizer.json"][file];
        let copy = Copy::of("bert");
        let mut bytes = std::fs::read(golden("bert").join(name)).unwrap();
        // The beginning of the weights is their header.
        let most = bytes.len().min(8000);
        let at = (at * most as f64) as usize;
        bytes[at] = byte;
        if cut {
            bytes.truncate(at + 1);
        }
        copy.write(name, &bytes);
        drop(copy.load());
    }
}

/// What stood in the way of the tokenizers library until the file was looked through first: it panicked.
#[test]
fn a_tokenizer_that_is_no_json_is_told_by_its_place() {
    let bytes = std::fs::read(golden("bert").join("tokenizer.json")).unwrap();
    let text = String::from_utf8(bytes).unwrap();
    for (old, new, reason) in [
        ("\"decoder\": {", "\"decoder\": {\"a\": \"\u{0}\",", "control character"),
        ("\"decoder\": {", "\"decoder\": {\"a\": 1e999,", "number out of range"),
        ("\"normalizer\": {", "\"normalizer\": {\"a\": \"\u{0}\",", "control character"),
    ] {
        assert!(text.contains(old), "{old}");
        let copy = Copy::of("bert");
        copy.write("tokenizer.json", text.replacen(old, new, 1));
        let error = copy.load().err().unwrap().to_string();
        assert!(error.contains("tokenizer.json") && error.contains(reason) && error.contains("line"), "{error}");
    }
}

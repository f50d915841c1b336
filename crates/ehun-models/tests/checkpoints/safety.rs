//! Checkpoints are untrusted: what is wrong with one is said by name, before memory is taken.

use crate::copy::Copy;
use ehun_graph::PoolingMode;
use ehun_models::{Checkpoint, LoadOptions, Task};
use serde_json::json;

/// A change to a copy of a golden checkpoint, and what the error must name.
type Case = (&'static str, &'static str, fn(&Copy), &'static [&'static str]);

fn config(copy: &Copy, key: &str, value: serde_json::Value) {
    copy.edit("config.json", |config| {
        config.insert(key.to_owned(), value);
    });
}

const CASES: &[Case] = &[
    ("unknown key", "bert", |c| config(c, "secret_option", json!(true)), &["config.json", "`secret_option`", "BERT"]),
    ("unknown family", "bert", |c| config(c, "model_type", json!("mamba")), &["config.json", "`mamba`", "known"]),
    ("no family", "bert", |c| c.edit("config.json", |m| drop(m.remove("model_type"))), &["model_type"]),
    ("activation", "bert", |c| config(c, "hidden_act", json!("mish")), &["hidden_act", "mish"]),
    ("relative positions", "bert", |c| config(c, "position_embedding_type", json!("relative_key")), &["relative_key"]),
    ("decoder", "bert", |c| config(c, "is_decoder", json!(true)), &["is_decoder"]),
    ("quantised", "bert", |c| config(c, "quantization_config", json!({"bits": 4})), &["quantization_config"]),
    ("layers", "bert", |c| config(c, "num_hidden_layers", json!(4_000_000_000u64)), &["num_hidden_layers"]),
    ("more layers", "bert", |c| config(c, "num_hidden_layers", json!(3)), &["encoder.layer.2", "does not have"]),
    ("fewer layers", "bert", |c| config(c, "num_hidden_layers", json!(1)), &["encoder.layer.1", "does not use"]),
    ("heads", "bert", |c| config(c, "num_attention_heads", json!(5)), &["5 heads", "48"]),
    ("no heads", "bert", |c| config(c, "num_attention_heads", json!(0)), &["num_attention_heads"]),
    ("width", "bert", |c| config(c, "hidden_size", json!(64)), &["word_embeddings", "[640, 48]", "[640, 64]"]),
    ("text for a number", "bert", |c| config(c, "hidden_size", json!("48")), &["hidden_size", "whole number"]),
    ("epsilon", "bert", |c| config(c, "layer_norm_eps", json!(-1.0)), &["eps"]),
    (
        "labels with a gap",
        "bert.token-classification",
        |c| config(c, "id2label", json!({"0": "A", "2": "B"})),
        &["id2label"],
    ),
    (
        "labels too few",
        "bert.token-classification",
        |c| config(c, "id2label", json!({"0": "A"})),
        &["classifier", "[5, 48]"],
    ),
    ("convolution", "deberta-v2", |c| config(c, "conv_kernel_size", json!(3)), &["conv_kernel_size", "neighbouring"]),
    ("position terms", "deberta-v2", |c| config(c, "pos_att_type", json!(["p2p"])), &["p2p"]),
    ("adapters", "jina-v3", |c| config(c, "lora_adaptations", json!(["retrieval.query"])), &["LoRA"]),
    ("rotary kind", "llama", |c| config(c, "rope_scaling", json!({"type": "longrope", "factor": 2.0})), &["longrope"]),
    ("key heads", "llama", |c| config(c, "num_key_value_heads", json!(3)), &["3"]),
    ("experts", "nomic-bert", |c| config(c, "moe_top_k", json!(2)), &["moe_top_k"]),
    ("no config", "bert", |c| c.remove("config.json"), &["config.json"]),
    ("not JSON", "bert", |c| c.write("config.json", "{\"model_type\": \"bert\""), &["config.json", "JSON"]),
    ("a list", "bert", |c| c.write("config.json", "[]"), &["config.json", "object"]),
    ("nested deeply", "bert", |c| c.write("config.json", "[".repeat(1 << 20)), &["config.json", "JSON"]),
    ("a huge file", "bert", huge_config, &["config.json", "bytes"]),
    ("no tokenizer", "bert", |c| c.remove("tokenizer.json"), &["tokenizer.json"]),
    (
        "only vocab.txt",
        "bert",
        |c| {
            c.remove("tokenizer.json");
            c.write("vocab.txt", "a\n");
        },
        &["tokenizer.json", "save_pretrained"],
    ),
    (
        "an end that is not added",
        "qwen3",
        |c| {
            c.edit("tokenizer_config.json", |m| {
                m.insert("add_eos_token".into(), json!(true));
                m.insert("eos_token".into(), json!("<s>"));
            });
        },
        &["tokenizer.json", "`<s>`", "add_eos_token"],
    ),
    ("broken tokenizer", "bert", |c| c.write("tokenizer.json", "{}"), &["tokenizer.json", "not a usable tokenizer"]),
    (
        "a larger vocabulary",
        "bert",
        |c| {
            c.edit("tokenizer.json", |t| {
                let vocabulary = t["model"]["vocab"].as_object_mut().unwrap();
                vocabulary.insert("onemore".into(), json!(640));
            })
        },
        &["tokenizer.json", "640"],
    ),
    (
        "another vocabulary",
        "bert",
        |c| {
            c.edit("tokenizer.json", |t| {
                let vocabulary = t["model"]["vocab"].as_object_mut().unwrap();
                vocabulary.retain(|_, id| id.as_u64().unwrap() < 300);
            })
        },
        &["tokenizer.json", "299", "640"],
    ),
    ("no weights", "bert", |c| c.remove("model.safetensors"), &["model.safetensors"]),
    (
        "a pickle",
        "bert",
        |c| {
            c.remove("model.safetensors");
            c.write("pytorch_model.bin", "x");
        },
        &["pickle", "safe_serialization"],
    ),
    (
        "cut weights",
        "bert",
        |c| {
            let bytes = std::fs::read(c.path().join("model.safetensors")).unwrap();
            c.write("model.safetensors", &bytes[..bytes.len() / 2]);
        },
        &["model.safetensors"],
    ),
    (
        "NaN",
        "bert",
        |c| {
            c.edit_weights(|mut tensors| {
                let tensor = tensors.iter_mut().find(|t| t.0.ends_with("layer.1.output.dense.bias")).unwrap();
                tensor.2[7] = f32::NAN;
                tensors
            })
        },
        &["layer.1.output.dense.bias", "element 7", "NaN"],
    ),
    (
        "infinite",
        "bert",
        |c| {
            c.edit_weights(|mut tensors| {
                tensors.iter_mut().find(|t| t.0.ends_with("word_embeddings.weight")).unwrap().2[0] = f32::INFINITY;
                tensors
            })
        },
        &["word_embeddings", "inf"],
    ),
    (
        "an adapter",
        "bert",
        |c| {
            c.edit_weights(|mut tensors| {
                tensors.push(("encoder.layer.0.output.adapter.weight".into(), vec![1], vec![0.0]));
                tensors
            })
        },
        &["encoder.layer.0.output.adapter.weight", "does not use"],
    ),
    (
        "a shard outside",
        "bert",
        |c| index(c, "../model.safetensors"),
        &["model.safetensors.index.json", "../model.safetensors"],
    ),
    ("an absolute shard", "bert", |c| index(c, "/etc/passwd"), &["/etc/passwd"]),
    ("a shard that is a pickle", "bert", |c| index(c, "pytorch_model-00001.bin"), &["pytorch_model-00001.bin"]),
    (
        "a missing shard",
        "bert",
        |c| index(c, "model-00001-of-00002.safetensors"),
        &["model-00001-of-00002.safetensors", "missing shard"],
    ),
    (
        "an empty index",
        "bert",
        |c| {
            index(c, "x.safetensors");
            c.edit("model.safetensors.index.json", |m| {
                m.insert("weight_map".into(), json!({}));
            });
        },
        &["no shard"],
    ),
    (
        "an unknown module",
        "st-mean",
        |c| module(c, 1, "sentence_transformers.models.WordWeights", "1_Pooling"),
        &["modules.json", "WordWeights"],
    ),
    ("a module from elsewhere", "st-mean", |c| module(c, 1, "my.code.Pooling", "1_Pooling"), &["my.code.Pooling"]),
    (
        "a module outside",
        "st-mean",
        |c| module(c, 1, "sentence_transformers.models.Pooling", "../1_Pooling"),
        &["../1_Pooling"],
    ),
    (
        "a module without its file",
        "st-mean",
        |c| module(c, 1, "sentence_transformers.models.Pooling", "9_Pooling"),
        &["9_Pooling/config.json"],
    ),
    (
        "no pooling",
        "st-mean",
        |c| c.edit("1_Pooling/config.json", |m| drop(m.remove("pooling_mode"))),
        &["pooling_mode"],
    ),
    (
        "an unknown pooling",
        "st-mean",
        |c| {
            c.edit("1_Pooling/config.json", |m| {
                m.insert("pooling_mode".into(), json!("attention"));
            })
        },
        &["attention"],
    ),
    (
        "an unknown key of pooling",
        "st-mean",
        |c| {
            c.edit("1_Pooling/config.json", |m| {
                m.insert("temperature".into(), json!(2));
            })
        },
        &["temperature"],
    ),
    (
        "a dense layer of another width",
        "st-sqrt-dense",
        |c| {
            c.edit("2_Dense/config.json", |m| {
                m.insert("in_features".into(), json!(32));
            })
        },
        &["Dense", "32", "48"],
    ),
    (
        "an unknown activation of a module",
        "st-sqrt-dense",
        |c| {
            c.edit("2_Dense/config.json", |m| {
                m.insert("activation_function".into(), json!("torch.nn.modules.activation.Mish"));
            })
        },
        &["Mish"],
    ),
    (
        "an unknown activation of scores",
        "ce-roberta",
        |c| {
            c.edit("config_sentence_transformers.json", |m| {
                m.insert("activation_fn".into(), json!("os.system"));
            })
        },
        &["os.system"],
    ),
];

fn huge_config(copy: &Copy) {
    let file = std::fs::File::create(copy.path().join("config.json")).unwrap();
    file.set_len(100 << 30).unwrap();
}

fn index(copy: &Copy, shard: &str) {
    copy.remove("model.safetensors");
    copy.write("model.safetensors.index.json", json!({"weight_map": {"a": shard}}).to_string());
}

fn module(copy: &Copy, place: usize, kind: &str, path: &str) {
    let file = copy.path().join("modules.json");
    let mut modules: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    modules[place]["type"] = json!(kind);
    modules[place]["path"] = json!(path);
    copy.write("modules.json", modules.to_string());
}

#[test]
fn what_is_wrong_is_named() {
    let mut failures = Vec::new();
    for (what, golden, change, names) in CASES {
        let copy = Copy::of(golden);
        change(&copy);
        match copy.load() {
            Ok(_) => failures.push(format!("{what}: loaded")),
            Err(error) => {
                let message = error.to_string();
                let missing: Vec<_> = names.iter().filter(|name| !message.contains(**name)).collect();
                if !missing.is_empty() {
                    failures.push(format!("{what}: {missing:?} not in: {message}"));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn shards_of_the_folder_are_read() {
    let copy = Copy::of("bert");
    let whole = copy.load().unwrap();
    std::fs::rename(copy.path().join("model.safetensors"), copy.path().join("model-00001-of-00001.safetensors"))
        .unwrap();
    copy.write(
        "model.safetensors.index.json",
        json!({"weight_map": {"embeddings.word_embeddings.weight": "model-00001-of-00001.safetensors"}}).to_string(),
    );
    let sharded = copy.load().unwrap();
    assert_eq!(sharded.weight_hash(), whole.weight_hash());
}

#[test]
fn a_task_that_the_checkpoint_lacks_is_refused_with_a_reason() {
    for (golden, task, reason) in [
        ("bert", Task::Rerank, "ForSequenceClassification"),
        ("bert", Task::Embed, "modules.json"),
        ("bert", Task::Sparse, "ForMaskedLM"),
        ("st-mean", Task::Tag, "ForTokenClassification"),
    ] {
        let options = LoadOptions { task: Some(task), ..LoadOptions::default() };
        let message = Copy::of(golden).load_with(&options).unwrap_err().to_string();
        assert!(message.contains(reason) && message.contains(task.name()), "{message}");
    }
    let pooling = LoadOptions { pooling: Some(vec![PoolingMode::Mean]), ..LoadOptions::default() };
    assert_eq!(Copy::of("bert").load_with(&pooling).unwrap().task(), Task::Embed);
    assert!(Copy::of("st-mean").load_with(&pooling).is_err(), "the checkpoint says how it pools");
}

#[test]
fn limits_of_tokens() {
    let load = |max_tokens| Copy::of("bert").load_with(&LoadOptions { max_tokens, ..LoadOptions::default() });
    assert_eq!(load(None).unwrap().max_tokens(), 128);
    let short = load(Some(8)).unwrap();
    let tokens = short.tokenize("The mitochondria is the powerhouse of the cell.").unwrap();
    assert_eq!((tokens.ids.len(), tokens.total, tokens.truncated()), (8, 26, true));
    assert_eq!((tokens.ids[0], tokens.ids[7]), (2, 3), "special tokens stay");
    assert!(load(Some(0)).is_err() && load(Some(4096)).is_err());
    assert!(load(Some(1)).unwrap().tokenize("a").is_err(), "no room for the special tokens");
}

#[test]
fn a_file_is_no_checkpoint() {
    let copy = Copy::of("bert");
    let message = Checkpoint::open(copy.path().join("config.json")).unwrap_err().to_string();
    assert!(message.contains("directory"), "{message}");
    assert!(Checkpoint::open(copy.path().join("nowhere")).unwrap_err().to_string().contains("nowhere"));
}

#[test]
fn unusual_texts_are_tokenised() {
    let model = Copy::of("st-mean").load().unwrap();
    for text in ["", "\0", "\u{feff}", "🙂🏽‍🦰", "é\u{301}\u{301}", "a".repeat(100_000).as_str(), &" ".repeat(10_000)]
    {
        let tokens = model.tokenize(text).unwrap();
        assert!(tokens.ids.len() <= model.max_tokens());
        assert!(tokens.offsets.iter().all(|range| text.get(range.clone()).is_some()), "{text:?}");
    }
}

#[test]
fn the_names_of_old_norms_are_found() {
    let copy = Copy::of("bert");
    let hash = copy.load().unwrap().weight_hash().to_owned();
    copy.edit_weights(|tensors| {
        let rename = |name: String| {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        };
        tensors.into_iter().map(|(name, shape, data)| (rename(name), shape, data)).collect()
    });
    assert_ne!(copy.load().unwrap().weight_hash(), hash);
}

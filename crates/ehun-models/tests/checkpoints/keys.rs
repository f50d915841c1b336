//! Families whose published checkpoints came with code of their own: their keys and tensor names and those of transformers 5
//! mean the same model.

use crate::copy::{Copy, Tensor};
use ehun_conformance::Interpreter;
use ehun_graph::RaggedBatch;
use ehun_models::Model;
use serde_json::{Map, Value, json};

const TEXT: &str = "Kaixo mundua! Attention computes a weighted average.";

fn rows(model: &Model) -> Vec<f64> {
    let input = model.tokenize(TEXT).unwrap().into_input(0);
    let interpreter = Interpreter::new(model.graph(), model.weights()).unwrap();
    interpreter.run(&RaggedBatch::pack([&input]).unwrap()).unwrap().swap_remove(0).data
}

fn rename(config: &mut Map<String, Value>, names: &[(&str, &str)]) {
    for (old, new) in names {
        let value = config.remove(*old).unwrap();
        config.insert((*new).to_owned(), value);
    }
}

/// The rows of a fused tensor as tensors of their own.
fn split(tensors: Vec<Tensor>, fused: &str, parts: &[&str]) -> Vec<Tensor> {
    let mut all = Vec::new();
    for (name, shape, data) in tensors {
        if !name.contains(fused) {
            all.push((name, shape, data));
            continue;
        }
        let share = data.len() / parts.len();
        let mut shape = shape;
        shape[0] /= parts.len();
        for (i, part) in parts.iter().enumerate() {
            all.push((name.replace(fused, part), shape.clone(), data[i * share..(i + 1) * share].to_vec()));
        }
    }
    all
}

fn replace(tensors: Vec<Tensor>, names: &[(&str, &str)]) -> Vec<Tensor> {
    let rename = |name: String| names.iter().fold(name, |name, (old, new)| name.replace(old, new));
    tensors.into_iter().map(|(name, shape, data)| (rename(name), shape, data)).collect()
}

const QKV: [&str; 3] = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"];

#[test]
fn nomic_bert() {
    let want = rows(&Copy::of("nomic-bert").load().unwrap());

    let published = Copy::of("nomic-bert");
    published.edit("config.json", |config| {
        rename(
            config,
            &[
                ("hidden_size", "n_embd"),
                ("num_attention_heads", "n_head"),
                ("num_hidden_layers", "n_layer"),
                ("intermediate_size", "n_inner"),
                ("max_position_embeddings", "n_positions"),
                ("layer_norm_eps", "layer_norm_epsilon"),
            ],
        );
        for key in ["rope_parameters", "hidden_act", "head_dim"] {
            config.remove(key);
        }
        let published = json!({
            "activation_function": "swiglu", "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0,
            "rotary_emb_interleaved": false, "rotary_emb_scale_base": null, "rotary_scaling_factor": null,
            "qkv_proj_bias": false, "mlp_fc1_bias": false, "mlp_fc2_bias": false, "prenorm": false, "causal": false,
            "parallel_block": false, "use_flash_attn": true, "pad_vocab_size_multiple": 64, "attn_pdrop": 0.0,
            "max_trained_positions": 2048, "use_rms_norm": false, "scale_attn_weights": true,
        });
        config.extend(published.as_object().unwrap().clone());
    });
    assert_eq!(rows(&published.load().unwrap()), want, "published keys");

    let native = Copy::of("nomic-bert");
    native.edit_weights(|tensors| {
        replace(
            split(tensors, "attn.Wqkv", &QKV),
            &[
                ("encoder.layers", "layers"),
                ("emb_ln", "embeddings.LayerNorm"),
                ("attn.out_proj", "self_attn.o_proj"),
                ("fc11", "up_proj"),
                ("fc12", "gate_proj"),
                ("fc2", "down_proj"),
                ("norm1", "post_attention_layernorm"),
                ("norm2", "post_mlp_layernorm"),
            ],
        )
    });
    assert_eq!(rows(&native.load().unwrap()), want, "native tensors");
}

#[test]
fn gte() {
    let want = rows(&Copy::of("gte").load().unwrap());

    let published = Copy::of("gte");
    published.edit("config.json", |config| {
        config.remove("rope_parameters");
        let published = json!({
            "model_type": "new", "architectures": ["NewModel"], "rope_theta": 160_000, "rope_scaling": null,
            "position_embedding_type": "rope", "layer_norm_type": "layer_norm", "pack_qkv": true,
            "unpad_inputs": false, "use_memory_efficient_attention": false, "logn_attention_scale": false,
            "logn_attention_clip1": false,
        });
        config.extend(published.as_object().unwrap().clone());
    });
    published.edit_weights(|tensors| {
        tensors.into_iter().map(|(name, shape, data)| (format!("new.{name}"), shape, data)).collect()
    });
    assert_eq!(rows(&published.load().unwrap()), want, "published keys");

    let native = Copy::of("gte");
    native.edit_weights(|tensors| {
        let tensors = split(tensors, "attention.qkv_proj", &QKV);
        replace(
            split(tensors, "mlp.up_gate_proj", &["mlp.up_proj", "mlp.gate_proj"]),
            &[
                ("encoder.layer", "layers"),
                ("attention.o_proj", "self_attn.o_proj"),
                ("attn_ln", "post_attention_layernorm"),
                ("mlp_ln", "post_mlp_layernorm"),
            ],
        )
    });
    assert_eq!(rows(&native.load().unwrap()), want, "native tensors");
}

#[test]
fn jina_v3() {
    let want = rows(&Copy::of("jina-v3").load().unwrap());

    let published = Copy::of("jina-v3");
    published.edit("config.json", |config| {
        config.remove("rope_parameters");
        let published = json!({
            "model_type": "xlm-roberta", "position_embedding_type": "rotary", "rotary_emb_base": 20_000.0,
            "use_flash_attn": true, "matryoshka_dimensions": [32, 48], "lora_adaptations": null,
        });
        config.extend(published.as_object().unwrap().clone());
    });
    let model = published.load().unwrap();
    assert_eq!((model.family(), rows(&model)), ("Jina v3", want.clone()), "published keys");

    let native = Copy::of("jina-v3");
    native.edit_weights(|tensors| {
        replace(
            split(tensors, "mixer.Wqkv", &QKV),
            &[
                ("encoder.layers", "layers"),
                ("emb_ln", "embeddings.LayerNorm"),
                ("mixer.out_proj", "self_attn.o_proj"),
                ("norm1", "post_attention_layernorm"),
                ("norm2", "post_mlp_layernorm"),
            ],
        )
    });
    assert_eq!(rows(&native.load().unwrap()), want, "native tensors");
}

/// The keys of rotary embeddings before transformers 5 mean what `rope_parameters` means.
#[test]
fn rotary_keys_of_both_generations() {
    let scalings = [
        None,
        Some(json!({"rope_type": "linear", "factor": 3.0})),
        Some(json!({"type": "dynamic", "factor": 2.0})),
        Some(json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16})),
        Some(json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16})),
    ];
    let loaded = |golden: &str, edit: &dyn Fn(&mut Map<String, Value>)| {
        let copy = Copy::of(golden);
        copy.edit("config.json", |config| edit(config));
        rows(&copy.load().unwrap())
    };
    for golden in ["llama", "mistral", "qwen2", "qwen3", "eurobert", "gte", "nomic-bert", "jina-v3"] {
        for scaling in &scalings {
            let new = loaded(golden, &|config| {
                let mut object = scaling.clone().unwrap_or(json!({"rope_type": "default"}));
                object["rope_theta"] = json!(7000.0);
                config.insert("rope_parameters".into(), object);
                config.insert("max_position_embeddings".into(), json!(20));
            });
            let old = loaded(golden, &|config| {
                config.remove("rope_parameters");
                config.insert("rope_theta".into(), json!(7000.0));
                config.insert("max_position_embeddings".into(), json!(20));
                if let Some(scaling) = scaling {
                    config.insert("rope_scaling".into(), scaling.clone());
                }
            });
            assert_eq!(new, old, "{golden} {scaling:?}");
        }
    }
    for (golden, global, local) in
        [("modernbert", "global_rope_theta", "local_rope_theta"), ("gemma3", "rope_theta", "rope_local_base_freq")]
    {
        let types = json!(["full_attention", "sliding_attention", "sliding_attention", "full_attention"]);
        let new = loaded(golden, &|config| {
            config.insert("layer_types".into(), types.clone());
            let both = json!({
                "full_attention": {"rope_type": "default", "rope_theta": 9000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
            });
            config.insert("rope_parameters".into(), both);
        });
        let old = loaded(golden, &|config| {
            config.insert("layer_types".into(), types.clone());
            config.remove("rope_parameters");
            config.insert(global.into(), json!(9000.0));
            config.insert(local.into(), json!(300.0));
        });
        assert_eq!(new, old, "{golden}");
    }
}

/// A token that is padding and begins every text would have a position that nothing here computes.
#[test]
fn a_padding_token_in_every_text_is_refused() {
    let copy = Copy::of("roberta");
    copy.edit("config.json", |config| {
        config.insert("pad_token_id".into(), json!(0));
    });
    let message = copy.load().unwrap_err().to_string();
    assert!(message.contains("pad_token_id"), "{message}");
}

/// What the numbers of a classifier are is what `problem_type` says, as in the pipeline of transformers.
#[test]
fn problem_types() {
    let logits = [0.5f32, -1.0, 2.0];
    let of = |kind: Value| {
        let copy = Copy::of("bert.sequence-classification");
        copy.edit("config.json", |config| {
            config.insert("problem_type".into(), kind.clone());
        });
        copy.load().unwrap().probabilities(&logits)
    };
    assert!((of(Value::Null).iter().sum::<f32>() - 1.0).abs() < 1e-6);
    assert_eq!(of(json!("single_label_classification")), of(Value::Null));
    assert_eq!(of(json!("regression")), logits);
    let each = of(json!("multi_label_classification"));
    assert!((each[1] - 1.0 / (1.0 + 1f32.exp())).abs() < 1e-6);
}

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

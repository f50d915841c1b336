//! Jina embeddings v3 (Sturua et al. 2024) without its LoRA adapters: XLM-RoBERTa with rotary embeddings.

use ehun_graph::{Activation, Index, ValueId};
use serde_json::Value;

use super::{Family, nomic_bert, roberta};
use crate::blocks::encoder::{self, Biases, Inner, Qkv, RotaryNames};
use crate::blocks::{Ctx, heads, rotary};
use crate::error::Result;

/// Published checkpoints call themselves `xlm-roberta` and say `rotary` elsewhere: see [`super::find`].
pub(super) const JINA_V3: Family = Family {
    name: "Jina v3",
    model_types: &["jina_embeddings_v3"],
    prefixes: &["roberta.", "jina_embeddings_v3.", "model.", ""],
    probes: &["embeddings.word_embeddings.weight", "embeddings.word_embeddings.parametrizations.weight.original"],
    encoder: tokens,
    sequence_head: Some(|ctx, tokens, labels| heads::dense_then_out(ctx, tokens, labels, Activation::Tanh)),
    token_head: Some(heads::tokens),
    vocabulary_head: Some(roberta::vocabulary),
    unused: &["pooler.", "lm_head.", "classifier."],
};

const PUBLISHED: RotaryNames = RotaryNames {
    qkv: Qkv::Fused("mixer.Wqkv"),
    output: "mixer.out_proj",
    attention_norm: "norm1",
    inner: Inner::Plain("mlp.fc1"),
    down: "mlp.fc2",
    output_norm: "norm2",
};

const NATIVE: RotaryNames = RotaryNames { inner: Inner::Plain("mlp.fc1"), down: "mlp.fc2", ..nomic_bert::NATIVE };

const BIASES: Biases = Biases { qkv: true, output: true, inner: true, down: true };

fn tokens(ctx: &mut Ctx) -> Result<ValueId> {
    let config = ctx.config;
    let adapters = "its LoRA adapters change the weights by task; merge one into them, or take a checkpoint without";
    config.only("lora_adaptations", Value::Null, adapters)?;
    if ctx.has("embeddings.word_embeddings.parametrizations.weight.original") {
        return Err(config.error("lora_adaptations", adapters));
    }
    config.ignore(&[
        "emb_pooler",
        "load_trained_adapters",
        "lora_alpha",
        "lora_dropout_p",
        "lora_main_params_trainable",
        "lora_rank",
        "matryoshka_dimensions",
        "task_instructions",
        "truncate_dim",
        "use_flash_attn",
        "use_reentrant",
    ]);
    config.only("position_embedding_type", "rotary".into(), "positions are rotary in this family")?;
    let dims = ctx.rotary_bert_dims()?;
    let theta = config.f64_or(&["rotary_emb_base"], 20_000.0)?;
    let max_positions = config.positive(&["max_position_embeddings"])?;
    let rotary = rotary::shared(config, &rotary::Defaults { head_dim: dims.head_dim, theta, max_positions })?;

    let vocabulary = config.positive(&["vocab_size"])?;
    let types = config.positive(&["type_vocab_size"])?;
    let words = ctx.embedding("embeddings.word_embeddings", vocabulary, dims.hidden, Index::TokenId)?;
    let types = ctx.embedding("embeddings.token_type_embeddings", types, dims.hidden, Index::TokenType)?;
    let x = ctx.add("embeddings.with_types", words, types)?;
    let norm = if ctx.has("emb_ln.weight") { "emb_ln" } else { "embeddings.LayerNorm" };
    let mut x = ctx.layer_norm(norm, x, true, dims.eps)?;
    let published = ctx.has("encoder.layers.0.norm1.weight");
    let (prefix, names) = if published { ("encoder.layers", &PUBLISHED) } else { ("layers", &NATIVE) };
    for i in 0..dims.layers {
        x = encoder::rotary_layer(ctx, x, &format!("{prefix}.{i}"), names, &BIASES, &dims, &rotary)?;
    }
    Ok(x)
}

//! GTE (Zhang et al. 2024), `new` in the published checkpoints: BERT with rotary embeddings and a gated feed-forward part.

use ehun_graph::{Activation, Index, ValueId};

use super::{Family, nomic_bert};
use crate::blocks::encoder::{self, Biases, Inner, Qkv, RotaryNames};
use crate::blocks::{Ctx, heads, rotary};
use crate::error::Result;

pub(super) const GTE: Family = Family {
    name: "GTE",
    model_types: &["gte", "new"],
    prefixes: &["gte.", "new.", ""],
    probes: &["embeddings.word_embeddings.weight"],
    encoder: tokens,
    sequence_head: Some(|ctx, tokens, labels| heads::pooled(ctx, tokens, "pooler.dense", "classifier", labels)),
    token_head: Some(heads::tokens),
    vocabulary_head: Some(vocabulary),
    unused: &["pooler.", "lm_head.", "classifier."],
};

/// Of the published checkpoints, and of transformers when it writes them.
const PUBLISHED: RotaryNames = RotaryNames {
    qkv: Qkv::Fused("attention.qkv_proj"),
    output: "attention.o_proj",
    attention_norm: "attn_ln",
    inner: Inner::UpGate("mlp.up_gate_proj"),
    down: "mlp.down_proj",
    output_norm: "mlp_ln",
};

const BIASES: Biases = Biases { qkv: true, output: true, inner: false, down: true };

fn tokens(ctx: &mut Ctx) -> Result<ValueId> {
    let config = ctx.config;
    // The published code means rotary where BERT's configuration means learned positions.
    config.only("position_embedding_type", "rope".into(), "positions are rotary in this family")?;
    config.only("layer_norm_type", "layer_norm".into(), "norms are layer norms")?;
    config.only("pack_qkv", true.into(), "queries, keys and values are one tensor")?;
    config.only("logn_attention_scale", false.into(), "scores are not scaled by the length of the text")?;
    config.ignore(&["logn_attention_clip1", "unpad_inputs", "use_memory_efficient_attention"]);
    let dims = ctx.rotary_bert_dims()?;
    let max_positions = config.positive(&["max_position_embeddings"])?;
    let defaults = rotary::Defaults { head_dim: dims.head_dim, theta: 160_000.0, max_positions };
    let rotary = rotary::shared(config, &defaults)?;

    let vocabulary = config.positive(&["vocab_size"])?;
    let types = config.opt_usize(&["type_vocab_size"])?.unwrap_or(1);
    let mut x = ctx.embedding("embeddings.word_embeddings", vocabulary, dims.hidden, Index::TokenId)?;
    if types > 0 {
        let types = ctx.embedding("embeddings.token_type_embeddings", types, dims.hidden, Index::TokenType)?;
        x = ctx.add("embeddings.with_types", x, types)?;
    }
    x = ctx.layer_norm("embeddings.LayerNorm", x, true, dims.eps)?;
    let published = ctx.has("encoder.layer.0.attn_ln.weight");
    let (prefix, names) = if published { ("encoder.layer", &PUBLISHED) } else { ("layers", &nomic_bert::NATIVE) };
    for i in 0..dims.layers {
        x = encoder::rotary_layer(ctx, x, &format!("{prefix}.{i}"), names, &BIASES, &dims, &rotary)?;
    }
    Ok(x)
}

fn vocabulary(ctx: &mut Ctx, tokens: ValueId) -> Result<ValueId> {
    let names = heads::Vocabulary {
        dense: "lm_head.dense",
        norm: "lm_head.norm",
        decoder: "lm_head.decoder",
        biases: &["lm_head.decoder.bias"],
        words: "embeddings.word_embeddings.weight",
        narrow: None,
        function: Activation::Gelu,
        eps: ctx.config.f64_or(&["layer_norm_eps"], 1e-12)? as f32,
    };
    heads::vocabulary(ctx, tokens, &names)
}

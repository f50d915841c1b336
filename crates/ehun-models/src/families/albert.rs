//! ALBERT (Lan et al. 2019): narrow embeddings, and groups of layers that share their weights.

use ehun_graph::ValueId;

use super::{Family, bert};
use crate::blocks::{Ctx, encoder, heads};
use crate::error::Result;

pub(super) const ALBERT: Family = Family {
    name: "ALBERT",
    model_types: &["albert"],
    prefixes: &["albert.", ""],
    probes: &["embeddings.word_embeddings.weight"],
    encoder: tokens,
    sequence_head: Some(|ctx, tokens, labels| heads::pooled(ctx, tokens, "pooler", "classifier", labels)),
    token_head: Some(heads::tokens),
    vocabulary_head: Some(vocabulary),
    unused: &["pooler.", "predictions.", "sop_classifier.", "classifier."],
};

const NAMES: encoder::Names = encoder::Names {
    query: "attention.query",
    key: "attention.key",
    value: "attention.value",
    attention_output: "attention.dense",
    attention_norm: "attention.LayerNorm",
    up: "ffn",
    down: "ffn_output",
    output_norm: "full_layer_layer_norm",
};

fn tokens(ctx: &mut Ctx) -> Result<ValueId> {
    let dims = ctx.bert_dims()?;
    ctx.config.ignore(&["down_scale_factor", "gap_size", "net_structure_type", "num_memory_blocks", "layers_to_keep"]);
    let narrow = ctx.config.positive(&["embedding_size"])?;
    let groups = ctx.config.opt_usize(&["num_hidden_groups"])?.unwrap_or(1);
    let inner = ctx.config.opt_usize(&["inner_group_num"])?.unwrap_or(1);
    if groups == 0 || groups > dims.layers || inner == 0 || inner * dims.layers > 10_000 {
        return Err(ctx
            .config
            .error("num_hidden_groups", format!("{groups} groups of {inner} for {} layers", dims.layers)));
    }
    let x = bert::embeddings(ctx, narrow, dims.eps, 0)?;
    let mut x = ctx.linear("encoder.embedding_hidden_mapping_in", x, dims.hidden, true)?;
    for i in 0..dims.layers {
        // The group of a layer as transformers computes it, in floating point.
        let group = (i as f64 / (dims.layers as f64 / groups as f64)) as usize;
        for j in 0..inner {
            let layer = format!("encoder.albert_layer_groups.{group}.albert_layers.{j}");
            x = encoder::layer(ctx, x, &layer, &NAMES, &dims, dims.attention())?;
        }
    }
    Ok(x)
}

fn vocabulary(ctx: &mut Ctx, tokens: ValueId) -> Result<ValueId> {
    let names = heads::Vocabulary {
        dense: "predictions.dense",
        norm: "predictions.LayerNorm",
        decoder: "predictions.decoder",
        biases: &["predictions.bias", "predictions.decoder.bias"],
        words: "embeddings.word_embeddings.weight",
        narrow: Some(ctx.config.positive(&["embedding_size"])?),
        function: ctx.activation_named(&["hidden_act"], "gelu_new")?,
        eps: ctx.config.f64_or(&["layer_norm_eps"], 1e-12)? as f32,
    };
    heads::vocabulary(ctx, tokens, &names)
}

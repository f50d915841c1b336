//! EuroBERT (Boizard et al. 2025): Llama's layers with attention to both sides.

use ehun_graph::{Activation, Index, PoolingMode, ValueId};

use super::Family;
use crate::blocks::decoder::{self, Style};
use crate::blocks::{Ctx, heads};
use crate::error::Result;

pub(super) const EUROBERT: Family = Family {
    name: "EuroBERT",
    model_types: &["eurobert"],
    prefixes: &["model.", ""],
    probes: &["embed_tokens.weight"],
    encoder: tokens,
    sequence_head: Some(sequence),
    token_head: Some(heads::tokens),
    vocabulary_head: Some(vocabulary),
    unused: &["lm_head.", "dense.", "classifier."],
};

fn tokens(ctx: &mut Ctx) -> Result<ValueId> {
    let mut dims = decoder::dims(ctx)?;
    ctx.config.ignore(&[
        "bos_token",
        "classifier_pooling",
        "clf_pooling",
        "eos_token",
        "hidden_dropout",
        "mask_token",
        "pad_token",
    ]);
    dims.eps = ctx.config.f64_or(&["rms_norm_eps"], 1e-5)? as f32;
    let bias = ctx.config.bool_or(&["attention_bias"], false)?;
    let mlp_bias = ctx.config.bool_or(&["mlp_bias"], false)?;
    let style = Style { qkv_bias: bias, output_bias: bias, mlp_bias, ..Style::default() };
    let rotary = decoder::rotary(ctx, &dims, 10_000.0)?;
    let vocabulary = ctx.config.positive(&["vocab_size"])?;
    let mut x = ctx.embedding("embed_tokens", vocabulary, dims.hidden, Index::TokenId)?;
    for i in 0..dims.layers {
        x = decoder::layer(ctx, x, i, &dims, &style, dims.attention(), &rotary)?;
    }
    ctx.rms_norm("norm", x, 0.0, None, dims.eps)
}

/// `late` puts the head on every token and takes the mean of the logits, the others pool first.
fn sequence(ctx: &mut Ctx, tokens: ValueId, labels: usize) -> Result<ValueId> {
    ctx.leave_encoder();
    let pooling = ctx.config.opt_str(&["classifier_pooling", "clf_pooling"])?.unwrap_or("late");
    let (before, after) = match pooling {
        "bos" => (Some(PoolingMode::Cls), None),
        "mean" => (Some(PoolingMode::Mean), None),
        "late" => (None, Some(PoolingMode::Mean)),
        other => {
            let known = "bos, mean and late";
            return Err(ctx.config.error("classifier_pooling", format!("`{other}` is not known; there are {known}")));
        }
    };
    let mut x = tokens;
    if let Some(mode) = before {
        x = ctx.graph.pooling("classifier.pooling", x, mode)?;
    }
    let width = ctx.graph.width(x);
    x = ctx.linear("dense", x, width, true)?;
    x = ctx.activation("dense.activation", x, Activation::Gelu)?;
    x = ctx.linear("classifier", x, labels, true)?;
    match after {
        Some(mode) => Ok(ctx.graph.pooling("classifier.pooling", x, mode)?),
        None => Ok(x),
    }
}

fn vocabulary(ctx: &mut Ctx, tokens: ValueId) -> Result<ValueId> {
    let terms = ctx.config.positive(&["vocab_size"])?;
    let words = ctx.weight("embed_tokens.weight", &[terms, ctx.graph.width(tokens)]);
    ctx.leave_encoder();
    let bias = ctx.config.bool_or(&["mlp_bias"], false)?;
    if !ctx.config.bool_or(&["tie_word_embeddings"], false)? {
        return ctx.linear("lm_head", tokens, terms, bias);
    }
    let bias = bias.then(|| ctx.weight("lm_head.bias", &[terms]));
    Ok(ctx.graph.linear("lm_head", tokens, words, bias)?)
}

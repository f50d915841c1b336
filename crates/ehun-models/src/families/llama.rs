//! Llama (Touvron et al. 2023) and Mistral (Jiang et al. 2023) as embedders.

use ehun_graph::{AttentionSpec, ValueId};

use super::Family;
use crate::blocks::Ctx;
use crate::blocks::decoder::{self, Style};
use crate::error::Result;

pub(super) const LLAMA: Family = Family {
    name: "Llama",
    model_types: &["llama"],
    prefixes: &["model.", ""],
    probes: &["embed_tokens.weight"],
    encoder: llama,
    sequence_head: Some(decoder::sequence_head),
    token_head: Some(decoder::token_head),
    vocabulary_head: None,
    unused: &["lm_head.", "score."],
};

pub(super) const MISTRAL: Family = Family { name: "Mistral", model_types: &["mistral"], encoder: mistral, ..LLAMA };

fn llama(ctx: &mut Ctx) -> Result<ValueId> {
    let bias = ctx.config.bool_or(&["attention_bias"], false)?;
    let mlp_bias = ctx.config.bool_or(&["mlp_bias"], false)?;
    layers(ctx, &Style { qkv_bias: bias, output_bias: bias, mlp_bias, ..Style::default() }, None)
}

/// Every layer sees the last `sliding_window` positions, where there is one.
fn mistral(ctx: &mut Ctx) -> Result<ValueId> {
    let window = ctx.config.opt_usize(&["sliding_window"])?;
    layers(ctx, &Style::default(), window)
}

fn layers(ctx: &mut Ctx, style: &Style, window: Option<usize>) -> Result<ValueId> {
    let dims = decoder::dims(ctx)?;
    let rotary = decoder::rotary(ctx, &dims, 10_000.0)?;
    let band = decoder::causal(ctx, window)?;
    let mut x = decoder::words(ctx, &dims)?;
    for i in 0..dims.layers {
        x = decoder::layer(ctx, x, i, &dims, style, AttentionSpec { band, ..dims.attention() }, &rotary)?;
    }
    ctx.rms_norm("norm", x, 0.0, None, dims.eps)
}

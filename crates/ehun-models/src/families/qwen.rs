//! Qwen 2 and Qwen 3 as embedders and rerankers: Llama with biases on queries, keys and values, or with norms on heads.

use ehun_graph::{AttentionSpec, ValueId};

use super::{Family, llama};
use crate::blocks::Ctx;
use crate::blocks::decoder::{self, Style};
use crate::error::Result;

pub(super) const QWEN2: Family = Family { name: "Qwen2", model_types: &["qwen2"], encoder: qwen2, ..llama::LLAMA };

pub(super) const QWEN3: Family = Family { name: "Qwen3", model_types: &["qwen3"], encoder: qwen3, ..llama::LLAMA };

fn qwen2(ctx: &mut Ctx) -> Result<ValueId> {
    layers(ctx, &Style { qkv_bias: true, ..Style::default() })
}

fn qwen3(ctx: &mut Ctx) -> Result<ValueId> {
    let bias = ctx.config.bool_or(&["attention_bias"], false)?;
    layers(ctx, &Style { qkv_bias: bias, output_bias: bias, head_norms: true, ..Style::default() })
}

fn layers(ctx: &mut Ctx, style: &Style) -> Result<ValueId> {
    let mut dims = decoder::dims(ctx)?;
    // Qwen 3 fixes the width of its heads where the configuration does not say it.
    if style.head_norms && ctx.config.get("head_dim").is_none() {
        dims.head_dim = 128;
    }
    let rotary = decoder::rotary(ctx, &dims, 10_000.0)?;
    let windows = decoder::windowed(ctx, dims.layers)?;
    let mut x = decoder::words(ctx, &dims)?;
    for (i, window) in windows.into_iter().enumerate() {
        let band = decoder::causal(ctx, window)?;
        x = decoder::layer(ctx, x, i, &dims, style, AttentionSpec { band, ..dims.attention() }, &rotary)?;
    }
    ctx.rms_norm("norm", x, 0.0, None, dims.eps)
}

//! Gemma 3 (2025) as an embedder: norms before and after each part, scaled word embeddings, windows with a rotary base of their
//! own, and attention to both sides where the configuration says so (EmbeddingGemma).

use ehun_graph::{AttentionSpec, Band, ValueId};

use super::Family;
use crate::blocks::decoder::{self, Style};
use crate::blocks::{Ctx, rotary};
use crate::error::Result;

pub(super) const GEMMA3: Family = Family {
    name: "Gemma 3",
    model_types: &["gemma3_text"],
    prefixes: &["model.", "language_model.", "model.language_model.", ""],
    probes: &["embed_tokens.weight"],
    encoder: tokens,
    sequence_head: Some(decoder::sequence_head),
    token_head: Some(decoder::token_head),
    vocabulary_head: None,
    unused: &["lm_head.", "score."],
};

fn tokens(ctx: &mut Ctx) -> Result<ValueId> {
    let config = ctx.config;
    let mut dims = decoder::dims(ctx)?;
    dims.activation = ctx.activation_named(&["hidden_activation", "hidden_act"], "gelu_pytorch_tanh")?;
    if config.get("head_dim").is_none() {
        dims.head_dim = 256;
    }
    // It caps the logits of the vocabulary, which an embedder has not.
    config.ignore(&["final_logit_softcapping", "use_bidirectional_attention", "cache_implementation"]);
    let bias = config.bool_or(&["attention_bias"], false)?;
    let style = Style {
        qkv_bias: bias,
        output_bias: bias,
        head_norms: true,
        norm_offset: 1.0,
        norms_after: true,
        ..Style::default()
    };
    let max_positions = config.positive(&["max_position_embeddings"])?;
    let defaults = |theta| rotary::Defaults { head_dim: dims.head_dim, theta, max_positions };
    let global = rotary::of_layer_type(config, "full_attention", "rope_theta", true, &defaults(1_000_000.0))?;
    let local = rotary::of_layer_type(config, "sliding_attention", "rope_local_base_freq", false, &defaults(10_000.0))?;
    let every = config.opt_usize(&["_sliding_window_pattern", "sliding_window_pattern"])?.unwrap_or(6).max(1);
    let sliding = decoder::layer_types(ctx, dims.layers, |i| (i + 1) % every != 0)?;
    let (full, window) = bands(ctx)?;
    let query_scalar = config.f64_or(&["query_pre_attn_scalar"], 256.0)?;
    if query_scalar <= 0.0 {
        return Err(config.error("query_pre_attn_scalar", "must be above 0"));
    }
    // A key of this family that transformers (5.24) reads and does not apply: Gemma 3 norms its heads instead, and no published
    // checkpoint sets it.
    config.ignore(&["attn_logit_softcapping"]);
    let spec = AttentionSpec { scale: (1.0 / query_scalar.sqrt()) as f32, ..dims.attention() };

    let words = decoder::words(ctx, &dims)?;
    let mut x = ctx.graph.scale("embed_scale", words, (dims.hidden as f64).sqrt() as f32)?;
    for (i, sliding) in sliding.into_iter().enumerate() {
        let (band, rotary) = if sliding { (window, &local) } else { (full, &global) };
        x = decoder::layer(ctx, x, i, &dims, &style, AttentionSpec { band, ..spec.clone() }, rotary)?;
    }
    ctx.rms_norm("norm", x, style.norm_offset, None, dims.eps)
}

/// What layers without and with a window see. Of both sides, a window is half of `sliding_window` on each; else it is the last
/// `sliding_window` positions, the row's own included.
fn bands(ctx: &Ctx) -> Result<(Band, Band)> {
    let config = ctx.config;
    let window = config.opt_usize(&["sliding_window"])?.unwrap_or(4096);
    if !config.bool_or(&["use_bidirectional_attention"], false)? {
        return Ok((Band::CAUSAL, decoder::causal(ctx, Some(window))?));
    }
    let half = u32::try_from(window / 2).map_err(|_| config.error("sliding_window", "is too large"))?;
    Ok((Band::FULL, Band::window(half)))
}

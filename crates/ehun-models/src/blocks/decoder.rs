//! The decoder layer of Llama and those that came from it: RMS norms before each part, rotary, gated feed-forward.

use ehun_graph::{AttentionSpec, Band, Index, PoolingMode, RotarySpec, ValueId};

use super::rotary::{self, Defaults};
use super::{Ctx, Dims};
use crate::error::Result;

/// What distinguishes the families.
#[derive(Debug, Clone, Default)]
pub(crate) struct Style {
    /// Biases of the query, key and value layers.
    pub qkv_bias: bool,
    /// Bias of the layer after attention.
    pub output_bias: bool,
    /// Biases of the feed-forward part.
    pub mlp_bias: bool,
    /// RMS norm of each query and key head.
    pub head_norms: bool,
    /// What is added to the weights of norms: 1 for Gemma.
    pub norm_offset: f32,
    /// Norms after each part too, before its result is added.
    pub norms_after: bool,
}

/// The sizes of a Llama-like configuration.
pub(crate) fn dims(ctx: &Ctx) -> Result<Dims> {
    ctx.encoder_only()?;
    let config = ctx.config;
    config.ignore(&["pretraining_tp", "max_window_layers", "use_bfloat16"]);
    let hidden = config.positive(&["hidden_size"])?;
    let heads = config.positive(&["num_attention_heads"])?;
    let head_dim = match config.opt_usize(&["head_dim"])? {
        Some(0) => return Err(config.error("head_dim", "must be above 0")),
        Some(head_dim) => head_dim,
        None => ctx.head_dim(hidden, heads)?,
    };
    Ok(Dims {
        hidden,
        layers: ctx.layers(&["num_hidden_layers"])?,
        heads,
        kv_heads: config.opt_usize(&["num_key_value_heads"])?.unwrap_or(heads),
        head_dim,
        intermediate: config.positive(&["intermediate_size"])?,
        activation: ctx.activation_named(&["hidden_act", "hidden_activation"], "silu")?,
        eps: config.f64_or(&["rms_norm_eps"], 1e-6)? as f32,
    })
}

/// The rotary embedding that all layers share.
pub(crate) fn rotary(ctx: &Ctx, dims: &Dims, theta: f64) -> Result<RotarySpec> {
    let max_positions = ctx.config.positive(&["max_position_embeddings"])?;
    rotary::shared(ctx.config, &Defaults { head_dim: dims.head_dim, theta, max_positions })
}

/// The rows of the word embeddings.
pub(crate) fn words(ctx: &mut Ctx, dims: &Dims) -> Result<ValueId> {
    let vocabulary = ctx.config.positive(&["vocab_size"])?;
    ctx.embedding("embed_tokens", vocabulary, dims.hidden, Index::TokenId)
}

/// Causal attention over the last `window` positions, the row's own included; `None` is unlimited.
pub(crate) fn causal(ctx: &Ctx, window: Option<usize>) -> Result<Band> {
    let left = match window {
        None => None,
        Some(window) => Some(
            u32::try_from(window)
                .ok()
                .and_then(|window| window.checked_sub(1))
                .ok_or_else(|| ctx.config.error("sliding_window", format!("{window} is no width of a window")))?,
        ),
    };
    Ok(Band { left, right: Some(0) })
}

/// Whether each layer has a window, for the families whose `layer_types` may say so for each: the list, else the layers
/// from `max_window_layers` on where windows are switched on at all.
pub(crate) fn windowed(ctx: &Ctx, layers: usize) -> Result<Vec<Option<usize>>> {
    let config = ctx.config;
    let switched_on = config.bool_or(&["use_sliding_window"], false)?;
    let window = config.opt_usize(&["sliding_window"])?.filter(|_| switched_on);
    let from = config.opt_usize(&["max_window_layers"])?.unwrap_or(28);
    let types = layer_types(ctx, layers, |i| window.is_some() && i >= from)?;
    if types.contains(&true) && window.is_none() {
        return Err(config.error("layer_types", "has sliding attention, but no sliding_window is in use"));
    }
    Ok(types.into_iter().map(|sliding| window.filter(|_| sliding)).collect())
}

/// For each layer whether it is `sliding_attention`: from `layer_types`, else by `default`.
pub(crate) fn layer_types(ctx: &Ctx, layers: usize, default: impl Fn(usize) -> bool) -> Result<Vec<bool>> {
    let Some(types) = ctx.config.opt_strings("layer_types")? else { return Ok((0..layers).map(default).collect()) };
    if types.len() < layers {
        return Err(ctx.config.error("layer_types", format!("{} types for {layers} layers", types.len())));
    }
    let sliding = |name: &String| match name.as_str() {
        "sliding_attention" => Ok(true),
        "full_attention" => Ok(false),
        other => Err(ctx.config.error("layer_types", format!("`{other}` is no type of layer that is known"))),
    };
    types.iter().take(layers).map(sliding).collect()
}

/// Layer `i`.
pub(crate) fn layer(
    ctx: &mut Ctx,
    x: ValueId,
    i: usize,
    dims: &Dims,
    style: &Style,
    spec: AttentionSpec,
    rotary: &RotarySpec,
) -> Result<ValueId> {
    let at = |name: &str| format!("layers.{i}.{name}");
    let (q_width, kv_width) = (dims.heads * dims.head_dim, dims.kv_heads * dims.head_dim);
    let normed = ctx.rms_norm(&at("input_layernorm"), x, style.norm_offset, None, dims.eps)?;
    let mut query = ctx.linear(&at("self_attn.q_proj"), normed, q_width, style.qkv_bias)?;
    let mut key = ctx.linear(&at("self_attn.k_proj"), normed, kv_width, style.qkv_bias)?;
    let value = ctx.linear(&at("self_attn.v_proj"), normed, kv_width, style.qkv_bias)?;
    if style.head_norms {
        let head = Some(dims.head_dim);
        query = ctx.rms_norm(&at("self_attn.q_norm"), query, style.norm_offset, head, dims.eps)?;
        key = ctx.rms_norm(&at("self_attn.k_norm"), key, style.norm_offset, head, dims.eps)?;
    }
    query = ctx.graph.rotary(&at("self_attn.q_rotary"), query, rotary.clone())?;
    key = ctx.graph.rotary(&at("self_attn.k_rotary"), key, rotary.clone())?;
    let attended = ctx.graph.attention(&at("self_attn"), query, key, value, spec)?;
    let mut attended = ctx.linear(&at("self_attn.o_proj"), attended, dims.hidden, style.output_bias)?;
    if style.norms_after {
        attended = ctx.rms_norm(&at("post_attention_layernorm"), attended, style.norm_offset, None, dims.eps)?;
    }
    let x = ctx.add(&at("self_attn.residual"), x, attended)?;
    let before = if style.norms_after { "pre_feedforward_layernorm" } else { "post_attention_layernorm" };
    let normed = ctx.rms_norm(&at(before), x, style.norm_offset, None, dims.eps)?;
    let gate = ctx.linear(&at("mlp.gate_proj"), normed, dims.intermediate, style.mlp_bias)?;
    let up = ctx.linear(&at("mlp.up_proj"), normed, dims.intermediate, style.mlp_bias)?;
    let inner = ctx.graph.gate(&at("mlp.gate"), gate, up, dims.activation)?;
    let mut inner = ctx.linear(&at("mlp.down_proj"), inner, dims.hidden, style.mlp_bias)?;
    if style.norms_after {
        inner = ctx.rms_norm(&at("post_feedforward_layernorm"), inner, style.norm_offset, None, dims.eps)?;
    }
    ctx.add(&at("mlp.residual"), x, inner)
}

/// The head of transformers' generic sequence classifier: `score` of the last token, without a bias.
pub(crate) fn sequence_head(ctx: &mut Ctx, tokens: ValueId, labels: usize) -> Result<ValueId> {
    ctx.leave_encoder();
    let last = ctx.graph.pooling("last_token", tokens, PoolingMode::LastToken)?;
    ctx.linear("score", last, labels, false)
}

/// The head of transformers' generic token classifier: `score` of every token, with a bias.
pub(crate) fn token_head(ctx: &mut Ctx, tokens: ValueId, labels: usize) -> Result<ValueId> {
    ctx.leave_encoder();
    ctx.linear("score", tokens, labels, true)
}

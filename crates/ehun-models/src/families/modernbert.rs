//! ModernBERT (Warner et al. 2024): norms before each part, rotary, GeGLU, and windows in all but every third layer.

use ehun_graph::{AttentionSpec, Band, Index, PoolingMode, ValueId};

use super::Family;
use crate::blocks::{Ctx, Dims, decoder, encoder, rotary};
use crate::error::Result;

pub(super) const MODERNBERT: Family = Family {
    name: "ModernBERT",
    model_types: &["modernbert"],
    prefixes: &["model.", ""],
    probes: &["embeddings.tok_embeddings.weight"],
    encoder: tokens,
    sequence_head: Some(sequence),
    token_head: Some(token),
    vocabulary_head: Some(vocabulary),
    unused: &["head.", "decoder.", "classifier."],
};

/// The options that layers share.
struct Options {
    norm_bias: bool,
    attention_bias: bool,
    mlp_bias: bool,
}

fn tokens(ctx: &mut Ctx) -> Result<ValueId> {
    let config = ctx.config;
    config.ignore(&[
        "classifier_activation",
        "classifier_bias",
        "classifier_pooling",
        "decoder_bias",
        "deterministic_flash_attn",
        "layer_norm_eps",
        "mlp_dropout",
        "position_embedding_type",
        "reference_compile",
        "repad_logits_with_grad",
        "sparse_pred_ignore_index",
        "sparse_prediction",
    ]);
    let hidden = config.positive(&["hidden_size"])?;
    let heads = config.positive(&["num_attention_heads"])?;
    let dims = Dims {
        hidden,
        layers: ctx.layers(&["num_hidden_layers"])?,
        heads,
        kv_heads: heads,
        head_dim: ctx.head_dim(hidden, heads)?,
        intermediate: config.positive(&["intermediate_size"])?,
        activation: ctx.activation_named(&["hidden_activation"], "gelu")?,
        eps: config.f64_or(&["norm_eps"], 1e-5)? as f32,
    };
    let options = Options {
        norm_bias: config.bool_or(&["norm_bias"], false)?,
        attention_bias: config.bool_or(&["attention_bias"], false)?,
        mlp_bias: config.bool_or(&["mlp_bias"], false)?,
    };
    let every = config.opt_usize(&["global_attn_every_n_layers"])?.unwrap_or(3).max(1);
    let sliding = decoder::layer_types(ctx, dims.layers, |i| i % every != 0)?;
    // `local_attention` is the whole window: half of it on each side, the row's own position not counted.
    let window = config.opt_usize(&["local_attention"])?.unwrap_or(128) / 2;
    let window = u32::try_from(window).map_err(|_| config.error("local_attention", "is too large"))?;
    let max_positions = config.positive(&["max_position_embeddings"])?;
    let defaults = |theta| rotary::Defaults { head_dim: dims.head_dim, theta, max_positions };
    let global = rotary::of_layer_type(config, "full_attention", "global_rope_theta", true, &defaults(160_000.0))?;
    let local = rotary::of_layer_type(config, "sliding_attention", "local_rope_theta", true, &defaults(10_000.0))?;

    let entries = config.positive(&["vocab_size"])?;
    let x = ctx.embedding("embeddings.tok_embeddings", entries, hidden, Index::TokenId)?;
    let mut x = ctx.layer_norm("embeddings.norm", x, options.norm_bias, dims.eps)?;
    for (i, sliding) in sliding.into_iter().enumerate() {
        let (band, rotary) = if sliding { (Band::window(window), &local) } else { (Band::FULL, &global) };
        let spec = AttentionSpec { band, ..dims.attention() };
        x = layer(ctx, x, i, &dims, &options, spec, rotary)?;
    }
    ctx.layer_norm("final_norm", x, options.norm_bias, dims.eps)
}

fn layer(
    ctx: &mut Ctx,
    x: ValueId,
    i: usize,
    dims: &Dims,
    options: &Options,
    spec: AttentionSpec,
    rotary: &ehun_graph::RotarySpec,
) -> Result<ValueId> {
    let at = |name: &str| format!("layers.{i}.{name}");
    // The embeddings are normed already, so the first layer has no norm of its own.
    let normed = if i == 0 { x } else { ctx.layer_norm(&at("attn_norm"), x, options.norm_bias, dims.eps)? };
    let (query, key, value) = encoder::qkv_rows(ctx, normed, &at("attn.Wqkv"), dims.hidden, options.attention_bias)?;
    let query = ctx.graph.rotary(&at("attn.q_rotary"), query, rotary.clone())?;
    let key = ctx.graph.rotary(&at("attn.k_rotary"), key, rotary.clone())?;
    let attended = ctx.graph.attention(&at("attn"), query, key, value, spec)?;
    let attended = ctx.linear(&at("attn.Wo"), attended, dims.hidden, options.attention_bias)?;
    let x = ctx.add(&at("attn.residual"), x, attended)?;
    let normed = ctx.layer_norm(&at("mlp_norm"), x, options.norm_bias, dims.eps)?;
    let wide = dims.intermediate;
    let gate = ctx.linear_rows(&at("mlp.Wi"), normed, 2 * wide, (0, wide), options.mlp_bias)?;
    let up = ctx.linear_rows(&at("mlp.Wi"), normed, 2 * wide, (wide, 2 * wide), options.mlp_bias)?;
    let inner = ctx.graph.gate(&at("mlp.gate"), gate, up, dims.activation)?;
    let inner = ctx.linear(&at("mlp.Wo"), inner, dims.hidden, options.mlp_bias)?;
    ctx.add(&at("mlp.residual"), x, inner)
}

/// The prediction head that all heads of this family begin with: linear, activation, norm.
fn prediction(ctx: &mut Ctx, x: ValueId) -> Result<ValueId> {
    let function = ctx.activation_named(&["classifier_activation"], "gelu")?;
    let bias = ctx.config.bool_or(&["classifier_bias"], false)?;
    let norm_bias = ctx.config.bool_or(&["norm_bias"], false)?;
    let eps = ctx.config.f64_or(&["norm_eps"], 1e-5)? as f32;
    let width = ctx.graph.width(x);
    let x = ctx.linear("head.dense", x, width, bias)?;
    let x = ctx.activation("head.activation", x, function)?;
    ctx.layer_norm("head.norm", x, norm_bias, eps)
}

fn sequence(ctx: &mut Ctx, tokens: ValueId, labels: usize) -> Result<ValueId> {
    ctx.leave_encoder();
    let mode = match ctx.config.opt_str(&["classifier_pooling"])?.unwrap_or("cls") {
        "cls" => PoolingMode::Cls,
        "mean" => PoolingMode::Mean,
        other => {
            return Err(ctx
                .config
                .error("classifier_pooling", format!("`{other}` is not known; there are cls and mean")));
        }
    };
    let pooled = ctx.graph.pooling("classifier.pooling", tokens, mode)?;
    let x = prediction(ctx, pooled)?;
    ctx.linear("classifier", x, labels, true)
}

fn token(ctx: &mut Ctx, tokens: ValueId, labels: usize) -> Result<ValueId> {
    ctx.leave_encoder();
    let x = prediction(ctx, tokens)?;
    ctx.linear("classifier", x, labels, true)
}

fn vocabulary(ctx: &mut Ctx, tokens: ValueId) -> Result<ValueId> {
    let width = ctx.graph.width(tokens);
    let terms = ctx.config.positive(&["vocab_size"])?;
    let words = ctx.weight("embeddings.tok_embeddings.weight", &[terms, width]);
    ctx.leave_encoder();
    let x = prediction(ctx, tokens)?;
    let tied = ctx.config.bool_or(&["tie_word_embeddings"], true)?;
    let weight = if tied { words } else { ctx.weight("decoder.weight", &[terms, width]) };
    let bias = ctx.config.bool_or(&["decoder_bias"], true)?.then(|| ctx.weight("decoder.bias", &[terms]));
    Ok(ctx.graph.linear("decoder", x, weight, bias)?)
}

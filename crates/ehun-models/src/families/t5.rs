//! The encoder of T5 (Raffel et al. 2020): RMS norms before each part, no biases, a relative bias by buckets that all layers
//! share, and scores that are not scaled.

use ehun_graph::{Activation, AttentionSpec, Bias, BucketRule, Index, ValueId};

use super::Family;
use crate::blocks::{Ctx, Dims, heads};
use crate::error::Result;

pub(super) const T5: Family = Family {
    name: "T5 encoder",
    model_types: &["t5", "mt5"],
    prefixes: &["transformer.", ""],
    probes: &["shared.weight", "encoder.embed_tokens.weight"],
    encoder: tokens,
    sequence_head: None,
    token_head: Some(heads::tokens),
    vocabulary_head: None,
    unused: &["decoder.", "lm_head.", "classifier.", "encoder.embed_tokens."],
};

fn tokens(ctx: &mut Ctx) -> Result<ValueId> {
    let config = ctx.config;
    config.ignore(&[
        "classifier_dropout",
        "decoder_start_token_id",
        "dense_act_fn",
        "is_encoder_decoder",
        "is_gated_act",
        "n_positions",
        "num_decoder_layers",
        "scale_decoder_outputs",
    ]);
    config.only("is_decoder", false.into(), "only the encoder is run")?;
    let heads = config.positive(&["num_heads"])?;
    let (gated, activation) = feed_forward(ctx)?;
    let dims = Dims {
        hidden: config.positive(&["d_model"])?,
        layers: ctx.layers(&["num_layers"])?,
        heads,
        kv_heads: heads,
        head_dim: config.positive(&["d_kv"])?,
        intermediate: config.positive(&["d_ff"])?,
        activation,
        eps: config.f64_or(&["layer_norm_epsilon"], 1e-6)? as f32,
    };
    let vocabulary = config.positive(&["vocab_size"])?;
    let words = if ctx.has("shared.weight") { "shared" } else { "encoder.embed_tokens" };
    let mut x = ctx.embedding(words, vocabulary, dims.hidden, Index::TokenId)?;

    let buckets = config.opt_usize(&["relative_attention_num_buckets"])?.unwrap_or(32);
    let distance = config.opt_usize(&["relative_attention_max_distance"])?.unwrap_or(128);
    let limit = |n: usize| u32::try_from(n).map_err(|_| config.error("relative_attention_num_buckets", "is too large"));
    let rule = BucketRule { num_buckets: limit(buckets)?, max_distance: limit(distance)?, bidirectional: true };
    let name = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias";
    let table = ctx.weight(&format!("{name}.weight"), &[buckets, heads]);
    let table = ctx.graph.constant(name, table)?;
    let spec = AttentionSpec { scale: 1.0, bias: Bias::Bucketed { table, rule }, ..dims.attention() };
    for i in 0..dims.layers {
        x = layer(ctx, x, i, &dims, gated, spec.clone())?;
    }
    ctx.rms_norm("encoder.final_layer_norm", x, 0.0, None, dims.eps)
}

/// Whether the feed-forward part is gated, and its activation. `gated-gelu` has meant the tanh form since T5 1.1.
fn feed_forward(ctx: &Ctx) -> Result<(bool, Activation)> {
    let text = ctx.config.opt_str(&["feed_forward_proj"])?.unwrap_or("relu");
    if text == "gated-gelu" {
        return Ok((true, Activation::GeluTanh));
    }
    let (gated, name) = match text.strip_prefix("gated-") {
        Some(name) => (true, name),
        None => (false, text),
    };
    let activation = Activation::from_name(name)
        .ok_or_else(|| ctx.config.error("feed_forward_proj", format!("`{text}` is no activation that is known")))?;
    Ok((gated, activation))
}

fn layer(ctx: &mut Ctx, x: ValueId, i: usize, dims: &Dims, gated: bool, spec: AttentionSpec) -> Result<ValueId> {
    let at = |name: &str| format!("encoder.block.{i}.layer.{name}");
    let width = dims.heads * dims.head_dim;
    let normed = ctx.rms_norm(&at("0.layer_norm"), x, 0.0, None, dims.eps)?;
    let query = ctx.linear(&at("0.SelfAttention.q"), normed, width, false)?;
    let key = ctx.linear(&at("0.SelfAttention.k"), normed, width, false)?;
    let value = ctx.linear(&at("0.SelfAttention.v"), normed, width, false)?;
    let attended = ctx.graph.attention(&at("0.SelfAttention"), query, key, value, spec)?;
    let attended = ctx.linear(&at("0.SelfAttention.o"), attended, dims.hidden, false)?;
    let x = ctx.add(&at("0.residual"), x, attended)?;
    let normed = ctx.rms_norm(&at("1.layer_norm"), x, 0.0, None, dims.eps)?;
    let inner = if gated {
        let gate = ctx.linear(&at("1.DenseReluDense.wi_0"), normed, dims.intermediate, false)?;
        let up = ctx.linear(&at("1.DenseReluDense.wi_1"), normed, dims.intermediate, false)?;
        ctx.graph.gate(&at("1.DenseReluDense.gate"), gate, up, dims.activation)?
    } else {
        let inner = ctx.linear(&at("1.DenseReluDense.wi"), normed, dims.intermediate, false)?;
        ctx.activation(&at("1.DenseReluDense.activation"), inner, dims.activation)?
    };
    let inner = ctx.linear(&at("1.DenseReluDense.wo"), inner, dims.hidden, false)?;
    ctx.add(&at("1.residual"), x, inner)
}

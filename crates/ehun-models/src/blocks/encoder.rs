//! The encoder layer of the original Transformer, norms after the residual sums: BERT and most that came from it.

use ehun_graph::{AttentionSpec, RotarySpec, ValueId};

use super::{Ctx, Dims};
use crate::error::Result;

/// Names of the tensors of a layer, after the layer's own prefix.
pub(crate) struct Names {
    pub query: &'static str,
    pub key: &'static str,
    pub value: &'static str,
    pub attention_output: &'static str,
    pub attention_norm: &'static str,
    pub up: &'static str,
    pub down: &'static str,
    pub output_norm: &'static str,
}

/// The names that BERT gave, and that RoBERTa, ELECTRA and their kind kept.
pub(crate) const BERT_NAMES: Names = Names {
    query: "attention.self.query",
    key: "attention.self.key",
    value: "attention.self.value",
    attention_output: "attention.output.dense",
    attention_norm: "attention.output.LayerNorm",
    up: "intermediate.dense",
    down: "output.dense",
    output_norm: "output.LayerNorm",
};

/// Self-attention with biased projections, residual, norm, feed-forward, residual, norm. The tensors are `layer` + a dot + a name.
pub(crate) fn layer(
    ctx: &mut Ctx,
    x: ValueId,
    layer: &str,
    names: &Names,
    dims: &Dims,
    spec: AttentionSpec,
) -> Result<ValueId> {
    let at = |name: &str| format!("{layer}.{name}");
    let width = dims.heads * dims.head_dim;
    let query = ctx.linear(&at(names.query), x, width, true)?;
    let key = ctx.linear(&at(names.key), x, width, true)?;
    let value = ctx.linear(&at(names.value), x, width, true)?;
    let attended = ctx.graph.attention(&at("attention"), query, key, value, spec)?;
    let attended = ctx.linear(&at(names.attention_output), attended, dims.hidden, true)?;
    let x = ctx.add(&at("attention.residual"), attended, x)?;
    let x = ctx.layer_norm(&at(names.attention_norm), x, true, dims.eps)?;
    let inner = ctx.linear(&at(names.up), x, dims.intermediate, true)?;
    let inner = ctx.activation(&at("activation"), inner, dims.activation)?;
    let inner = ctx.linear(&at(names.down), inner, dims.hidden, true)?;
    let x = ctx.add(&at("residual"), inner, x)?;
    ctx.layer_norm(&at(names.output_norm), x, true, dims.eps)
}

/// How the query, key and value layers are stored.
pub(crate) enum Qkv {
    /// As three tensors.
    Split(&'static str, &'static str, &'static str),
    /// As one, the three below each other.
    Fused(&'static str),
}

/// The feed-forward part before its last layer.
pub(crate) enum Inner {
    /// A layer and the activation.
    Plain(&'static str),
    /// Two layers: what goes through the activation, and what is multiplied.
    Gated(&'static str, &'static str),
    /// Two layers in one tensor: above what is multiplied, below what goes through the activation.
    UpGate(&'static str),
}

/// Names and biases of a layer with rotary embeddings and norms after the residual sums: NomicBERT, GTE, Jina.
pub(crate) struct RotaryNames {
    pub qkv: Qkv,
    pub output: &'static str,
    pub attention_norm: &'static str,
    pub inner: Inner,
    pub down: &'static str,
    pub output_norm: &'static str,
}

/// Which layers have biases.
pub(crate) struct Biases {
    pub qkv: bool,
    pub output: bool,
    pub inner: bool,
    pub down: bool,
}

/// Self-attention with rotary embeddings, residual, norm, feed-forward, residual, norm.
pub(crate) fn rotary_layer(
    ctx: &mut Ctx,
    x: ValueId,
    layer: &str,
    names: &RotaryNames,
    biases: &Biases,
    dims: &Dims,
    rotary: &RotarySpec,
) -> Result<ValueId> {
    let at = |name: &str| format!("{layer}.{name}");
    let width = dims.heads * dims.head_dim;
    let (query, key, value) = match names.qkv {
        Qkv::Split(query, key, value) => (
            ctx.linear(&at(query), x, width, biases.qkv)?,
            ctx.linear(&at(key), x, width, biases.qkv)?,
            ctx.linear(&at(value), x, width, biases.qkv)?,
        ),
        Qkv::Fused(name) => qkv_rows(ctx, x, &at(name), width, biases.qkv)?,
    };
    let query = ctx.graph.rotary(&at("q_rotary"), query, rotary.clone())?;
    let key = ctx.graph.rotary(&at("k_rotary"), key, rotary.clone())?;
    let attended = ctx.graph.attention(&at("attention"), query, key, value, dims.attention())?;
    let attended = ctx.linear(&at(names.output), attended, dims.hidden, biases.output)?;
    let x = ctx.add(&at("attention.residual"), x, attended)?;
    let x = ctx.layer_norm(&at(names.attention_norm), x, true, dims.eps)?;
    let wide = dims.intermediate;
    let inner = match names.inner {
        Inner::Plain(name) => {
            let inner = ctx.linear(&at(name), x, wide, biases.inner)?;
            ctx.activation(&at("activation"), inner, dims.activation)?
        }
        Inner::Gated(gate, up) => {
            let gate = ctx.linear(&at(gate), x, wide, biases.inner)?;
            let up = ctx.linear(&at(up), x, wide, biases.inner)?;
            ctx.graph.gate(&at("gate"), gate, up, dims.activation)?
        }
        Inner::UpGate(name) => {
            let gate = ctx.linear_rows(&at(name), x, 2 * wide, (wide, 2 * wide), biases.inner)?;
            let up = ctx.linear_rows(&at(name), x, 2 * wide, (0, wide), biases.inner)?;
            ctx.graph.gate(&at("gate"), gate, up, dims.activation)?
        }
    };
    let inner = ctx.linear(&at(names.down), inner, dims.hidden, biases.down)?;
    let x = ctx.add(&at("residual"), x, inner)?;
    ctx.layer_norm(&at(names.output_norm), x, true, dims.eps)
}

/// Query, key and value rows of a fused layer `name` whose three parts are `width` wide.
pub(crate) fn qkv_rows(
    ctx: &mut Ctx,
    x: ValueId,
    name: &str,
    width: usize,
    bias: bool,
) -> Result<(ValueId, ValueId, ValueId)> {
    let mut part = |i: usize| ctx.linear_rows(name, x, 3 * width, (i * width, (i + 1) * width), bias);
    Ok((part(0)?, part(1)?, part(2)?))
}

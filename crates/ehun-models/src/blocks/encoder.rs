//! The encoder layer of the original Transformer, norms after the residual sums: BERT and most that came from it.

use ehun_graph::{AttentionSpec, ValueId};

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

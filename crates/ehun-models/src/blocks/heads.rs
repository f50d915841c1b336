//! Heads: token rows become logits of a sequence, of a token, or of every term of the vocabulary.

use ehun_graph::{Activation, ValueId};

use super::Ctx;
use crate::error::Result;

/// BERT's pooler and a classifier on it: `classifier(tanh(pooler(first token)))`.
pub(crate) fn pooled(ctx: &mut Ctx, tokens: ValueId, pooler: &str, classifier: &str, labels: usize) -> Result<ValueId> {
    let first = ctx.first_token(tokens)?;
    let width = ctx.graph.width(first);
    let pooled = ctx.linear(pooler, first, width, true)?;
    let pooled = ctx.activation("pooler.activation", pooled, Activation::Tanh)?;
    ctx.leave_encoder();
    ctx.linear(classifier, pooled, labels, true)
}

/// RoBERTa's head: `classifier.out_proj(f(classifier.dense(first token)))`.
pub(crate) fn dense_then_out(ctx: &mut Ctx, tokens: ValueId, labels: usize, function: Activation) -> Result<ValueId> {
    ctx.leave_encoder();
    let first = ctx.first_token(tokens)?;
    let width = ctx.graph.width(first);
    let dense = ctx.linear("classifier.dense", first, width, true)?;
    let dense = ctx.activation("classifier.activation", dense, function)?;
    ctx.linear("classifier.out_proj", dense, labels, true)
}

/// A linear layer on every token: `classifier`.
pub(crate) fn tokens(ctx: &mut Ctx, tokens: ValueId, labels: usize) -> Result<ValueId> {
    ctx.leave_encoder();
    ctx.linear("classifier", tokens, labels, true)
}

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

/// A masked language model's head: a transform with an activation and a norm, and a last layer whose weight is the word
/// embeddings' where the two are tied.
pub(crate) struct Vocabulary<'n> {
    /// The transform.
    pub dense: &'n str,
    /// Its norm.
    pub norm: &'n str,
    /// The last layer.
    pub decoder: &'n str,
    /// Where its bias may be: of tied weights the first that is there is taken, else the last, which is the layer's own.
    pub biases: &'n [&'n str],
    /// The word embeddings, as the encoder names them.
    pub words: &'n str,
    /// Their width, which the transform gives, where it is not that of the token rows.
    pub narrow: Option<usize>,
    /// The activation of the transform.
    pub function: Activation,
    /// Epsilon of the norm.
    pub eps: f32,
}

/// Logits of every term of the vocabulary, for each token.
pub(crate) fn vocabulary(ctx: &mut Ctx, tokens: ValueId, names: &Vocabulary) -> Result<ValueId> {
    let width = names.narrow.unwrap_or(ctx.graph.width(tokens));
    let terms = ctx.config.positive(&["vocab_size"])?;
    let words = ctx.weight(names.words, &[terms, width]);
    ctx.leave_encoder();
    let x = ctx.linear(names.dense, tokens, width, true)?;
    let x = ctx.activation("vocabulary.activation", x, names.function)?;
    let x = ctx.layer_norm(names.norm, x, true, names.eps)?;
    // Where the weights are tied, transformers takes the embeddings and not what the file may have beside them.
    let tied = ctx.config.bool_or(&["tie_word_embeddings"], true)?;
    let weight = if tied { words } else { ctx.weight(&format!("{}.weight", names.decoder), &[terms, width]) };
    let mut there = names.biases.iter().filter(|name| ctx.has(name));
    let bias = if tied { there.next() } else { there.next_back() }.or(names.biases.first());
    let bias = bias.map(|name| ctx.weight(name, &[terms]));
    Ok(ctx.graph.linear(names.decoder, x, weight, bias)?)
}

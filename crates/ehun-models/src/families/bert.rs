//! BERT (Devlin et al. 2018): learned absolute positions, token types, norms after the residual sums.

use ehun_graph::{Index, ValueId};

use super::Family;
use crate::blocks::{Ctx, encoder, heads};
use crate::error::Result;

pub(super) const BERT: Family = Family {
    name: "BERT",
    model_types: &["bert"],
    prefixes: &["bert.", ""],
    probes: &["embeddings.word_embeddings.weight"],
    encoder: tokens,
    sequence_head: Some(|ctx, tokens, labels| heads::pooled(ctx, tokens, "pooler.dense", "classifier", labels)),
    token_head: Some(heads::tokens),
    vocabulary_head: Some(vocabulary),
    unused: &["pooler.", "cls.", "classifier."],
};

fn tokens(ctx: &mut Ctx) -> Result<ValueId> {
    let dims = ctx.bert_dims()?;
    ctx.config.ignore(&[
        "directionality",
        "pooler_fc_size",
        "pooler_num_attention_heads",
        "pooler_num_fc_layers",
        "pooler_size_per_head",
        "pooler_type",
    ]);
    let mut x = embeddings(ctx, dims.hidden, dims.eps, 0)?;
    for i in 0..dims.layers {
        x = encoder::layer(ctx, x, &format!("encoder.layer.{i}"), &encoder::BERT_NAMES, &dims, dims.attention())?;
    }
    Ok(x)
}

/// Word, position and type embeddings, and a norm. Positions start at the table's row `offset`.
pub(super) fn embeddings(ctx: &mut Ctx, width: usize, eps: f32, offset: usize) -> Result<ValueId> {
    let vocabulary = ctx.config.positive(&["vocab_size"])?;
    let positions = ctx.config.positive(&["max_position_embeddings"])?;
    let types = ctx.config.positive(&["type_vocab_size"])?;
    let words = ctx.embedding("embeddings.word_embeddings", vocabulary, width, Index::TokenId)?;
    let types = ctx.embedding("embeddings.token_type_embeddings", types, width, Index::TokenType)?;
    let x = ctx.add("embeddings.with_types", words, types)?;
    let positions = ctx.embedding("embeddings.position_embeddings", positions, width, Index::Position { offset })?;
    let x = ctx.add("embeddings.with_positions", x, positions)?;
    ctx.layer_norm("embeddings.LayerNorm", x, true, eps)
}

fn vocabulary(ctx: &mut Ctx, tokens: ValueId) -> Result<ValueId> {
    let names = heads::Vocabulary {
        dense: "cls.predictions.transform.dense",
        norm: "cls.predictions.transform.LayerNorm",
        decoder: "cls.predictions.decoder",
        biases: &["cls.predictions.bias", "cls.predictions.decoder.bias"],
        words: "embeddings.word_embeddings.weight",
        narrow: None,
        function: ctx.activation_named(&["hidden_act"], "gelu")?,
        eps: ctx.config.f64_or(&["layer_norm_eps"], 1e-12)? as f32,
    };
    heads::vocabulary(ctx, tokens, &names)
}

//! ELECTRA (Clark et al. 2020): BERT whose embeddings may be narrower than its layers.

use ehun_graph::{Activation, ValueId};

use super::{Family, bert};
use crate::blocks::{Ctx, encoder, heads};
use crate::error::Result;

pub(super) const ELECTRA: Family = Family {
    name: "ELECTRA",
    model_types: &["electra"],
    prefixes: &["electra.", ""],
    probes: &["embeddings.word_embeddings.weight"],
    encoder: tokens,
    sequence_head: Some(|ctx, tokens, labels| heads::dense_then_out(ctx, tokens, labels, Activation::Gelu)),
    token_head: Some(heads::tokens),
    vocabulary_head: Some(vocabulary),
    unused: &["discriminator_predictions.", "generator_predictions.", "generator_lm_head.", "classifier."],
};

fn tokens(ctx: &mut Ctx) -> Result<ValueId> {
    let dims = ctx.bert_dims()?;
    // They belong to the multiple-choice head.
    ctx.config.ignore(&[
        "summary_activation",
        "summary_last_dropout",
        "summary_first_dropout",
        "summary_type",
        "summary_use_proj",
    ]);
    let narrow = ctx.config.positive(&["embedding_size"])?;
    let mut x = bert::embeddings(ctx, narrow, dims.eps, 0)?;
    if narrow != dims.hidden {
        x = ctx.linear("embeddings_project", x, dims.hidden, true)?;
    }
    for i in 0..dims.layers {
        x = encoder::layer(ctx, x, &format!("encoder.layer.{i}"), &encoder::BERT_NAMES, &dims, dims.attention())?;
    }
    Ok(x)
}

fn vocabulary(ctx: &mut Ctx, tokens: ValueId) -> Result<ValueId> {
    let names = heads::Vocabulary {
        dense: "generator_predictions.dense",
        norm: "generator_predictions.LayerNorm",
        decoder: "generator_lm_head",
        biases: &["generator_lm_head.bias"],
        words: "embeddings.word_embeddings.weight",
        narrow: Some(ctx.config.positive(&["embedding_size"])?),
        function: Activation::Gelu,
        eps: ctx.config.f64_or(&["layer_norm_eps"], 1e-12)? as f32,
    };
    heads::vocabulary(ctx, tokens, &names)
}

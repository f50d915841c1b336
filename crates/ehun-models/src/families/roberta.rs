//! RoBERTa (Liu et al. 2019), XLM-RoBERTa and CamemBERT: BERT whose positions start after the padding token's.

use ehun_graph::{Activation, ValueId};

use super::{Family, bert};
use crate::blocks::{Ctx, encoder, heads};
use crate::error::Result;

pub(super) const ROBERTA: Family = Family {
    name: "RoBERTa",
    model_types: &["roberta", "xlm-roberta", "camembert"],
    prefixes: &["roberta.", ""],
    probes: &["embeddings.word_embeddings.weight"],
    encoder: tokens,
    sequence_head: Some(|ctx, tokens, labels| heads::dense_then_out(ctx, tokens, labels, Activation::Tanh)),
    token_head: Some(heads::tokens),
    vocabulary_head: Some(vocabulary),
    unused: &["pooler.", "lm_head.", "classifier."],
};

fn tokens(ctx: &mut Ctx) -> Result<ValueId> {
    let dims = ctx.bert_dims()?;
    let offset = ctx.config.opt_usize(&["pad_token_id"])?.unwrap_or(1) + 1;
    let mut x = bert::embeddings(ctx, dims.hidden, dims.eps, offset)?;
    for i in 0..dims.layers {
        x = encoder::layer(ctx, x, &format!("encoder.layer.{i}"), &encoder::BERT_NAMES, &dims, dims.attention())?;
    }
    Ok(x)
}

pub(super) fn vocabulary(ctx: &mut Ctx, tokens: ValueId) -> Result<ValueId> {
    let names = heads::Vocabulary {
        dense: "lm_head.dense",
        norm: "lm_head.layer_norm",
        decoder: "lm_head.decoder",
        biases: &["lm_head.bias", "lm_head.decoder.bias"],
        words: "embeddings.word_embeddings.weight",
        narrow: None,
        function: Activation::Gelu,
        eps: ctx.config.f64_or(&["layer_norm_eps"], 1e-12)? as f32,
    };
    heads::vocabulary(ctx, tokens, &names)
}

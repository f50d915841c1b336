//! DistilBERT (Sanh et al. 2019): BERT without token types and without a pooler.

use ehun_graph::{Activation, Index, ValueId};

use super::Family;
use crate::blocks::{Ctx, Dims, encoder, heads};
use crate::error::Result;

pub(super) const DISTILBERT: Family = Family {
    name: "DistilBERT",
    model_types: &["distilbert"],
    prefixes: &["distilbert.", ""],
    probes: &["embeddings.word_embeddings.weight"],
    encoder: tokens,
    sequence_head: Some(sequence),
    token_head: Some(heads::tokens),
    vocabulary_head: Some(vocabulary),
    unused: &["vocab_", "pre_classifier.", "classifier.", "qa_outputs."],
};

/// Fixed in the code of the model, not in its configuration.
const EPS: f32 = 1e-12;

const NAMES: encoder::Names = encoder::Names {
    query: "attention.q_lin",
    key: "attention.k_lin",
    value: "attention.v_lin",
    attention_output: "attention.out_lin",
    attention_norm: "sa_layer_norm",
    up: "ffn.lin1",
    down: "ffn.lin2",
    output_norm: "output_layer_norm",
};

fn tokens(ctx: &mut Ctx) -> Result<ValueId> {
    let config = ctx.config;
    ctx.encoder_only()?;
    config.ignore(&["qa_dropout", "seq_classif_dropout", "sinusoidal_pos_embds", "tie_weights_"]);
    let hidden = config.positive(&["dim"])?;
    let heads = config.positive(&["n_heads"])?;
    let dims = Dims {
        hidden,
        layers: ctx.layers(&["n_layers"])?,
        heads,
        kv_heads: heads,
        head_dim: ctx.head_dim(hidden, heads)?,
        intermediate: config.positive(&["hidden_dim"])?,
        activation: ctx.activation_named(&["activation"], "gelu")?,
        eps: EPS,
    };
    let vocabulary = config.positive(&["vocab_size"])?;
    let positions = config.positive(&["max_position_embeddings"])?;
    let words = ctx.embedding("embeddings.word_embeddings", vocabulary, hidden, Index::TokenId)?;
    let at = Index::Position { offset: 0 };
    let positions = ctx.embedding("embeddings.position_embeddings", positions, hidden, at)?;
    let x = ctx.add("embeddings.with_positions", words, positions)?;
    let mut x = ctx.layer_norm("embeddings.LayerNorm", x, true, EPS)?;
    for i in 0..dims.layers {
        x = encoder::layer(ctx, x, &format!("transformer.layer.{i}"), &NAMES, &dims, dims.attention())?;
    }
    Ok(x)
}

fn sequence(ctx: &mut Ctx, tokens: ValueId, labels: usize) -> Result<ValueId> {
    ctx.leave_encoder();
    let first = ctx.first_token(tokens)?;
    let width = ctx.graph.width(first);
    let x = ctx.linear("pre_classifier", first, width, true)?;
    let x = ctx.activation("pre_classifier.activation", x, Activation::Relu)?;
    ctx.linear("classifier", x, labels, true)
}

fn vocabulary(ctx: &mut Ctx, tokens: ValueId) -> Result<ValueId> {
    let names = heads::Vocabulary {
        dense: "vocab_transform",
        norm: "vocab_layer_norm",
        decoder: "vocab_projector",
        biases: &["vocab_projector.bias"],
        words: "embeddings.word_embeddings.weight",
        narrow: None,
        function: ctx.activation_named(&["activation"], "gelu")?,
        eps: EPS,
    };
    heads::vocabulary(ctx, tokens, &names)
}

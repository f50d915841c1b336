//! MPNet (Song et al. 2020): a relative bias by buckets that all layers share; positions start at 2; no token types.

use ehun_graph::{Activation, AttentionSpec, Bias, BucketRule, Index, ValueId, WeightRef};

use super::{Family, roberta};
use crate::blocks::{Ctx, encoder, heads};
use crate::error::Result;

pub(super) const MPNET: Family = Family {
    name: "MPNet",
    model_types: &["mpnet"],
    prefixes: &["mpnet.", ""],
    probes: &["embeddings.word_embeddings.weight"],
    encoder: tokens,
    sequence_head: Some(|ctx, tokens, labels| heads::dense_then_out(ctx, tokens, labels, Activation::Tanh)),
    token_head: Some(heads::tokens),
    vocabulary_head: Some(roberta::vocabulary),
    unused: &["pooler.", "lm_head.", "classifier.", "qa_outputs."],
};

const NAMES: encoder::Names = encoder::Names {
    query: "attention.attn.q",
    key: "attention.attn.k",
    value: "attention.attn.v",
    attention_output: "attention.attn.o",
    attention_norm: "attention.LayerNorm",
    up: "intermediate.dense",
    down: "output.dense",
    output_norm: "output.LayerNorm",
};

/// The rule is fixed in the code of the model; a configuration can only have a larger table, whose further rows are not used.
const RULE: BucketRule = BucketRule { num_buckets: 32, max_distance: 128, bidirectional: true };

fn tokens(ctx: &mut Ctx) -> Result<ValueId> {
    let dims = ctx.bert_dims()?;
    let config = ctx.config;
    let vocabulary = config.positive(&["vocab_size"])?;
    let positions = config.positive(&["max_position_embeddings"])?;
    let words = ctx.embedding("embeddings.word_embeddings", vocabulary, dims.hidden, Index::TokenId)?;
    // The padding index is 1 in the code of the model, whatever the configuration says.
    let at = Index::Position { offset: 2 };
    let positions = ctx.embedding("embeddings.position_embeddings", positions, dims.hidden, at)?;
    let x = ctx.add("embeddings.with_positions", words, positions)?;
    let mut x = ctx.layer_norm("embeddings.LayerNorm", x, true, dims.eps)?;

    let buckets = config.opt_usize(&["relative_attention_num_buckets"])?.unwrap_or(32);
    let rows = RULE.num_buckets as usize;
    let whole = ctx.weight("encoder.relative_attention_bias.weight", &[buckets, dims.heads]);
    let table = if buckets == rows { whole } else { WeightRef { rows: Some((0, rows)), ..whole } };
    let table = ctx.graph.constant("encoder.relative_attention_bias", table)?;
    let spec = AttentionSpec { bias: Bias::Bucketed { table, rule: RULE }, ..dims.attention() };
    for i in 0..dims.layers {
        x = encoder::layer(ctx, x, &format!("encoder.layer.{i}"), &NAMES, &dims, spec.clone())?;
    }
    Ok(x)
}

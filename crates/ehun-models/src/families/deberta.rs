//! DeBERTa v2 and v3 (He et al. 2021): content and position attend to each other through tables of relative positions.

use ehun_graph::{AttentionSpec, Bias, Index, LogBucketRule, ValueId};
use serde_json::Value;

use super::Family;
use crate::blocks::{Ctx, Dims, encoder, heads};
use crate::error::Result;

pub(super) const DEBERTA_V2: Family = Family {
    name: "DeBERTa-v2",
    model_types: &["deberta-v2"],
    prefixes: &["deberta.", ""],
    probes: &["embeddings.word_embeddings.weight"],
    encoder: tokens,
    sequence_head: Some(sequence),
    token_head: Some(heads::tokens),
    vocabulary_head: Some(vocabulary),
    unused: &[
        "encoder.LayerNorm.",
        "encoder.rel_embeddings.",
        "pooler.",
        "lm_predictions.",
        "mask_predictions.",
        "cls.",
        "classifier.",
        "embeddings.position_embeddings.",
    ],
};

const NAMES: encoder::Names = encoder::Names {
    query: "attention.self.query_proj",
    key: "attention.self.key_proj",
    value: "attention.self.value_proj",
    attention_output: "attention.output.dense",
    attention_norm: "attention.output.LayerNorm",
    up: "intermediate.dense",
    down: "output.dense",
    output_norm: "output.LayerNorm",
};

/// The relative part of the configuration.
struct Relative {
    c2p: bool,
    p2c: bool,
    shared: bool,
    rule: LogBucketRule,
    /// The table of relative positions, normed where the configuration says so.
    positions: ValueId,
}

fn tokens(ctx: &mut Ctx) -> Result<ValueId> {
    let mut dims = ctx.bert_dims()?;
    let config = ctx.config;
    config.ignore(&[
        "cls_dropout",
        "legacy",
        "max_position_embeddings",
        "pooler_hidden_size",
        "pooler_hidden_act",
        "conv_act",
        "conv_groups",
    ]);
    config.only("conv_kernel_size", 0.into(), "its convolution mixes the rows of neighbouring tokens")?;
    dims.eps = config.f64_or(&["layer_norm_eps"], 1e-7)? as f32;
    if let Some(head_dim) = config.opt_usize(&["attention_head_size"])? {
        dims.head_dim = head_dim;
    }
    let (c2p, p2c) = position_terms(ctx)?;
    // The scale counts the terms that are named, whether or not relative attention is switched on.
    let terms = 1 + usize::from(c2p) + usize::from(p2c);
    let scale = (1.0 / ((dims.head_dim * terms) as f64).sqrt()) as f32;
    let mut x = embeddings(ctx, &dims)?;
    let relative = relative(ctx, &dims, c2p, p2c)?;
    for i in 0..dims.layers {
        let layer = format!("encoder.layer.{i}");
        let bias = match &relative {
            Some(relative) => disentangled(ctx, &layer, relative, &dims)?,
            None => Bias::None,
        };
        x = encoder::layer(ctx, x, &layer, &NAMES, &dims, AttentionSpec { scale, bias, ..dims.attention() })?;
    }
    Ok(x)
}

/// Which of content-to-position and position-to-content there are: a list, or names with bars between them.
fn position_terms(ctx: &Ctx) -> Result<(bool, bool)> {
    let config = ctx.config;
    let names: Vec<String> = match config.get("pos_att_type") {
        None => Vec::new(),
        Some(Value::String(text)) => text.to_lowercase().split('|').map(|name| name.trim().to_owned()).collect(),
        Some(_) => config.opt_strings("pos_att_type")?.unwrap_or_default(),
    };
    if let Some(other) = names.iter().find(|name| !matches!(name.as_str(), "c2p" | "p2c" | "")) {
        return Err(config.error("pos_att_type", format!("`{other}` is not known; there are c2p and p2c")));
    }
    let has = |which: &str| names.iter().any(|name| name == which);
    Ok((has("c2p"), has("p2c")))
}

fn embeddings(ctx: &mut Ctx, dims: &Dims) -> Result<ValueId> {
    let config = ctx.config;
    let vocabulary = config.positive(&["vocab_size"])?;
    let width = config.opt_usize(&["embedding_size"])?.unwrap_or(dims.hidden);
    let types = config.opt_usize(&["type_vocab_size"])?.unwrap_or(0);
    let mut x = ctx.embedding("embeddings.word_embeddings", vocabulary, width, Index::TokenId)?;
    if config.bool_or(&["position_biased_input"], true)? {
        let rows = config.positive(&["max_position_embeddings"])?;
        let at = Index::Position { offset: 0 };
        let positions = ctx.embedding("embeddings.position_embeddings", rows, width, at)?;
        x = ctx.add("embeddings.with_positions", x, positions)?;
    }
    if types > 0 {
        let types = ctx.embedding("embeddings.token_type_embeddings", types, width, Index::TokenType)?;
        x = ctx.add("embeddings.with_types", x, types)?;
    }
    if width != dims.hidden {
        x = ctx.linear("embeddings.embed_proj", x, dims.hidden, false)?;
    }
    ctx.layer_norm("embeddings.LayerNorm", x, true, dims.eps)
}

fn relative(ctx: &mut Ctx, dims: &Dims, c2p: bool, p2c: bool) -> Result<Option<Relative>> {
    let config = ctx.config;
    let shared = config.bool_or(&["share_att_key"], false)?;
    let buckets = config.count_or_minus_one("position_buckets")?;
    let stated = config.count_or_minus_one("max_relative_positions")?;
    let norms = config.opt_str(&["norm_rel_ebd"])?.unwrap_or("none").to_lowercase();
    if !config.bool_or(&["relative_attention"], false)? {
        return Ok(None);
    }
    let max_position = match stated {
        Some(positions) => positions,
        None => config.positive(&["max_position_embeddings"])?,
    };
    let span = buckets.unwrap_or(max_position);
    let limit = |n: usize| u32::try_from(n).map_err(|_| config.error("position_buckets", "is too large"));
    let rule =
        LogBucketRule { span: limit(span)?, buckets: limit(buckets.unwrap_or(0))?, max_position: limit(max_position)? };
    if rule.buckets > 0 && (rule.buckets < 4 || rule.max_position <= rule.buckets / 2 + 1) {
        return Err(
            config.error("position_buckets", format!("{span} buckets for {max_position} positions tell nothing apart"))
        );
    }
    let table = ctx.weight("encoder.rel_embeddings.weight", &[2 * span, dims.hidden]);
    let mut positions = ctx.graph.constant("encoder.rel_embeddings", table)?;
    match norms.trim() {
        "none" => {}
        "layer_norm" => positions = ctx.layer_norm("encoder.LayerNorm", positions, true, dims.eps)?,
        other => {
            return Err(config.error("norm_rel_ebd", format!("`{other}` is not known; there are none and layer_norm")));
        }
    }
    if !c2p && !p2c {
        return Ok(None);
    }
    Ok(Some(Relative { c2p, p2c, shared, rule, positions }))
}

/// The tables of a layer: positions through the layer's own key and query layers, or through the content's where they are shared.
fn disentangled(ctx: &mut Ctx, layer: &str, relative: &Relative, dims: &Dims) -> Result<Bias> {
    let (key, query) = if relative.shared { ("key_proj", "query_proj") } else { ("pos_key_proj", "pos_query_proj") };
    let width = dims.heads * dims.head_dim;
    let mut table = |wanted: bool, name: &str| {
        wanted
            .then(|| ctx.linear(&format!("{layer}.attention.self.{name}"), relative.positions, width, true))
            .transpose()
    };
    let key_positions = table(relative.c2p, key)?;
    let query_positions = table(relative.p2c, query)?;
    Ok(Bias::Disentangled { key_positions, query_positions, rule: relative.rule })
}

fn sequence(ctx: &mut Ctx, tokens: ValueId, labels: usize) -> Result<ValueId> {
    ctx.leave_encoder();
    let function = ctx.activation_named(&["pooler_hidden_act"], "gelu")?;
    let first = ctx.first_token(tokens)?;
    let width = ctx.graph.width(first);
    let x = ctx.linear("pooler.dense", first, width, true)?;
    let x = ctx.activation("pooler.activation", x, function)?;
    ctx.linear("classifier", x, labels, true)
}

fn vocabulary(ctx: &mut Ctx, tokens: ValueId) -> Result<ValueId> {
    // `legacy` are the names that checkpoints had before transformers 4.48.
    let legacy = ctx.config.bool_or(&["legacy"], true)?;
    let narrow = ctx.config.opt_usize(&["embedding_size"])?;
    let names = heads::Vocabulary {
        dense: if legacy { "cls.predictions.transform.dense" } else { "lm_predictions.lm_head.dense" },
        norm: if legacy { "cls.predictions.transform.LayerNorm" } else { "lm_predictions.lm_head.LayerNorm" },
        decoder: if legacy { "cls.predictions.decoder" } else { "lm_predictions.lm_head" },
        biases: if legacy { &["cls.predictions.bias"] } else { &["lm_predictions.lm_head.bias"] },
        words: "embeddings.word_embeddings.weight",
        narrow: narrow.filter(|_| legacy),
        function: ctx.activation_named(&["hidden_act"], "gelu")?,
        eps: ctx.config.f64_or(&["layer_norm_eps"], 1e-7)? as f32,
    };
    heads::vocabulary(ctx, tokens, &names)
}

//! NomicBERT (Nussbaum et al. 2024): BERT with rotary embeddings and a gated feed-forward part, without biases.

use ehun_graph::{Activation, Index, RotaryScaling, ValueId};
use serde_json::Value;

use super::Family;
use crate::blocks::encoder::{self, Biases, Inner, Qkv, RotaryNames};
use crate::blocks::{Ctx, Dims, heads, rotary};
use crate::error::Result;

pub(super) const NOMIC_BERT: Family = Family {
    name: "NomicBERT",
    model_types: &["nomic_bert"],
    prefixes: &["nomic_bert.", "bert.", ""],
    probes: &["embeddings.word_embeddings.weight"],
    encoder: tokens,
    sequence_head: Some(|ctx, tokens, labels| heads::pooled(ctx, tokens, "pooler.dense", "classifier", labels)),
    token_head: Some(heads::tokens),
    vocabulary_head: Some(vocabulary),
    unused: &["pooler.", "cls.", "classifier."],
};

const PUBLISHED: RotaryNames = RotaryNames {
    qkv: Qkv::Fused("attn.Wqkv"),
    output: "attn.out_proj",
    attention_norm: "norm1",
    inner: Inner::Gated("mlp.fc12", "mlp.fc11"),
    down: "mlp.fc2",
    output_norm: "norm2",
};

pub(super) const NATIVE: RotaryNames = RotaryNames {
    qkv: Qkv::Split("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    output: "self_attn.o_proj",
    attention_norm: "post_attention_layernorm",
    inner: Inner::Gated("mlp.gate_proj", "mlp.up_proj"),
    down: "mlp.down_proj",
    output_norm: "post_mlp_layernorm",
};

fn tokens(ctx: &mut Ctx) -> Result<ValueId> {
    let config = ctx.config;
    ctx.encoder_only()?;
    let hidden = config.positive(&["hidden_size", "n_embd"])?;
    let heads = config.positive(&["num_attention_heads", "n_head"])?;
    let head_dim = match config.opt_usize(&["head_dim"])? {
        Some(head_dim) => head_dim,
        None => ctx.head_dim(hidden, heads)?,
    };
    let mut dims = Dims {
        hidden,
        layers: ctx.layers(&["num_hidden_layers", "n_layer"])?,
        heads,
        kv_heads: heads,
        head_dim,
        intermediate: config.opt_usize(&["intermediate_size", "n_inner"])?.unwrap_or(4 * hidden),
        activation: Activation::Silu,
        eps: config.f64_or(&["layer_norm_eps", "layer_norm_epsilon"], 1e-12)? as f32,
    };
    let published_config = config.get("n_embd").is_some();
    let max_positions = config.positive(&["max_position_embeddings", "n_positions"])?;
    let defaults = rotary::Defaults { head_dim, theta: 1000.0, max_positions };
    let (rotary, biases) = if published_config {
        published_options(ctx, &mut dims, &defaults)?
    } else {
        dims.activation = ctx.activation_named(&["hidden_act"], "silu")?;
        (rotary::shared(config, &defaults)?, Biases { qkv: false, output: false, inner: false, down: false })
    };

    let vocabulary = config.positive(&["vocab_size"])?;
    let types = config.usize(&["type_vocab_size"])?;
    let mut x = ctx.embedding("embeddings.word_embeddings", vocabulary, hidden, Index::TokenId)?;
    if types > 0 {
        let types = ctx.embedding("embeddings.token_type_embeddings", types, hidden, Index::TokenType)?;
        x = ctx.add("embeddings.with_types", x, types)?;
    }
    let norm = if ctx.has("emb_ln.weight") { "emb_ln" } else { "embeddings.LayerNorm" };
    x = ctx.layer_norm(norm, x, true, dims.eps)?;
    let published = ctx.has("encoder.layers.0.norm1.weight");
    let (prefix, names) = if published { ("encoder.layers", &PUBLISHED) } else { ("layers", &NATIVE) };
    for i in 0..dims.layers {
        x = encoder::rotary_layer(ctx, x, &format!("{prefix}.{i}"), names, &biases, &dims, &rotary)?;
    }
    Ok(x)
}

/// The options of the configuration of the published checkpoints, which their own code reads.
fn published_options(
    ctx: &Ctx,
    dims: &mut Dims,
    defaults: &rotary::Defaults,
) -> Result<(ehun_graph::RotarySpec, Biases)> {
    let config = ctx.config;
    config.ignore(&[
        "dense_seq_output",
        "fused_bias_fc",
        "fused_dropout_add_ln",
        "last_layer_subset",
        "pad_vocab_size_multiple",
        "reorder_and_upcast_attn",
        "summary_activation",
        "summary_first_dropout",
        "summary_proj_to_labels",
        "summary_type",
        "summary_use_proj",
        "use_flash_attn",
        "use_xentropy",
    ]);
    config.only("prenorm", false.into(), "norms come after the residual sums")?;
    config.only("parallel_block", false.into(), "attention and the feed-forward part follow each other")?;
    config.ignore(&["parallel_block_tied_norm"]);
    config.only("causal", false.into(), "attention sees both sides")?;
    config.only("use_rms_norm", false.into(), "norms are layer norms")?;
    config.only("scale_attn_weights", true.into(), "scores are divided by the root of the head's width")?;
    config.only("scale_attn_by_inverse_layer_idx", false.into(), "the scale is the same in every layer")?;
    config.only("rotary_emb_scale_base", Value::Null, "frequencies are not scaled by position (XPos)")?;
    config.only("rotary_emb_interleaved", false.into(), "the halves of a head are turned together")?;
    config.only("num_experts", 0.into(), "experts are chosen for each token, which the graph cannot")?;
    config.only("moe_every_n_layers", 0.into(), "experts are chosen for each token, which the graph cannot")?;
    dims.activation = match config.str(&["activation_function"])? {
        "swiglu" => Activation::Silu,
        "geglu" => Activation::Gelu,
        "glu" => Activation::Sigmoid,
        other => {
            return Err(
                config.error("activation_function", format!("`{other}` is not gated; there are swiglu, geglu and glu"))
            );
        }
    };
    let mut spec = ehun_graph::RotarySpec::plain(dims.head_dim, config.f64_or(&["rotary_emb_base"], defaults.theta)?);
    let fraction = config.f64_or(&["rotary_emb_fraction"], 1.0)?;
    if fraction <= 0.0 {
        return Err(config.error("rotary_emb_fraction", "positions that are learned are not known for this family"));
    }
    spec.rotary_dim = (dims.head_dim as f64 * fraction.min(1.0)) as usize;
    let trained = config.opt_usize(&["max_trained_positions"])?.unwrap_or(2048);
    if let Some(factor) = config.opt_f64(&["rotary_scaling_factor"])? {
        let original = u32::try_from(trained).map_err(|_| config.error("max_trained_positions", "is too large"))?;
        spec.scaling = RotaryScaling::DynamicNtk { factor, original_max_position: original };
    }
    let qkv = config.bool_or(&["qkv_proj_bias"], false)?;
    let inner = config.bool_or(&["mlp_fc1_bias"], false)?;
    let down = config.bool_or(&["mlp_fc2_bias"], false)?;
    Ok((spec, Biases { qkv, output: qkv, inner, down }))
}

fn vocabulary(ctx: &mut Ctx, tokens: ValueId) -> Result<ValueId> {
    if ctx.config.get("n_embd").is_some() {
        return Err(ctx.config.error("architectures", "the vocabulary head of the older key set is not known"));
    }
    let native = ctx.weights_have("cls.predictions.transform.layer_norm.weight");
    let names = heads::Vocabulary {
        dense: "cls.predictions.transform.dense",
        norm: if native { "cls.predictions.transform.layer_norm" } else { "cls.predictions.transform.LayerNorm" },
        decoder: "cls.predictions.decoder",
        biases: &["cls.predictions.bias", "cls.predictions.decoder.bias"],
        words: "embeddings.word_embeddings.weight",
        narrow: None,
        function: ctx.activation_named(&["hidden_act"], "silu")?,
        eps: ctx.config.f64_or(&["layer_norm_eps", "layer_norm_epsilon"], 1e-12)? as f32,
    };
    heads::vocabulary(ctx, tokens, &names)
}

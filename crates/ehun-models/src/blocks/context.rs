//! What a family's file works with: the graph being built, the configuration, and the names of the tensors.

use ehun_graph::{Activation, AttentionSpec, GraphBuilder, Index, PoolingMode, ValueId, WeightRef, WeightStore};

use crate::config::Config;
use crate::error::Result;

/// No real model has more layers; a configuration that asks for more is refused before its graph takes memory.
const MAX_LAYERS: usize = 1000;

/// The graph of a checkpoint while it is built. Names of tensors are local: the prefix that the checkpoint puts in front of
/// its encoder (`bert.`, `model.`, nothing) is added, and the old names gamma and beta are found.
pub(crate) struct Ctx<'a> {
    /// The graph.
    pub graph: GraphBuilder,
    /// `config.json`.
    pub config: &'a Config,
    weights: &'a WeightStore,
    prefix: String,
}

/// The sizes that all families have.
#[derive(Debug, Clone)]
pub(crate) struct Dims {
    /// Width of a token row.
    pub hidden: usize,
    /// Layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Width inside the feed-forward part.
    pub intermediate: usize,
    /// Activation of the feed-forward part.
    pub activation: Activation,
    /// Epsilon of the norms.
    pub eps: f32,
}

impl Dims {
    /// Full attention with these heads.
    pub fn attention(&self) -> AttentionSpec {
        AttentionSpec { num_kv_heads: self.kv_heads, ..AttentionSpec::full(self.heads, self.head_dim) }
    }
}

impl<'a> Ctx<'a> {
    /// An empty graph. Of `prefixes`, the first with which the checkpoint has one of the tensors `probes` is taken.
    pub fn new(config: &'a Config, weights: &'a WeightStore, prefixes: &[&str], probes: &[&str]) -> Self {
        let has = |prefix: &&str| probes.iter().any(|probe| weights.contains(&format!("{prefix}{probe}")));
        let prefix = prefixes.iter().copied().find(has).unwrap_or_default();
        Self { graph: GraphBuilder::new(), config, weights, prefix: prefix.to_owned() }
    }

    /// From now on names are those of heads, which no prefix is put in front of.
    pub fn leave_encoder(&mut self) {
        self.prefix.clear();
    }

    /// Whether the checkpoint has the tensor.
    pub fn has(&self, name: &str) -> bool {
        self.weights.contains(&self.full_name(name))
    }

    /// Whether the checkpoint has a tensor of just this name, as those of heads.
    pub fn weights_have(&self, name: &str) -> bool {
        self.weights.contains(name)
    }

    fn full_name(&self, name: &str) -> String {
        let full = format!("{}{name}", self.prefix);
        if !self.weights.contains(&full) {
            // TensorFlow's names of the parameters of a norm, which old checkpoints kept.
            for (new, old) in [("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta")] {
                if let Some(start) = full.strip_suffix(new) {
                    let named = format!("{start}{old}");
                    if self.weights.contains(&named) {
                        return named;
                    }
                }
            }
        }
        full
    }

    /// The tensor `name` of `shape`.
    pub fn weight(&self, name: &str, shape: &[usize]) -> WeightRef {
        WeightRef::whole(self.full_name(name), shape)
    }

    /// Token rows from the table `name.weight` of `[rows, width]`.
    pub fn embedding(&mut self, name: &str, rows: usize, width: usize, index: Index) -> Result<ValueId> {
        let table = self.weight(&format!("{name}.weight"), &[rows, width]);
        Ok(self.graph.embedding(name, table, index)?)
    }

    /// `name.weight` of `[out, width of x]`, and `name.bias` where there is one.
    pub fn linear(&mut self, name: &str, x: ValueId, out: usize, bias: bool) -> Result<ValueId> {
        let weight = self.weight(&format!("{name}.weight"), &[out, self.graph.width(x)]);
        let bias = bias.then(|| self.weight(&format!("{name}.bias"), &[out]));
        Ok(self.graph.linear(name, x, weight, bias)?)
    }

    /// The rows `start..end` of a linear layer whose tensor has `all` rows: Q, K or V of a fused one.
    pub fn linear_rows(
        &mut self,
        name: &str,
        x: ValueId,
        all: usize,
        (start, end): (usize, usize),
        bias: bool,
    ) -> Result<ValueId> {
        let width = self.graph.width(x);
        let weight = WeightRef::slice(self.full_name(&format!("{name}.weight")), &[all, width], start, end);
        let bias = bias.then(|| WeightRef::slice(self.full_name(&format!("{name}.bias")), &[all], start, end));
        Ok(self.graph.linear(&format!("{name}[{start}..{end}]"), x, weight, bias)?)
    }

    /// Layer norm with `name.weight` and, where there is one, `name.bias`.
    pub fn layer_norm(&mut self, name: &str, x: ValueId, bias: bool, eps: f32) -> Result<ValueId> {
        let width = self.graph.width(x);
        let weight = self.weight(&format!("{name}.weight"), &[width]);
        let bias = bias.then(|| self.weight(&format!("{name}.bias"), &[width]));
        Ok(self.graph.layer_norm(name, x, Some(weight), bias, eps)?)
    }

    /// RMS norm with `name.weight`, over the row or over each head of `group`.
    pub fn rms_norm(&mut self, name: &str, x: ValueId, offset: f32, group: Option<usize>, eps: f32) -> Result<ValueId> {
        let width = group.unwrap_or_else(|| self.graph.width(x));
        let weight = self.weight(&format!("{name}.weight"), &[width]);
        Ok(self.graph.rms_norm(name, x, Some(weight), offset, group, eps)?)
    }

    /// `a + b`.
    pub fn add(&mut self, name: &str, a: ValueId, b: ValueId) -> Result<ValueId> {
        Ok(self.graph.add(name, a, b)?)
    }

    /// Element-wise function.
    pub fn activation(&mut self, name: &str, x: ValueId, function: Activation) -> Result<ValueId> {
        Ok(self.graph.activation(name, x, function)?)
    }

    /// The row of the first token of each sequence.
    pub fn first_token(&mut self, x: ValueId) -> Result<ValueId> {
        Ok(self.graph.pooling("first_token", x, PoolingMode::Cls)?)
    }

    /// The activation that the first of `keys` names, or `default`.
    pub fn activation_named(&self, keys: &[&str], default: &str) -> Result<Activation> {
        let name = self.config.opt_str(keys)?.unwrap_or(default);
        Activation::from_name(name).ok_or_else(|| {
            let key = keys.first().copied().unwrap_or_default();
            self.config.error(key, format!("`{name}` is no activation that is known"))
        })
    }

    /// The number of layers under the first of `keys`.
    pub fn layers(&self, keys: &[&str]) -> Result<usize> {
        match self.config.positive(keys)? {
            n if n <= MAX_LAYERS => Ok(n),
            n => {
                let key = keys.first().copied().unwrap_or_default();
                Err(self.config.error(key, format!("{n} layers are more than the {MAX_LAYERS} that are allowed")))
            }
        }
    }

    /// The width of a head where `heads` of them make up `hidden`.
    pub fn head_dim(&self, hidden: usize, heads: usize) -> Result<usize> {
        if hidden.is_multiple_of(heads) {
            return Ok(hidden / heads);
        }
        Err(self.config.error("num_attention_heads", format!("{heads} heads do not divide the width {hidden}")))
    }

    /// The sizes of a BERT-like configuration with learned positions.
    pub fn bert_dims(&self) -> Result<Dims> {
        self.config.only(
            "position_embedding_type",
            "absolute".into(),
            "relative kinds of old BERT variants are unknown",
        )?;
        self.rotary_bert_dims()
    }

    /// The sizes of a BERT-like configuration.
    pub fn rotary_bert_dims(&self) -> Result<Dims> {
        self.encoder_only()?;
        let config = self.config;
        let hidden = config.positive(&["hidden_size"])?;
        let heads = config.positive(&["num_attention_heads"])?;
        Ok(Dims {
            hidden,
            layers: self.layers(&["num_hidden_layers"])?,
            heads,
            kv_heads: heads,
            head_dim: self.head_dim(hidden, heads)?,
            intermediate: config.positive(&["intermediate_size"])?,
            activation: self.activation_named(&["hidden_act"], "gelu")?,
            eps: config.f64_or(&["layer_norm_eps"], 1e-12)? as f32,
        })
    }

    /// Refuses decoders, cross attention and pruned heads.
    pub fn encoder_only(&self) -> Result<()> {
        self.config.only("is_decoder", false.into(), "this family is run as an encoder")?;
        self.config.only("add_cross_attention", false.into(), "there is no second sequence to attend to")?;
        self.config.only("pruned_heads", serde_json::json!({}), "all heads of a layer have one width")
    }
}

//! Small models that put operations together as families do, judged by trials.

use ehun_graph::{
    Activation, AttentionSpec, Band, Bias, Graph, GraphBuilder, GraphError, Index, LogBucketRule, PoolingMode,
    RaggedBatch, RotarySpec, SequenceInput, ValueId, WeightRef, WeightStore,
};

use super::Suite;
use super::attention::expect_same;
use super::operations::compare;
use crate::judge::Judge;
use crate::random::Random;
use crate::report::{Group, Tally};

/// A model with random weights.
pub(super) struct Model {
    pub name: &'static str,
    pub graph: Graph,
    pub weights: WeightStore,
}

const WIDTH: usize = 48;
const VOCABULARY: usize = 60;

struct ModelBuilder {
    builder: GraphBuilder,
    tensors: Vec<(String, Vec<usize>, Vec<f32>)>,
    random: Random,
}

type Built = Result<ValueId, GraphError>;

impl ModelBuilder {
    fn weight(&mut self, name: &str, shape: &[usize], center: f32, scale: f32) -> WeightRef {
        let count = shape.iter().product();
        let data = self.random.normals(count, scale).iter().map(|x| x + center).collect();
        self.tensors.push((name.to_owned(), shape.to_vec(), data));
        WeightRef::whole(name, shape)
    }

    fn linear(&mut self, name: &str, x: ValueId, out: usize) -> Built {
        let width = self.builder.width(x);
        let weight = self.weight(&format!("{name}.weight"), &[out, width], 0.0, 1.0 / (width as f32).sqrt());
        let bias = self.weight(&format!("{name}.bias"), &[out], 0.0, 0.2);
        self.builder.linear(name, x, weight, Some(bias))
    }

    fn layer_norm(&mut self, name: &str, x: ValueId) -> Built {
        let width = self.builder.width(x);
        let weight = self.weight(&format!("{name}.weight"), &[width], 1.0, 0.1);
        let bias = self.weight(&format!("{name}.bias"), &[width], 0.0, 0.1);
        self.builder.layer_norm(name, x, Some(weight), Some(bias), 1e-12)
    }

    fn words(&mut self) -> Built {
        let table = self.weight("word", &[VOCABULARY, WIDTH], 0.0, 1.0);
        self.builder.embedding("word", table, Index::TokenId)
    }
}

/// Post-norm with positions and types: BERT's shape.
fn bert(b: &mut ModelBuilder) -> Built {
    let words = b.words()?;
    let positions = b.weight("position", &[1100, WIDTH], 0.0, 0.3);
    let positions = b.builder.embedding("position", positions, Index::Position { offset: 0 })?;
    let types = b.weight("type", &[2, WIDTH], 0.0, 0.3);
    let types = b.builder.embedding("type", types, Index::TokenType)?;
    let sum = b.builder.add("sum", words, types)?;
    let sum = b.builder.add("sum", sum, positions)?;
    let mut x = b.layer_norm("embeddings", sum)?;
    for layer in 0..2 {
        b.builder.scope(format!("layer.{layer}"));
        let name = |part: &str| format!("layer.{layer}.{part}");
        let (q, k, v) =
            (b.linear(&name("q"), x, WIDTH)?, b.linear(&name("k"), x, WIDTH)?, b.linear(&name("v"), x, WIDTH)?);
        let context = b.builder.attention("self", q, k, v, AttentionSpec::full(3, WIDTH / 3))?;
        let out = b.linear(&name("out"), context, WIDTH)?;
        let sum = b.builder.add("residual", out, x)?;
        let attended = b.layer_norm(&name("norm1"), sum)?;
        let inner = b.linear(&name("up"), attended, 2 * WIDTH)?;
        let inner = b.builder.activation("gelu", inner, Activation::Gelu)?;
        let out = b.linear(&name("down"), inner, WIDTH)?;
        let sum = b.builder.add("residual", out, attended)?;
        x = b.layer_norm(&name("norm2"), sum)?;
    }
    b.builder.scope("");
    let pooled = b.builder.pooling("pooling", x, PoolingMode::Mean)?;
    b.builder.output("tokens", x);
    b.builder.l2_normalize("normalize", pooled)
}

/// Pre-norm, rotary, grouped heads, a causal window and a gate: the shape of decoders that embed.
fn decoder(b: &mut ModelBuilder) -> Built {
    let mut x = b.words()?;
    for layer in 0..2 {
        b.builder.scope(format!("layer.{layer}"));
        let name = |part: &str| format!("layer.{layer}.{part}");
        let weight = b.weight(&name("norm1"), &[WIDTH], 1.0, 0.1);
        let normed = b.builder.rms_norm("norm1", x, Some(weight), 0.0, None, 1e-6)?;
        let (q, k, v) =
            (b.linear(&name("q"), normed, 64)?, b.linear(&name("k"), normed, 32)?, b.linear(&name("v"), normed, 32)?);
        let weight = b.weight(&name("q_norm"), &[16], 1.0, 0.1);
        let q = b.builder.rms_norm("q_norm", q, Some(weight), 0.0, Some(16), 1e-6)?;
        let (q, k) = (
            b.builder.rotary("rotary_q", q, RotarySpec::plain(16, 1e4))?,
            b.builder.rotary("rotary_k", k, RotarySpec::plain(16, 1e4))?,
        );
        let band = if layer == 0 { Band { left: Some(40), right: Some(0) } } else { Band::CAUSAL };
        let spec = AttentionSpec { num_kv_heads: 2, band, ..AttentionSpec::full(4, 16) };
        let context = b.builder.attention("self", q, k, v, spec)?;
        let out = b.linear(&name("out"), context, WIDTH)?;
        x = b.builder.add("residual", x, out)?;
        let weight = b.weight(&name("norm2"), &[WIDTH], 1.0, 0.1);
        let normed = b.builder.rms_norm("norm2", x, Some(weight), 0.0, None, 1e-6)?;
        let (gate, up) = (b.linear(&name("gate"), normed, 96)?, b.linear(&name("up"), normed, 96)?);
        let inner = b.builder.gate("swiglu", gate, up, Activation::Silu)?;
        let out = b.linear(&name("down"), inner, WIDTH)?;
        x = b.builder.add("residual", x, out)?;
    }
    b.builder.scope("");
    b.builder.pooling("pooling", x, PoolingMode::LastToken)
}

/// Disentangled attention whose position rows are computed from weights: DeBERTa's shape.
fn disentangled(b: &mut ModelBuilder) -> Built {
    let words = b.words()?;
    let x = b.layer_norm("embeddings", words)?;
    let rule = LogBucketRule { span: 16, buckets: 16, max_position: 64 };
    let table = b.weight("relative", &[32, WIDTH], 0.0, 1.0);
    let table = b.builder.constant("relative", table)?;
    let table = b.layer_norm("relative_norm", table)?;
    let (q, k, v) = (b.linear("q", x, WIDTH)?, b.linear("k", x, WIDTH)?, b.linear("v", x, WIDTH)?);
    let (key_positions, query_positions) = (b.linear("pos_k", table, WIDTH)?, b.linear("pos_q", table, WIDTH)?);
    let spec = AttentionSpec {
        scale: 1.0 / 48f32.sqrt(),
        bias: Bias::Disentangled { key_positions: Some(key_positions), query_positions: Some(query_positions), rule },
        ..AttentionSpec::full(3, WIDTH / 3)
    };
    let context = b.builder.attention("self", q, k, v, spec)?;
    let sum = b.builder.add("residual", context, x)?;
    let x = b.layer_norm("norm", sum)?;
    let pooled = b.builder.pooling("pooling", x, PoolingMode::Cls)?;
    b.linear("classifier", pooled, 3)
}

/// A vocabulary-wide head that backends fuse: linear, `log(1 + relu)`, largest of each column.
fn splade(b: &mut ModelBuilder) -> Built {
    let words = b.words()?;
    let x = b.layer_norm("transform", words)?;
    let logits = b.linear("decoder", x, 1031)?;
    let weights = b.builder.activation("saturation", logits, Activation::Log1pRelu)?;
    b.builder.pooling("pooling", weights, PoolingMode::Max)
}

fn model(name: &'static str, build: fn(&mut ModelBuilder) -> Built) -> Result<Model, String> {
    let mut b = ModelBuilder { builder: GraphBuilder::new(), tensors: Vec::new(), random: Random::named(name) };
    let out = build(&mut b).map_err(|e| e.to_string())?;
    b.builder.output("out", out);
    let graph = b.builder.finish().map_err(|e| e.to_string())?;
    let weights = WeightStore::from_tensors(b.tensors).map_err(|e| e.to_string())?;
    Ok(Model { name, graph, weights })
}

type Builder = fn(&mut ModelBuilder) -> Built;
const MODELS: [(&str, Builder); 4] = [
    ("post-norm encoder", bert),
    ("rotary decoder", decoder),
    ("disentangled encoder", disentangled),
    ("vocabulary-wide head", splade),
];

/// The post-norm encoder, on which laws are shown.
pub(super) fn encoder() -> Result<Model, String> {
    model(MODELS[0].0, MODELS[0].1)
}

/// Sequences of these lengths with random ids.
pub(super) fn sequences(lengths: &[usize], random: &mut Random) -> Vec<SequenceInput> {
    let one = |&length: &usize| SequenceInput {
        token_ids: (0..length).map(|_| random.below(VOCABULARY) as u32).collect(),
        token_types: (0..length).map(|i| u32::from(i > length / 2)).collect(),
        pooling_start: 0,
    };
    lengths.iter().map(one).collect()
}

pub(super) fn run(suite: &mut Suite<'_>) {
    for (name, build) in MODELS {
        if suite.stopped() {
            return;
        }
        match model(name, build) {
            Ok(model) => one(suite, &model),
            Err(error) => suite.broken(Group::Models, name, error),
        }
    }
}

fn one(suite: &mut Suite<'_>, model: &Model) {
    let lengths: &[usize] = if suite.full() { &[5, 1, 0, 16, 64, 33, 129, 2] } else { &[5, 1, 0, 17, 65] };
    let sequences = sequences(lengths, &mut Random::named(model.name));
    let tally = Tally::new(Group::Models, model.name);
    let Some((runner, mut tally)) = suite.compile(tally, &model.graph, &model.weights, 160) else { return };
    let judge = match Judge::new(&model.graph, &model.weights, suite.numerics()) {
        Ok(judge) => judge,
        Err(error) => return suite.broken(Group::Models, model.name, error),
    };
    let inputs: Vec<&SequenceInput> = sequences.iter().collect();
    match runner.run(&inputs) {
        Ok(found) => {
            let judged = |batch: &RaggedBatch| judge.outputs_by_trials(batch, 3);
            compare(judged, &sequences, &found, &mut tally, |i| format!("length {}", lengths[i]));
            for (input, found) in inputs.iter().zip(&found) {
                match runner.run(&[input]) {
                    Ok(alone) => expect_same(&alone[0], found, &mut tally, |e| {
                        format!("alone and in a batch: length {}, element {e}", input.token_ids.len())
                    }),
                    Err(error) => tally.fail(error),
                }
            }
        }
        Err(error) => tally.fail(error),
    }
    suite.add(tally.done());
}

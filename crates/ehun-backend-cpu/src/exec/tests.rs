//! Lowering: passes change no bit, values never share memory while they live, and random graphs are what float64 says.

use std::sync::Arc;

use ehun_backend::{Attention, RunOptions};
use ehun_conformance::{Judge, Numerics};
use ehun_graph::{
    Activation, AttentionSpec, Band, Graph, GraphBuilder, Index, PoolingMode, RaggedBatch, RotarySpec, Rows,
    SequenceInput, ValueId, WeightRef, WeightStore,
};
use proptest::prelude::*;

use super::executable::{Compile, CpuExecutable, Fusion, batch_steps};
use super::ir::{Ir, IrOp};
use super::schedule::{Place, Stage, schedule};
use crate::exec::choose;
use crate::gemm::Products;
use crate::pool::ThreadPool;
use crate::simd::Isa;
use crate::testing::random;

const WIDTH: usize = 16;
const HEADS: usize = 2;
const ENTRIES: usize = 30;

const ACTIVATIONS: [Activation; 8] = [
    Activation::Gelu,
    Activation::GeluTanh,
    Activation::QuickGelu,
    Activation::Relu,
    Activation::Silu,
    Activation::Tanh,
    Activation::Sigmoid,
    Activation::Log1pRelu,
];
const MODES: [PoolingMode; 6] = [
    PoolingMode::Cls,
    PoolingMode::LastToken,
    PoolingMode::Max,
    PoolingMode::Mean,
    PoolingMode::MeanSqrtLen,
    PoolingMode::WeightedMean,
];

/// A graph drawn from choices: each picks an operation and its operands among what is there.
struct Draw<'a> {
    b: GraphBuilder,
    choices: std::slice::Iter<'a, u16>,
    tokens: Vec<ValueId>,
    sequences: Vec<ValueId>,
    count: usize,
}

impl Draw<'_> {
    fn choose(&mut self, bound: usize) -> usize {
        self.choices.next().map_or(0, |choice| usize::from(*choice) % bound.max(1))
    }

    fn name(&mut self, kind: &str) -> String {
        self.count += 1;
        format!("{kind}.{}", self.count)
    }

    /// A value of `WIDTH` columns among the last few of its kind, so that graphs are deep.
    fn pick(&mut self, of_tokens: bool) -> ValueId {
        let list = if of_tokens { &self.tokens } else { &self.sequences };
        let len = list.len();
        let back = self.choose(len.min(4));
        if of_tokens { self.tokens[len - 1 - back] } else { self.sequences[len - 1 - back] }
    }

    fn linear(&mut self, x: ValueId, out: usize) -> ValueId {
        let name = self.name("linear");
        let width = self.b.width(x);
        let bias = (self.choose(3) > 0).then(|| WeightRef::whole(format!("{name}.bias"), &[out]));
        let weight = WeightRef::whole(format!("{name}.weight"), &[out, width]);
        self.b.linear(&name, x, weight, bias).unwrap()
    }

    fn constant_row(&mut self) -> ValueId {
        let name = self.name("row");
        let row = self.b.constant(&name, WeightRef::whole(&name, &[WIDTH])).unwrap();
        let scaled = self.b.scale(&name, row, 0.5).unwrap();
        self.b.activation(&name, scaled, Activation::Tanh).unwrap()
    }

    fn step(&mut self) {
        let of_tokens = self.sequences.is_empty() || self.choose(4) > 0;
        let x = self.pick(of_tokens);
        let kind = self.choose(if of_tokens { 16 } else { 12 });
        let function = ACTIVATIONS[self.choose(8)];
        let name = self.name("op");
        let vector = |part: &str, len: usize| Some(WeightRef::whole(format!("{name}.{part}"), &[len]));
        let y = match kind {
            0 => self.linear(x, WIDTH),
            1 => {
                let up = self.linear(x, 3 * WIDTH);
                let up = self.b.activation(&name, up, function).unwrap();
                self.linear(up, WIDTH)
            }
            2 => {
                let other = self.pick(of_tokens);
                let y = self.linear(x, WIDTH);
                self.b.add(&name, y, other).unwrap()
            }
            3 => {
                // Rows of 512 values are not packed: see `stride`.
                let inner = [24, 512][self.choose(2)];
                let (gate, up) = (self.linear(x, inner), self.linear(x, inner));
                let y = self.b.gate(&name, gate, up, function).unwrap();
                self.linear(y, WIDTH)
            }
            4 => self.b.layer_norm(&name, x, vector("norm", WIDTH), vector("bias", WIDTH), 1e-5).unwrap(),
            5 => self.b.rms_norm(&name, x, vector("norm", WIDTH / HEADS), 1.0, Some(WIDTH / HEADS), 1e-5).unwrap(),
            6 => {
                let other = self.pick(of_tokens);
                self.b.add(&name, x, other).unwrap()
            }
            7 => {
                let row = self.constant_row();
                let y = self.b.multiply(&name, x, row).unwrap();
                self.b.add(&name, y, row).unwrap()
            }
            8 => {
                let left = self.b.columns(&name, x, 0, 5).unwrap();
                let right = self.b.columns(&name, x, 5, WIDTH - 5).unwrap();
                self.b.concat(&name, &[right, left]).unwrap()
            }
            9 => self.b.l2_normalize(&name, x).unwrap(),
            10 => self.b.activation(&name, x, function).unwrap(),
            11 => self.b.scale(&name, x, -0.75).unwrap(),
            12 => {
                let (q, k, v) = (self.linear(x, WIDTH), self.linear(x, WIDTH), self.linear(x, WIDTH));
                let turned = self.b.rotary(&name, q, RotarySpec::plain(WIDTH / HEADS, 100.0)).unwrap();
                let mut spec = AttentionSpec::full(HEADS, WIDTH / HEADS);
                spec.band = [Band::FULL, Band::CAUSAL, Band::window(3)][self.choose(3)];
                self.b.attention(&name, turned, k, v, spec).unwrap()
            }
            13 => self.b.rotary(&name, x, RotarySpec::plain(WIDTH / HEADS, 100.0)).unwrap(),
            14 => {
                let wide = self.linear(x, 3 * WIDTH);
                let wide = self.b.activation(&name, wide, function).unwrap();
                let pooled = self.b.pooling(&name, wide, PoolingMode::Max).unwrap();
                let pooled = self.linear(pooled, WIDTH);
                self.sequences.push(pooled);
                return;
            }
            _ => {
                let mode = MODES[self.choose(6)];
                let pooled = self.b.pooling(&name, x, mode).unwrap();
                self.sequences.push(pooled);
                return;
            }
        };
        if of_tokens { self.tokens.push(y) } else { self.sequences.push(y) }
    }
}

/// The graph of `choices`, with all token values that are read last and the last sequence value as results.
fn draw(choices: &[u16]) -> Graph {
    let mut b = GraphBuilder::new();
    let table = |name: &str| WeightRef::whole(name, &[ENTRIES, WIDTH]);
    let word = b.embedding("word", table("word"), Index::TokenId).unwrap();
    let kind = b.embedding("type", table("type"), Index::TokenType).unwrap();
    let position = b.embedding("position", table("position"), Index::Position { offset: 2 }).unwrap();
    let sum = b.add("sum", kind, position).unwrap();
    let sum = b.add("sum", word, sum).unwrap();
    let choices = choices.iter();
    let mut draw = Draw { b, choices, tokens: vec![sum], sequences: Vec::new(), count: 0 };
    while draw.choices.len() > 0 {
        draw.step();
    }
    if draw.choose(2) == 0 || draw.sequences.is_empty() {
        let last = draw.tokens[draw.tokens.len() - 1];
        draw.b.output("tokens", last);
    }
    if let Some(last) = draw.sequences.last() {
        draw.b.output("sequences", *last);
    }
    draw.b.finish().unwrap()
}

fn weights(graph: &Graph) -> WeightStore {
    let tensors = graph.weights().iter().enumerate().map(|(seed, weight)| {
        let center = if weight.name.ends_with("norm") { 1.0 } else { 0.0 };
        let scale = if weight.shape.len() == 2 { 1.5 / (weight.width() as f32).sqrt() } else { 0.3 };
        let data = random(weight.shape.iter().product(), seed as u64 + 1);
        (weight.name.clone(), weight.shape.clone(), data.iter().map(|x| center + scale * x).collect())
    });
    WeightStore::from_tensors(tensors.collect()).unwrap()
}

fn batch(lengths: &[usize]) -> RaggedBatch {
    let sequences: Vec<SequenceInput> = lengths
        .iter()
        .enumerate()
        .map(|(number, len)| SequenceInput {
            token_ids: (0..*len).map(|i| ((i * 7 + number * 3) % ENTRIES) as u32).collect(),
            token_types: (0..*len).map(|i| (i % 3) as u32).collect(),
            pooling_start: usize::from(*len > 2),
        })
        .collect();
    RaggedBatch::pack(&sequences).unwrap()
}

fn executable(graph: &Graph, threads: usize, fusion: Fusion) -> CpuExecutable {
    let isa = Isa::best();
    let compile = Compile {
        graph: Arc::new(graph.clone()),
        weights: weights(graph),
        isa,
        products: Products::Own,
        precision: Default::default(),
        pool: Arc::new(ThreadPool::new(threads)),
        device: String::new(),
        attention: choose(isa, &Attention::Auto, super::attention::Guard::Off).unwrap(),
        max_tokens: 10_000,
        fusion,
    };
    CpuExecutable::new(compile).unwrap()
}

fn results(executable: &CpuExecutable, batch: &RaggedBatch) -> Vec<Vec<f32>> {
    let outputs = ehun_backend::run(executable, batch, &RunOptions::default()).unwrap();
    outputs.values.into_iter().map(|value| value.data).collect()
}

/// Plays a schedule: every slot knows the value that it holds, and a step must find its operands where they are said to be.
fn play(ir: &Ir) {
    let schedule = schedule(ir);
    let mut arena = vec![None; schedule.arena.len()];
    for (number, stage) in schedule.stages.iter().enumerate() {
        let mut local = vec![None; schedule.local[number].len()];
        let before = arena.clone();
        for place in stage.steps() {
            let step = &ir.steps[*place];
            for operand in step.op.operands() {
                let (root, _) = ir.root(operand);
                match schedule.places[root] {
                    Place::Arena(slot) => assert_eq!(arena[slot], Some(root), "stage {number}: {:?}", step.op),
                    Place::Local(slot) => assert_eq!(local[slot], Some(root), "stage {number}: {:?}", step.op),
                    Place::Constant => assert!(matches!(ir.values[root].rows, Rows::Constant(_))),
                    Place::None => panic!("an operand without memory: {:?}", step.op),
                }
            }
            match schedule.places[step.out] {
                Place::Arena(slot) => {
                    // Nothing that the stage wrote or reads is written over.
                    assert!(arena[slot] == before[slot], "stage {number} writes slot {slot} twice");
                    for other in stage.steps() {
                        let operands = ir.steps[*other].op.operands();
                        let read = operands.iter().any(|operand| Some(ir.root(*operand).0) == before[slot]);
                        assert!(!read || before[slot].is_none(), "stage {number} reads what it writes over");
                    }
                    assert_eq!(schedule.arena[slot].rows, ir.values[step.out].rows);
                    arena[slot] = Some(step.out);
                }
                Place::Local(slot) => {
                    assert!(matches!(stage, Stage::Rows { .. }));
                    local[slot] = Some(step.out);
                }
                place => panic!("a result in {place:?}"),
            }
        }
    }
    for output in &ir.outputs {
        let (root, _) = ir.root(*output);
        if let Place::Arena(slot) = schedule.places[root] {
            assert_eq!(arena[slot], Some(root), "a result was written over");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(150) })]

    #[test]
    fn passes_change_no_bit(
        choices in prop::collection::vec(any::<u16>(), 10..120),
        lengths in prop::collection::vec(0usize..20, 1..6),
    ) {
        let graph = draw(&choices);
        let batch = batch(&lengths);
        let plain = results(&executable(&graph, 1, Fusion::Off), &batch);
        let fused = results(&executable(&graph, 2, Fusion::On), &batch);
        for (output, (plain, fused)) in graph.outputs().iter().zip(plain.iter().zip(&fused)) {
            let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(plain), bits(fused), "{}", output.name);
        }
    }

    #[test]
    fn random_graphs_are_what_float64_says(
        choices in prop::collection::vec(any::<u16>(), 10..60),
        lengths in prop::collection::vec(0usize..20, 1..4),
    ) {
        let graph = draw(&choices);
        let batch = batch(&lengths);
        let judge = Judge::new(&graph, &weights(&graph), Numerics { precision: Default::default() }).unwrap();
        let judged = judge.outputs(&batch).unwrap();
        for (found, judged) in results(&executable(&graph, 2, Fusion::On), &batch).iter().zip(&judged) {
            prop_assert_eq!(found.len(), judged.value.len());
            for ((x, value), error) in found.iter().zip(&judged.value).zip(&judged.error) {
                prop_assert!((f64::from(*x) - value).abs() <= *error, "{} is not {} to {}", x, value, error);
            }
        }
    }

    #[test]
    fn values_keep_their_memory_while_they_live(choices in prop::collection::vec(any::<u16>(), 1..300)) {
        let graph = draw(&choices);
        play(&batch_steps(&graph, Fusion::On));
        play(&batch_steps(&graph, Fusion::Off));
        play(&Ir::constants(&graph));
    }
}

fn names(graph: &Graph) -> Vec<String> {
    batch_steps(graph, Fusion::On).steps.iter().map(|step| step.op.name()).collect()
}

/// A layer as BERT has it, with a pooling of its result.
fn layer(mode: PoolingMode) -> Graph {
    let mut draw =
        Draw { b: GraphBuilder::new(), choices: [1u16; 100].iter(), tokens: vec![], sequences: vec![], count: 0 };
    let table = |name: &str| WeightRef::whole(name, &[ENTRIES, WIDTH]);
    let word = draw.b.embedding("word", table("word"), Index::TokenId).unwrap();
    let kind = draw.b.embedding("type", table("type"), Index::TokenType).unwrap();
    let sum = draw.b.add("sum", word, kind).unwrap();
    let x = draw.b.layer_norm("norm", sum, None, None, 1e-5).unwrap();
    let (q, k, v) = (draw.linear(x, WIDTH), draw.linear(x, WIDTH), draw.linear(x, WIDTH));
    let attended = draw.b.attention("self", q, k, v, AttentionSpec::full(HEADS, WIDTH / HEADS)).unwrap();
    let out = draw.linear(attended, WIDTH);
    let sum = draw.b.add("residual", out, x).unwrap();
    let x = draw.b.layer_norm("norm", sum, None, None, 1e-5).unwrap();
    let (gate, up) = (draw.linear(x, 40), draw.linear(x, 40));
    let gated = draw.b.gate("gate", gate, up, Activation::Silu).unwrap();
    let down = draw.linear(gated, WIDTH);
    let sum = draw.b.add("residual", down, x).unwrap();
    let pooled = draw.b.pooling("pool", sum, mode).unwrap();
    draw.b.output("embedding", pooled);
    draw.b.finish().unwrap()
}

#[test]
fn a_layer_becomes_three_stages() {
    let graph = layer(PoolingMode::Mean);
    let wanted = [
        "embedding",
        "layer_norm",
        "linear",
        "attention",
        "linear+add",
        "layer_norm",
        "linear+silu+gate",
        "linear+add",
        "pooling",
    ];
    assert_eq!(names(&graph), wanted);
    let schedule = schedule(&batch_steps(&graph, Fusion::On));
    let sizes: Vec<usize> = schedule.stages.iter().map(|stage| stage.steps().len()).collect();
    assert_eq!(sizes, [3, 1, 4, 1]);
}

#[test]
fn what_cls_does_not_read_is_not_computed() {
    let graph = layer(PoolingMode::Cls);
    let wanted = [
        "embedding",
        "layer_norm",
        "linear",
        "attention",
        "pooling",
        "pooling",
        "linear+add",
        "layer_norm",
        "linear+silu+gate",
        "linear+add",
        "clear_empty",
    ];
    let mut found = names(&graph);
    found.sort();
    let mut wanted = wanted.map(str::to_owned);
    wanted.sort();
    assert_eq!(found, wanted);
    let ir = batch_steps(&graph, Fusion::On);
    let wide = ir.steps.iter().filter(|step| ir.values[step.out].rows == Rows::Tokens).count();
    assert_eq!(wide, 4, "embedding, norm, QKV and attention alone have token rows");
}

#[test]
fn a_vocabulary_is_pooled_by_chunks() {
    let mut draw =
        Draw { b: GraphBuilder::new(), choices: [1u16; 10].iter(), tokens: vec![], sequences: vec![], count: 0 };
    let word = draw.b.embedding("word", WeightRef::whole("word", &[ENTRIES, WIDTH]), Index::TokenId).unwrap();
    let logits = draw.linear(word, 2500);
    let weights_of_terms = draw.b.activation("log", logits, Activation::Log1pRelu).unwrap();
    let pooled = draw.b.pooling("max", weights_of_terms, PoolingMode::Max).unwrap();
    draw.b.output("terms", pooled);
    let graph = draw.b.finish().unwrap();
    let ir = batch_steps(&graph, Fusion::On);
    assert!(matches!(ir.steps[1].op, IrOp::MaxOfLinear { .. }), "{:?}", ir.steps);
    assert!(schedule(&ir).arena.iter().all(|slot| slot.rows == Rows::Sequences || slot.stride <= 2 * WIDTH));
    let batch = batch(&[3, 0, 150, 1]);
    let plain = results(&executable(&graph, 1, Fusion::Off), &batch);
    assert_eq!(plain, results(&executable(&graph, 2, Fusion::On), &batch));
}

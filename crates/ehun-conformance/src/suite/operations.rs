//! Every operation of the graph on its own: its operands are looked up, so they are exact, and the result is the output.

use ehun_graph::{
    Activation, GraphBuilder, GraphError, Index, PoolingMode, RotaryLayout, RotaryScaling, RotarySpec, SequenceInput,
    ValueId, WeightRef, WeightStore,
};

use super::Suite;
use super::attention::expect_same;
use super::runner::SequenceRows;
use crate::judge::{Judge, Judged};
use crate::random::Random;
use crate::report::{Group, Tally};
use ehun_graph::RaggedBatch;

type Tensors = Vec<(String, Vec<usize>, Vec<f32>)>;
type Build = Box<dyn Fn(&mut OpBuilder) -> Result<ValueId, GraphError>>;

/// One operation with its operands.
struct OpCase {
    name: String,
    build: Build,
    /// Lengths of the sequences; one of each kind of row.
    lengths: &'static [usize],
    /// Whether rows of extreme size make sense for it.
    extreme: bool,
}

/// What the rows of a sequence look like.
#[derive(Debug, Clone, Copy, PartialEq)]
enum RowKind {
    Normal,
    Scaled(f32),
    /// Deviation 1 around 1000: a variance from sums of squares loses all its digits.
    FarFromZero,
    /// All elements the same.
    Constant,
    Zero,
}

const KINDS: [RowKind; 6] = [
    RowKind::Normal,
    RowKind::Scaled(1e3),
    RowKind::Scaled(1e-3),
    RowKind::FarFromZero,
    RowKind::Constant,
    RowKind::Zero,
];
const EXTREMES: [RowKind; 2] = [RowKind::Scaled(1e15), RowKind::Scaled(1e-15)];
const LENGTHS: &[usize] = &[3, 1, 0, 17, 64, 5];
const LONG: &[usize] = &[3, 1, 0, 129, 600];

/// Builds a case: operands are tables by token id (`x`) and by token type (`y`).
struct OpBuilder {
    builder: GraphBuilder,
    tensors: Tensors,
    random: Random,
    kinds: Vec<(RowKind, usize)>,
}

impl OpBuilder {
    fn rows(&mut self, width: usize) -> Vec<f32> {
        let mut rows = Vec::new();
        for &(kind, length) in &self.kinds {
            for _ in 0..length {
                match kind {
                    RowKind::Normal => rows.extend(self.random.normals(width, 1.0)),
                    RowKind::Scaled(by) => rows.extend(self.random.normals(width, by)),
                    RowKind::FarFromZero => rows.extend(self.random.normals(width, 1.0).iter().map(|x| x + 1000.0)),
                    RowKind::Constant => rows.extend(vec![self.random.normal(); width]),
                    RowKind::Zero => rows.extend(vec![0.0; width]),
                }
            }
        }
        rows
    }

    /// A weight of normal deviates around `center`.
    fn weight(&mut self, name: &str, shape: &[usize], center: f32, scale: f32) -> WeightRef {
        let count = shape.iter().product();
        let data = self.random.normals(count, scale).iter().map(|x| x + center).collect();
        self.tensors.push((name.to_owned(), shape.to_vec(), data));
        WeightRef::whole(name, shape)
    }

    fn tokens(&mut self, name: &str, width: usize, index: Index) -> Result<ValueId, GraphError> {
        let rows = self.rows(width);
        let shape = [rows.len() / width, width];
        self.tensors.push((name.to_owned(), shape.to_vec(), rows));
        self.builder.embedding(name, WeightRef::whole(name, &shape), index)
    }

    fn x(&mut self, width: usize) -> Result<ValueId, GraphError> {
        self.tokens("x", width, Index::TokenId)
    }

    fn y(&mut self, width: usize) -> Result<ValueId, GraphError> {
        self.tokens("y", width, Index::TokenType)
    }
}

pub(super) fn run(suite: &mut Suite<'_>) {
    for case in cases(suite.full()) {
        if suite.stopped() {
            return;
        }
        if suite.wants(&case.name) {
            one(suite, &case);
        }
    }
}

fn one(suite: &mut Suite<'_>, case: &OpCase) {
    let numerics = suite.numerics();
    let extremes = EXTREMES.iter().filter(|_| case.extreme && numerics.has_range(1e15));
    // Every kind of row in every length is many; every kind, and every length, is enough.
    let kinds: Vec<(RowKind, usize)> = KINDS
        .iter()
        .chain(extremes)
        .enumerate()
        .map(|(i, &kind)| (kind, case.lengths[i % case.lengths.len()]))
        .chain(case.lengths.iter().map(|&length| (RowKind::Normal, length)))
        .collect();
    let mut b = OpBuilder {
        builder: GraphBuilder::new(),
        tensors: Vec::new(),
        random: Random::named(&case.name),
        kinds: kinds.clone(),
    };
    let built = (case.build)(&mut b).and_then(|out| {
        b.builder.output("out", out);
        std::mem::take(&mut b.builder).finish()
    });
    let graph = match built {
        Ok(graph) => graph,
        Err(error) => return suite.broken(Group::Operations, &case.name, error),
    };
    let weights = match WeightStore::from_tensors(b.tensors) {
        Ok(weights) => weights,
        Err(error) => return suite.broken(Group::Operations, &case.name, error),
    };
    let mut start = 0;
    let mut sequences = Vec::new();
    for (number, (_, length)) in kinds.iter().enumerate() {
        let ids: Vec<u32> = (start..start + *length as u32).collect();
        start += *length as u32;
        // A prompt of two tokens is left out of pooling in every other sequence.
        let pooling_start = if number % 2 == 1 && *length > 2 { 2 } else { 0 };
        sequences.push(SequenceInput { token_ids: ids.clone(), token_types: ids, pooling_start });
    }
    let longest = case.lengths.iter().copied().max().unwrap_or(1);
    let tally = Tally::new(Group::Operations, &case.name);
    let Some((runner, mut tally)) = suite.compile(tally, &graph, &weights, longest) else { return };
    let judge = match Judge::new(&graph, &weights, numerics) {
        Ok(judge) => judge,
        Err(error) => return suite.broken(Group::Operations, &case.name, error),
    };
    let inputs: Vec<&SequenceInput> = sequences.iter().collect();
    match runner.run(&inputs) {
        Ok(found) => {
            let judged = |batch: &RaggedBatch| judge.outputs(batch);
            compare(judged, &sequences, &found, &mut tally, |i| format!("{:?}, length {}", kinds[i].0, kinds[i].1));
            let few = if longest > 200 { 3 } else { inputs.len() };
            let alone = if tally.failed() { 0 } else { few };
            for (i, input) in inputs.iter().enumerate().take(alone) {
                match runner.run(&[input]) {
                    Ok(alone) => expect_same(&alone[0], &found[i], &mut tally, |e| {
                        format!("alone and in a batch: {:?}, length {}, element {e}", kinds[i].0, kinds[i].1)
                    }),
                    Err(error) => tally.fail(error),
                }
            }
        }
        Err(error) => tally.fail(error),
    }
    suite.add(tally.done());
}

/// Compares the results of each sequence with those that the judge has for it alone.
pub(super) fn compare(
    judge: impl Fn(&RaggedBatch) -> Result<Vec<Judged>, GraphError>,
    sequences: &[SequenceInput],
    found: &[SequenceRows],
    tally: &mut Tally,
    describe: impl Fn(usize) -> String,
) {
    for (i, (sequence, found)) in sequences.iter().zip(found).enumerate() {
        let judged = RaggedBatch::pack([sequence]).and_then(|batch| judge(&batch));
        match judged {
            Ok(judged) => {
                for (found, judged) in found.outputs.iter().zip(&judged) {
                    tally.compare(found, &judged.value, &judged.error, |e| format!("{}, element {e}", describe(i)));
                }
            }
            Err(error) => tally.fail(format!("the case itself is wrong: {error}")),
        }
    }
}

fn cases(full: bool) -> Vec<OpCase> {
    let mut cases = Vec::new();
    let mut add = |name: &str, extreme: bool, lengths: &'static [usize], build: Build| {
        cases.push(OpCase { name: name.to_owned(), build, lengths, extreme });
    };
    add("embedding by token id", true, LENGTHS, Box::new(|b| b.x(48)));
    add("embedding by token type", true, LENGTHS, Box::new(|b| b.y(33)));
    add(
        "embedding by position",
        false,
        LENGTHS,
        Box::new(|b| {
            let table = b.weight("positions", &[80, 20], 0.0, 1.0);
            b.builder.embedding("positions", table, Index::Position { offset: 2 })
        }),
    );
    let shapes: &[(usize, usize)] = if full {
        &[(1, 1), (3, 5), (48, 48), (384, 384), (768, 1000), (3072, 64), (17, 129)]
    } else {
        &[(3, 5), (48, 33), (384, 64)]
    };
    for &(k, n) in shapes {
        for with_bias in [true, false] {
            let name = format!("linear {k} to {n}{}", if with_bias { ", bias" } else { "" });
            let build = move |b: &mut OpBuilder| {
                let x = b.x(k)?;
                let weight = b.weight("weight", &[n, k], 0.0, 1.0);
                let bias = with_bias.then(|| b.weight("bias", &[n], 0.0, 1.0));
                b.builder.linear("linear", x, weight, bias)
            };
            add(&name, true, LENGTHS, Box::new(build));
        }
    }
    add(
        "linear of some rows of a weight",
        false,
        LENGTHS,
        Box::new(|b| {
            let x = b.x(24)?;
            b.weight("weight", &[30, 24], 0.0, 1.0);
            b.builder.linear("linear", x, WeightRef::slice("weight", &[30, 24], 10, 21), None)
        }),
    );
    for width in if full { vec![1, 7, 48, 384, 768, 1025] } else { vec![7, 48, 384] } {
        for (eps, what) in [(1e-12, "eps 1e-12"), (1e-5, "eps 1e-5"), (0.5, "eps 0.5")] {
            let build = move |b: &mut OpBuilder| {
                let x = b.x(width)?;
                let weight = b.weight("weight", &[width], 1.0, 0.3);
                let bias = b.weight("bias", &[width], 0.0, 0.5);
                b.builder.layer_norm("norm", x, Some(weight), Some(bias), eps)
            };
            add(&format!("layer norm of {width}, {what}"), false, LENGTHS, Box::new(build));
            let build = move |b: &mut OpBuilder| {
                let x = b.x(width)?;
                let weight = b.weight("weight", &[width], 1.0, 0.3);
                b.builder.rms_norm("norm", x, Some(weight), 0.0, None, eps)
            };
            add(&format!("rms norm of {width}, {what}"), false, LENGTHS, Box::new(build));
        }
    }
    add(
        "layer norm without weights",
        false,
        LENGTHS,
        Box::new(|b| {
            let x = b.x(40)?;
            b.builder.layer_norm("norm", x, None, None, 1e-5)
        }),
    );
    add(
        "rms norm of heads, weight + 1",
        false,
        LENGTHS,
        Box::new(|b| {
            let x = b.x(48)?;
            let weight = b.weight("weight", &[16], 0.0, 0.3);
            b.builder.rms_norm("norm", x, Some(weight), 1.0, Some(16), 1e-6)
        }),
    );
    let functions = [
        Activation::Gelu,
        Activation::GeluTanh,
        Activation::QuickGelu,
        Activation::Relu,
        Activation::Silu,
        Activation::Tanh,
        Activation::Sigmoid,
        Activation::Log1pRelu,
    ];
    for function in functions {
        let build = move |b: &mut OpBuilder| {
            let x = b.x(130)?;
            b.builder.activation("activation", x, function)
        };
        add(&format!("activation {function:?}"), true, LENGTHS, Box::new(build));
        let build = move |b: &mut OpBuilder| {
            let (x, y) = (b.x(37)?, b.y(37)?);
            b.builder.gate("gate", x, y, function)
        };
        add(&format!("gate {function:?}"), false, LENGTHS, Box::new(build));
    }
    add(
        "add",
        true,
        LENGTHS,
        Box::new(|b| {
            let (x, y) = (b.x(40)?, b.y(40)?);
            b.builder.add("add", x, y)
        }),
    );
    add(
        "multiply",
        true,
        LENGTHS,
        Box::new(|b| {
            let (x, y) = (b.x(40)?, b.y(40)?);
            b.builder.multiply("multiply", x, y)
        }),
    );
    add(
        "add one constant row",
        false,
        LENGTHS,
        Box::new(|b| {
            let x = b.x(40)?;
            let row = b.weight("row", &[40], 0.0, 1.0);
            let row = b.builder.constant("row", row)?;
            b.builder.add("add", x, row)
        }),
    );
    add(
        "multiply by one constant row",
        false,
        LENGTHS,
        Box::new(|b| {
            let x = b.x(40)?;
            let row = b.weight("row", &[1, 40], 0.0, 1.0);
            let row = b.builder.constant("row", row)?;
            b.builder.multiply("multiply", x, row)
        }),
    );
    add(
        "scale",
        true,
        LENGTHS,
        Box::new(|b| {
            let x = b.x(33)?;
            b.builder.scale("scale", x, -6.928_203)
        }),
    );
    add(
        "concat",
        true,
        LENGTHS,
        Box::new(|b| {
            let (x, y) = (b.x(5)?, b.y(48)?);
            b.builder.concat("concat", &[y, x])
        }),
    );
    add(
        "columns",
        true,
        LENGTHS,
        Box::new(|b| {
            let x = b.x(50)?;
            b.builder.columns("columns", x, 7, 19)
        }),
    );
    add(
        "l2 normalize",
        true,
        LENGTHS,
        Box::new(|b| {
            let x = b.x(384)?;
            b.builder.l2_normalize("normalize", x)
        }),
    );
    for mode in [
        PoolingMode::Cls,
        PoolingMode::LastToken,
        PoolingMode::Max,
        PoolingMode::Mean,
        PoolingMode::MeanSqrtLen,
        PoolingMode::WeightedMean,
    ] {
        let build = move |b: &mut OpBuilder| {
            let x = b.x(40)?;
            b.builder.pooling("pooling", x, mode)
        };
        add(&format!("pooling {mode:?}"), true, LENGTHS, Box::new(build));
        let build = move |b: &mut OpBuilder| {
            let x = b.x(9)?;
            b.builder.pooling("pooling", x, mode)
        };
        add(&format!("pooling {mode:?} of long sequences"), false, LONG, Box::new(build));
    }
    for (name, spec) in rotaries() {
        let build = move |b: &mut OpBuilder| {
            let x = b.x(3 * spec.head_dim)?;
            b.builder.rotary("rotary", x, spec.clone())
        };
        add(&format!("rotary {name}"), false, LONG, Box::new(build));
    }
    add(
        "constants folded",
        false,
        LENGTHS,
        Box::new(|b| {
            let x = b.x(24)?;
            let table = b.weight("table", &[1, 16], 0.0, 1.0);
            let table = b.builder.constant("table", table)?;
            let (weight, bias) = (b.weight("weight", &[24, 16], 0.0, 0.3), b.weight("bias", &[24], 0.0, 1.0));
            let row = b.builder.linear("projection", table, weight, Some(bias))?;
            let row = b.builder.layer_norm("norm", row, None, None, 1e-5)?;
            b.builder.add("add", x, row)
        }),
    );
    add(
        "linear of pooled rows",
        false,
        LENGTHS,
        Box::new(|b| {
            let x = b.x(24)?;
            let x = b.builder.pooling("pooling", x, PoolingMode::Cls)?;
            let (weight, bias) = (b.weight("weight", &[7, 24], 0.0, 1.0), b.weight("bias", &[7], 0.0, 1.0));
            b.builder.linear("linear", x, weight, Some(bias))
        }),
    );
    cases
}

fn rotaries() -> Vec<(&'static str, RotarySpec)> {
    let plain = |dim| RotarySpec::plain(dim, 10_000.0);
    vec![
        ("half split", plain(16)),
        ("half split, head of 64", plain(64)),
        ("interleaved", RotarySpec { layout: RotaryLayout::Interleaved, ..plain(16) }),
        ("of part of the head", RotarySpec { rotary_dim: 8, ..plain(20) }),
        (
            "of part of the head, interleaved",
            RotarySpec { rotary_dim: 6, layout: RotaryLayout::Interleaved, ..plain(16) },
        ),
        ("linear", RotarySpec { scaling: RotaryScaling::Linear { factor: 4.0 }, ..plain(16) }),
        (
            "dynamic",
            RotarySpec { scaling: RotaryScaling::DynamicNtk { factor: 2.0, original_max_position: 64 }, ..plain(16) },
        ),
        (
            "yarn",
            RotarySpec {
                scaling: RotaryScaling::Yarn {
                    factor: 4.0,
                    original_max_position: 64,
                    beta_fast: 32.0,
                    beta_slow: 1.0,
                    attention_factor: 1.138_629_4,
                    truncate: true,
                },
                ..plain(32)
            },
        ),
        (
            "llama 3",
            RotarySpec {
                theta: 500_000.0,
                scaling: RotaryScaling::Llama3 {
                    factor: 8.0,
                    low_freq_factor: 1.0,
                    high_freq_factor: 4.0,
                    original_max_position: 128,
                },
                ..plain(32)
            },
        ),
    ]
}

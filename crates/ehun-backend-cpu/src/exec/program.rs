//! What runs: steps with their weights packed and their operands' places known.

use ehun_backend::Precision;
use ehun_graph::{
    Activation, AttentionSpec, DType, Graph, Index, PoolingMode, RotarySpec, Rows, WeightId, WeightRef, WeightStore,
};

use super::attention::BiasRows;
use super::ir::{Ir, IrOp, Matrices, Matrix, Term, Value};
use super::product::{self, Product};
use super::schedule::{Place, Schedule, schedule, stride};
use crate::gemm::{Products, WeightBits};
use crate::simd::Isa;

/// Output channels of a product that is pooled at once: what a thread holds of tokens x vocabulary is this wide.
const MAX_CHUNK: usize = 1024;

/// Rows computed from weights alone.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ConstantRows {
    pub(crate) rows: usize,
    pub(crate) width: usize,
    /// `[rows, width]`
    pub(crate) data: Vec<f32>,
}

/// Where an operand lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Loc {
    pub(crate) place: Place,
    /// The graph's value, which finds constant rows.
    pub(crate) root: Value,
    pub(crate) rows: Rows,
    /// First column.
    pub(crate) start: usize,
    pub(crate) width: usize,
    /// From the start of a row to the next.
    pub(crate) stride: usize,
}

/// A term of a sum of embeddings.
#[derive(Debug)]
pub(crate) enum RunTerm {
    Lookup { table: WeightRef, index: Index },
    Row(Vec<f32>),
}

/// An operation, ready to run.
pub(crate) enum RunOp {
    Embed {
        terms: Vec<RunTerm>,
    },
    Constant {
        weight: WeightRef,
    },
    Linear {
        x: Loc,
        product: Product,
        activation: Option<Activation>,
        residual: Option<Loc>,
    },
    /// The product in chunks of its output channels.
    MaxOfLinear {
        x: Loc,
        chunks: Vec<Product>,
        activation: Option<Activation>,
    },
    LayerNorm {
        x: Loc,
        weight: Option<Vec<f32>>,
        bias: Option<Vec<f32>>,
        eps: f32,
    },
    RmsNorm {
        x: Loc,
        weight: Option<Vec<f32>>,
        offset: f32,
        group: usize,
        eps: f32,
    },
    Activation {
        x: Loc,
        function: Activation,
    },
    Gate {
        gate: Loc,
        up: Loc,
        function: Activation,
    },
    Add {
        a: Loc,
        b: Loc,
    },
    Multiply {
        a: Loc,
        b: Loc,
    },
    Scale {
        x: Loc,
        by: f32,
    },
    /// The number of the rotary specification in [`Program::rotaries`].
    Rotary {
        x: Loc,
        tables: usize,
    },
    Concat {
        parts: Vec<Loc>,
    },
    L2Normalize {
        x: Loc,
    },
    Attention {
        q: Loc,
        k: Loc,
        v: Loc,
        spec: AttentionSpec,
        bias: BiasRows,
    },
    Pooling {
        x: Loc,
        mode: PoolingMode,
    },
    ClearEmpty {
        x: Loc,
    },
}

/// A step.
pub(crate) struct RunStep {
    pub(crate) op: RunOp,
    /// Name in profiles.
    pub(crate) name: String,
    pub(crate) out: Loc,
    /// Floating-point operations for each row; those of attention depend on the sequences.
    pub(crate) flops_per_row: u64,
}

/// Steps, stages and memory.
pub(crate) struct Program {
    pub(crate) steps: Vec<RunStep>,
    pub(crate) schedule: Schedule,
    pub(crate) outputs: Vec<Loc>,
    /// The different rotary specifications.
    pub(crate) rotaries: Vec<RotarySpec>,
    /// For each value of the graph, its rows where they are constant and read.
    pub(crate) constants: Vec<Option<ConstantRows>>,
}

/// Packs the weights and resolves the places.
pub(crate) fn lower(
    isa: Isa,
    products: Products,
    precision: Precision,
    graph: &Graph,
    weights: &WeightStore,
    ir: &Ir,
    constants: Vec<Option<ConstantRows>>,
) -> Program {
    let schedule = schedule(ir);
    let mut lowering = Lowering {
        isa,
        products,
        precision,
        graph,
        weights,
        ir,
        schedule: &schedule,
        constants: &constants,
        rotaries: Vec::new(),
    };
    let steps = ir.steps.iter().map(|step| lowering.step(step.op.clone(), step.out)).collect();
    let outputs = ir.outputs.iter().map(|value| lowering.loc(*value)).collect();
    let rotaries = lowering.rotaries;
    Program { steps, outputs, rotaries, schedule, constants }
}

struct Lowering<'a> {
    isa: Isa,
    products: Products,
    precision: Precision,
    graph: &'a Graph,
    weights: &'a WeightStore,
    ir: &'a Ir,
    schedule: &'a Schedule,
    constants: &'a [Option<ConstantRows>],
    rotaries: Vec<RotarySpec>,
}

impl Lowering<'_> {
    fn loc(&self, value: Value) -> Loc {
        let (root, start) = self.ir.root(value);
        let place = self.schedule.places[root];
        let (whole, width) = (self.ir.values[root].width, self.ir.values[value].width);
        let stride = if place == Place::Constant { whole } else { stride(whole) };
        Loc { place, root, rows: self.ir.values[root].rows, start, width, stride }
    }

    fn step(&mut self, op: IrOp, out: Value) -> RunStep {
        let name = op.name();
        let out = self.loc(out);
        let mut flops_per_row = 0;
        let op = match op {
            IrOp::Embed { terms } => {
                flops_per_row = (out.width * (terms.len() - 1)) as u64;
                RunOp::Embed { terms: terms.into_iter().map(|term| self.term(term)).collect() }
            }
            IrOp::Constant { weight } => RunOp::Constant { weight: self.graph.weight(weight).clone() },
            IrOp::Linear { x, matrices, activation, residual } => {
                let product = match &matrices {
                    Matrices::SideBySide(list) => self.side_by_side(list),
                    Matrices::Gated { gate, up } => self.gated(gate, up),
                };
                flops_per_row = product.flops_per_row();
                RunOp::Linear { x: self.loc(x), product, activation, residual: residual.map(|value| self.loc(value)) }
            }
            IrOp::MaxOfLinear { x, matrix, activation } => {
                let chunks = self.chunks(&matrix);
                flops_per_row = chunks.iter().map(Product::flops_per_row).sum();
                RunOp::MaxOfLinear { x: self.loc(x), chunks, activation }
            }
            IrOp::LayerNorm { x, weight, bias, eps } => {
                RunOp::LayerNorm { x: self.loc(x), weight: self.vector(weight), bias: self.vector(bias), eps }
            }
            IrOp::RmsNorm { x, weight, offset, group, eps } => {
                RunOp::RmsNorm { x: self.loc(x), weight: self.vector(weight), offset, group, eps }
            }
            IrOp::Activation { x, function } => RunOp::Activation { x: self.loc(x), function },
            IrOp::Gate { gate, up, function } => RunOp::Gate { gate: self.loc(gate), up: self.loc(up), function },
            IrOp::Add { a, b } => RunOp::Add { a: self.loc(a), b: self.loc(b) },
            IrOp::Multiply { a, b } => RunOp::Multiply { a: self.loc(a), b: self.loc(b) },
            IrOp::Scale { x, by } => RunOp::Scale { x: self.loc(x), by },
            IrOp::Rotary { x, spec } => {
                let tables = self.rotaries.iter().position(|known| *known == spec).unwrap_or_else(|| {
                    self.rotaries.push(spec);
                    self.rotaries.len() - 1
                });
                RunOp::Rotary { x: self.loc(x), tables }
            }
            IrOp::Concat { parts } => RunOp::Concat { parts: parts.into_iter().map(|part| self.loc(part)).collect() },
            IrOp::L2Normalize { x } => RunOp::L2Normalize { x: self.loc(x) },
            IrOp::Attention { q, k, v, spec } => {
                let bias = BiasRows::new(&spec, |value| self.constant(value.index()));
                RunOp::Attention { q: self.loc(q), k: self.loc(k), v: self.loc(v), spec, bias }
            }
            IrOp::Pooling { x, mode } => RunOp::Pooling { x: self.loc(x), mode },
            IrOp::ClearEmpty { x } => RunOp::ClearEmpty { x: self.loc(x) },
        };
        RunStep { op, name, out, flops_per_row }
    }

    /// Constant rows that the folding of the constants left.
    fn constant(&self, value: Value) -> ConstantRows {
        let (root, start) = self.ir.root(value);
        let width = self.ir.values[value].width;
        match self.constants.get(root).and_then(Option::as_ref) {
            Some(rows) => {
                let data = rows.data.chunks_exact(rows.width).flat_map(|row| &row[start..start + width]).copied();
                ConstantRows { rows: rows.rows, width, data: data.collect() }
            }
            None => ConstantRows { rows: 0, width, data: Vec::new() },
        }
    }

    fn term(&self, term: Term) -> RunTerm {
        match term {
            Term::Lookup { table, index } => RunTerm::Lookup { table: self.graph.weight(table).clone(), index },
            Term::Row(value) => RunTerm::Row(self.constant(value).data),
        }
    }

    /// The elements of a weight, which `Graph::check_weights` has seen.
    fn read(&self, weight: WeightId) -> std::borrow::Cow<'_, [f32]> {
        self.weights.read_f32(self.graph.weight(weight)).unwrap_or_default()
    }

    fn vector(&self, weight: Option<WeightId>) -> Option<Vec<f32>> {
        weight.map(|weight| self.read(weight).into_owned())
    }

    /// 16-bit weights stay 16 bits wide: they are widened exactly on their way into the registers.
    fn bits(&self, matrices: &[Matrix]) -> WeightBits {
        let dtype = |matrix: &Matrix| self.weights.dtype(&self.graph.weight(matrix.weight).name);
        let all = |want: DType| matrices.iter().all(|matrix| dtype(matrix) == Some(want));
        if all(DType::F16) {
            WeightBits::F16
        } else if all(DType::Bf16) {
            WeightBits::Bf16
        } else {
            WeightBits::F32
        }
    }

    /// The biases one after the other, zeros for those that are absent; `None` where all are.
    fn biases(&self, matrices: &[Matrix]) -> Option<Vec<f32>> {
        if matrices.iter().all(|matrix| matrix.bias.is_none()) {
            return None;
        }
        let mut all = Vec::new();
        for matrix in matrices {
            match matrix.bias {
                Some(bias) => all.extend_from_slice(&self.read(bias)),
                None => all.resize(all.len() + self.graph.weight(matrix.weight).num_rows(), 0.0),
            }
        }
        Some(all)
    }

    fn side_by_side(&self, matrices: &[Matrix]) -> Product {
        let bits = self.bits(matrices);
        let k = self.graph.weight(matrices[0].weight).width();
        let n = matrices.iter().map(|matrix| self.graph.weight(matrix.weight).num_rows()).sum();
        let values = match matrices {
            [matrix] => self.read(matrix.weight),
            _ => matrices.iter().flat_map(|matrix| self.read(matrix.weight).into_owned()).collect(),
        };
        let packed = product::Matrix { values: &values, up: None, n, k, bits };
        Product::pack(self.isa, self.products, self.precision, packed, self.biases(matrices))
    }

    fn gated(&self, gate: &Matrix, up: &Matrix) -> Product {
        let pair = [*gate, *up];
        let reference = self.graph.weight(gate.weight);
        let (n, k) = (reference.num_rows(), reference.width());
        let (gate, up) = (self.read(gate.weight), self.read(up.weight));
        let packed = product::Matrix { values: &gate, up: Some(&up), n, k, bits: self.bits(&pair) };
        Product::pack(self.isa, self.products, self.precision, packed, self.biases(&pair))
    }

    fn chunks(&self, matrix: &Matrix) -> Vec<Product> {
        let bits = self.bits(std::slice::from_ref(matrix));
        let k = self.graph.weight(matrix.weight).width();
        let (all, bias) = (self.read(matrix.weight), self.vector(matrix.bias));
        all.chunks(MAX_CHUNK * k)
            .enumerate()
            .map(|(number, chunk)| {
                let n = chunk.len() / k;
                let bias = bias.as_ref().map(|bias| bias[number * MAX_CHUNK..][..n].to_vec());
                let packed = product::Matrix { values: chunk, up: None, n, k, bits };
                Product::pack(self.isa, self.products, self.precision, packed, bias)
            })
            .collect()
    }
}

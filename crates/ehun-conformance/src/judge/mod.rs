//! The interpreter's numbers, and how far from each a correct implementation may be.
//!
//! The second is a running error analysis: every operation adds the rounding that it may do ([`Numerics`]) to what it makes
//! of the errors of its operands. The analysis is of first order, and knows nothing of a backend but its precision.

mod attention;
mod numerics;
mod rows;

use ehun_graph::{AttentionSpec, Graph, GraphError, Op, RaggedBatch, ValueId, WeightStore};

pub use attention::{RowJudgement, judge_row};
pub use numerics::{Numerics, UNIT};

use crate::interpreter::Interpreter;
use crate::interpreter::attention::{AttentionInputs, BiasTables};
use crate::random::Random;

/// Numbers with the largest error that each may have.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Judged {
    /// The interpreter's numbers.
    pub value: Vec<f64>,
    /// The largest distance allowed, element by element.
    pub error: Vec<f64>,
}

/// The judge of one graph with its weights.
#[derive(Debug, Clone)]
pub struct Judge {
    interpreter: Interpreter,
    numerics: Numerics,
}

impl Judge {
    /// A judge for backends that compute as `numerics` says.
    pub fn new(graph: &Graph, weights: &WeightStore, numerics: Numerics) -> Result<Self, GraphError> {
        Ok(Self { interpreter: Interpreter::new(graph, weights)?, numerics })
    }

    /// The interpreter.
    pub fn interpreter(&self) -> &Interpreter {
        &self.interpreter
    }

    /// The outputs of the graph in their order, with the error that each element may have.
    pub fn outputs(&self, batch: &RaggedBatch) -> Result<Vec<Judged>, GraphError> {
        let graph = self.interpreter.graph();
        let values = self.interpreter.run_all(batch)?;
        let mut errors: Vec<Vec<f64>> = Vec::new();
        for (id, _) in graph.values() {
            let error = self.error(id, &values, &errors, batch);
            errors.push(error);
        }
        let judged = |id: ValueId| Judged { value: values[id.index()].clone(), error: errors[id.index()].clone() };
        Ok(graph.outputs().iter().map(|output| judged(output.value)).collect())
    }

    /// The outputs with the error that a whole model may have. Worst cases multiply at each operation until a bound says
    /// nothing, so errors are drawn instead (Monte Carlo arithmetic, Parker 1997): `trials` times every element of every
    /// value is moved at random within what its own operation allows, and a row may be off by four times the largest
    /// move that came out.
    pub fn outputs_by_trials(&self, batch: &RaggedBatch, trials: usize) -> Result<Vec<Judged>, GraphError> {
        let graph = self.interpreter.graph();
        let exact = self.interpreter.run_all(batch)?;
        let none: Vec<Vec<f64>> = exact.iter().map(|value| vec![0.0; value.len()]).collect();
        let mut largest: Vec<Vec<f64>> =
            exact.iter().zip(graph.nodes()).map(|(value, node)| vec![0.0; value.len() / node.width]).collect();
        let mut random = Random::new(trials as u64);
        for _ in 0..trials {
            let mut moved: Vec<Vec<f64>> = Vec::new();
            for (id, node) in graph.values() {
                moved.push(self.interpreter.evaluate(node, &moved, batch));
                let allowed = self.error(id, &moved, &none, batch);
                let value = &mut moved[id.index()];
                for (x, allowed) in value.iter_mut().zip(allowed) {
                    *x += allowed * (2.0 * random.uniform() - 1.0);
                }
                let rows = exact[id.index()].chunks_exact(node.width).zip(value.chunks_exact(node.width));
                for ((exact, moved), largest) in rows.zip(&mut largest[id.index()]) {
                    *largest = exact.iter().zip(moved).map(|(a, b)| (a - b).abs()).fold(*largest, f64::max);
                }
            }
        }
        let judged = |id: ValueId| {
            let width = graph.node(id).width;
            let error = largest[id.index()].iter().flat_map(|&row| std::iter::repeat_n(4.0 * row, width)).collect();
            Judged { value: exact[id.index()].clone(), error }
        };
        Ok(graph.outputs().iter().map(|output| judged(output.value)).collect())
    }

    fn error(&self, id: ValueId, values: &[Vec<f64>], errors: &[Vec<f64>], batch: &RaggedBatch) -> Vec<f64> {
        let graph = self.interpreter.graph();
        let node = graph.node(id);
        let n = self.numerics;
        let operand = |id: ValueId| rows::Operand {
            value: &values[id.index()],
            error: &errors[id.index()],
            width: graph.node(id).width,
        };
        let weight = |id: &ehun_graph::WeightId| self.interpreter.weight(*id);
        let y = values[id.index()].as_slice();
        let mut error = match &node.op {
            Op::Embedding { .. } | Op::Constant { .. } => vec![0.0; y.len()],
            Op::Linear { x, weight: w, .. } => rows::linear(n, operand(*x), weight(w), y),
            Op::LayerNorm { x, weight: w, bias, eps } => {
                rows::layer_norm(n, operand(*x), w.as_ref().map(weight), bias.as_ref().map(weight), *eps, y)
            }
            Op::RmsNorm { x, weight: w, offset, group, eps } => {
                rows::rms_norm(n, operand(*x), *group, w.as_ref().map(weight), *offset, *eps, y)
            }
            Op::Activation { x, function } => rows::activation(operand(*x), *function, y),
            Op::Gate { gate, up, function } => rows::gate(operand(*gate), operand(*up), *function, y),
            Op::Add { a, b } => rows::add(operand(*a), operand(*b), y),
            Op::Multiply { a, b } => rows::multiply(operand(*a), operand(*b), y),
            Op::Scale { x, by } => rows::scale(operand(*x), *by, y),
            Op::Rotary { x, spec } => rows::rotary(operand(*x), spec),
            Op::Concat { parts } => {
                let parts: Vec<(&[f64], usize)> =
                    parts.iter().map(|&part| (operand(part).error, graph.node(part).width)).collect();
                crate::interpreter::rows::concat(&parts, y.len() / node.width)
            }
            Op::Columns { x, start, width } => {
                crate::interpreter::rows::columns(operand(*x).error, graph.node(*x).width, *start, *width)
            }
            Op::L2Normalize { x } => rows::l2_normalize(n, operand(*x)),
            Op::Attention { spec, .. } => {
                let operands = node.op.operands();
                let (value, error) = (slices(&operands, values), slices(&operands, errors));
                let (value, error) = (attention_inputs(spec, &value), attention_inputs(spec, &error));
                attention::errors(n, &value, &error, batch)
            }
            Op::Pooling { x, mode } => rows::pooling(n, operand(*x), *mode, batch),
        };
        let moves = matches!(
            node.op,
            Op::Embedding { .. } | Op::Constant { .. } | Op::Concat { .. } | Op::Columns { .. } | Op::Pooling { .. }
        );
        // A result that is computed, and not only moved, may fall below the normal numbers and become zero.
        let underflow = if moves { 0.0 } else { f64::from(f32::MIN_POSITIVE) };
        for (error, y) in error.iter_mut().zip(y) {
            *error += n.stored(*y) + underflow;
        }
        error
    }
}

fn slices<'a>(ids: &[ValueId], of: &'a [Vec<f64>]) -> Vec<&'a [f64]> {
    ids.iter().map(|id| of[id.index()].as_slice()).collect()
}

/// The inputs of an attention operation from its operands in the order of [`Op::operands`].
fn attention_inputs<'a>(spec: &'a AttentionSpec, operands: &[&'a [f64]]) -> AttentionInputs<'a, f64> {
    let (q, k, v) = (operands[0], operands[1], operands[2]);
    AttentionInputs { spec, q, k, v, bias: BiasTables::new(&spec.bias, &operands[3..]) }
}

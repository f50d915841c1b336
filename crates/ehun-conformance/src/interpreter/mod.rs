//! The definition of what a graph computes: float64, plain loops, nothing fused, nothing reordered, nothing fast.

pub mod attention;
pub mod rows;

use ehun_graph::{Graph, GraphError, Node, Op, RaggedBatch, Rows, WeightId, WeightStore};

use attention::{AttentionInputs, BiasTables};

/// One named result in float64.
#[derive(Debug, Clone, PartialEq)]
pub struct OutputRows64 {
    /// The name in the graph.
    pub name: String,
    /// What the rows are; token rows are packed as the batch is.
    pub rows: Rows,
    /// Columns.
    pub width: usize,
    /// `[rows, width]`, row-major.
    pub data: Vec<f64>,
}

impl OutputRows64 {
    /// Row `i`.
    pub fn row(&self, i: usize) -> &[f64] {
        &self.data[i * self.width..(i + 1) * self.width]
    }
}

/// A graph with its weights widened to float64.
#[derive(Debug, Clone)]
pub struct Interpreter {
    graph: Graph,
    weights: Vec<Vec<f64>>,
}

impl Interpreter {
    /// Reads the weights of `graph`. Fails where [`Graph::check_weights`] fails.
    pub fn new(graph: &Graph, weights: &WeightStore) -> Result<Self, GraphError> {
        graph.check_weights(weights)?;
        let read = |weight| {
            let elements = weights.read_f32(weight).unwrap_or_default();
            elements.iter().map(|&x| f64::from(x)).collect()
        };
        let weights = graph.weights().iter().map(read).collect();
        Ok(Self { graph: graph.clone(), weights })
    }

    /// The graph.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The elements of a weight, row-major.
    pub fn weight(&self, id: WeightId) -> &[f64] {
        &self.weights[id.index()]
    }

    /// The outputs of the graph for `batch`, in the order of [`Graph::outputs`]. Fails where [`RaggedBatch::check`] fails.
    pub fn run(&self, batch: &RaggedBatch) -> Result<Vec<OutputRows64>, GraphError> {
        let values = self.run_all(batch)?;
        let outputs = self.graph.outputs().iter().map(|output| {
            let node = self.graph.node(output.value);
            let data = values[output.value.index()].clone();
            OutputRows64 { name: output.name.clone(), rows: node.rows, width: node.width, data }
        });
        Ok(outputs.collect())
    }

    /// The value of every node, by [`ehun_graph::ValueId::index`].
    pub fn run_all(&self, batch: &RaggedBatch) -> Result<Vec<Vec<f64>>, GraphError> {
        self.run_with(batch, |_, value| value)
    }

    /// As [`Interpreter::run_all`], with `after` applied to the value of each node before anything reads it: rounding it
    /// to float32 makes a model of an ideal float32 machine, disturbing it shows how far errors spread.
    pub fn run_with(
        &self,
        batch: &RaggedBatch,
        mut after: impl FnMut(&Node, Vec<f64>) -> Vec<f64>,
    ) -> Result<Vec<Vec<f64>>, GraphError> {
        batch.check(&self.graph)?;
        let mut values: Vec<Vec<f64>> = Vec::new();
        for node in self.graph.nodes() {
            let value = self.evaluate(node, &values, batch);
            values.push(after(node, value));
        }
        Ok(values)
    }

    /// The value of `node`, given the values of all nodes before it.
    pub fn evaluate(&self, node: &Node, values: &[Vec<f64>], batch: &RaggedBatch) -> Vec<f64> {
        let value = |id: ehun_graph::ValueId| values[id.index()].as_slice();
        let width_of = |id: ehun_graph::ValueId| self.graph.node(id).width;
        let weight = |id: &WeightId| self.weight(*id);
        match &node.op {
            Op::Embedding { table, index } => rows::embedding(weight(table), node.width, *index, batch),
            Op::Constant { weight: id } => weight(id).to_vec(),
            Op::Linear { x, weight: w, bias } => {
                rows::linear(value(*x), width_of(*x), weight(w), bias.as_ref().map(weight))
            }
            Op::LayerNorm { x, weight: w, bias, eps } => {
                rows::layer_norm(value(*x), node.width, w.as_ref().map(weight), bias.as_ref().map(weight), *eps)
            }
            Op::RmsNorm { x, weight: w, offset, group, eps } => {
                rows::rms_norm(value(*x), *group, w.as_ref().map(weight), *offset, *eps)
            }
            Op::Activation { x, function } => rows::activation(value(*x), *function),
            Op::Gate { gate, up, function } => rows::gate(value(*gate), value(*up), *function),
            Op::Add { a, b } => rows::add(value(*a), value(*b)),
            Op::Multiply { a, b } => rows::multiply(value(*a), value(*b)),
            Op::Scale { x, by } => rows::scale(value(*x), *by),
            Op::Rotary { x, spec } => rows::rotary(value(*x), node.width, spec, batch),
            Op::Concat { parts } => {
                let parts: Vec<(&[f64], usize)> = parts.iter().map(|&part| (value(part), width_of(part))).collect();
                rows::concat(&parts, num_rows(node.rows, batch))
            }
            Op::Columns { x, start, width } => rows::columns(value(*x), width_of(*x), *start, *width),
            Op::L2Normalize { x } => rows::l2_normalize(value(*x), node.width),
            Op::Attention { q, k, v, spec } => {
                let tables = spec.bias_values().into_iter().map(value).collect::<Vec<_>>();
                let inputs = AttentionInputs {
                    spec,
                    q: value(*q),
                    k: value(*k),
                    v: value(*v),
                    bias: BiasTables::new(&spec.bias, &tables),
                };
                attention::attention(&inputs, batch)
            }
            Op::Pooling { x, mode } => rows::pooling(value(*x), node.width, *mode, batch),
        }
    }
}

/// How many rows `rows` are in `batch`.
pub fn num_rows(rows: Rows, batch: &RaggedBatch) -> usize {
    match rows {
        Rows::Tokens => batch.num_tokens(),
        Rows::Sequences => batch.num_sequences(),
        Rows::Constant(count) => count,
    }
}

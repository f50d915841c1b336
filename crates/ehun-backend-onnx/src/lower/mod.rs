//! The graph as an ONNX model.
//!
//! Batch and length are symbolic: one model serves every shape. Token rows are `[batch, length, width]`, padded behind each
//! sequence; sequence rows `[batch, width]`; constant rows `[rows, width]`. What is computed from weights alone is written
//! down as operations on constants, which the runtime folds when it loads the model.

pub mod attention;
pub mod emit;
pub mod rows;
pub mod scene;

use std::borrow::Cow;

use ehun_graph::{AttentionSpec, DType, Graph, Index, Op, Rows, TensorView, ValueId, WeightId, WeightStore};

use crate::proto::{Dim, Element, Model};
use attention::Form;
use emit::{Emitter, Val};
use scene::{INPUT_IDS, Scene, TOKEN_TYPE_IDS};

/// A weight of the graph that the store does not have. The loader checks this beforehand.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("tensor `{0}` is not in the weights")]
pub struct MissingWeight(pub String);

/// What a model is written for.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    /// The longest sequence, in tokens: tables are laid out for it.
    pub longest: usize,
    /// How each attention operation is written.
    pub form: &'a dyn Fn(&AttentionSpec) -> Form,
    /// Whether the first positions that pooling reads are an input; else pooling reads from the start.
    pub pooling_starts: bool,
}

/// The model of `graph` for `target`.
pub fn lower<'a>(graph: &'a Graph, weights: &'a WeightStore, target: Target<'_>) -> Result<Model<'a>, MissingWeight> {
    let mut e = Emitter::default();
    let scene = Scene::new(&mut e, target.longest, target.pooling_starts);
    let mut lowering = Lowering { graph, weights, form: target.form, e, scene, values: Vec::new() };
    for node in graph.nodes() {
        lowering.e.at(&node.label);
        let value = lowering.operation(&node.op, node.rows, node.width)?;
        lowering.values.push(value);
    }
    for output in graph.outputs() {
        let node = graph.node(output.value);
        let mut dims = match node.rows {
            Rows::Tokens => vec![Dim::Name("batch"), Dim::Name("length")],
            Rows::Sequences => vec![Dim::Name("batch")],
            Rows::Constant(rows) => vec![Dim::Size(rows)],
        };
        dims.push(Dim::Size(node.width));
        let value = lowering.values[output.value.index()].clone();
        lowering.e.output(&output.name, &value, &dims);
    }
    Ok(lowering.e.finish())
}

struct Lowering<'a, 'f> {
    graph: &'a Graph,
    weights: &'a WeightStore,
    form: &'f dyn Fn(&AttentionSpec) -> Form,
    e: Emitter<'a>,
    scene: Scene,
    values: Vec<Val>,
}

impl<'a> Lowering<'a, '_> {
    fn value(&self, id: ValueId) -> Val {
        self.values[id.index()].clone()
    }

    fn view(&self, id: WeightId) -> Result<TensorView<'a>, MissingWeight> {
        let weight = self.graph.weight(id);
        self.weights.view_ref(weight).ok_or_else(|| MissingWeight(weight.name.clone()))
    }

    /// A name for the tensor: the checkpoint's, and the rows where only some are used.
    fn name(&self, id: WeightId) -> String {
        let weight = self.graph.weight(id);
        weight.rows.map_or(weight.name.clone(), |(start, end)| format!("{}[{start}..{end}]", weight.name))
    }

    /// The weight as it is stored, in float32: `[rows]` or `[rows, width]`.
    fn weight(&mut self, id: WeightId) -> Result<Val, MissingWeight> {
        let (view, name) = (self.view(id)?, self.name(id));
        let weight = self.graph.weight(id);
        let dims = match weight.shape.len() {
            1 => vec![weight.num_rows()],
            _ => vec![weight.num_rows(), weight.width()],
        };
        Ok(self.e.tensor(&name, Element::F32, &dims, || match view.dtype {
            DType::F32 => Cow::Borrowed(view.bytes),
            _ => view.to_f32().iter().flat_map(|x| x.to_le_bytes()).collect(),
        }))
    }

    fn optional(&mut self, id: Option<WeightId>) -> Result<Option<Val>, MissingWeight> {
        id.map(|id| self.weight(id)).transpose()
    }

    /// The weight `[out, in]` turned to `[in, out]`, as products want it.
    fn turned(&mut self, id: WeightId) -> Result<Val, MissingWeight> {
        let (view, name) = (self.view(id)?, self.name(id));
        let weight = self.graph.weight(id);
        let (out, width) = (weight.num_rows(), weight.width());
        Ok(self.e.tensor(&format!("{name}.T"), Element::F32, &[width, out], || {
            let data = view.to_f32();
            let mut turned = vec![0u8; 4 * out * width];
            for (row, values) in data.chunks_exact(width).enumerate() {
                for (column, value) in values.iter().enumerate() {
                    turned[4 * (column * out + row)..][..4].copy_from_slice(&value.to_le_bytes());
                }
            }
            turned.into()
        }))
    }

    fn operation(&mut self, op: &Op, kind: Rows, width: usize) -> Result<Val, MissingWeight> {
        Ok(match op {
            Op::Embedding { table, index } => self.embedding(*table, *index)?,
            Op::Constant { weight } => {
                let rows = self.weight(*weight)?;
                self.e.reshape(&rows, &[-1, width as i64])
            }
            Op::Linear { x, weight, bias } => {
                let (weight, bias) = (self.turned(*weight)?, self.optional(*bias)?);
                let x = self.value(*x);
                rows::linear(&mut self.e, &x, &weight, bias.as_ref())
            }
            Op::LayerNorm { x, weight, bias, eps } => {
                let (weight, bias) = (self.optional(*weight)?, self.optional(*bias)?);
                let x = self.value(*x);
                rows::layer_norm(&mut self.e, &x, weight.as_ref(), bias.as_ref(), width, *eps)
            }
            Op::RmsNorm { x, weight, offset, group, eps } => {
                let weight = self.optional(*weight)?;
                let x = self.value(*x);
                let batched = kind == Rows::Tokens;
                rows::rms_norm(&mut self.e, &x, weight.as_ref(), (*offset, *eps), (width, *group), batched)
            }
            Op::Activation { x, function } => {
                let x = self.value(*x);
                rows::activation(&mut self.e, &x, *function)
            }
            Op::Gate { gate, up, function } => {
                let (gate, up) = (self.value(*gate), self.value(*up));
                let gate = rows::activation(&mut self.e, &gate, *function);
                self.e.binary("Mul", &gate, &up)
            }
            Op::Add { a, b } => {
                let (a, b) = (self.value(*a), self.value(*b));
                self.e.binary("Add", &a, &b)
            }
            Op::Multiply { a, b } => {
                let (a, b) = (self.value(*a), self.value(*b));
                self.e.binary("Mul", &a, &b)
            }
            Op::Scale { x, by } => {
                let x = self.value(*x);
                self.e.with_number("Mul", &x, *by)
            }
            Op::Rotary { x, spec } => {
                let x = self.value(*x);
                rows::rotary(&mut self.e, &self.scene, &x, spec, width)
            }
            Op::Concat { parts } => {
                let parts: Vec<Val> = parts.iter().map(|&part| self.value(part)).collect();
                self.e.concat(&parts.iter().collect::<Vec<_>>(), -1)
            }
            Op::Columns { x, start, width } => {
                let x = self.value(*x);
                self.e.slice(&x, -1, *start as i64, (start + width) as i64)
            }
            Op::L2Normalize { x } => {
                let x = self.value(*x);
                rows::l2_normalize(&mut self.e, &x)
            }
            Op::Attention { q, k, v, spec } => {
                let (q, k, v) = (self.value(*q), self.value(*k), self.value(*v));
                let tables: Vec<Val> = spec.bias_values().into_iter().map(|table| self.value(table)).collect();
                let form = (self.form)(spec);
                attention::attention(&mut self.e, &self.scene, form, spec, [&q, &k, &v], &tables)
            }
            Op::Pooling { x, mode } => {
                let x = self.value(*x);
                rows::pooling(&mut self.e, &self.scene, &x, *mode)
            }
        })
    }

    fn embedding(&mut self, table: WeightId, index: Index) -> Result<Val, MissingWeight> {
        let entries = self.graph.weight(table).num_rows() as i64;
        let table = self.weight(table)?;
        let e = &mut self.e;
        let shape = [Dim::Name("batch"), Dim::Name("length")];
        Ok(match index {
            Index::TokenId => {
                let ids = e.input(INPUT_IDS, Element::I64, &shape);
                e.gather(&table, &ids, 0)
            }
            Index::TokenType => {
                let types = e.input(TOKEN_TYPE_IDS, Element::I64, &shape);
                e.gather(&table, &types, 0)
            }
            Index::Position { offset } => {
                // A padded batch may be longer than the table; no sequence in it is, so what stands there is padding.
                let offset = e.int(offset as i64);
                let last = e.int(entries - 1);
                let place = e.binary("Add", &self.scene.positions, &offset);
                let place = e.binary("Min", &place, &last);
                // A row for every token of every sequence, as all token rows have it.
                let lengths = e.unsqueeze(&self.scene.lengths, &[1]);
                let zero = e.int(0);
                let zeros = e.binary("Mul", &lengths, &zero);
                let place = e.binary("Add", &place, &zeros);
                e.gather(&table, &place, 0)
            }
        })
    }
}

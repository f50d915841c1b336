//! The graph as StableHLO text.
//!
//! A program is made for one bucket: token rows are `[batch, length, width]`, sequence rows `[batch, width]`, constant rows
//! `[rows, width]`. Weights are parameters, so that one copy on the device serves the programs of all buckets. What is
//! computed from weights alone is computed once by a program of its own ([`constants`]) and is a parameter of the others.

pub mod attention;
pub mod emit;
pub mod imported;
pub mod rows;
pub mod sizes;

use std::collections::HashMap;

use ehun_backend::{Bucket, Precision};
use ehun_graph::{AttentionSpec, Graph, Index, Op, RotarySpec, Rows, ValueId, WeightId};

use crate::pjrt::Element;
use attention::{Form, How};
use emit::{Elem, Emitter, Val};
use imported::Imported;

/// A parameter of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Input {
    /// Token ids `[batch, length]`, 0 in the padding.
    TokenIds,
    /// Token types `[batch, length]`, 0 in the padding.
    TokenTypes,
    /// Tokens of each sequence `[batch]`.
    Lengths,
    /// First position that pooling reads `[batch]`.
    PoolingStarts,
    /// Cosine or sine of a rotary embedding whose frequencies depend on the length: `[batch, length, rotary_dim / 2]`.
    RotaryByLength {
        /// Place in [`rotary_specs`].
        spec: usize,
        /// Sine, else cosine.
        sine: bool,
    },
    /// Cosine or sine of a rotary embedding `[longest length, rotary_dim / 2]`.
    Rotary {
        /// Place in [`rotary_specs`].
        spec: usize,
        /// Sine, else cosine.
        sine: bool,
    },
    /// A weight as the graph refers to it.
    Weight(WeightId),
    /// A value of constant rows that was computed beforehand.
    Folded(ValueId),
}

impl Input {
    /// Whether it is different for every batch.
    pub fn is_batch(self) -> bool {
        !matches!(self, Self::Rotary { .. } | Self::Weight(_) | Self::Folded(_))
    }
}

/// A parameter with its shape on the device.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct InputSpec {
    /// What it is.
    pub input: Input,
    /// Type of the elements.
    pub element: Element,
    /// Dimensions.
    pub dims: Vec<usize>,
}

/// A program with what it takes and gives.
#[derive(Debug, Clone, PartialEq)]
pub struct Program {
    /// StableHLO text.
    pub text: String,
    /// Parameters in their order.
    pub inputs: Vec<InputSpec>,
    /// Dimensions of the results, all float32, in the order of the graph's outputs (or of [`folded_values`]).
    pub outputs: Vec<Vec<usize>>,
    /// Steps of each loop, whose body compilers count once in their figures: 1 where there is no loop.
    pub loop_steps: usize,
}

/// What a program is made for.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    /// Batch and length.
    pub bucket: Bucket,
    /// Type of the products.
    pub precision: Precision,
    /// Form of every attention operation.
    pub form: Form,
    /// Rows of the rotary tables: the longest length of all buckets, so that all share them.
    pub table_length: usize,
    /// The imported function, for [`Form::Imported`].
    pub imported: Option<&'a Imported>,
    /// Two blocks in each step of a loop: never run, but its figures less the plain program's are those of one step.
    pub probe: bool,
}

/// The rotary embeddings of a graph, each once.
pub fn rotary_specs(graph: &Graph) -> Vec<RotarySpec> {
    let mut specs: Vec<RotarySpec> = Vec::new();
    for node in graph.nodes() {
        if let Op::Rotary { spec, .. } = &node.op
            && !specs.contains(spec)
        {
            specs.push(spec.clone());
        }
    }
    specs
}

/// The values of constant rows that something else than constants reads, weights as they are left out.
pub fn folded_values(graph: &Graph) -> Vec<ValueId> {
    let constant = |value: ValueId| matches!(graph.node(value).rows, Rows::Constant(_));
    let mut read: Vec<ValueId> =
        graph.values().filter(|(value, _)| !constant(*value)).flat_map(|(_, node)| node.op.operands()).collect();
    read.extend(graph.outputs().iter().map(|output| output.value));
    read.retain(|&value| constant(value) && !matches!(graph.node(value).op, Op::Constant { .. }));
    read.sort_unstable();
    read.dedup();
    read
}

/// The program that computes [`folded_values`], in float32; `None` where there are none.
pub fn constants(graph: &Graph) -> Option<Program> {
    let folded = folded_values(graph);
    if folded.is_empty() {
        return None;
    }
    let target = Target {
        bucket: Bucket { batch: 1, length: 1 },
        precision: Precision::F32,
        form: Form::Native,
        table_length: 1,
        imported: None,
        probe: false,
    };
    let mut lowering = Lowering::new(graph, target);
    for (value, node) in graph.values() {
        if matches!(node.rows, Rows::Constant(_)) {
            lowering.node(value);
        }
    }
    Some(lowering.finish(&folded))
}

/// The program of `graph` for `target`.
pub fn lower(graph: &Graph, target: Target<'_>) -> Program {
    let mut lowering = Lowering::new(graph, target);
    let folded = folded_values(graph);
    for (value, node) in graph.values() {
        if !matches!(node.rows, Rows::Constant(_)) {
            lowering.node(value);
        } else if folded.contains(&value) {
            let Rows::Constant(rows) = node.rows else { continue };
            let dims = [rows, node.width];
            let constant = lowering.input(Input::Folded(value), Element::F32, &dims);
            lowering.values.insert(value, constant);
        } else if let Op::Constant { .. } = node.op {
            lowering.node(value);
        }
    }
    let outputs: Vec<ValueId> = graph.outputs().iter().map(|output| output.value).collect();
    lowering.finish(&outputs)
}

/// The program of one attention operation on its own, for its figures: queries, keys and values `[batch, length, ..]` and
/// lengths as arguments. The bias must not read tables.
pub fn attention_alone(graph: &Graph, spec: &AttentionSpec, target: Target<'_>) -> Program {
    let mut lowering = Lowering::new(graph, target);
    let Bucket { batch, length } = target.bucket;
    let elem = lowering.product();
    let widths =
        [spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim, spec.num_kv_heads * spec.value_dim];
    let names = ["%q", "%k", "%v"];
    let [q, k, v] = [0, 1, 2].map(|i| Val::named(names[i], &[batch, length, widths[i]], elem));
    let lengths = Val::named("%lengths", &[batch], Elem::I32);
    let function = lowering.imported_function(spec);
    let how = How { form: target.form, probe: target.probe, function: &function };
    let out = attention::attention(&mut lowering.e, how, spec, [&q, &k, &v], &lengths, &[]);
    let parameters: Vec<String> =
        [q, k, v, lengths].iter().map(|argument| format!("{}: {}", argument.name(), argument.ty())).collect();
    lowering.write(&parameters, &[out])
}

struct Lowering<'a> {
    graph: &'a Graph,
    target: Target<'a>,
    rotary: Vec<RotarySpec>,
    e: Emitter,
    inputs: Vec<InputSpec>,
    arguments: HashMap<Input, Val>,
    values: HashMap<ValueId, Val>,
}

impl<'a> Lowering<'a> {
    fn new(graph: &'a Graph, target: Target<'a>) -> Self {
        Self {
            graph,
            target,
            rotary: rotary_specs(graph),
            e: Emitter::default(),
            inputs: Vec::new(),
            arguments: HashMap::new(),
            values: HashMap::new(),
        }
    }

    /// Type in which token rows are kept between operations, and of the operands of products.
    fn product(&self) -> Elem {
        if self.target.precision == Precision::Bf16 { Elem::Bf16 } else { Elem::F32 }
    }

    fn input(&mut self, input: Input, element: Element, dims: &[usize]) -> Val {
        if let Some(argument) = self.arguments.get(&input) {
            return argument.clone();
        }
        let elem = match element {
            Element::F32 => Elem::F32,
            Element::Bf16 => Elem::Bf16,
            Element::I32 => Elem::I32,
        };
        let argument = Val::named(format!("%arg{}", self.inputs.len()), dims, elem);
        self.inputs.push(InputSpec { input, element, dims: dims.to_vec() });
        self.arguments.insert(input, argument.clone());
        argument
    }

    fn batch_input(&mut self, input: Input) -> Val {
        let Bucket { batch, length } = self.target.bucket;
        let dims = match input {
            Input::TokenIds | Input::TokenTypes => vec![batch, length],
            _ => vec![batch],
        };
        self.input(input, Element::I32, &dims)
    }

    /// A vector, a matrix that is multiplied with, or a table that rows are looked up in.
    fn weight(&mut self, id: WeightId, element: Element) -> Val {
        let weight = self.graph.weight(id);
        let dims = match weight.shape.len() {
            1 => vec![weight.num_rows()],
            _ => vec![weight.num_rows(), weight.width()],
        };
        self.input(Input::Weight(id), element, &dims)
    }

    fn matrix(&mut self, id: WeightId) -> Val {
        let element =
            if self.product() == Elem::Bf16 && !self.read_as_constant(id) { Element::Bf16 } else { Element::F32 };
        self.weight(id, element)
    }

    /// A weight that is constant rows somewhere is kept in float32 for all its users.
    fn read_as_constant(&self, id: WeightId) -> bool {
        self.graph.nodes().iter().any(|node| matches!(node.op, Op::Constant { weight } if weight == id))
    }

    fn vector(&mut self, id: Option<WeightId>) -> Option<Val> {
        id.map(|id| self.weight(id, Element::F32))
    }

    fn value(&self, id: ValueId) -> Val {
        self.values[&id].clone()
    }

    fn node(&mut self, id: ValueId) {
        let graph = self.graph;
        let node = graph.node(id);
        let result = self.operation(&node.op);
        let kept = if node.rows == Rows::Tokens { self.e.convert(&result, self.product()) } else { result };
        self.values.insert(id, kept);
    }

    /// The imported function that serves `spec`; empty for the other forms. [`imported::read`] has found one for each.
    fn imported_function(&self, spec: &AttentionSpec) -> String {
        let name = self.target.imported.and_then(|imported| {
            let signature = imported::signature(self.graph, spec, self.target.bucket, self.target.precision);
            imported.function(&signature).map(str::to_owned)
        });
        name.unwrap_or_default()
    }

    fn operation(&mut self, op: &Op) -> Val {
        match op {
            Op::Embedding { table, index } => self.embedding(*table, *index),
            Op::Constant { weight } => {
                let rows = self.weight(*weight, Element::F32);
                let dims = if rows.dims.len() == 1 { vec![1, rows.dims[0]] } else { rows.dims.clone() };
                self.e.reshape(&rows, &dims)
            }
            Op::Linear { x, weight, bias } => {
                let x = self.value(*x);
                let weight = self.matrix(*weight);
                let bias = self.vector(*bias);
                let product = self.product();
                let weight = self.e.convert(&weight, product);
                rows::linear(&mut self.e, &x, &weight, bias.as_ref())
            }
            Op::LayerNorm { x, weight, bias, eps } => {
                let (x, weight, bias) = (self.value(*x), self.vector(*weight), self.vector(*bias));
                rows::layer_norm(&mut self.e, &x, weight.as_ref(), bias.as_ref(), *eps)
            }
            Op::RmsNorm { x, weight, offset, group, eps } => {
                let (x, weight) = (self.value(*x), self.vector(*weight));
                rows::rms_norm(&mut self.e, &x, weight.as_ref(), *offset, *group, *eps)
            }
            Op::Activation { x, function } => {
                let x = self.value(*x);
                rows::activation(&mut self.e, &x, *function)
            }
            Op::Gate { gate, up, function } => {
                let (gate, up) = (self.value(*gate), self.value(*up));
                let gate = rows::activation(&mut self.e, &gate, *function);
                rows::element_wise(&mut self.e, "multiply", &gate, &up)
            }
            Op::Add { a, b } => {
                let (a, b) = (self.value(*a), self.value(*b));
                rows::element_wise(&mut self.e, "add", &a, &b)
            }
            Op::Multiply { a, b } => {
                let (a, b) = (self.value(*a), self.value(*b));
                rows::element_wise(&mut self.e, "multiply", &a, &b)
            }
            Op::Scale { x, by } => {
                let x = self.value(*x);
                let x = self.e.convert(&x, Elem::F32);
                self.e.binary_number("multiply", &x, f64::from(*by))
            }
            Op::Rotary { x, spec } => {
                let x = self.value(*x);
                let (cos, sin) = (self.rotary_table(spec, false), self.rotary_table(spec, true));
                rows::rotary(&mut self.e, &x, spec, &cos, &sin)
            }
            Op::Concat { parts } => {
                let parts: Vec<Val> = parts.iter().map(|&part| self.value(part)).collect();
                let dim = parts[0].dims.len() - 1;
                self.e.concat(&parts, dim)
            }
            Op::Columns { x, start, width } => {
                let x = self.value(*x);
                self.e.slice_dim(&x, x.dims.len() - 1, *start, *width)
            }
            Op::L2Normalize { x } => {
                let x = self.value(*x);
                rows::l2_normalize(&mut self.e, &x)
            }
            Op::Attention { q, k, v, spec } => {
                let (q, k, v) = (self.value(*q), self.value(*k), self.value(*v));
                let lengths = self.batch_input(Input::Lengths);
                let tables: Vec<Val> = spec.bias_values().into_iter().map(|table| self.value(table)).collect();
                let function = self.imported_function(spec);
                let how = How { form: self.target.form, probe: self.target.probe, function: &function };
                attention::attention(&mut self.e, how, spec, [&q, &k, &v], &lengths, &tables)
            }
            Op::Pooling { x, mode } => {
                let x = self.value(*x);
                let lengths = self.batch_input(Input::Lengths);
                let starts = self.batch_input(Input::PoolingStarts);
                rows::pooling(&mut self.e, &x, *mode, &starts, &lengths)
            }
        }
    }

    fn embedding(&mut self, table: WeightId, index: Index) -> Val {
        let Bucket { batch, length } = self.target.bucket;
        let table = self.matrix(table);
        let (entries, width) = (table.dims[0], table.dims[1]);
        let dims = [batch, length, width];
        match index {
            Index::TokenId => {
                let ids = self.batch_input(Input::TokenIds);
                self.e.gather_rows(&table, &ids)
            }
            Index::TokenType if entries == 1 => {
                let row = self.e.reshape(&table, &[width]);
                self.e.broadcast(&row, &[2], &dims)
            }
            Index::TokenType => {
                let types = self.batch_input(Input::TokenTypes);
                self.e.gather_rows(&table, &types)
            }
            Index::Position { offset } => {
                // A bucket may be longer than the table; no sequence in it is, so what stands there is padding.
                let first = offset.min(entries);
                let rows = length.min(entries - first);
                let positions = self.e.slice_dim(&table, 0, first, rows);
                let positions = self.e.pad_end(&positions, 0, length - rows);
                self.e.broadcast(&positions, &[1, 2], &dims)
            }
        }
    }

    fn rotary_table(&mut self, spec: &RotarySpec, sine: bool) -> Val {
        let Bucket { batch, length } = self.target.bucket;
        let pairs = spec.rotary_dim / 2;
        let place = self.rotary.iter().position(|known| known == spec).unwrap_or(0);
        if spec.depends_on_length() {
            let input = Input::RotaryByLength { spec: place, sine };
            return self.input(input, Element::F32, &[batch, length, pairs]);
        }
        let table = self.input(Input::Rotary { spec: place, sine }, Element::F32, &[self.target.table_length, pairs]);
        self.e.slice_dim(&table, 0, 0, length)
    }

    fn finish(mut self, outputs: &[ValueId]) -> Program {
        let results: Vec<Val> = outputs
            .iter()
            .map(|&output| {
                let value = self.value(output);
                self.e.convert(&value, Elem::F32)
            })
            .collect();
        let parameters: Vec<String> = self
            .inputs
            .iter()
            .map(|spec| {
                let argument = &self.arguments[&spec.input];
                format!("{}: {}", argument.name(), argument.ty())
            })
            .collect();
        self.write(&parameters, &results)
    }

    fn write(self, parameters: &[String], results: &[Val]) -> Program {
        let names: Vec<&str> = results.iter().map(Val::name).collect();
        let types: Vec<String> = results.iter().map(Val::ty).collect();
        let (names, types) = (names.join(", "), types.join(", "));
        let imported = self.target.imported.filter(|_| self.target.form == Form::Imported);
        let text = format!(
            "{}module @ehun {{\n{}  func.func public @main({}) -> ({types}) {{\n{}    return {names} : {types}\n  }}\n}}\n",
            imported.map_or("", |function| function.aliases.as_str()),
            imported.map_or("", |function| function.functions.as_str()),
            parameters.join(", "),
            self.e.into_body(),
        );
        let length = self.target.bucket.length;
        let loops = matches!(self.target.form, Form::Blocked | Form::Flash) && length > attention::BLOCK;
        Program {
            text,
            inputs: self.inputs,
            outputs: results.iter().map(|result| result.dims.clone()).collect(),
            loop_steps: if loops { length.div_ceil(attention::BLOCK) } else { 1 },
        }
    }
}

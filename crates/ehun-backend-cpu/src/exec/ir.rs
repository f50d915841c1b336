//! The graph as it is lowered: steps over values, which the passes of [`super::fuse`] and [`super::select`] rewrite.
//!
//! A value is a matrix of its own, or a **view**: some columns of another value. `Columns` is a view and costs nothing;
//! so are the results of linears that became one product.

use ehun_graph::{Activation, AttentionSpec, Graph, Index, Op, PoolingMode, RotarySpec, Rows, WeightId};

/// A value: its place in [`Ir::values`]. Values of the graph come first and keep their numbers.
pub(crate) type Value = usize;

/// What a value is.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ValueInfo {
    pub(crate) rows: Rows,
    pub(crate) width: usize,
    /// The value whose columns, from the given one on, this is. That value is never itself a view.
    pub(crate) view: Option<(Value, usize)>,
}

/// The matrix of a linear, and its bias.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Matrix {
    pub(crate) weight: WeightId,
    pub(crate) bias: Option<WeightId>,
}

/// The matrices of one product.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Matrices {
    /// The results lie side by side.
    SideBySide(Vec<Matrix>),
    /// `activation(x gate^T) * (x up^T)`.
    Gated { gate: Matrix, up: Matrix },
}

/// A term of a sum of embeddings.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Term {
    Lookup {
        table: WeightId,
        index: Index,
    },
    /// One constant row, added to every row.
    Row(Value),
}

/// An operation. What is not said here is as in [`Op`].
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum IrOp {
    /// The terms are added in their order.
    Embed {
        terms: Vec<Term>,
    },
    Constant {
        weight: WeightId,
    },
    /// `activation(x W^T + b) + residual`
    Linear {
        x: Value,
        matrices: Matrices,
        activation: Option<Activation>,
        residual: Option<Value>,
    },
    /// Token rows to sequence rows: `activation(max over the pooling range of (x W^T + b))`, zero for an empty sequence.
    MaxOfLinear {
        x: Value,
        matrix: Matrix,
        activation: Option<Activation>,
    },
    LayerNorm {
        x: Value,
        weight: Option<WeightId>,
        bias: Option<WeightId>,
        eps: f32,
    },
    RmsNorm {
        x: Value,
        weight: Option<WeightId>,
        offset: f32,
        group: usize,
        eps: f32,
    },
    Activation {
        x: Value,
        function: Activation,
    },
    Gate {
        gate: Value,
        up: Value,
        function: Activation,
    },
    Add {
        a: Value,
        b: Value,
    },
    Multiply {
        a: Value,
        b: Value,
    },
    Scale {
        x: Value,
        by: f32,
    },
    Rotary {
        x: Value,
        spec: RotarySpec,
    },
    Concat {
        parts: Vec<Value>,
    },
    L2Normalize {
        x: Value,
    },
    Attention {
        q: Value,
        k: Value,
        v: Value,
        spec: AttentionSpec,
    },
    Pooling {
        x: Value,
        mode: PoolingMode,
    },
    /// Sequence rows, with zeros for empty sequences.
    ClearEmpty {
        x: Value,
    },
}

impl IrOp {
    /// Calls `f` with every operand, to read or to replace it; the tables of an attention bias are not among them.
    pub(crate) fn for_operands(&mut self, mut f: impl FnMut(&mut Value)) {
        match self {
            Self::Embed { terms } => {
                for term in terms {
                    if let Term::Row(value) = term {
                        f(value);
                    }
                }
            }
            Self::Constant { .. } => {}
            Self::Linear { x, residual, .. } => {
                f(x);
                residual.iter_mut().for_each(f);
            }
            Self::MaxOfLinear { x, .. }
            | Self::LayerNorm { x, .. }
            | Self::RmsNorm { x, .. }
            | Self::Activation { x, .. }
            | Self::Scale { x, .. }
            | Self::Rotary { x, .. }
            | Self::L2Normalize { x }
            | Self::Pooling { x, .. }
            | Self::ClearEmpty { x } => f(x),
            Self::Gate { gate, up, .. } => {
                f(gate);
                f(up);
            }
            Self::Add { a, b } | Self::Multiply { a, b } => {
                f(a);
                f(b);
            }
            Self::Concat { parts } => parts.iter_mut().for_each(f),
            Self::Attention { q, k, v, .. } => [q, k, v].into_iter().for_each(f),
        }
    }

    /// All operands, and the tables of an attention bias after them.
    pub(crate) fn operands(&self) -> Vec<Value> {
        let mut list = Vec::new();
        self.clone().for_operands(|value| list.push(*value));
        if let Self::Attention { spec, .. } = self {
            list.extend(spec.bias_values().iter().map(|value| value.index()));
        }
        list
    }

    /// Name in profiles: `linear+gelu`.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Embed { .. } => "embedding".into(),
            Self::Constant { .. } => "constant".into(),
            Self::Linear { matrices, activation, residual, .. } => {
                let mut name = String::from("linear");
                if let Some(activation) = activation {
                    name += "+";
                    name += activation_name(*activation);
                }
                if matches!(matrices, Matrices::Gated { .. }) {
                    name += "+gate";
                }
                if residual.is_some() {
                    name += "+add";
                }
                name
            }
            Self::MaxOfLinear { activation, .. } => match activation {
                Some(activation) => format!("linear+max+{}", activation_name(*activation)),
                None => "linear+max".into(),
            },
            Self::LayerNorm { .. } => "layer_norm".into(),
            Self::RmsNorm { .. } => "rms_norm".into(),
            Self::Activation { function, .. } => activation_name(*function).into(),
            Self::Gate { .. } => "gate".into(),
            Self::Add { .. } => "add".into(),
            Self::Multiply { .. } => "multiply".into(),
            Self::Scale { .. } => "scale".into(),
            Self::Rotary { .. } => "rotary".into(),
            Self::Concat { .. } => "concat".into(),
            Self::L2Normalize { .. } => "l2_normalize".into(),
            Self::Attention { .. } => "attention".into(),
            Self::Pooling { .. } => "pooling".into(),
            Self::ClearEmpty { .. } => "clear_empty".into(),
        }
    }
}

fn activation_name(function: Activation) -> &'static str {
    match function {
        Activation::Gelu => "gelu",
        Activation::GeluTanh => "gelu_tanh",
        Activation::QuickGelu => "quick_gelu",
        Activation::Relu => "relu",
        Activation::Silu => "silu",
        Activation::Tanh => "tanh",
        Activation::Sigmoid => "sigmoid",
        Activation::Log1pRelu => "log1p_relu",
    }
}

/// An operation and the value that it makes. No step makes a view.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Step {
    pub(crate) op: IrOp,
    pub(crate) out: Value,
}

/// Steps in the order of evaluation.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Ir {
    pub(crate) values: Vec<ValueInfo>,
    pub(crate) steps: Vec<Step>,
    pub(crate) outputs: Vec<Value>,
}

impl Ir {
    /// The part of `graph` that is computed from weights alone. Its outputs are the constant rows that the rest of the
    /// graph reads or that are results.
    pub(crate) fn constants(graph: &Graph) -> Self {
        let mut ir = Self::part(graph, |rows| matches!(rows, Rows::Constant(_)));
        let constant = |value: usize| matches!(ir.values[value].rows, Rows::Constant(_));
        let read_by_rest = graph
            .nodes()
            .iter()
            .filter(|node| !matches!(node.rows, Rows::Constant(_)))
            .flat_map(|node| node.op.operands());
        let results = graph.outputs().iter().map(|output| output.value);
        let mut outputs: Vec<Value> =
            read_by_rest.chain(results).map(|id| id.index()).filter(|value| constant(*value)).collect();
        outputs.sort_unstable();
        outputs.dedup();
        ir.outputs = outputs;
        ir.drop_unused();
        ir
    }

    /// The part of `graph` that is computed for every batch. Constant rows are values without a step.
    pub(crate) fn batch(graph: &Graph) -> Self {
        let mut ir = Self::part(graph, |rows| !matches!(rows, Rows::Constant(_)));
        ir.outputs = graph.outputs().iter().map(|output| output.value.index()).collect();
        ir.drop_unused();
        ir
    }

    fn part(graph: &Graph, belongs: impl Fn(Rows) -> bool) -> Self {
        let mut values: Vec<ValueInfo> =
            graph.nodes().iter().map(|node| ValueInfo { rows: node.rows, width: node.width, view: None }).collect();
        let mut steps = Vec::new();
        for (id, node) in graph.values() {
            if !belongs(node.rows) {
                continue;
            }
            let op = match node.op.clone() {
                Op::Embedding { table, index } => IrOp::Embed { terms: vec![Term::Lookup { table, index }] },
                Op::Constant { weight } => IrOp::Constant { weight },
                Op::Linear { x, weight, bias } => IrOp::Linear {
                    x: x.index(),
                    matrices: Matrices::SideBySide(vec![Matrix { weight, bias }]),
                    activation: None,
                    residual: None,
                },
                Op::LayerNorm { x, weight, bias, eps } => IrOp::LayerNorm { x: x.index(), weight, bias, eps },
                Op::RmsNorm { x, weight, offset, group, eps } => {
                    IrOp::RmsNorm { x: x.index(), weight, offset, group, eps }
                }
                Op::Activation { x, function } => IrOp::Activation { x: x.index(), function },
                Op::Gate { gate, up, function } => IrOp::Gate { gate: gate.index(), up: up.index(), function },
                Op::Add { a, b } => IrOp::Add { a: a.index(), b: b.index() },
                Op::Multiply { a, b } => IrOp::Multiply { a: a.index(), b: b.index() },
                Op::Scale { x, by } => IrOp::Scale { x: x.index(), by },
                Op::Rotary { x, spec } => IrOp::Rotary { x: x.index(), spec },
                Op::Concat { parts } => IrOp::Concat { parts: parts.iter().map(|part| part.index()).collect() },
                Op::Columns { x, start, .. } => {
                    let (root, offset) = root(&values, x.index());
                    values[id.index()].view = Some((root, offset + start));
                    continue;
                }
                Op::L2Normalize { x } => IrOp::L2Normalize { x: x.index() },
                Op::Attention { q, k, v, spec } => IrOp::Attention { q: q.index(), k: k.index(), v: v.index(), spec },
                Op::Pooling { x, mode } => IrOp::Pooling { x: x.index(), mode },
            };
            steps.push(Step { op, out: id.index() });
        }
        Self { values, steps, outputs: Vec::new() }
    }

    /// The value that holds the elements of `value`, and the column at which they start there.
    pub(crate) fn root(&self, value: Value) -> (Value, usize) {
        root(&self.values, value)
    }

    /// A new value.
    pub(crate) fn add_value(&mut self, rows: Rows, width: usize) -> Value {
        self.values.push(ValueInfo { rows, width, view: None });
        self.values.len() - 1
    }

    /// How often each value is read, a result counted as a reader; reading a view reads what it views.
    pub(crate) fn uses(&self) -> Vec<usize> {
        let mut uses = vec![0; self.values.len()];
        let operands = self.steps.iter().flat_map(|step| step.op.operands());
        for value in operands.chain(self.outputs.iter().copied()) {
            uses[value] += 1;
            if let Some((root, _)) = self.values[value].view {
                uses[root] += 1;
            }
        }
        uses
    }

    /// For each value, the place of the step that makes it.
    pub(crate) fn makers(&self) -> Vec<Option<usize>> {
        let mut makers = vec![None; self.values.len()];
        for (place, step) in self.steps.iter().enumerate() {
            makers[step.out] = Some(place);
        }
        makers
    }

    /// Removes steps whose values nothing reads.
    pub(crate) fn drop_unused(&mut self) {
        let mut needed = vec![false; self.values.len()];
        for &value in &self.outputs {
            needed[self.root(value).0] = true;
        }
        for place in (0..self.steps.len()).rev() {
            if needed[self.steps[place].out] {
                for operand in self.steps[place].op.operands() {
                    needed[self.root(operand).0] = true;
                }
            }
        }
        self.steps.retain(|step| needed[step.out]);
    }
}

fn root(values: &[ValueInfo], value: Value) -> (Value, usize) {
    values[value].view.unwrap_or((value, 0))
}

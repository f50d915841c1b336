//! What is computed: nodes in the order of their evaluation.

use serde::{Deserialize, Serialize};

use crate::activation::Activation;
use crate::attention::AttentionSpec;
use crate::error::GraphError;
use crate::rotary::RotarySpec;
use crate::weights::WeightStore;

/// A value of the graph: the result of the node with this number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ValueId(pub(crate) u32);

impl ValueId {
    /// Number of the node that makes the value; also the place of the value in any per-node table.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A weight of the graph: its place in [`Graph::weights`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WeightId(pub(crate) u32);

impl WeightId {
    /// Place of the weight in [`Graph::weights`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// What the rows of a value are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rows {
    /// One row for each token of the batch.
    Tokens,
    /// One row for each sequence of the batch.
    Sequences,
    /// This many rows, the same for every batch: computed from weights alone, so a backend folds it at compile time.
    Constant(usize),
}

/// A tensor of the checkpoint, or some of its leading rows, as the graph expects it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct WeightRef {
    /// Name of the tensor in the checkpoint.
    pub name: String,
    /// Shape of the whole tensor: `[width]` or `[rows, width]`.
    pub shape: Vec<usize>,
    /// Which rows (elements of a one-dimensional tensor) are used; `None` is all. A checkpoint that stores Q, K and V as
    /// one tensor is read through three such references.
    pub rows: Option<(usize, usize)>,
}

impl WeightRef {
    /// All of the tensor `name` with `shape`.
    pub fn whole(name: impl Into<String>, shape: &[usize]) -> Self {
        Self { name: name.into(), shape: shape.to_vec(), rows: None }
    }

    /// The rows `start..end` of the tensor `name`, whose whole shape is `shape`.
    pub fn slice(name: impl Into<String>, shape: &[usize], start: usize, end: usize) -> Self {
        Self { name: name.into(), shape: shape.to_vec(), rows: Some((start, end)) }
    }

    /// Number of rows (elements of a one-dimensional tensor) that are used.
    pub fn num_rows(&self) -> usize {
        self.rows.map_or(self.shape.first().copied().unwrap_or(0), |(start, end)| end - start)
    }

    /// Width of a row: the second dimension, or 1.
    pub fn width(&self) -> usize {
        self.shape.get(1).copied().unwrap_or(1)
    }

    /// Number of elements that are used.
    pub fn num_elements(&self) -> usize {
        self.num_rows() * self.width()
    }
}

/// Which number of a token selects its row in an embedding table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Index {
    /// The token's id.
    TokenId,
    /// The token's type (segment).
    TokenType,
    /// The token's position in its sequence, from 0, plus `offset` (RoBERTa's positions start at `pad_token_id + 1`).
    Position {
        /// Table row of the first token.
        offset: usize,
    },
}

/// How the token rows of a sequence become one row. `r` is the sequence's pooling range, `x_p` the row at position `p`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PoolingMode {
    /// The first row of the range: of the sequence, unless a prompt is left out.
    Cls,
    /// The last row of the range.
    LastToken,
    /// The largest of each column over the range.
    Max,
    /// `sum x_p / |r|`
    Mean,
    /// `sum x_p / sqrt(|r|)`
    MeanSqrtLen,
    /// `sum (p + 1) x_p / sum (p + 1)`, positions counted from the start of the sequence
    WeightedMean,
}

/// An operation. `x` is its operand; the result has the operand's rows unless said otherwise. Every sum is over one row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Op {
    /// Token rows looked up in a table `[entries, width]`.
    Embedding {
        /// The table.
        table: WeightId,
        /// Which row each token takes.
        index: Index,
    },
    /// The rows of a weight as they are: constant rows. A one-dimensional weight is one row.
    Constant {
        /// The weight.
        weight: WeightId,
    },
    /// `x W^T + b`, `W: [out, in]`, `b: [out]`.
    Linear {
        /// Operand `[rows, in]`.
        x: ValueId,
        /// Weight `[out, in]`.
        weight: WeightId,
        /// Bias `[out]`.
        bias: Option<WeightId>,
    },
    /// `(x - mean) / sqrt(variance + eps) * weight + bias`, variance over the row without Bessel's correction.
    LayerNorm {
        /// Operand.
        x: ValueId,
        /// Scale `[width]`; absent is 1.
        weight: Option<WeightId>,
        /// Shift `[width]`; absent is 0.
        bias: Option<WeightId>,
        /// Added to the variance.
        eps: f32,
    },
    /// `x / sqrt(mean(x^2) + eps) * (weight + offset)`, over the row or over each group of `group` elements in it.
    RmsNorm {
        /// Operand.
        x: ValueId,
        /// Scale `[group]`; absent is 1.
        weight: Option<WeightId>,
        /// Added to every element of the scale: 1 for Gemma, else 0.
        offset: f32,
        /// Elements normalised together: the row's width, or a head's.
        group: usize,
        /// Added to the mean square.
        eps: f32,
    },
    /// Element-wise function.
    Activation {
        /// Operand.
        x: ValueId,
        /// The function.
        function: Activation,
    },
    /// `function(gate) * up`: GeGLU, SwiGLU and their kind (Shazeer 2020).
    Gate {
        /// Operand that goes through the function.
        gate: ValueId,
        /// Operand that is multiplied.
        up: ValueId,
        /// The function.
        function: Activation,
    },
    /// `a + b`. `b` may be one constant row, which is added to every row.
    Add {
        /// Left operand; the result has its rows.
        a: ValueId,
        /// Right operand.
        b: ValueId,
    },
    /// `a * b`, element by element. `b` may be one constant row, which multiplies every row.
    Multiply {
        /// Left operand; the result has its rows.
        a: ValueId,
        /// Right operand.
        b: ValueId,
    },
    /// `x * by`.
    Scale {
        /// Operand.
        x: ValueId,
        /// The factor.
        by: f32,
    },
    /// Rotary position embedding of every head of every token row, by the token's position.
    Rotary {
        /// Operand: token rows, a whole number of heads wide.
        x: ValueId,
        /// Frequencies and layout.
        spec: RotarySpec,
    },
    /// Columns of several values side by side.
    Concat {
        /// Operands, all with the same rows.
        parts: Vec<ValueId>,
    },
    /// The columns `start..start + width` of the operand.
    Columns {
        /// Operand.
        x: ValueId,
        /// First column.
        start: usize,
        /// Number of columns.
        width: usize,
    },
    /// `x / max(|x|_2, 1e-12)`.
    L2Normalize {
        /// Operand.
        x: ValueId,
    },
    /// Attention: the one operation that mixes the token rows of a sequence.
    Attention {
        /// Queries `[tokens, num_heads * head_dim]`.
        q: ValueId,
        /// Keys `[tokens, num_kv_heads * head_dim]`.
        k: ValueId,
        /// Values `[tokens, num_kv_heads * value_dim]`.
        v: ValueId,
        /// What exactly is computed.
        spec: AttentionSpec,
    },
    /// The token rows of each sequence become one sequence row. An empty sequence becomes a row of zeros.
    Pooling {
        /// Operand: token rows.
        x: ValueId,
        /// How.
        mode: PoolingMode,
    },
}

impl Op {
    /// The operation's name as it appears in refusals, profiles and reports.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Embedding { .. } => "embedding",
            Self::Constant { .. } => "constant",
            Self::Linear { .. } => "linear",
            Self::LayerNorm { .. } => "layer_norm",
            Self::RmsNorm { .. } => "rms_norm",
            Self::Activation { .. } => "activation",
            Self::Gate { .. } => "gate",
            Self::Add { .. } => "add",
            Self::Multiply { .. } => "multiply",
            Self::Scale { .. } => "scale",
            Self::Rotary { .. } => "rotary",
            Self::Concat { .. } => "concat",
            Self::Columns { .. } => "columns",
            Self::L2Normalize { .. } => "l2_normalize",
            Self::Attention { .. } => "attention",
            Self::Pooling { .. } => "pooling",
        }
    }

    /// The values that the operation reads, the tables of an attention bias last.
    pub fn operands(&self) -> Vec<ValueId> {
        match self {
            Self::Embedding { .. } | Self::Constant { .. } => Vec::new(),
            Self::Linear { x, .. }
            | Self::LayerNorm { x, .. }
            | Self::RmsNorm { x, .. }
            | Self::Activation { x, .. }
            | Self::Scale { x, .. }
            | Self::Rotary { x, .. }
            | Self::Columns { x, .. }
            | Self::L2Normalize { x }
            | Self::Pooling { x, .. } => vec![*x],
            Self::Gate { gate, up, .. } => vec![*gate, *up],
            Self::Add { a, b } | Self::Multiply { a, b } => vec![*a, *b],
            Self::Concat { parts } => parts.clone(),
            Self::Attention { q, k, v, spec } => {
                let mut all = vec![*q, *k, *v];
                all.extend(spec.bias_values());
                all
            }
        }
    }

    /// The weights that the operation reads.
    pub fn weights(&self) -> Vec<WeightId> {
        match self {
            Self::Embedding { table, .. } => vec![*table],
            Self::Constant { weight } => vec![*weight],
            Self::Linear { weight, bias, .. } => std::iter::once(*weight).chain(*bias).collect(),
            Self::LayerNorm { weight, bias, .. } => weight.iter().chain(bias).copied().collect(),
            Self::RmsNorm { weight, .. } => weight.iter().copied().collect(),
            _ => Vec::new(),
        }
    }
}

/// An operation with its place in the model and the shape of its result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// Where it stands, for example `encoder.layer.0.attention.self`.
    pub label: String,
    /// What it does.
    pub op: Op,
    /// What its rows are.
    pub rows: Rows,
    /// Number of columns.
    pub width: usize,
}

/// A named result of the graph.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    /// Name, for example `embedding` or `logits`.
    pub name: String,
    /// The value.
    pub value: ValueId,
}

/// A model as a backend sees it. Made by [`crate::GraphBuilder`] alone, so: every operand comes before its use, every
/// shape fits, and every output is a value of the graph.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Graph {
    pub(crate) nodes: Vec<Node>,
    pub(crate) weights: Vec<WeightRef>,
    pub(crate) outputs: Vec<Output>,
}

impl Graph {
    /// The nodes in the order of evaluation; a [`ValueId`]'s index is a place in it.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The node that makes `value`.
    pub fn node(&self, value: ValueId) -> &Node {
        &self.nodes[value.index()]
    }

    /// All values with their nodes, in the order of evaluation.
    pub fn values(&self) -> impl Iterator<Item = (ValueId, &Node)> {
        (0..).map(ValueId).zip(&self.nodes)
    }

    /// The weights, each once.
    pub fn weights(&self) -> &[WeightRef] {
        &self.weights
    }

    /// The weight with this id.
    pub fn weight(&self, id: WeightId) -> &WeightRef {
        &self.weights[id.index()]
    }

    /// The named results.
    pub fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    /// The attention operations with their labels, in the order of evaluation.
    pub fn attentions(&self) -> impl Iterator<Item = (&str, &AttentionSpec)> {
        self.nodes.iter().filter_map(|node| match &node.op {
            Op::Attention { spec, .. } => Some((node.label.as_str(), spec)),
            _ => None,
        })
    }

    /// The longest sequence that the position tables allow; `None` where nothing bounds it.
    pub fn max_positions(&self) -> Option<usize> {
        self.nodes
            .iter()
            .filter_map(|node| match node.op {
                Op::Embedding { table, index: Index::Position { offset } } => {
                    Some(self.weight(table).num_rows().saturating_sub(offset))
                }
                _ => None,
            })
            .min()
    }

    /// For each value, the node that reads it last; `None` for a value that nothing reads. Outputs are read by the caller
    /// and do not count: see [`Graph::outputs`].
    pub fn last_uses(&self) -> Vec<Option<ValueId>> {
        let mut last = vec![None; self.nodes.len()];
        for (value, node) in self.values() {
            for operand in node.op.operands() {
                last[operand.index()] = Some(value);
            }
        }
        last
    }

    /// Checks that `weights` has every tensor of the graph in its shape. The loader calls this before any backend sees
    /// the graph.
    pub fn check_weights(&self, weights: &WeightStore) -> Result<(), GraphError> {
        for (id, weight) in (0..).map(WeightId).zip(&self.weights) {
            let operation = || {
                let user = self.nodes.iter().find(|node| node.op.weights().contains(&id));
                user.map_or_else(String::new, |node| node.label.clone())
            };
            let Some(shape) = weights.shape(&weight.name) else {
                return Err(GraphError::MissingWeight { operation: operation(), tensor: weight.name.clone() });
            };
            if shape != weight.shape {
                return Err(GraphError::WeightShape {
                    operation: operation(),
                    tensor: weight.name.clone(),
                    expected: weight.shape.clone(),
                    found: shape.to_vec(),
                });
            }
            if weights.dtype(&weight.name).is_none() {
                let found = weights.stored_type(&weight.name).unwrap_or_default();
                return Err(GraphError::WeightType { tensor: weight.name.clone(), found });
            }
        }
        Ok(())
    }
}

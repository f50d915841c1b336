//! The only way to make a graph. Each method adds one operation, checks the shapes and returns the value.

use std::collections::HashMap;

use crate::activation::Activation;
use crate::attention::{AttentionSpec, Bias};
use crate::error::GraphError;
use crate::graph::{Graph, Index, Node, Op, Output, PoolingMode, Rows, ValueId, WeightId, WeightRef};
use crate::rotary::RotarySpec;

/// Builds a [`Graph`] operation by operation. Labels are the current scope plus the name given, so that an error or a
/// profile line reads `encoder.layer.3.output: ...`.
#[derive(Debug, Default)]
pub struct GraphBuilder {
    nodes: Vec<Node>,
    weights: Vec<WeightRef>,
    ids: HashMap<WeightRef, WeightId>,
    outputs: Vec<Output>,
    scope: String,
}

type Built = Result<ValueId, GraphError>;

impl GraphBuilder {
    /// An empty graph.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the prefix of the labels of all that follows.
    pub fn scope(&mut self, scope: impl Into<String>) {
        self.scope = scope.into();
    }

    /// Rows and width of a value.
    pub fn shape(&self, value: ValueId) -> (Rows, usize) {
        let node = &self.nodes[value.index()];
        (node.rows, node.width)
    }

    /// Width of a value.
    pub fn width(&self, value: ValueId) -> usize {
        self.shape(value).1
    }

    /// Token rows from a table `[entries, width]`.
    pub fn embedding(&mut self, name: &str, table: WeightRef, index: Index) -> Built {
        self.two_dimensional(name, &table)?;
        self.rows_in_tensor(name, &table)?;
        let width = table.width();
        let table = self.weight(table);
        Ok(self.push(name, Op::Embedding { table, index }, Rows::Tokens, width))
    }

    /// The rows of a weight as constant rows; a one-dimensional weight is one row.
    pub fn constant(&mut self, name: &str, weight: WeightRef) -> Built {
        self.rows_in_tensor(name, &weight)?;
        let (rows, width) = match weight.shape.len() {
            1 => (1, weight.num_rows()),
            2 => (weight.num_rows(), weight.width()),
            n => return Err(self.shape_error(name, format!("a constant has one or two dimensions, not {n}"))),
        };
        let weight = self.weight(weight);
        Ok(self.push(name, Op::Constant { weight }, Rows::Constant(rows), width))
    }

    /// `x W^T + b` with `weight: [out, width of x]` and `bias: [out]`.
    pub fn linear(&mut self, name: &str, x: ValueId, weight: WeightRef, bias: Option<WeightRef>) -> Built {
        self.two_dimensional(name, &weight)?;
        self.rows_in_tensor(name, &weight)?;
        let (rows, width) = self.shape(x);
        if weight.width() != width {
            return Err(self.shape_error(
                name,
                format!("weight `{}` takes rows of {}, the operand has rows of {width}", weight.name, weight.width()),
            ));
        }
        let out = weight.num_rows();
        let weight = self.weight(weight);
        let bias = bias.map(|bias| self.vector(name, bias, out)).transpose()?;
        Ok(self.push(name, Op::Linear { x, weight, bias }, rows, out))
    }

    /// Layer norm over the row.
    pub fn layer_norm(
        &mut self,
        name: &str,
        x: ValueId,
        weight: Option<WeightRef>,
        bias: Option<WeightRef>,
        eps: f32,
    ) -> Built {
        self.positive(name, "eps", eps)?;
        let (rows, width) = self.shape(x);
        let weight = weight.map(|weight| self.vector(name, weight, width)).transpose()?;
        let bias = bias.map(|bias| self.vector(name, bias, width)).transpose()?;
        Ok(self.push(name, Op::LayerNorm { x, weight, bias, eps }, rows, width))
    }

    /// RMS norm over each group of `group` elements (`None`: the row); the scale is `weight + offset`.
    pub fn rms_norm(
        &mut self,
        name: &str,
        x: ValueId,
        weight: Option<WeightRef>,
        offset: f32,
        group: Option<usize>,
        eps: f32,
    ) -> Built {
        self.positive(name, "eps", eps)?;
        let (rows, width) = self.shape(x);
        let group = group.unwrap_or(width);
        if group == 0 || !width.is_multiple_of(group) {
            return Err(self.shape_error(name, format!("rows of {width} are no whole number of groups of {group}")));
        }
        let weight = weight.map(|weight| self.vector(name, weight, group)).transpose()?;
        Ok(self.push(name, Op::RmsNorm { x, weight, offset, group, eps }, rows, width))
    }

    /// Element-wise function.
    pub fn activation(&mut self, name: &str, x: ValueId, function: Activation) -> Built {
        let (rows, width) = self.shape(x);
        Ok(self.push(name, Op::Activation { x, function }, rows, width))
    }

    /// `function(gate) * up`.
    pub fn gate(&mut self, name: &str, gate: ValueId, up: ValueId, function: Activation) -> Built {
        let (rows, width) = self.shape(gate);
        if self.shape(up) != (rows, width) {
            return Err(self.unequal(name, gate, up));
        }
        Ok(self.push(name, Op::Gate { gate, up, function }, rows, width))
    }

    /// `a + b`; `b` may be one constant row.
    pub fn add(&mut self, name: &str, a: ValueId, b: ValueId) -> Built {
        let (rows, width) = self.broadcast(name, a, b)?;
        Ok(self.push(name, Op::Add { a, b }, rows, width))
    }

    /// `a * b`; `b` may be one constant row.
    pub fn multiply(&mut self, name: &str, a: ValueId, b: ValueId) -> Built {
        let (rows, width) = self.broadcast(name, a, b)?;
        Ok(self.push(name, Op::Multiply { a, b }, rows, width))
    }

    /// `x * by`.
    pub fn scale(&mut self, name: &str, x: ValueId, by: f32) -> Built {
        if !by.is_finite() {
            return Err(self.parameter(name, format!("the factor {by} is not a finite number")));
        }
        let (rows, width) = self.shape(x);
        Ok(self.push(name, Op::Scale { x, by }, rows, width))
    }

    /// Rotary position embedding of every head.
    pub fn rotary(&mut self, name: &str, x: ValueId, spec: RotarySpec) -> Built {
        let (rows, width) = self.shape(x);
        self.tokens(name, x)?;
        if spec.head_dim == 0 || !width.is_multiple_of(spec.head_dim) {
            return Err(
                self.shape_error(name, format!("rows of {width} are no whole number of heads of {}", spec.head_dim))
            );
        }
        if !spec.rotary_dim.is_multiple_of(2) || spec.rotary_dim > spec.head_dim || spec.rotary_dim == 0 {
            return Err(self.parameter(
                name,
                format!(
                    "rotary width {} must be even, above 0 and at most the head's {}",
                    spec.rotary_dim, spec.head_dim
                ),
            ));
        }
        if !(spec.theta.is_finite() && spec.theta > 0.0) {
            return Err(self.parameter(name, format!("rotary base {} must be a positive number", spec.theta)));
        }
        Ok(self.push(name, Op::Rotary { x, spec }, rows, width))
    }

    /// Columns of several values side by side.
    pub fn concat(&mut self, name: &str, parts: &[ValueId]) -> Built {
        let Some(&first) = parts.first() else {
            return Err(self.parameter(name, "nothing to put side by side".into()));
        };
        let rows = self.shape(first).0;
        if let Some(&other) = parts.iter().find(|&&part| self.shape(part).0 != rows) {
            return Err(self.unequal(name, first, other));
        }
        let width = parts.iter().map(|&part| self.width(part)).sum();
        Ok(self.push(name, Op::Concat { parts: parts.to_vec() }, rows, width))
    }

    /// The columns `start..start + width`.
    pub fn columns(&mut self, name: &str, x: ValueId, start: usize, width: usize) -> Built {
        let (rows, whole) = self.shape(x);
        if width == 0 || start + width > whole {
            return Err(self.shape_error(name, format!("columns {start}..{} of a row of {whole}", start + width)));
        }
        Ok(self.push(name, Op::Columns { x, start, width }, rows, width))
    }

    /// Rows scaled to length 1.
    pub fn l2_normalize(&mut self, name: &str, x: ValueId) -> Built {
        let (rows, width) = self.shape(x);
        Ok(self.push(name, Op::L2Normalize { x }, rows, width))
    }

    /// Attention over each sequence.
    pub fn attention(&mut self, name: &str, q: ValueId, k: ValueId, v: ValueId, spec: AttentionSpec) -> Built {
        for operand in [q, k, v] {
            self.tokens(name, operand)?;
        }
        let AttentionSpec { num_heads, num_kv_heads, head_dim, value_dim, scale, .. } = spec;
        if num_heads == 0 || num_kv_heads == 0 || head_dim == 0 || value_dim == 0 {
            return Err(self.parameter(name, "heads and widths must be above 0".into()));
        }
        if !num_heads.is_multiple_of(num_kv_heads) {
            return Err(self.parameter(
                name,
                format!("{num_heads} query heads are no multiple of {num_kv_heads} key/value heads"),
            ));
        }
        if !scale.is_finite() || spec.soft_cap.is_some_and(|cap| !(cap.is_finite() && cap > 0.0)) {
            return Err(self.parameter(name, "scale and soft cap must be finite, the cap above 0".into()));
        }
        for (what, value, want) in
            [("q", q, num_heads * head_dim), ("k", k, num_kv_heads * head_dim), ("v", v, num_kv_heads * value_dim)]
        {
            let width = self.width(value);
            if width != want {
                return Err(self.shape_error(name, format!("{what} has rows of {width}, the heads ask for {want}")));
            }
        }
        self.check_bias(name, &spec)?;
        let width = num_heads * value_dim;
        Ok(self.push(name, Op::Attention { q, k, v, spec }, Rows::Tokens, width))
    }

    /// The token rows of each sequence become one sequence row.
    pub fn pooling(&mut self, name: &str, x: ValueId, mode: PoolingMode) -> Built {
        self.tokens(name, x)?;
        let width = self.width(x);
        Ok(self.push(name, Op::Pooling { x, mode }, Rows::Sequences, width))
    }

    /// Names a value as a result.
    pub fn output(&mut self, name: impl Into<String>, value: ValueId) {
        self.outputs.push(Output { name: name.into(), value });
    }

    /// The finished graph. Fails where nothing was named as a result.
    pub fn finish(self) -> Result<Graph, GraphError> {
        if self.outputs.is_empty() {
            return Err(GraphError::Parameter { operation: "graph".into(), message: "no output was named".into() });
        }
        Ok(Graph { nodes: self.nodes, weights: self.weights, outputs: self.outputs })
    }

    fn push(&mut self, name: &str, op: Op, rows: Rows, width: usize) -> ValueId {
        let label = self.label(name);
        self.nodes.push(Node { label, op, rows, width });
        ValueId(self.nodes.len() as u32 - 1)
    }

    fn weight(&mut self, weight: WeightRef) -> WeightId {
        *self.ids.entry(weight).or_insert_with_key(|weight| {
            self.weights.push(weight.clone());
            WeightId(self.weights.len() as u32 - 1)
        })
    }

    fn vector(&mut self, name: &str, weight: WeightRef, len: usize) -> Result<WeightId, GraphError> {
        self.rows_in_tensor(name, &weight)?;
        if weight.shape.len() != 1 || weight.num_rows() != len {
            return Err(self.shape_error(
                name,
                format!("`{}` has shape {:?}, a vector of {len} is needed", weight.name, weight.shape),
            ));
        }
        Ok(self.weight(weight))
    }

    fn check_bias(&self, name: &str, spec: &AttentionSpec) -> Result<(), GraphError> {
        let table = |what: &str, value: ValueId, rows: usize, width: usize| {
            let found = self.shape(value);
            if found == (Rows::Constant(rows), width) {
                return Ok(());
            }
            Err(self.shape_error(name, format!("{what} must be constant rows [{rows}, {width}], found {found:?}")))
        };
        match &spec.bias {
            Bias::None => Ok(()),
            Bias::Alibi { slopes } if slopes.len() == spec.num_heads => Ok(()),
            Bias::Alibi { slopes } => {
                Err(self.parameter(name, format!("{} slopes for {} heads", slopes.len(), spec.num_heads)))
            }
            Bias::Bucketed { table: value, rule } => {
                if rule.num_buckets < 4 || rule.max_distance <= rule.num_buckets / 2 {
                    return Err(self.parameter(
                        name,
                        format!("{} buckets up to distance {} tell nothing apart", rule.num_buckets, rule.max_distance),
                    ));
                }
                table("the bias table", *value, rule.num_buckets as usize, spec.num_heads)
            }
            Bias::Disentangled { key_positions, query_positions, rule } => {
                if key_positions.is_none() && query_positions.is_none() {
                    return Err(self.parameter(name, "disentangled attention without a position table".into()));
                }
                if spec.num_heads != spec.num_kv_heads {
                    return Err(self.parameter(name, "disentangled attention has as many key as query heads".into()));
                }
                for value in key_positions.iter().chain(query_positions) {
                    table("a position table", *value, 2 * rule.span as usize, spec.num_heads * spec.head_dim)?;
                }
                Ok(())
            }
        }
    }

    fn broadcast(&self, name: &str, a: ValueId, b: ValueId) -> Result<(Rows, usize), GraphError> {
        let (rows, width) = self.shape(a);
        let other = self.shape(b);
        if other == (rows, width) || other == (Rows::Constant(1), width) {
            return Ok((rows, width));
        }
        Err(self.unequal(name, a, b))
    }

    fn two_dimensional(&self, name: &str, weight: &WeightRef) -> Result<(), GraphError> {
        if weight.shape.len() == 2 {
            return Ok(());
        }
        Err(self
            .shape_error(name, format!("`{}` has shape {:?}, two dimensions are needed", weight.name, weight.shape)))
    }

    fn rows_in_tensor(&self, name: &str, weight: &WeightRef) -> Result<(), GraphError> {
        let all = weight.shape.first().copied().unwrap_or(0);
        match weight.rows {
            Some((start, end)) if start >= end || end > all => {
                Err(self.shape_error(name, format!("rows {start}..{end} of `{}`, which has {all}", weight.name)))
            }
            _ if weight.num_elements() == 0 => Err(self.shape_error(name, format!("`{}` is empty", weight.name))),
            _ => Ok(()),
        }
    }

    fn tokens(&self, name: &str, value: ValueId) -> Result<(), GraphError> {
        match self.shape(value).0 {
            Rows::Tokens => Ok(()),
            rows => Err(self.shape_error(name, format!("token rows are needed, found {rows:?}"))),
        }
    }

    fn positive(&self, name: &str, what: &str, value: f32) -> Result<(), GraphError> {
        if value.is_finite() && value >= 0.0 {
            return Ok(());
        }
        Err(self.parameter(name, format!("{what} is {value}, it must be a number from 0")))
    }

    fn unequal(&self, name: &str, a: ValueId, b: ValueId) -> GraphError {
        self.shape_error(name, format!("operands are {:?} and {:?}", self.shape(a), self.shape(b)))
    }

    fn label(&self, name: &str) -> String {
        if self.scope.is_empty() { name.to_owned() } else { format!("{}.{name}", self.scope) }
    }

    fn shape_error(&self, name: &str, message: String) -> GraphError {
        GraphError::Shape { operation: self.label(name), message }
    }

    fn parameter(&self, name: &str, message: String) -> GraphError {
        GraphError::Parameter { operation: self.label(name), message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> (GraphBuilder, ValueId) {
        let mut b = GraphBuilder::new();
        b.scope("embeddings");
        let x = b.embedding("word", WeightRef::whole("word", &[10, 8]), Index::TokenId).unwrap();
        b.scope("layer.0");
        (b, x)
    }

    #[test]
    fn weights_are_listed_once() {
        let (mut b, x) = small();
        let tied = WeightRef::whole("word", &[10, 8]);
        let logits = b.linear("decoder", x, tied, None).unwrap();
        assert_eq!(b.shape(logits), (Rows::Tokens, 10));
        b.output("logits", logits);
        let graph = b.finish().unwrap();
        assert_eq!(graph.weights().len(), 1);
        assert_eq!(graph.last_uses(), [Some(logits), None]);
    }

    #[test]
    fn errors_name_the_operation() {
        let (mut b, x) = small();
        let message = b.linear("dense", x, WeightRef::whole("w", &[4, 9]), None).unwrap_err().to_string();
        assert!(message.contains("layer.0.dense") && message.contains("rows of 9"), "{message}");
        let spec = AttentionSpec::full(3, 4);
        let message = b.attention("self", x, x, x, spec).unwrap_err().to_string();
        assert!(message.contains("layer.0.self") && message.contains("12"), "{message}");
        let slice = WeightRef::slice("qkv", &[24, 8], 16, 25);
        assert!(b.linear("v", x, slice, None).is_err());
        let pooled = b.pooling("pool", x, PoolingMode::Mean).unwrap();
        assert!(b.add("residual", pooled, x).is_err());
        assert!(b.rotary("rotary", pooled, RotarySpec::plain(4, 1e4)).is_err());
        assert!(b.finish().is_err(), "a graph without an output");
    }

    #[test]
    fn bias_tables_must_be_constant_rows_of_the_right_shape() {
        let (mut b, x) = small();
        let table = b.constant("table", WeightRef::whole("rel", &[32, 2])).unwrap();
        let rule = crate::BucketRule { num_buckets: 32, max_distance: 128, bidirectional: true };
        let mut spec = AttentionSpec::full(2, 4);
        spec.bias = Bias::Bucketed { table, rule };
        assert!(b.attention("self", x, x, x, spec.clone()).is_ok());
        spec.bias = Bias::Bucketed { table: x, rule };
        assert!(b.attention("self", x, x, x, spec).is_err());
    }
}

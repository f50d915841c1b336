//! A backend around plain functions: any attention kernel, or any other operation, can be judged by the suite without a
//! backend of its own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use ehun_backend::{
    Attention, AttentionChoice, Backend, BackendError, BackendInfo, Capabilities, Executable, Options, OutputRows,
    Outputs, Plan, Precision, Refusal, RunOptions, RunReport, ShapePolicy,
};
use ehun_graph::{AttentionSpec, Graph, Node, Op, RaggedBatch, WeightStore};

use crate::interpreter::attention::{AttentionInputs, BiasTables};
use crate::interpreter::{Interpreter, num_rows};

/// An attention kernel over packed sequences.
pub trait AttentionKernel: Send + Sync {
    /// Why it cannot compute `spec`; empty where it can.
    fn refusals(&self, spec: &AttentionSpec) -> Vec<String> {
        let _ = spec;
        Vec::new()
    }

    /// Writes `out: [tokens, num_heads * value_dim]`, which holds NaN, for the sequences of `cu_seqlens`.
    fn run(&self, inputs: &AttentionInputs<'_, f32>, cu_seqlens: &[usize], out: &mut [f32]) -> Result<(), String>;
}

impl<F> AttentionKernel for F
where
    F: Fn(&AttentionInputs<'_, f32>, &[usize], &mut [f32]) + Send + Sync,
{
    fn run(&self, inputs: &AttentionInputs<'_, f32>, cu_seqlens: &[usize], out: &mut [f32]) -> Result<(), String> {
        self(inputs, cu_seqlens, out);
        Ok(())
    }
}

/// An operation with what it reads, in float32.
#[derive(Debug)]
pub struct NodeInputs<'a> {
    /// The operation.
    pub node: &'a Node,
    /// Values of [`Op::operands`].
    pub operands: Vec<&'a [f32]>,
    /// Widths of the operands.
    pub widths: Vec<usize>,
    /// Values of [`Op::weights`].
    pub weights: Vec<&'a [f32]>,
    /// The batch.
    pub batch: &'a RaggedBatch,
}

type Replacement = Arc<dyn Fn(&NodeInputs<'_>) -> Option<Vec<f32>> + Send + Sync>;

/// A backend that computes as the interpreter does and rounds every value to float32, with its attention or any other
/// operation replaced.
#[derive(Clone)]
pub struct KernelBackend {
    name: String,
    attention: Option<Arc<dyn AttentionKernel>>,
    replacement: Option<Replacement>,
}

impl KernelBackend {
    /// The interpreter rounded to float32, nothing replaced: the best that float32 can be.
    pub fn ideal() -> Self {
        Self { name: "ideal".into(), attention: None, replacement: None }
    }

    /// With the attention kernel `kernel`.
    pub fn new(name: impl Into<String>, kernel: impl AttentionKernel + 'static) -> Self {
        Self { name: name.into(), attention: Some(Arc::new(kernel)), replacement: None }
    }

    /// With `replacement` asked about every operation; where it answers, that is the value.
    pub fn replacing(
        name: impl Into<String>,
        replacement: impl Fn(&NodeInputs<'_>) -> Option<Vec<f32>> + Send + Sync + 'static,
    ) -> Self {
        Self { name: name.into(), attention: None, replacement: Some(Arc::new(replacement)) }
    }

    fn refusals(&self, graph: &Graph, options: &Options) -> Vec<Refusal> {
        let mut refusals = Vec::new();
        if options.precision != Precision::F32 {
            refusals.push(Refusal::new("options", format!("precision {}: there is only f32", options.precision)));
        }
        let known = match &options.attention {
            Attention::Auto => true,
            Attention::Named(name) => *name == self.name,
            Attention::File(_) => false,
        };
        if !known {
            let reason = format!("attention {}: there is only `{}`", options.attention, self.name);
            refusals.push(Refusal::new("options", reason));
        }
        if let Some(kernel) = &self.attention {
            for (label, spec) in graph.attentions() {
                refusals.extend(kernel.refusals(spec).into_iter().map(|reason| Refusal::new(label, reason)));
            }
        }
        refusals
    }
}

impl Backend for KernelBackend {
    fn info(&self) -> BackendInfo {
        BackendInfo {
            name: format!("kernel:{}", self.name),
            device: "interpreter rounded to float32".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            attention_kernels: vec![self.name.clone()],
            precisions: vec![Precision::F32],
            static_shapes: false,
            notes: Vec::new(),
        }
    }

    fn capabilities(&self, graph: &Graph, options: &Options) -> Capabilities {
        let info = self.info();
        let choice = |(label, _): (&str, &AttentionSpec)| AttentionChoice {
            operation: label.to_owned(),
            kernel: self.name.clone(),
            reason: "the only one".into(),
        };
        Capabilities {
            backend: info.name,
            device: info.device,
            precision: Precision::F32,
            attention: graph.attentions().map(choice).collect(),
            weight_bytes: graph.weights().iter().map(|weight| 8 * weight.num_elements() as u64).sum(),
            batch_bytes: None,
            refusals: self.refusals(graph, options),
        }
    }

    fn compile(
        &self,
        graph: Arc<Graph>,
        weights: &WeightStore,
        options: &Options,
    ) -> Result<Box<dyn Executable>, BackendError> {
        let refusals = self.refusals(&graph, options);
        if !refusals.is_empty() {
            return Err(BackendError::Refused(refusals));
        }
        let interpreter = Interpreter::new(&graph, weights)?;
        let read = |weight| weights.read_f32(weight).unwrap_or_default().into_owned();
        let weights = graph.weights().iter().map(read).collect();
        Ok(Box::new(Compiled { backend: self.clone(), interpreter, weights, max_tokens: options.max_batch_tokens }))
    }
}

struct Compiled {
    backend: KernelBackend,
    interpreter: Interpreter,
    weights: Vec<Vec<f32>>,
    max_tokens: usize,
}

impl Compiled {
    fn evaluate(&self, node: &Node, values: &[Vec<f32>], batch: &RaggedBatch) -> Result<Vec<f32>, BackendError> {
        let operands: Vec<&[f32]> = node.op.operands().iter().map(|id| values[id.index()].as_slice()).collect();
        if let Some(replacement) = &self.backend.replacement {
            let widths = node.op.operands().iter().map(|&id| self.interpreter.graph().node(id).width).collect();
            let weights = node.op.weights().iter().map(|id| self.weights[id.index()].as_slice()).collect();
            let inputs = NodeInputs { node, operands: operands.clone(), widths, weights, batch };
            if let Some(value) = replacement(&inputs) {
                return Ok(value);
            }
        }
        if let (Some(kernel), Op::Attention { spec, .. }) = (&self.backend.attention, &node.op) {
            let inputs = AttentionInputs {
                spec,
                q: operands[0],
                k: operands[1],
                v: operands[2],
                bias: BiasTables::new(&spec.bias, &operands[3..]),
            };
            let mut out = vec![f32::NAN; num_rows(node.rows, batch) * node.width];
            kernel.run(&inputs, batch.cu_seqlens(), &mut out).map_err(BackendError::Failed)?;
            return Ok(out);
        }
        // Only the operands are widened: what a graph holds beside them is not read.
        let mut wide = vec![Vec::new(); values.len()];
        for id in node.op.operands() {
            wide[id.index()] = values[id.index()].iter().map(|&x| f64::from(x)).collect();
        }
        Ok(self.interpreter.evaluate(node, &wide, batch).iter().map(|&x| x as f32).collect())
    }
}

impl Executable for Compiled {
    fn shape_policy(&self) -> ShapePolicy {
        ShapePolicy::Ragged { max_tokens: self.max_tokens }
    }

    fn plan(&self, batch: &RaggedBatch) -> Result<Plan, BackendError> {
        batch.check(self.interpreter.graph())?;
        let attentions = self.interpreter.graph().attentions().count();
        let sequences = batch.lengths().filter(|&length| length > 0).count();
        let attention = if attentions * sequences == 0 {
            BTreeMap::new()
        } else {
            BTreeMap::from([(self.backend.name.clone(), sequences)])
        };
        Ok(Plan { bucket: None, padding_tokens: 0, attention, memory_bytes: 0, detail: Box::new(()) })
    }

    fn run(&self, plan: &Plan, batch: &RaggedBatch, _: &RunOptions) -> Result<Outputs, BackendError> {
        let start = Instant::now();
        let graph = self.interpreter.graph();
        let mut values: Vec<Vec<f32>> = Vec::new();
        for node in graph.nodes() {
            let value = self.evaluate(node, &values, batch)?;
            values.push(value);
        }
        let info = self.backend.info();
        let rows = graph.outputs().iter().map(|output| {
            let node = graph.node(output.value);
            let data = values[output.value.index()].clone();
            OutputRows { name: output.name.clone(), rows: node.rows, width: node.width, data }
        });
        let report = RunReport {
            backend: info.name,
            device: info.device,
            precision: Precision::F32,
            attention: plan.attention.clone(),
            bucket: None,
            sequences: batch.num_sequences(),
            tokens: batch.num_tokens(),
            padding_tokens: 0,
            elapsed: start.elapsed(),
            operations: Vec::new(),
        };
        Ok(Outputs { values: rows.collect(), report })
    }
}

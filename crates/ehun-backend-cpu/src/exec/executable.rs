//! A compiled graph.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use ehun_backend::{
    BackendError, Executable, OutputRows, Outputs, Plan, Precision, Refusal, RunOptions, RunReport, ShapePolicy,
};
use ehun_graph::{AttentionSpec, Graph, RaggedBatch, WeightStore};

use super::attention::AttentionKernel;
use super::context::{Context, RotaryCache};
use super::fuse::fuse;
use super::ir::Ir;
use super::profile::Profile;
use super::program::{ConstantRows, Program, RunOp, lower};
use super::run::{Arena, Runner};
use super::select::select_rows;
use crate::NAME;
use crate::gemm::Products;
use crate::pool::ThreadPool;
use crate::simd::Isa;

/// Whether steps are fused; tests compare both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fusion {
    On,
    #[cfg(test)]
    Off,
}

/// The steps of a graph for every batch, rewritten.
pub(crate) fn batch_steps(graph: &Graph, fusion: Fusion) -> Ir {
    let mut ir = Ir::batch(graph);
    if fusion == Fusion::On {
        select_rows(&mut ir);
        fuse(&mut ir);
    }
    ir
}

/// A graph with its weights packed, ready for batches.
pub(crate) struct CpuExecutable {
    graph: Arc<Graph>,
    weights: WeightStore,
    isa: Isa,
    precision: Precision,
    pool: Arc<ThreadPool>,
    device: String,
    attention: Arc<dyn AttentionKernel>,
    max_tokens: usize,
    program: Program,
    rotaries: Vec<RotaryCache>,
    /// Memory of runs that have ended.
    arenas: Mutex<Vec<Arena>>,
}

/// What a graph is compiled with.
pub(crate) struct Compile {
    pub(crate) graph: Arc<Graph>,
    pub(crate) weights: WeightStore,
    pub(crate) isa: Isa,
    /// Who multiplies in f32.
    pub(crate) products: Products,
    pub(crate) precision: Precision,
    pub(crate) pool: Arc<ThreadPool>,
    pub(crate) device: String,
    pub(crate) attention: Arc<dyn AttentionKernel>,
    pub(crate) max_tokens: usize,
    pub(crate) fusion: Fusion,
}

impl CpuExecutable {
    pub(crate) fn new(with: Compile) -> Result<Self, BackendError> {
        let Compile { graph, weights, isa, products, precision, pool, device, attention, max_tokens, fusion } = with;
        let constants = fold(isa, products, &pool, &graph, &weights, &*attention)?;
        let ir = batch_steps(&graph, fusion);
        let program = lower(isa, products, precision, &graph, &weights, &ir, constants);
        let rotaries = program.rotaries.iter().cloned().map(RotaryCache::new).collect();
        let arenas = Mutex::new(Vec::new());
        Ok(Self { graph, weights, isa, precision, pool, device, attention, max_tokens, program, rotaries, arenas })
    }

    fn attentions(&self) -> impl Iterator<Item = &AttentionSpec> {
        self.program.steps.iter().filter_map(|step| match &step.op {
            RunOp::Attention { spec, .. } => Some(spec),
            _ => None,
        })
    }

    fn kernels_of(&self, batch: &RaggedBatch) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        if self.attentions().next().is_some() {
            for len in batch.lengths().filter(|len| *len > 0) {
                *counts.entry(self.attention.name_for(len).to_owned()).or_insert(0) += 1;
            }
        }
        counts
    }
}

/// Computes the constant rows, through the same steps, in f32 whatever the precision: it is done once.
fn fold(
    isa: Isa,
    products: Products,
    pool: &ThreadPool,
    graph: &Graph,
    weights: &WeightStore,
    attention: &dyn AttentionKernel,
) -> Result<Vec<Option<ConstantRows>>, BackendError> {
    let mut ir = Ir::constants(graph);
    fuse(&mut ir);
    let program = lower(isa, products, Precision::F32, graph, weights, &ir, Vec::new());
    let batch = RaggedBatch::from_ids::<Vec<u32>>(&[]);
    let context = Context::new(&batch, &[]);
    let runner = Runner { isa, pool, weights, rotaries: &[], context: &context, attention, deadline: None };
    let outputs = runner.run(&program, &mut Arena::default(), None)?;
    let mut constants = vec![None; graph.nodes().len()];
    for (value, data) in ir.outputs.iter().zip(outputs) {
        let width = ir.values[*value].width;
        constants[*value] = Some(ConstantRows { rows: data.len() / width.max(1), width, data });
    }
    Ok(constants)
}

impl Executable for CpuExecutable {
    fn shape_policy(&self) -> ShapePolicy {
        ShapePolicy::Ragged { max_tokens: self.max_tokens }
    }

    fn plan(&self, batch: &RaggedBatch) -> Result<Plan, BackendError> {
        batch.check(&self.graph)?;
        let (tokens, sequences) = (batch.num_tokens(), batch.num_sequences());
        if tokens > self.max_tokens {
            let reason = format!(
                "a batch of {tokens} tokens, but this executable takes {}; send smaller batches or compile with a larger \
                 max_batch_tokens",
                self.max_tokens
            );
            return Err(BackendError::Refused(vec![Refusal::new("batch", reason)]));
        }
        let longest = batch.max_len();
        let scratch = self.attentions().map(|spec| self.attention.scratch_bytes(spec, longest) * self.pool.threads());
        let memory = self.program.schedule.arena_bytes(tokens, sequences) + scratch.max().unwrap_or(0);
        Ok(Plan {
            bucket: None,
            padding_tokens: 0,
            attention: self.kernels_of(batch),
            memory_bytes: memory as u64,
            detail: Box::new(()),
        })
    }

    fn run(&self, plan: &Plan, batch: &RaggedBatch, options: &RunOptions) -> Result<Outputs, BackendError> {
        let started = Instant::now();
        let context = Context::new(batch, &self.rotaries);
        let runner = Runner {
            isa: self.isa,
            pool: &self.pool,
            weights: &self.weights,
            rotaries: &self.rotaries,
            context: &context,
            attention: &*self.attention,
            deadline: options.deadline,
        };
        let mut arena = self.arenas.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default();
        let mut profile = options.profile.then(|| Profile::new(self.program.steps.len()));
        let results = runner.run(&self.program, &mut arena, profile.as_mut());
        self.arenas.lock().unwrap_or_else(PoisonError::into_inner).push(arena);
        let values = results?
            .into_iter()
            .zip(self.graph.outputs())
            .map(|(data, output)| {
                let node = self.graph.node(output.value);
                OutputRows { name: output.name.clone(), rows: node.rows, width: node.width, data }
            })
            .collect();
        let report = RunReport {
            backend: NAME.to_owned(),
            device: self.device.clone(),
            precision: self.precision,
            attention: plan.attention.clone(),
            bucket: None,
            sequences: batch.num_sequences(),
            tokens: batch.num_tokens(),
            padding_tokens: 0,
            elapsed: started.elapsed(),
            operations: profile.map_or_else(Vec::new, |profile| profile.by_operation(&self.program.steps)),
        };
        Ok(Outputs { values, report })
    }
}

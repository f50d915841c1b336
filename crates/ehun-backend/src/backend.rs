//! A device or runtime that can run graphs.

use std::sync::Arc;

use ehun_graph::{Graph, WeightStore};
use serde::{Deserialize, Serialize};

use crate::error::{BackendError, Refusal};
use crate::executable::Executable;
use crate::options::{Options, Precision};

/// What a backend is and where it runs; shown by `ehun backends`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackendInfo {
    /// The name by which it is asked for: `cpu`, `xla:tpu`.
    pub name: String,
    /// The device in its own words: `AMD EPYC, avx512, 2 threads`.
    pub device: String,
    /// Version of the runtime below, or of this crate.
    pub version: String,
    /// The attention kernels that it has, by name.
    pub attention_kernels: Vec<String>,
    /// The precisions that it has.
    pub precisions: Vec<Precision>,
    /// Whether its programs have static shapes, so that [`Options::buckets`] mean something to it.
    pub static_shapes: bool,
    /// Further facts, for `--verbose`: instruction sets, what was not run here.
    pub notes: Vec<String>,
}

/// Which kernel an attention operation gets, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttentionChoice {
    /// Label of the operation.
    pub operation: String,
    /// The kernel, or the rule by which it is chosen: `naive up to 128 tokens, flash above`.
    pub kernel: String,
    /// Why this one.
    pub reason: String,
}

/// What a backend would do with a graph, said before anything is loaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// The backend's name.
    pub backend: String,
    /// The device.
    pub device: String,
    /// The precision that it would compute in.
    pub precision: Precision,
    /// The kernel of each attention operation.
    pub attention: Vec<AttentionChoice>,
    /// Memory for the weights in the form that the backend keeps, in bytes.
    pub weight_bytes: u64,
    /// Most memory for one batch of [`Options::max_batch_tokens`], in bytes; `None` where only compiling can tell.
    pub batch_bytes: Option<u64>,
    /// Why it cannot: empty exactly where [`Backend::compile`] would accept.
    pub refusals: Vec<Refusal>,
}

/// A device or runtime that can run graphs. See the crate's page for what an implementation promises.
pub trait Backend: Send + Sync {
    /// What this backend is.
    fn info(&self) -> BackendInfo;

    /// What it would do with `graph`: cheap, loads nothing, never fails. What cannot be done is in
    /// [`Capabilities::refusals`], all of it and not the first alone.
    fn capabilities(&self, graph: &Graph, options: &Options) -> Capabilities;

    /// Makes the graph ready to run. The weights have passed [`Graph::check_weights`]. Fails with
    /// [`BackendError::Refused`] exactly where `capabilities` has refusals.
    fn compile(
        &self,
        graph: Arc<Graph>,
        weights: &WeightStore,
        options: &Options,
    ) -> Result<Box<dyn Executable>, BackendError>;
}

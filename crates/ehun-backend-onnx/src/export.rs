//! The lowered model as a file that any ONNX runtime reads.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use ehun_graph::{Graph, WeightStore};

use crate::lower::attention::Form;
use crate::lower::{MissingWeight, Target, lower};
use crate::proto::{Place, Tensor};

/// A file of the format may have no more than 2 GiB; beyond this, large tensors go into a file beside it.
const MOST_INSIDE: usize = 2_000_000_000;
/// Tensors of fewer bytes stay in the model also then: runtimes read shapes from them.
const SMALL: usize = 1024;

/// Why a model was not exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// An attention operation has no such form.
    #[error("`{operation}`: {reason}")]
    Refused {
        /// The operation.
        operation: String,
        /// Why.
        reason: String,
    },
    /// A weight is missing.
    #[error(transparent)]
    Weight(#[from] MissingWeight),
    /// A file could not be written.
    #[error("{path}: {source}", path = .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exported {
    /// Names of the inputs.
    pub inputs: Vec<String>,
    /// Names of the outputs.
    pub outputs: Vec<String>,
    /// Number of operations.
    pub nodes: usize,
    /// The file beside the model that has the weights, where they are not in it.
    pub data: Option<PathBuf>,
}

/// How a model is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExportOptions {
    /// The longest sequence, in tokens.
    pub longest: usize,
    /// How attention is written.
    pub form: Form,
    /// Whether the model has the input `pooling_starts`, the first position that pooling reads of each sequence.
    pub pooling_starts: bool,
    /// Write the weights into a file of their own, also where they are not too large for one.
    pub weights_beside: bool,
}

/// Writes the model of `graph` to `path`.
///
/// Inputs are int64 and padded behind each sequence: `input_ids`, `attention_mask`, `token_type_ids` as far as the graph
/// reads them. Outputs have the graph's names.
pub fn export(
    graph: &Graph,
    weights: &WeightStore,
    options: &ExportOptions,
    path: &Path,
) -> Result<Exported, ExportError> {
    let ExportOptions { longest, form, pooling_starts, weights_beside } = *options;
    for (label, spec) in graph.attentions() {
        if let Some(reason) = form.refusal(spec) {
            return Err(ExportError::Refused { operation: label.to_owned(), reason });
        }
    }
    let model = lower(graph, weights, Target { longest, form: &|_| form, pooling_starts })?;
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| ExportError::Io { path, source }
    };
    let total: usize = model.tensors.iter().map(|tensor| tensor.bytes.len()).sum();
    let mut data = None;
    let bytes = if total <= MOST_INSIDE && !weights_beside {
        model.encode(&|_| None)
    } else {
        let mut name = path.file_name().unwrap_or_default().to_os_string();
        name.push(".data");
        let beside = path.with_file_name(&name);
        let large = |tensor: &&Tensor<'_>| tensor.bytes.len() >= SMALL;
        let mut places = std::collections::HashMap::new();
        let mut file = BufWriter::new(File::create(&beside).map_err(io(&beside))?);
        let mut offset = 0;
        for tensor in model.tensors.iter().filter(large) {
            file.write_all(&tensor.bytes).map_err(io(&beside))?;
            places.insert(tensor.name.clone(), offset);
            offset += tensor.bytes.len();
        }
        file.flush().map_err(io(&beside))?;
        data = Some(beside);
        let file = name.to_string_lossy().into_owned();
        model.encode(&|tensor| places.get(&tensor.name).map(|&offset| Place { file: file.clone(), offset }))
    };
    std::fs::write(path, bytes).map_err(io(path))?;
    Ok(Exported {
        inputs: model.inputs.into_iter().map(|port| port.name).collect(),
        outputs: model.outputs.into_iter().map(|port| port.name).collect(),
        nodes: model.nodes.len(),
        data,
    })
}

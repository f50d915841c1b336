//! What can be wrong with a checkpoint or with what is asked of it.

use std::path::PathBuf;

use ehun_graph::{GraphError, WeightError};

/// An error in loading a checkpoint or in using a loaded model. Each message says what, where, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A file or folder could not be read.
    #[error("{path}: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The checkpoint lacks a file that is needed.
    #[error("{checkpoint}: there is no {file}; {advice}")]
    MissingFile {
        /// The checkpoint directory.
        checkpoint: String,
        /// The file.
        file: String,
        /// What to do.
        advice: String,
    },
    /// A file of the checkpoint is not what it should be.
    #[error("{path}: {reason}")]
    InvalidFile {
        /// The file.
        path: String,
        /// What is wrong and what to do.
        reason: String,
    },
    /// A configuration key has a value that the family cannot have.
    #[error("{path}: `{key}`: {reason}")]
    Config {
        /// The file.
        path: String,
        /// The key; a dot leads into an object.
        key: String,
        /// What is wrong, and what would be right.
        reason: String,
    },
    /// Configuration keys that are present and that the family does not know. They may change the result, so they are not
    /// ignored.
    #[error("{path}: {family} does not know the key{} {}; a model with it cannot be computed faithfully", if .keys.len() == 1 { "" } else { "s" }, .keys.join(", "))]
    UnknownConfigKey {
        /// The file.
        path: String,
        /// The family.
        family: String,
        /// The keys.
        keys: Vec<String>,
    },
    /// No family has this `model_type`.
    #[error("{path}: model_type `{model_type}` is of no known family; known are {known}")]
    UnknownFamily {
        /// The file.
        path: String,
        /// The value of `model_type`.
        model_type: String,
        /// All known values.
        known: String,
    },
    /// `modules.json` names a module that this crate does not have.
    #[error("{path}: module type `{kind}` is not known; leaving it out would give other vectors")]
    UnknownModule {
        /// The file.
        path: String,
        /// The type.
        kind: String,
    },
    /// The checkpoint has tensors that the graph does not use, so something of the model would be left out.
    #[error("{checkpoint}: {family} does not use the tensor{} {}; the checkpoint is of another model or has extensions", if .tensors.len() == 1 { "" } else { "s" }, .tensors.join(", "))]
    UnusedTensors {
        /// The checkpoint.
        checkpoint: String,
        /// The family.
        family: String,
        /// Some of the tensors.
        tensors: Vec<String>,
    },
    /// The checkpoint cannot do the task that was asked for.
    #[error("{checkpoint} cannot {task}: {reason}")]
    Task {
        /// The checkpoint.
        checkpoint: String,
        /// The task.
        task: String,
        /// Why not, and what it can do.
        reason: String,
    },
    /// The tokenizer is of another vocabulary than the model.
    #[error("{path}: {reason}; take the tokenizer that belongs to the model")]
    Vocabulary {
        /// The tokenizer file.
        path: String,
        /// The two sizes.
        reason: String,
    },
    /// A text could not be tokenised.
    #[error("tokenizer: {0}")]
    Tokenize(String),
    /// A prompt, a number of dimensions, a label or another request that the model cannot serve.
    #[error("{0}")]
    Request(String),
    /// The graph of the model could not be built, or the weights do not fit it.
    #[error("{checkpoint}: {source}")]
    Graph {
        /// The checkpoint.
        checkpoint: String,
        /// What is wrong.
        source: GraphError,
    },
    /// The weights could not be opened, or are damaged.
    #[error(transparent)]
    Weights(#[from] WeightError),
}

impl From<GraphError> for ModelError {
    fn from(source: GraphError) -> Self {
        Self::Graph { checkpoint: "the model".into(), source }
    }
}

impl ModelError {
    /// Names the checkpoint in an error of its graph.
    pub(crate) fn of(self, name: &str) -> Self {
        match self {
            Self::Graph { source, .. } => Self::Graph { checkpoint: name.to_owned(), source },
            other => other,
        }
    }
}

/// Shorthand of this crate.
pub(crate) type Result<T> = std::result::Result<T, ModelError>;

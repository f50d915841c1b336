//! What is asked of a backend when a graph is compiled.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// In what the products are computed. Norms, softmax sums and pooling are float32 at the least, always.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// Products and sums in binary32.
    #[default]
    F32,
    /// Products of bfloat16 operands, sums in binary32.
    Bf16,
    /// Products of binary16 operands, sums in binary32.
    F16,
    /// Weights int8 for each output channel, activations int8 for each row, sums in int32.
    Int8,
}

impl Precision {
    /// The name used on the command line, in reports and in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::Int8 => "int8",
        }
    }
}

impl std::fmt::Display for Precision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Precision {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        [Self::F32, Self::Bf16, Self::F16, Self::Int8]
            .into_iter()
            .find(|precision| precision.name() == name)
            .ok_or_else(|| format!("`{name}` is no precision; there are f32, bf16, f16 and int8"))
    }
}

/// Which attention implementation is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Attention {
    /// The backend chooses: by each sequence's own length (ragged), or for each bucket.
    #[default]
    Auto,
    /// The kernel of this name, for everything; refused where it cannot.
    Named(String),
    /// A plug-in: a shared library with the C interface, or a StableHLO function.
    File(PathBuf),
}

impl std::fmt::Display for Attention {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Named(name) => f.write_str(name),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

impl std::str::FromStr for Attention {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_file = text.contains(['/', '\\', '.']);
        Ok(match text {
            "auto" => Self::Auto,
            _ if is_file => Self::File(text.into()),
            _ => Self::Named(text.to_owned()),
        })
    }
}

/// Which static shapes a backend with buckets compiles.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BucketChoice {
    /// From the backend's default distribution of lengths.
    #[default]
    Default,
    /// From a sample: the lengths of sequences, in tokens.
    Sample(Vec<usize>),
    /// These, `(batch, length)`.
    List(Vec<(usize, usize)>),
}

/// What is asked of a backend when a graph is compiled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Options {
    /// In what the products are computed.
    pub precision: Precision,
    /// Which attention implementation.
    pub attention: Attention,
    /// Threads of a backend that runs on the CPU; `None` is one for each core that the process may use.
    pub threads: Option<usize>,
    /// The longest sequence that will be asked for, in tokens.
    pub max_sequence: usize,
    /// Tokens of the largest batch that will be asked for.
    pub max_batch_tokens: usize,
    /// Static shapes, where the backend has them.
    pub buckets: BucketChoice,
    /// Where compiled programs are kept; `None` keeps none.
    pub cache: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            precision: Precision::F32,
            attention: Attention::Auto,
            threads: None,
            max_sequence: 512,
            max_batch_tokens: 16_384,
            buckets: BucketChoice::Default,
            cache: None,
        }
    }
}

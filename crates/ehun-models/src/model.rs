//! A loaded model: everything between a text and the input of a backend, and what its rows mean.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use ehun_graph::{Activation, Graph, PoolingMode, SequenceInput, WeightStore};
use serde::{Deserialize, Serialize};

use crate::checkpoint::Checkpoint;
use crate::error::{ModelError, Result};
use crate::load::Loader;
use crate::modules::SentenceTransformer;
use crate::tokenizer::{Side, TextInput, Tokenized, Tokenizer};

/// What a model is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Task {
    /// One vector for a text: the output [`Task::output`] has sequence rows.
    Embed,
    /// One score (or several) for two texts: sequence rows of logits.
    Rerank,
    /// Scores of labels for a text or a pair: sequence rows of logits.
    Classify,
    /// Scores of labels for each token: token rows of logits.
    Tag,
    /// Weights of terms: sequence rows as wide as the vocabulary.
    Sparse,
    /// A vector for each token: token rows.
    Tokens,
}

impl Task {
    /// The name in configurations, commands and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Embed => "embed",
            Self::Rerank => "rerank",
            Self::Classify => "classify",
            Self::Tag => "tag",
            Self::Sparse => "sparse",
            Self::Tokens => "tokens",
        }
    }

    /// The name of the graph's output.
    pub fn output(self) -> &'static str {
        match self {
            Self::Embed => "embedding",
            Self::Rerank | Self::Classify | Self::Tag => "logits",
            Self::Sparse => "sparse",
            Self::Tokens => "tokens",
        }
    }
}

impl std::fmt::Display for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Task {
    type Err = ModelError;

    fn from_str(name: &str) -> Result<Self> {
        [Self::Embed, Self::Rerank, Self::Classify, Self::Tag, Self::Sparse, Self::Tokens]
            .into_iter()
            .find(|task| task.name() == name)
            .ok_or_else(|| {
                let known = "embed, rerank, classify, tag, sparse and tokens";
                ModelError::Request(format!("`{name}` is no task; there are {known}"))
            })
    }
}

/// How a checkpoint is loaded.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadOptions {
    /// What it is for; `None` is what the checkpoint says that it is made for.
    pub task: Option<Task>,
    /// How tokens become a vector where the checkpoint does not say so (a plain encoder); an error where it does.
    pub pooling: Option<Vec<PoolingMode>>,
    /// Most tokens of a text, below what the checkpoint allows.
    pub max_tokens: Option<usize>,
    /// Whether all weights are read and a NaN or infinite one is an error.
    pub check_finite: bool,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self { task: None, pooling: None, max_tokens: None, check_finite: true }
    }
}

/// What a model's configuration says without its weights and its tokenizer: enough to compile it, not to run it.
///
/// Where a family names its tensors in several ways, this is the one that a checkpoint is taken to have that has none of
/// the other names.
#[derive(Debug, Clone)]
pub struct Outline {
    /// The directory or the embedded model's name.
    pub name: String,
    /// The family's name.
    pub family: &'static str,
    /// What the graph computes.
    pub task: Task,
    /// The graph.
    pub graph: Arc<Graph>,
    /// Most tokens of a sequence by position tables, configuration and sentence-transformers file; a tokenizer may allow less.
    pub max_tokens: usize,
}

impl Outline {
    /// Reads the configuration of a checkpoint, which may have nothing else.
    pub fn read(checkpoint: &Checkpoint, options: &LoadOptions) -> Result<Self> {
        Loader::new(checkpoint)?.outline(options).map_err(|error| error.of(checkpoint.name()))
    }
}

/// A loaded model. Shared between threads.
#[derive(Debug)]
pub struct Model {
    pub(crate) name: String,
    pub(crate) revision: Option<String>,
    pub(crate) family: &'static str,
    pub(crate) task: Task,
    pub(crate) graph: Arc<Graph>,
    pub(crate) weights: WeightStore,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) max_tokens: usize,
    pub(crate) sentence: Option<SentenceTransformer>,
    pub(crate) labels: Vec<String>,
    pub(crate) multi_label: bool,
    pub(crate) regression: bool,
    pub(crate) activation: Option<Activation>,
    pub(crate) weight_hash: OnceLock<String>,
}

impl Model {
    /// Loads a checkpoint: reads its configuration, maps its weights, builds the graph for the task, and checks that graph,
    /// weights and tokenizer belong together.
    pub fn load(checkpoint: &Checkpoint, options: &LoadOptions) -> Result<Self> {
        Loader::new(checkpoint)?.load(options).map_err(|error| error.of(checkpoint.name()))
    }

    /// The directory or the embedded model's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The commit that the checkpoint is known by, where it is.
    pub fn revision(&self) -> Option<&str> {
        self.revision.as_deref()
    }

    /// blake3 of the weight files, as hexadecimal digits. Reads them on the first call.
    pub fn weight_hash(&self) -> &str {
        self.weight_hash.get_or_init(|| {
            let mut hasher = blake3::Hasher::new();
            for file in self.weights.files() {
                hasher.update(file);
            }
            hasher.finalize().to_hex().to_string()
        })
    }

    /// The family's name.
    pub fn family(&self) -> &str {
        self.family
    }

    /// What the graph computes.
    pub fn task(&self) -> Task {
        self.task
    }

    /// The graph; its one output is called [`Task::output`].
    pub fn graph(&self) -> &Arc<Graph> {
        &self.graph
    }

    /// The weights of the graph.
    pub fn weights(&self) -> &WeightStore {
        &self.weights
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Most tokens of a sequence, special tokens included.
    pub fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// Columns of the output: the width of a vector, the number of labels, or the size of the vocabulary.
    pub fn dimension(&self) -> usize {
        self.graph.outputs().first().map_or(0, |output| self.graph.node(output.value).width)
    }

    /// Names of the labels, in the order of the logits.
    pub fn labels(&self) -> &[String] {
        &self.labels
    }

    /// Whether labels do not exclude each other (`problem_type` is `multi_label_classification`).
    pub fn multi_label(&self) -> bool {
        self.multi_label
    }

    /// Whether logits are the values themselves (`problem_type` is `regression`).
    pub fn regression(&self) -> bool {
        self.regression
    }

    /// What a cross-encoder does with its logits; `None` is nothing.
    pub fn score_activation(&self) -> Option<Activation> {
        self.activation
    }

    /// The similarity that an embedder was trained for, where it says so.
    pub fn similarity(&self) -> Option<&str> {
        self.sentence.as_ref()?.similarity.as_deref()
    }

    /// Prompts by name.
    pub fn prompts(&self) -> &[(String, String)] {
        self.sentence.as_ref().map_or(&[], |sentence| &sentence.prompts)
    }

    /// The name of the prompt that is taken where none is asked for.
    pub fn default_prompt_name(&self) -> Option<&str> {
        self.sentence.as_ref()?.default_prompt.as_deref()
    }

    /// The text of the prompt `name`, or of the default prompt; `None` where there is no default. Fails where the checkpoint
    /// has no prompt of that name.
    pub fn prompt(&self, name: Option<&str>) -> Result<Option<&str>> {
        let Some(name) = name.or(self.default_prompt_name()) else { return Ok(None) };
        let found = self.prompts().iter().find(|(known, _)| known == name);
        match found {
            Some((_, text)) => Ok(Some(text)),
            None => {
                let known: Vec<_> = self.prompts().iter().map(|(name, _)| name.as_str()).collect();
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                Err(ModelError::Request(format!("{} has no prompt `{name}`; it has {known}", self.name)))
            }
        }
    }

    /// Tokens of a text or a pair, cut to [`Model::max_tokens`].
    pub fn tokenize<'a>(&self, text: impl Into<TextInput<'a>>) -> Result<Tokenized> {
        self.tokenizer.encode(text.into(), Some(self.max_tokens), self.tokenizer.side())
    }

    /// The first text of a pair with `prompt` in front of it, as sentence-transformers puts it there for a cross-encoder.
    pub fn prompted<'t>(first: &'t str, prompt: Option<&str>) -> Cow<'t, str> {
        match prompt {
            Some(prompt) if !prompt.is_empty() => Cow::Owned(format!("{prompt}{first}")),
            _ => Cow::Borrowed(first),
        }
    }

    /// The input for a text, with `prompt` in front of it. Where the checkpoint leaves prompts out of pooling, so does the
    /// input.
    pub fn embed_input(&self, text: &str, prompt: Option<&str>) -> Result<SequenceInput> {
        self.embed_tokens(text, prompt, self.tokenizer.side()).map(|(tokens, start)| tokens.into_input(start))
    }

    /// As [`Model::embed_input`]: the tokens, and how many of them pooling leaves out. `side` is the end that is cut.
    pub fn embed_tokens(&self, text: &str, prompt: Option<&str>, side: Side) -> Result<(Tokenized, usize)> {
        let limit = Some(self.max_tokens);
        let Some(prompt) = prompt.filter(|prompt| !prompt.is_empty()) else {
            return Ok((self.tokenizer.encode(text.into(), limit, side)?, 0));
        };
        let tokens = self.tokenizer.encode(TextInput::Single(&format!("{prompt}{text}")), limit, side)?;
        if !self.sentence.as_ref().is_some_and(SentenceTransformer::excludes_prompt) {
            return Ok((tokens, 0));
        }
        let start = self.tokenizer.prompt_tokens(prompt)?;
        if start >= tokens.ids.len() {
            return Err(ModelError::Request(format!(
                "the prompt alone fills the {} tokens of {}; nothing of the text is left",
                self.max_tokens, self.name
            )));
        }
        Ok((tokens, start))
    }
}

//! A loaded model: everything between a text and the input of a backend, and what its rows mean.

use std::sync::{Arc, OnceLock};

use ehun_graph::{Activation, Graph, GraphBuilder, Index, Op, PoolingMode, SequenceInput, ValueId, WeightStore};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::blocks::Ctx;
use crate::checkpoint::Checkpoint;
use crate::config::Config;
use crate::error::{ModelError, Result};
use crate::families::{self, Family};
use crate::modules::{Kind, Module, SentenceTransformer, torch_activation};
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

/// A loaded model. Shared between threads.
#[derive(Debug)]
pub struct Model {
    name: String,
    revision: Option<String>,
    family: &'static str,
    task: Task,
    graph: Arc<Graph>,
    weights: WeightStore,
    tokenizer: Tokenizer,
    max_tokens: usize,
    sentence: Option<SentenceTransformer>,
    labels: Vec<String>,
    multi_label: bool,
    activation: Option<Activation>,
    weight_hash: OnceLock<String>,
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

/// What is known of a checkpoint before its weights are mapped.
struct Loader<'a> {
    checkpoint: &'a Checkpoint,
    config: Config,
    family: &'static Family,
    architecture: String,
    sentence: Option<SentenceTransformer>,
    labels: Vec<String>,
}

impl<'a> Loader<'a> {
    fn new(checkpoint: &'a Checkpoint) -> Result<Self> {
        let Some(map) = checkpoint.json_object("config.json")? else {
            return Err(checkpoint
                .missing("config.json", "give the directory of a Hugging Face or sentence-transformers model"));
        };
        let config = Config::new(checkpoint.path_of("config.json"), map);
        let family = families::find(&config)?;
        config.only("quantization_config", Value::Null, "weights are read as F32, F16 or BF16")?;
        let architecture =
            config.opt_strings("architectures")?.unwrap_or_default().into_iter().next().unwrap_or_default();
        let labels = labels(&config)?;
        let sentence = SentenceTransformer::read(checkpoint)?;
        Ok(Self { checkpoint, config, family, architecture, sentence, labels })
    }

    fn load(self, options: &LoadOptions) -> Result<Model> {
        let task = match options.task {
            Some(task) => self.check_task(task)?,
            None => self.infer_task(options.pooling.is_some()),
        };
        let lower_case = self.sentence.as_ref().is_some_and(|sentence| sentence.lower_case);
        let model_type = self.config.str(&["model_type"])?;
        let mut tokenizer = Tokenizer::load(self.checkpoint, model_type, lower_case)?;
        let folders = match (&self.sentence, task) {
            (Some(sentence), Task::Embed) => sentence.weight_folders(),
            _ => Vec::new(),
        };
        let weights = self.checkpoint.weights(&folders)?;

        let mut ctx = Ctx::new(&self.config, &weights, self.family.prefixes, self.family.probes);
        let tokens = (self.family.encoder)(&mut ctx)?;
        let output = self.output(&mut ctx, tokens, task, options)?;
        ctx.graph.output(task.output(), output);
        let graph = ctx.graph.finish()?;
        self.config.finish(self.family.name)?;
        graph.check_weights(&weights)?;
        self.check_unused(&graph, &weights)?;
        if options.check_finite {
            weights.check_finite()?;
        }

        tokenizer.check_vocabulary(table_rows(&graph, Index::TokenId).unwrap_or(0))?;
        if table_rows(&graph, Index::TokenType).is_none_or(|types| types < 2) {
            tokenizer.drop_types();
        }
        let max_tokens = self.max_tokens(&graph, &tokenizer, options.max_tokens)?;
        let multi_label = self.config.opt_str(&["problem_type"])? == Some("multi_label_classification");
        let activation = if task == Task::Rerank { self.score_activation()? } else { None };
        let labels = if matches!(task, Task::Rerank | Task::Classify | Task::Tag) { self.labels } else { Vec::new() };
        Ok(Model {
            name: self.checkpoint.name().to_owned(),
            revision: self.checkpoint.revision(),
            family: self.family.name,
            task,
            graph: Arc::new(graph),
            weights,
            tokenizer,
            max_tokens,
            sentence: self.sentence,
            labels,
            multi_label,
            activation,
            weight_hash: OnceLock::new(),
        })
    }

    fn is_cross_encoder(&self) -> bool {
        self.sentence.as_ref().is_some_and(|sentence| sentence.kind == Kind::CrossEncoder)
            || self.config.get("sentence_transformers").is_some()
            || self.config.get("sbert_ce_default_activation_function").is_some()
    }

    fn infer_task(&self, with_pooling: bool) -> Task {
        let ends = |what: &str| self.architecture.ends_with(what);
        let pools = |s: &SentenceTransformer| s.modules.iter().any(|m| matches!(m, Module::Pooling { .. }));
        if ends("ForSequenceClassification") {
            if self.is_cross_encoder() || self.labels.len() == 1 { Task::Rerank } else { Task::Classify }
        } else if ends("ForTokenClassification") {
            Task::Tag
        } else if self.sentence.as_ref().is_some_and(pools) || with_pooling {
            Task::Embed
        } else if ends("ForMaskedLM") {
            Task::Sparse
        } else {
            Task::Tokens
        }
    }

    fn cannot(&self, task: Task, reason: impl Into<String>) -> ModelError {
        ModelError::Task {
            checkpoint: self.checkpoint.name().to_owned(),
            task: task.to_string(),
            reason: reason.into(),
        }
    }

    fn check_task(&self, task: Task) -> Result<Task> {
        let needs = match task {
            Task::Rerank | Task::Classify => "ForSequenceClassification",
            Task::Tag => "ForTokenClassification",
            Task::Sparse => "ForMaskedLM",
            Task::Embed | Task::Tokens => return Ok(task),
        };
        if self.architecture.ends_with(needs) {
            return Ok(task);
        }
        let made_for = self.infer_task(false);
        Err(self.cannot(
            task,
            format!("its architecture is `{}`, not one {needs}; it is made to {made_for}", self.architecture),
        ))
    }

    fn output(&self, ctx: &mut Ctx, tokens: ValueId, task: Task, options: &LoadOptions) -> Result<ValueId> {
        let family = self.family.name;
        let no_head = |what: &str| self.cannot(task, format!("{family} has no head for {what} here"));
        if options.pooling.is_some() && task != Task::Embed {
            return Err(self.cannot(task, "a pooling was asked for, which only embedding has"));
        }
        match task {
            Task::Tokens => Ok(tokens),
            Task::Embed => self.embedding(ctx, tokens, options),
            Task::Rerank | Task::Classify => {
                self.family.sequence_head.ok_or_else(|| no_head("sequences"))?(ctx, tokens, self.labels.len())
            }
            Task::Tag => self.family.token_head.ok_or_else(|| no_head("tokens"))?(ctx, tokens, self.labels.len()),
            Task::Sparse => {
                let logits = self.family.vocabulary_head.ok_or_else(|| no_head("terms"))?(ctx, tokens)?;
                let weights = ctx.activation("splade.saturation", logits, Activation::Log1pRelu)?;
                Ok(ctx.graph.pooling("splade.pooling", weights, PoolingMode::Max)?)
            }
        }
    }

    fn embedding(&self, ctx: &mut Ctx, tokens: ValueId, options: &LoadOptions) -> Result<ValueId> {
        let modules = self.sentence.as_ref().map_or(&[][..], |sentence| &sentence.modules);
        let asked;
        let modules = match (&options.pooling, modules) {
            (Some(modes), []) => {
                asked = [Module::Pooling { modes: modes.clone(), include_prompt: true }];
                &asked[..]
            }
            (Some(_), _) => {
                return Err(self.cannot(Task::Embed, "its modules.json says how it pools; a pooling was asked for too"));
            }
            (None, []) => {
                let reason = "it has no modules.json, so it does not say how tokens become a vector; ask for a pooling";
                return Err(self.cannot(Task::Embed, reason));
            }
            (None, modules) => modules,
        };
        ctx.leave_encoder();
        let mut x = tokens;
        for module in modules {
            x = self.module(&mut ctx.graph, x, module, ctx.config)?;
        }
        if ctx.graph.shape(x).0 != ehun_graph::Rows::Sequences {
            return Err(self.cannot(Task::Embed, "its modules have no pooling; it gives a vector for each token"));
        }
        Ok(x)
    }

    fn module(&self, graph: &mut GraphBuilder, x: ValueId, module: &Module, config: &Config) -> Result<ValueId> {
        use ehun_graph::WeightRef;
        let check = |what: &str, width: usize, found: usize| {
            if width == found {
                return Ok(());
            }
            Err(config
                .error("hidden_size", format!("the {what} module takes rows of {width}, it gets rows of {found}")))
        };
        Ok(match module {
            Module::Pooling { modes, .. } => {
                let parts = modes
                    .iter()
                    .map(|mode| graph.pooling("pooling", x, *mode))
                    .collect::<std::result::Result<Vec<_>, _>>()?;
                if let [one] = parts[..] { one } else { graph.concat("pooling.concat", &parts)? }
            }
            Module::Dense { folder, in_features, out_features, bias, activation, residual } => {
                check("Dense", *in_features, graph.width(x))?;
                let weight = |name: &str, shape: &[usize]| WeightRef::whole(format!("{folder}/{name}"), shape);
                let shape = [*out_features, *in_features];
                let bias = bias.then(|| weight("linear.bias", &[*out_features]));
                let mut y = graph.linear(folder, x, weight("linear.weight", &shape), bias)?;
                if let Some(function) = activation {
                    y = graph.activation(&format!("{folder}.activation"), y, *function)?;
                }
                if *residual {
                    let side = if in_features == out_features {
                        x
                    } else {
                        graph.linear(&format!("{folder}.residual"), x, weight("residual.weight", &shape), None)?
                    };
                    y = graph.add(&format!("{folder}.sum"), y, side)?;
                }
                y
            }
            Module::LayerNorm { folder, width } => {
                check("LayerNorm", *width, graph.width(x))?;
                let weight = |name: &str| Some(WeightRef::whole(format!("{folder}/norm.{name}"), &[*width]));
                graph.layer_norm(folder, x, weight("weight"), weight("bias"), 1e-5)?
            }
            Module::Normalize => graph.l2_normalize("normalize", x)?,
            Module::SpladePooling => {
                return Err(self.cannot(Task::Embed, "it gives term weights; ask for the task sparse"));
            }
        })
    }

    /// Fails where the checkpoint has tensors of the encoder that the graph does not use: adapters, norms or biases that the
    /// configuration does not mention.
    fn check_unused(&self, graph: &Graph, weights: &WeightStore) -> Result<()> {
        const BUFFERS: &[&str] = &["position_ids", "inv_freq", "masked_bias", "num_batches_tracked", "token_type_ids"];
        let used: std::collections::HashSet<&str> = graph.weights().iter().map(|weight| weight.name.as_str()).collect();
        let harmless = |name: &str| {
            let local = self.family.prefixes.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
            BUFFERS.iter().any(|buffer| name.ends_with(buffer))
                || self.family.unused.iter().any(|start| local.starts_with(start) || name.starts_with(start))
        };
        let mut unused: Vec<String> = weights
            .names()
            .filter(|name| !used.contains(name) && !harmless(name))
            .map(|name| format!("`{name}`"))
            .collect();
        if unused.is_empty() {
            return Ok(());
        }
        unused.sort_unstable();
        if unused.len() > 4 {
            let more = unused.len() - 4;
            unused.truncate(4);
            unused.push(format!("and {more} more"));
        }
        Err(ModelError::UnusedTensors {
            checkpoint: self.checkpoint.name().to_owned(),
            family: self.family.name.to_owned(),
            tensors: unused,
        })
    }

    /// The least of what the position tables, the configuration, the tokenizer, the sentence-transformers file and the caller
    /// allow.
    fn max_tokens(&self, graph: &Graph, tokenizer: &Tokenizer, asked: Option<usize>) -> Result<usize> {
        let stated = self.sentence.as_ref().and_then(|sentence| sentence.max_seq_length);
        let bounds = [
            graph.max_positions(),
            self.config.opt_usize(&["max_position_embeddings", "n_positions"])?,
            tokenizer.max_length().filter(|_| stated.is_none()),
            stated,
        ];
        let most = bounds.into_iter().flatten().min().unwrap_or(512);
        match asked {
            Some(asked) if asked == 0 || asked > most => Err(ModelError::Request(format!(
                "{} takes from 1 to {most} tokens, not {asked}",
                self.checkpoint.name()
            ))),
            Some(asked) => Ok(asked),
            None => Ok(most),
        }
    }

    /// The activation that a cross-encoder states, else sigmoid for one label and nothing for more.
    fn score_activation(&self) -> Result<Option<Activation>> {
        let nested = self.config.get("sentence_transformers").and_then(|object| object.get("activation_fn"));
        let stated = match nested.and_then(Value::as_str) {
            Some(class) => Some(class.to_owned()),
            None => self.config.opt_str(&["sbert_ce_default_activation_function"])?.map(str::to_owned),
        };
        let stated = stated.or_else(|| self.sentence.as_ref()?.activation_fn.clone());
        match stated {
            Some(class) => torch_activation(&class)
                .ok_or_else(|| self.config.error("activation_fn", format!("`{class}` is no activation that is known"))),
            None => Ok((self.labels.len() == 1).then_some(Activation::Sigmoid)),
        }
    }
}

fn table_rows(graph: &Graph, wanted: Index) -> Option<usize> {
    graph.nodes().iter().find_map(|node| match node.op {
        Op::Embedding { table, index } if index == wanted => Some(graph.weight(table).num_rows()),
        _ => None,
    })
}

/// Names of the labels in the order of their numbers: of `id2label`, whose keys are numbers written as texts, else of
/// `num_labels`, else of two.
fn labels(config: &Config) -> Result<Vec<String>> {
    let Some(value) = config.get("id2label") else {
        let count = config.opt_usize(&["num_labels"])?.unwrap_or(2);
        if count == 0 || count > 1 << 20 {
            return Err(config.error("num_labels", format!("{count} is no number of labels")));
        }
        return Ok((0..count).map(|i| format!("LABEL_{i}")).collect());
    };
    let wrong = || config.error("id2label", "an object from \"0\", \"1\", ... to names is expected, without gaps");
    let map = value.as_object().ok_or_else(wrong)?;
    if map.is_empty() {
        return Err(wrong());
    }
    let name = |i: usize| map.get(&i.to_string()).and_then(Value::as_str).map(str::to_owned).ok_or_else(wrong);
    (0..map.len()).map(name).collect()
}

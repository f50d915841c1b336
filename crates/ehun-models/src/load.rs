//! From a checkpoint to a [`Model`]: which task, which graph, and whether graph, weights and tokenizer belong together.

use std::collections::HashSet;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use ehun_graph::{
    Activation, Graph, GraphBuilder, GraphError, Index, Op, PoolingMode, RotaryScaling, Rows, ValueId, WeightRef,
    WeightStore,
};
use serde_json::Value;

use crate::blocks::Ctx;
use crate::checkpoint::Checkpoint;
use crate::config::Config;
use crate::error::{ModelError, Result};
use crate::families::{self, Family};
use crate::model::{LoadOptions, Model, Outline, Task};
use crate::modules::{Kind, Module, SentenceTransformer, torch_activation};
use crate::tokenizer::{Side, TextInput, Tokenizer};

/// Beyond any model's window; what a configuration says above it is not believed.
const LONGEST: usize = 1 << 20;

/// What is known of a checkpoint before its weights are mapped.
pub(crate) struct Loader<'a> {
    checkpoint: &'a Checkpoint,
    config: Config,
    family: &'static Family,
    architecture: String,
    sentence: Option<SentenceTransformer>,
    labels: Vec<String>,
}

impl<'a> Loader<'a> {
    pub(crate) fn new(checkpoint: &'a Checkpoint) -> Result<Self> {
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

    pub(crate) fn load(self, options: &LoadOptions) -> Result<Model> {
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
        let graph = self.graph(&weights, task, options)?;
        graph.check_weights(&weights)?;
        self.check_unused(&graph, &weights)?;
        if options.check_finite {
            weights.check_finite()?;
        }

        tokenizer.check_vocabulary(table_rows(&graph, Index::TokenId).unwrap_or(0))?;
        if table_rows(&graph, Index::TokenType).is_none_or(|types| types < 2) {
            tokenizer.drop_types();
        }
        self.check_padding(&graph, &tokenizer)?;
        let max_tokens = self.max_tokens(&graph, tokenizer.max_length(), options.max_tokens)?;
        let problem = self.config.opt_str(&["problem_type"])?;
        let multi_label = problem == Some("multi_label_classification");
        let regression = problem == Some("regression");
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
            regression,
            activation,
            weight_hash: OnceLock::new(),
        })
    }

    /// What the configuration alone says: no weights and no tokenizer are opened.
    pub(crate) fn outline(self, options: &LoadOptions) -> Result<Outline> {
        let task = match options.task {
            Some(task) => self.check_task(task)?,
            None => self.infer_task(options.pooling.is_some()),
        };
        let graph = self.graph(&WeightStore::open::<&Path>(&[])?, task, options)?;
        let max_tokens = self.max_tokens(&graph, None, options.max_tokens)?;
        let name = self.checkpoint.name().to_owned();
        Ok(Outline { name, family: self.family.name, task, graph: Arc::new(graph), max_tokens })
    }

    /// The graph for `task`. Of `weights` only the names are used: which of a family's ways to name tensors this is.
    fn graph(&self, weights: &WeightStore, task: Task, options: &LoadOptions) -> Result<Graph> {
        let mut ctx = Ctx::new(&self.config, weights, self.family.prefixes, self.family.probes);
        let tokens = (self.family.encoder)(&mut ctx)?;
        let output = self.output(&mut ctx, tokens, task, options)?;
        ctx.graph.output(task.output(), output);
        let graph = ctx.graph.finish()?;
        self.config.finish(self.family.name)?;
        Ok(graph)
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
        } else if ends("ForMaskedLM") && self.family.vocabulary_head.is_some() {
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
        if ctx.graph.shape(x).0 != Rows::Sequences {
            return Err(self.cannot(Task::Embed, "its modules have no pooling; it gives a vector for each token"));
        }
        Ok(x)
    }

    fn module(&self, graph: &mut GraphBuilder, x: ValueId, module: &Module, config: &Config) -> Result<ValueId> {
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
                    .collect::<std::result::Result<Vec<_>, GraphError>>()?;
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
        let used: HashSet<&str> = graph.weights().iter().map(|weight| weight.name.as_str()).collect();
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

    /// Fails where positions are counted from the padding token's number on, and that token stands in every text: its own
    /// position is not counted then, which the graph has no way to say.
    fn check_padding(&self, graph: &Graph, tokenizer: &Tokenizer) -> Result<()> {
        let offset = graph.nodes().iter().find_map(|node| match node.op {
            Op::Embedding { index: Index::Position { offset }, .. } => offset.checked_sub(1),
            _ => None,
        });
        let stated = self.config.opt_usize(&["pad_token_id"])?;
        let Some(padding) = offset.filter(|padding| stated.is_none_or(|stated| stated == *padding)) else {
            return Ok(());
        };
        let always = tokenizer.encode(TextInput::Single(""), None, Side::Right)?;
        if always.ids.iter().any(|&id| id as usize == padding) {
            let reason =
                format!("the tokenizer puts token {padding} into every text, so it cannot be the padding token");
            return Err(self.config.error("pad_token_id", reason));
        }
        Ok(())
    }

    /// The least of what the position tables, the configuration, the tokenizer, the sentence-transformers file and the caller
    /// allow.
    fn max_tokens(&self, graph: &Graph, of_tokenizer: Option<usize>, asked: Option<usize>) -> Result<usize> {
        let stated = self.sentence.as_ref().and_then(|sentence| sentence.max_seq_length);
        let of_tokenizer = of_tokenizer.filter(|_| stated.is_none());
        let positions = self.config.opt_usize(&["max_position_embeddings", "n_positions"])?;
        let positions = positions.map(|positions| (positions as f64 * growth(graph)) as usize);
        let bounds = [graph.max_positions(), positions, of_tokenizer, stated];
        let most = bounds.into_iter().flatten().min().unwrap_or(512).min(LONGEST);
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

/// By how much dynamic rotary scaling lets texts be longer than the positions of the configuration.
fn growth(graph: &Graph) -> f64 {
    let factors = graph.nodes().iter().filter_map(|node| match &node.op {
        Op::Rotary { spec, .. } => match spec.scaling {
            RotaryScaling::DynamicNtk { factor, .. } => Some(factor),
            _ => None,
        },
        _ => None,
    });
    factors.fold(1.0, f64::max)
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

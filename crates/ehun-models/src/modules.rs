//! The modules of a sentence-transformers model, in both generations of its files.
//!
//! Up to 5.3 the types are `sentence_transformers.models.X` and pooling is a set of truth values; from 5.4 they are
//! `sentence_transformers.*.modules.*.X` and `pooling_mode` is a name or a list of names.

use ehun_graph::{Activation, PoolingMode};
use serde_json::{Map, Value};

use crate::checkpoint::Checkpoint;
use crate::config::Config;
use crate::error::{ModelError, Result};

/// One module after the transformer.
#[derive(Debug, Clone, PartialEq)]
pub enum Module {
    /// Tokens of a sequence become one row; several modes are put side by side.
    Pooling {
        /// The modes, in the order of their columns.
        modes: Vec<PoolingMode>,
        /// Whether the tokens of a prompt take part.
        include_prompt: bool,
    },
    /// A linear layer with an activation.
    Dense {
        /// The folder of its weights.
        folder: String,
        /// Width of its rows.
        in_features: usize,
        /// Width of its result.
        out_features: usize,
        /// Whether it has a bias.
        bias: bool,
        /// Its activation; `None` is the identity.
        activation: Option<Activation>,
        /// Whether its operand is added to its result, through a linear layer where the widths differ.
        residual: bool,
    },
    /// Layer norm with the default epsilon of PyTorch.
    LayerNorm {
        /// The folder of its weights.
        folder: String,
        /// Width of its rows.
        width: usize,
    },
    /// Rows scaled to length 1.
    Normalize,
    /// Logits over the vocabulary become term weights: `log(1 + relu)`, and the largest over the tokens.
    SpladePooling,
}

/// The names that the transformer module's file has had, in the order in which sentence-transformers looks for them.
const TRANSFORMER_CONFIGS: [&str; 7] = [
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
];

/// What kind of model a sentence-transformers directory says that it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// One vector for a text.
    SentenceTransformer,
    /// One score for two texts.
    CrossEncoder,
    /// Term weights for a text.
    SparseEncoder,
}

/// What the sentence-transformers files of a checkpoint say.
#[derive(Debug, Clone, PartialEq)]
pub struct SentenceTransformer {
    /// What it is.
    pub kind: Kind,
    /// The modules after the transformer, in their order.
    pub modules: Vec<Module>,
    /// Most tokens of a text, where it says so.
    pub max_seq_length: Option<usize>,
    /// Whether texts are lower-cased before they are tokenised.
    pub lower_case: bool,
    /// Prompts by name.
    pub prompts: Vec<(String, String)>,
    /// The prompt that is taken where none is asked for.
    pub default_prompt: Option<String>,
    /// The similarity that it was trained for: `cosine`, `dot`, `euclidean`, `manhattan`.
    pub similarity: Option<String>,
    /// Activation of a cross-encoder's scores, where it says so: a class path of PyTorch.
    pub activation_fn: Option<String>,
}

impl SentenceTransformer {
    /// Reads the files, or `None` where the checkpoint has none of them.
    pub fn read(checkpoint: &Checkpoint) -> Result<Option<Self>> {
        let settings = checkpoint.json_object("config_sentence_transformers.json")?;
        let list = checkpoint.json("modules.json")?;
        if settings.is_none() && list.is_none() {
            return Ok(None);
        }
        let settings = settings.unwrap_or_default();
        let mut this = Self {
            kind: match settings.get("model_type").and_then(Value::as_str) {
                Some("CrossEncoder") => Kind::CrossEncoder,
                Some("SparseEncoder") => Kind::SparseEncoder,
                _ => Kind::SentenceTransformer,
            },
            modules: Vec::new(),
            max_seq_length: None,
            lower_case: false,
            prompts: prompts(checkpoint, &settings)?,
            default_prompt: settings.get("default_prompt_name").and_then(Value::as_str).map(str::to_owned),
            similarity: settings.get("similarity_fn_name").and_then(Value::as_str).map(str::to_owned),
            activation_fn: settings.get("activation_fn").and_then(Value::as_str).map(str::to_owned),
        };
        if let Some(list) = list {
            this.read_modules(checkpoint, &list)?;
        }
        if let Some(file) = TRANSFORMER_CONFIGS.into_iter().find(|file| checkpoint.has(file)) {
            let config = Config::of_module(checkpoint.path_of(file), checkpoint.json_object(file)?.unwrap_or_default());
            this.max_seq_length = config.opt_usize(&["max_seq_length"])?;
            this.lower_case = config.bool_or(&["do_lower_case"], false)?;
            config.ignore(&[
                "transformer_task",
                "modality_config",
                "module_output_name",
                "model_args",
                "config_args",
                "cache_dir",
            ]);
            config.finish("sentence-transformers")?;
        }
        Ok(Some(this))
    }

    /// Folders of the modules that have weights.
    pub fn weight_folders(&self) -> Vec<String> {
        let folder = |module: &Module| match module {
            Module::Dense { folder, .. } | Module::LayerNorm { folder, .. } => Some(folder.clone()),
            _ => None,
        };
        self.modules.iter().filter_map(folder).collect()
    }

    /// Whether pooling leaves out the tokens of a prompt.
    pub fn excludes_prompt(&self) -> bool {
        self.modules.iter().any(|module| matches!(module, Module::Pooling { include_prompt: false, .. }))
    }

    fn read_modules(&mut self, checkpoint: &Checkpoint, list: &Value) -> Result<()> {
        let path = checkpoint.path_of("modules.json");
        let invalid = |reason: &str| ModelError::InvalidFile { path: path.clone(), reason: reason.to_owned() };
        let list = list.as_array().ok_or_else(|| invalid("a list of modules is expected"))?;
        for (place, entry) in list.iter().enumerate() {
            let kind = entry.get("type").and_then(Value::as_str).ok_or_else(|| invalid("a module has no type"))?;
            let folder = entry.get("path").and_then(Value::as_str).unwrap_or_default();
            if folder.split(['/', '\\']).any(|part| part == "..")
                || folder.starts_with(['/', '\\'])
                || folder.contains(':')
            {
                return Err(invalid(&format!("the folder `{folder}` of a module is not inside the model's")));
            }
            let unknown = || ModelError::UnknownModule { path: path.clone(), kind: kind.to_owned() };
            if !kind.starts_with("sentence_transformers.") {
                return Err(unknown());
            }
            let class = kind.rsplit('.').next().unwrap_or_default();
            let is_transformer = matches!(class, "Transformer" | "MLMTransformer");
            if is_transformer != (place == 0) {
                return Err(invalid("the first module must be the transformer, and no other"));
            }
            if is_transformer && !folder.is_empty() {
                return Err(invalid(&format!(
                    "the transformer lies in the folder `{folder}`; only the layout with its files at the top is read"
                )));
            }
            let module = match class {
                "Transformer" | "MLMTransformer" | "Dropout" => continue,
                "Pooling" => pooling(checkpoint, folder)?,
                "Dense" => dense(checkpoint, folder)?,
                "LayerNorm" => Module::LayerNorm {
                    folder: folder.to_owned(),
                    width: module_config(checkpoint, folder)?.positive(&["dimension"])?,
                },
                "Normalize" => Module::Normalize,
                "SpladePooling" => splade(checkpoint, folder)?,
                _ => return Err(unknown()),
            };
            self.modules.push(module);
        }
        Ok(())
    }
}

fn prompts(checkpoint: &Checkpoint, settings: &Map<String, Value>) -> Result<Vec<(String, String)>> {
    let Some(Value::Object(prompts)) = settings.get("prompts") else { return Ok(Vec::new()) };
    let invalid = |name: &str| ModelError::Config {
        path: checkpoint.path_of("config_sentence_transformers.json"),
        key: format!("prompts.{name}"),
        reason: "a prompt is a text".into(),
    };
    prompts
        .iter()
        .map(|(name, text)| Ok((name.clone(), text.as_str().ok_or_else(|| invalid(name))?.to_owned())))
        .collect()
}

fn module_config(checkpoint: &Checkpoint, folder: &str) -> Result<Config> {
    let file = format!("{folder}/config.json");
    let map = checkpoint.json_object(&file)?;
    let map = map.ok_or_else(|| checkpoint.missing(&file, "modules.json lists the module; download the file"))?;
    Ok(Config::of_module(checkpoint.path_of(&file), map))
}

/// The names of the modes: the older truth value, the newer name. In the order in which several are put side by side.
const POOLING_MODES: [(&str, &str, PoolingMode); 6] = [
    ("pooling_mode_cls_token", "cls", PoolingMode::Cls),
    ("pooling_mode_max_tokens", "max", PoolingMode::Max),
    ("pooling_mode_mean_tokens", "mean", PoolingMode::Mean),
    ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", PoolingMode::MeanSqrtLen),
    ("pooling_mode_weightedmean_tokens", "weightedmean", PoolingMode::WeightedMean),
    ("pooling_mode_lasttoken", "lasttoken", PoolingMode::LastToken),
];

fn pooling(checkpoint: &Checkpoint, folder: &str) -> Result<Module> {
    let config = module_config(checkpoint, folder)?;
    config.ignore(&["embedding_dimension", "word_embedding_dimension"]);
    let include_prompt = config.bool_or(&["include_prompt"], true)?;
    let mut old = Vec::new();
    for (key, _, mode) in POOLING_MODES {
        if config.bool_or(&[key], false)? {
            old.push(mode);
        }
    }
    let by_name = |name: &str| {
        let found = POOLING_MODES.iter().find(|(_, known, _)| *known == name).map(|(_, _, mode)| *mode);
        found.ok_or_else(|| config.error("pooling_mode", format!("`{name}` is no pooling mode that is known")))
    };
    let modes = match config.get("pooling_mode") {
        Some(Value::String(name)) => vec![by_name(name)?],
        // In the order of the list: that is how sentence-transformers 5.4 and later put them side by side.
        Some(Value::Array(names)) => {
            names.iter().map(|name| by_name(name.as_str().unwrap_or_default())).collect::<Result<Vec<_>>>()?
        }
        Some(other) => return Err(config.error("pooling_mode", format!("a name or a list is expected, found {other}"))),
        None => old,
    };
    config.finish("pooling")?;
    if modes.is_empty() {
        return Err(config.error("pooling_mode", "no mode is set, so there is no telling which vector is meant"));
    }
    Ok(Module::Pooling { modes, include_prompt })
}

fn dense(checkpoint: &Checkpoint, folder: &str) -> Result<Module> {
    let config = module_config(checkpoint, folder)?;
    for key in ["module_input_name", "module_output_name"] {
        config.only(key, "sentence_embedding".into(), "only the vector of the text goes through modules")?;
    }
    let activation = match config.opt_str(&["activation_function"])? {
        None => Some(Activation::Tanh),
        Some(class) => torch_activation(class)
            .ok_or_else(|| config.error("activation_function", format!("`{class}` is no activation that is known")))?,
    };
    let module = Module::Dense {
        folder: folder.to_owned(),
        in_features: config.positive(&["in_features"])?,
        out_features: config.positive(&["out_features"])?,
        bias: config.bool_or(&["bias"], true)?,
        activation,
        residual: config.bool_or(&["use_residual"], false)?,
    };
    config.finish("dense")?;
    Ok(module)
}

fn splade(checkpoint: &Checkpoint, folder: &str) -> Result<Module> {
    let config = module_config(checkpoint, folder)?;
    config.ignore(&["embedding_dimension", "word_embedding_dimension", "chunk_size"]);
    config.only("pooling_strategy", "max".into(), "the graph takes the largest weight of a term, not the sum")?;
    config.only("activation_function", "relu".into(), "the graph has log(1 + relu)")?;
    config.finish("splade pooling")?;
    Ok(Module::SpladePooling)
}

/// The activation that a class path of PyTorch names: `Some(None)` is the identity, `None` is not known.
pub(crate) fn torch_activation(class: &str) -> Option<Option<Activation>> {
    if !class.starts_with("torch.nn.") {
        return None;
    }
    Some(match class.rsplit('.').next()? {
        "Identity" => None,
        "Tanh" => Some(Activation::Tanh),
        "Sigmoid" => Some(Activation::Sigmoid),
        "ReLU" => Some(Activation::Relu),
        "GELU" => Some(Activation::Gelu),
        "SiLU" => Some(Activation::Silu),
        _ => return None,
    })
}

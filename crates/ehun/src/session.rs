//! A model on its backends, as the flags that all commands share ask for it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use ehun_backend::{Attention, Backend, OnProgress, Options, Precision, Progress, Registry};
use ehun_backend_xla::XlaConfig;
use ehun_engine::{Deployment, HealthPolicy, Lane, LeftOut, NoBackend, Prompt, Service, ServiceConfig};
use ehun_models::{Checkpoint, LoadOptions, Model, Task};
use ehun_pipeline::{Annotator, Producer};
use ehun_server::Config;

use crate::buckets;
pub use crate::buckets::BucketArgs;
use crate::error::CommandError;

/// Flags about the model and where it runs.
#[derive(Debug, Clone, Args)]
pub struct ModelArgs {
    /// Directory of a Hugging Face or sentence-transformers model, ORG/NAME of one that `ehun models pull` fetched, or the
    /// name of a service of `ehun.toml` in this folder [default: the embedded all-MiniLM-L6-v2]
    #[arg(long, value_name = "DIR|ORG/NAME|NAME")]
    pub model: Option<PathBuf>,
    /// Where it runs, the preferred first: auto, cpu, ... (`ehun backends` lists them), or the address of a service that has
    /// the same model: `openai+http://HOST/v1#MODEL`, `tei+http://HOST`, `oip+http://HOST/MODEL`, `oip+grpc://HOST/MODEL`
    #[arg(long, value_name = "NAME[,NAME...]", default_value = "auto", value_delimiter = ',')]
    pub backend: Vec<String>,
    /// In what the products are computed: f32, bf16, f16, int8
    #[arg(long, default_value = "f32")]
    pub precision: Precision,
    /// Attention kernel by name, or a plug-in file; auto lets the backend choose
    #[arg(long, value_name = "NAME|FILE", default_value = "auto")]
    pub attention: Attention,
    /// Threads of a backend on the CPU [default: one for each core]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Most tokens of a text, below what the model allows
    #[arg(long, value_name = "N")]
    pub max_tokens: Option<usize>,
    /// Most tokens of a batch [default: 2048 on the CPU, where more is no faster and takes memory; 4096 elsewhere]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    batch_tokens: Option<usize>,
    /// Read all weights first and refuse NaN in them
    #[arg(long)]
    pub check_weights: bool,
    /// Static shapes, for the backends that have them.
    #[command(flatten)]
    pub shapes: BucketArgs,
}

/// What is put before a text.
#[derive(Debug, Clone, Args)]
pub struct PromptArgs {
    /// Name of a prompt of the model that is put before the text [default: the model's default prompt, if it has one]
    #[arg(long, value_name = "NAME")]
    prompt_name: Option<String>,
    /// Words that are put before the text, instead of a prompt of the model
    #[arg(long, value_name = "TEXT", conflicts_with = "prompt_name")]
    prompt: Option<String>,
}

impl PromptArgs {
    /// What was asked for.
    pub fn prompt(&self) -> Option<Prompt> {
        let words = self.prompt.as_deref().map(|words| Prompt::Text(words.into()));
        words.or_else(|| self.prompt_name.as_deref().map(Prompt::from))
    }
}

/// A number from 1, for flags of which 0 would mean nothing.
pub fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("it must be at least 1".into()),
        Ok(number) => Ok(number),
        Err(error) => Err(format!("{error}")),
    }
}

/// All backends that this program was built with.
pub fn registry() -> Registry {
    registry_telling(Arc::new(told))
}

/// The same; those that compile programs first tell `progress` how far they are.
fn registry_telling(progress: OnProgress) -> Registry {
    with_devices(Registry::new().with(ehun_backend_cpu::CpuFactory), progress)
}

/// The same, with attention on the CPU between guard pages: for conformance, in a process that may end.
pub fn guarded_registry() -> Registry {
    #[cfg(unix)]
    let cpu = ehun_backend_cpu::GuardedCpuFactory;
    #[cfg(not(unix))]
    let cpu = ehun_backend_cpu::CpuFactory;
    with_devices(Registry::new().with(cpu), Arc::new(told))
}

fn with_devices(registry: Registry, progress: OnProgress) -> Registry {
    let config = XlaConfig { progress: Some(progress), ..XlaConfig::default() };
    registry.with(ehun_backend_xla::XlaFactory::new(config)).with(ehun_backend_onnx::OnnxFactory::default())
}

/// Says on a terminal or in a log how far the programs of a model are, where that takes longer than a moment.
pub fn told(progress: Progress) {
    if progress.elapsed >= Duration::from_secs(1) {
        eprintln!("{progress}");
    }
}

/// Where compiled programs are kept: `$XDG_CACHE_HOME/ehun/programs`, or under `~/.cache`; nowhere without a home.
pub fn program_cache() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let caches = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
    caches.map(|caches| caches.join("ehun/programs"))
}

/// The model in a directory, one that was pulled, or the embedded one.
pub fn checkpoint(model: Option<&Path>) -> Result<Checkpoint, CommandError> {
    match model {
        Some(model) => Ok(Checkpoint::open(directory(model)?)?),
        #[cfg(feature = "embedded-model")]
        None => Ok(crate::embedded::checkpoint()),
        #[cfg(not(feature = "embedded-model"))]
        None => Err(CommandError::Usage("this program was built without a model: give one with --model DIR".into())),
    }
}

/// As [`checkpoint`], and the model of a service of `ehun.toml` by the service's name.
fn named_checkpoint(model: Option<&Path>) -> Result<Checkpoint, CommandError> {
    let Some(name) = model.filter(|model| !model.exists()).and_then(Path::to_str) else { return checkpoint(model) };
    let file = Path::new("ehun.toml");
    if name.contains(['/', '\\']) || !file.exists() {
        return checkpoint(model);
    }
    let services = Config::read(file)?.service;
    match services.get(name) {
        Some(service) => checkpoint(service.model.as_deref()),
        None => Err(CommandError::Usage(format!(
            "there is no directory `{name}`, and ehun.toml has no service of that name; it has {}",
            services.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
        ))),
    }
}

/// `model` where it is a directory, else the directory of the pulled model of that name. Nothing is fetched here: what runs
/// must not depend on whether a network is there.
fn directory(model: &Path) -> Result<PathBuf, CommandError> {
    let name = model.to_string_lossy();
    let (organisation, rest) = name.split_once('/').unwrap_or_default();
    let is_name = !organisation.is_empty() && !rest.is_empty() && !rest.contains('/') && !name.starts_with('.');
    if model.exists() || !is_name {
        return Ok(model.to_owned());
    }
    match crate::commands::models::hub().find(&name)? {
        Some(pulled) => Ok(pulled.directory),
        None => Err(CommandError::Usage(format!(
            "there is no directory `{name}`, and no model of that name was pulled; `ehun models pull {name}` fetches it"
        ))),
    }
}

impl ModelArgs {
    /// Loads the model for `task`; `None` is what it was made for.
    pub fn load(&self, task: Option<Task>) -> Result<Arc<Model>, CommandError> {
        let checkpoint = named_checkpoint(self.model.as_deref())?;
        // The embedded weights are checked by their hash when they are made.
        let check_finite = self.check_weights;
        let options = LoadOptions { task, max_tokens: self.max_tokens, check_finite, ..LoadOptions::default() };
        Ok(Arc::new(Model::load(&checkpoint, &options)?))
    }

    /// The same backends and settings for another model.
    pub fn with_model(&self, model: &Path) -> Self {
        Self { model: Some(model.to_owned()), max_tokens: None, ..self.clone() }
    }

    /// The backends, the preferred first. `auto` is the CPU: other devices are used where they are asked for.
    pub fn backends(&self) -> Result<Vec<Arc<dyn Backend>>, CommandError> {
        let registry = registry();
        let names = self.backend.iter().map(|name| if name == "auto" { ehun_backend_cpu::NAME } else { name.as_str() });
        names.map(|name| Ok(registry.open(name)?)).collect()
    }

    /// Most tokens of a batch.
    fn batch_tokens(&self) -> usize {
        let on_cpu = self.backend.first().is_none_or(|name| matches!(name.as_str(), "auto" | ehun_backend_cpu::NAME));
        self.batch_tokens.unwrap_or(if on_cpu { 2048 } else { 4096 })
    }

    /// What is asked of the backends.
    pub fn options(&self, model: &Model) -> Result<Options, CommandError> {
        let buckets = self.shapes.choice(&|text| Ok(model.tokenize(text)?.ids.len()))?;
        Ok(Options {
            precision: self.precision,
            attention: self.attention.clone(),
            threads: self.threads,
            max_sequence: model.max_tokens(),
            max_batch_tokens: self.batch_tokens().max(model.max_tokens()),
            buckets,
            cache: program_cache(),
        })
    }

    /// A service for `model` on the backends.
    pub fn serve(&self, model: &Arc<Model>, profile: bool) -> Result<Service, CommandError> {
        let deployment = deployment(model, &self.backend, &self.options(model)?, Waits::default(), Arc::new(told))?;
        let config = ServiceConfig {
            name: model.task().name().to_owned(),
            workers: workers(&self.backend),
            batch_tokens: self.batch_tokens(),
            queue_tokens: (self.batch_tokens() * 8).max(65_536),
            profile,
            ..ServiceConfig::default()
        };
        Service::start(config, deployment, Vec::new()).map_err(CommandError::io("threads of the engine"))
    }

    /// What else decides the vectors, beside the model.
    pub fn identity(&self) -> String {
        format!("{} {} {} {:?}", self.backend.join(","), self.precision, self.attention, self.max_tokens)
    }
}

/// How long answers may take.
#[derive(Debug, Clone, Copy, Default)]
pub struct Waits {
    /// A request.
    pub deadline: Option<Duration>,
    /// A batch on one backend; absent is half the deadline where another backend stands behind it.
    pub latency: Option<Duration>,
}

/// `model` on the backends `names`, the preferred first: compiled here, or at the addresses of services elsewhere. A service
/// that another backend stands behind is waited for half of the deadline, so that the other one has the rest.
///
/// A backend that cannot be made ready here is left out where another is named, which is said on standard error and stands
/// in the deployment. A name that no backend has, or an address that is none, is an error all the same. `progress` hears how
/// far those are that compile programs first.
pub fn deployment(
    model: &Arc<Model>,
    names: &[String],
    options: &Options,
    waits: Waits,
    progress: OnProgress,
) -> Result<Arc<Deployment>, CommandError> {
    let registry = registry_telling(progress);
    let within = |latency_limit| HealthPolicy { latency_limit, ..HealthPolicy::default() };
    let here = |name: &str| if name == "auto" { ehun_backend_cpu::NAME.to_owned() } else { name.to_owned() };
    let names: Vec<String> = names.iter().map(|name| here(name)).collect();
    for name in names.iter().filter(|name| !ehun_remote::is_remote(name) && !registry.knows(name)) {
        registry.open(name)?;
    }
    let has = |name: &str| {
        // One that is not to be had here is not judged: why it is not comes later.
        !ehun_remote::is_remote(name) && registry.open(name).map_or(true, |backend| backend.info().static_shapes)
    };
    let shapes: Vec<(String, bool)> = names.iter().map(|name| (name.clone(), has(name))).collect();
    buckets::heeded(&options.buckets, &shapes)?;
    let last = names.last().map(String::as_str);
    let half = |name: &str| waits.deadline.filter(|_| Some(name) != last).map(|deadline| deadline / 2);
    let mut remote = BTreeMap::new();
    for name in names.iter().filter(|name| ehun_remote::is_remote(name)) {
        let timeout = half(name).or_else(|| (Some(name.as_str()) != last).then_some(FALLBACK_AFTER));
        let lane = Lane::new(ehun_remote::open(name, Arc::clone(model), timeout)?, within(waits.latency));
        remote.insert(name.clone(), lane);
    }
    let make = |name: &str| match remote.get(name) {
        Some(lane) => Ok(Arc::clone(lane)),
        None => {
            let health = within(waits.latency.or(half(name)));
            Ok::<_, CommandError>(Lane::of_model(model, &registry.open(name)?, options, health)?)
        }
    };
    let deployment = Deployment::of_those_ready(Arc::clone(model), &names, make).map_err(of_none)?;
    for LeftOut { backend, reason } in &deployment.left_out {
        eprintln!("ehun: {backend} is left out: {reason}");
    }
    Ok(deployment)
}

/// The error of a single backend as it is; of several what each said.
fn of_none(NoBackend(mut failed): NoBackend<CommandError>) -> CommandError {
    if failed.len() == 1
        && let Some((_, error)) = failed.pop()
    {
        return error;
    }
    CommandError::NoBackend(
        failed.iter().map(|(name, error)| format!("{name}: {error}")).collect::<Vec<_>>().join("; "),
    )
}

/// How long a service elsewhere is waited for where another backend stands behind it and there is no deadline.
const FALLBACK_AFTER: Duration = Duration::from_secs(10);

/// Batches that are run at the same time: one where the machine's cores are the backend, several where they only wait for a
/// service elsewhere.
pub fn workers<S: AsRef<str>>(names: &[S]) -> usize {
    if names.first().map(AsRef::as_ref).is_some_and(ehun_remote::is_remote) { 4 } else { 1 }
}

/// What vectors of `model` are marked with.
pub fn producer(model: &Model) -> Producer {
    Producer {
        model: model.name().to_owned(),
        revision: model.revision().map(str::to_owned),
        weights_hash: model.weight_hash().to_owned(),
        dimension: model.dimension(),
        labels: None,
        entities: None,
    }
}

/// What labels or entities of `model` are marked with.
pub fn annotator(model: &Model) -> Annotator {
    Annotator { model: model.name().to_owned(), weights_hash: model.weight_hash().to_owned() }
}

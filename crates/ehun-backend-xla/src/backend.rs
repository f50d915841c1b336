//! `xla:cpu`, `xla:tpu` and `xla:cuda`: one backend on any plugin.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ehun_backend::{
    Attention, AttentionChoice, Backend, BackendError, BackendFactory, BackendInfo, Bucket, Capabilities, OnProgress,
    Options, Precision, Progress, Refusal, Unavailable,
};
use ehun_graph::{Graph, Op, WeightStore};

use crate::aot;
use crate::cache::{Cache, Found};
use crate::choice::{Attempt, BucketReport, Candidate, Recipe, whole_loops};
use crate::executable::{BucketProgram, XlaExecutable};
use crate::lower::attention::Form;
use crate::lower::imported::{self, Imported, Signature};
use crate::lower::{InputSpec, Program};
use crate::parameters;
use crate::pjrt::{Client, LoadedExecutable, PjrtError, PluginError};
use crate::plugins;
use crate::worker::{CompileFor, CompileIn, compile_in_child};
use ehun_backend::buckets;

/// How this crate's backends are opened.
#[derive(Clone, Default)]
pub struct XlaConfig {
    /// Plugins by platform, used where the environment names none.
    pub plugins: BTreeMap<String, PathBuf>,
    /// Where programs are compiled; `None` is in this process for the CPU, and for others in a child of this same program
    /// with a limit of ten minutes.
    pub compile_in: Option<CompileIn>,
    /// Told about progress.
    pub progress: Option<OnProgress>,
    /// Most bytes of device memory that a program may need, weights included, below what the device has.
    pub memory_limit: Option<u64>,
}

/// Opens the XLA backends.
#[derive(Clone, Default)]
pub struct XlaFactory {
    config: XlaConfig,
}

impl XlaFactory {
    /// A factory that uses `config`.
    pub fn new(config: XlaConfig) -> Self {
        Self { config }
    }

    /// Opens the backend `name` (`xla:cpu`) as what it is, for its reports.
    pub fn open_xla(&self, name: &str) -> Result<XlaBackend, Unavailable> {
        let unavailable = |error: PluginError| {
            let platform = name.strip_prefix("xla:").unwrap_or_default();
            let plugin = plugins::find(platform, &self.config.plugins).ok();
            let missing = plugins::missing(platform, plugin.as_deref());
            let also = if missing.is_empty() { String::new() } else { format!("; not here: {}", missing.join(", ")) };
            let started = matches!(error, PluginError::Start { .. });
            let ahead = started && aot::without_device(platform, &self.config.plugins).is_ok();
            let ahead = if ahead {
                format!("; `ehun compile --backend {name}` works without the device")
            } else {
                String::new()
            };
            Unavailable::new(name, format!("{error}{also}{ahead}"))
        };
        let platform = name.strip_prefix("xla:").filter(|platform| plugins::PLATFORMS.contains(platform));
        let Some(platform) = platform else {
            return Err(Unavailable::new(name, "there are xla:cpu, xla:tpu and xla:cuda"));
        };
        let path = plugins::find(platform, &self.config.plugins).map_err(unavailable)?;
        let plugin = plugins::load(platform, &path).map_err(unavailable)?;
        let client = Client::of(&plugin).map_err(unavailable)?;
        Ok(XlaBackend { platform: platform.to_owned(), client, config: self.config.clone() })
    }
}

impl BackendFactory for XlaFactory {
    fn names(&self) -> Vec<String> {
        plugins::PLATFORMS.iter().map(|platform| format!("xla:{platform}")).collect()
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Backend>, Unavailable> {
        Ok(Arc::new(self.open_xla(name)?))
    }
}

/// A plugin's first device.
pub struct XlaBackend {
    platform: String,
    client: Client,
    config: XlaConfig,
}

impl XlaBackend {
    fn name(&self) -> String {
        format!("xla:{}", self.platform)
    }

    fn device(&self) -> String {
        format!("{} ({})", self.client.device_kind(), self.client.platform_version().lines().next().unwrap_or(""))
    }

    fn compile_in(&self) -> CompileIn {
        if let Some(place) = &self.config.compile_in {
            return place.clone();
        }
        match std::env::current_exe() {
            Ok(program) if self.platform != "cpu" => CompileIn::Child { program, time_limit: Duration::from_secs(600) },
            _ => CompileIn::ThisProcess,
        }
    }

    /// The memory that programs must fit: the device's where the plugin says it, this machine's for the CPU.
    fn memory_limit(&self) -> Option<u64> {
        let there = self.client.memory_limit().or_else(|| (self.platform == "cpu").then(machine_memory).flatten());
        there.into_iter().chain(self.config.memory_limit).min()
    }

    fn buckets(&self, graph: &Graph, options: &Options) -> Result<Vec<Bucket>, Refusal> {
        // A CPU gains nothing from programs larger than its caches; an accelerator is idle in small ones.
        let tokens = if self.platform == "cpu" { options.max_batch_tokens.min(4096) } else { options.max_batch_tokens };
        let longest = graph.max_positions().map_or(options.max_sequence, |most| most.min(options.max_sequence));
        buckets::choose(&options.buckets, longest, tokens)
    }

    fn refusals(&self, graph: &Graph, options: &Options) -> Vec<Refusal> {
        let mut refusals = Vec::new();
        if !matches!(options.precision, Precision::F32 | Precision::Bf16) {
            let reason = format!("precision {} is not lowered to XLA here; there are f32 and bf16", options.precision);
            refusals.push(Refusal::new("options", reason));
        }
        let buckets = match self.buckets(graph, options) {
            Ok(buckets) => buckets,
            Err(refusal) => {
                refusals.push(refusal);
                return refusals;
            }
        };
        if let Attention::Named(name) = &options.attention
            && Form::from_name(name).is_none()
        {
            let reason = format!("attention `{name}` is unknown; there are native, blocked and flash, or a file");
            refusals.push(Refusal::new("options", reason));
        }
        if let (Attention::File(path), Some(&bucket)) = (&options.attention, buckets.last()) {
            // A file may be missing for some buckets, which then get another form; if it fits none it is of no use.
            let fits = |bucket: &Bucket| imported::read(path, graph, *bucket, options.precision).is_ok();
            if !buckets.iter().any(fits)
                && let Err(error) = imported::read(path, graph, bucket, options.precision)
            {
                refusals.push(Refusal::new("options", error.to_string()));
            }
        }
        refusals
    }

    /// As [`Backend::compile`], with the executable as what it is: its reports say what each bucket runs and why.
    pub fn compile_xla(
        &self,
        graph: Arc<Graph>,
        weights: &WeightStore,
        options: &Options,
    ) -> Result<XlaExecutable, BackendError> {
        let refusals = self.refusals(&graph, options);
        if !refusals.is_empty() {
            return Err(BackendError::Refused(refusals));
        }
        let buckets = self.buckets(&graph, options).map_err(|refusal| BackendError::Refused(vec![refusal]))?;
        let table_length = buckets.iter().map(|bucket| bucket.length).max().unwrap_or(1);
        let cache = options.cache.as_deref().map(Cache::new);
        let start = Instant::now();
        let mut ready: Vec<Ready> = Vec::new();
        let mut without: Vec<BucketReport> = Vec::new();
        for (done, &bucket) in buckets.iter().enumerate() {
            self.tell(Progress { done, total: buckets.len(), elapsed: start.elapsed(), next: Some(bucket) });
            let recipe = Recipe {
                graph: &graph,
                bucket,
                precision: options.precision,
                attention: &options.attention,
                table_length,
                memory_limit: self.memory_limit(),
            };
            match self.bucket(&recipe, cache.as_ref())? {
                Ok(program) => ready.push(program),
                Err(report) => without.push(report),
            }
        }
        if ready.is_empty() {
            let refusals =
                without.iter().map(|report| Refusal::new(format!("bucket {}", report.bucket), &report.reason));
            return Err(BackendError::Refused(refusals.collect()));
        }
        let device = self.device();
        let inputs: Vec<InputSpec> = ready.iter().flat_map(|program| program.inputs.iter().cloned()).collect();
        let on_device = |error: PjrtError| error.on_device(&device);
        let parameters = parameters::upload(&self.client, &graph, weights, &inputs, &mut |program| {
            self.folding(program, cache.as_ref())
        })
        .map_err(on_device)?;
        self.tell(Progress { done: buckets.len(), total: buckets.len(), elapsed: start.elapsed(), next: None });
        let programs = ready
            .into_iter()
            .map(|ready| {
                let shared = ready.inputs.iter().map(|spec| parameters.get(&spec.input).cloned()).collect();
                BucketProgram {
                    report: ready.report,
                    executable: ready.executable,
                    inputs: ready.inputs,
                    outputs: ready.outputs,
                    shared,
                }
            })
            .collect();
        Ok(XlaExecutable::new(self.name(), device, self.client.clone(), graph, options.precision, programs, without))
    }

    fn tell(&self, progress: Progress) {
        if let Some(tell) = &self.config.progress {
            tell(progress);
        }
    }

    fn key(&self, parts: &[&str]) -> String {
        let mut hasher = blake3::Hasher::new();
        let plugin = self.client.plugin().fingerprint();
        let own = [env!("CARGO_PKG_VERSION"), plugin, self.client.platform_version(), self.client.device_kind()];
        for part in own.iter().chain(parts) {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        hasher.update(&crate::pjrt::compile_options());
        hasher.finalize().to_hex().to_string()
    }

    /// The program of one bucket from the cache or from the compiler; the inner error is a bucket that no form serves.
    fn bucket(&self, recipe: &Recipe<'_>, cache: Option<&Cache>) -> Result<Result<Ready, BucketReport>, BackendError> {
        let mut notes = Vec::new();
        let candidates = recipe.candidates();
        let texts: Vec<&str> =
            candidates.iter().filter_map(|c| c.program.as_ref().ok()).map(|program| program.text.as_str()).collect();
        let limit = format!("{:?} {:?}", recipe.attention, recipe.memory_limit);
        let key = self.key(&[&[limit.as_str()], texts.as_slice()].concat());
        match cache.map_or(Found::Nothing, |cache| cache.load(&key)) {
            Found::Entry(description, bytes) => {
                let report = serde_json::from_str::<BucketReport>(&description).ok();
                let loaded = self.client.deserialize(&bytes);
                if let (Some(mut report), Ok(executable)) = (report, loaded) {
                    let made = candidates.iter().find(|candidate| Some(candidate.form) == report.form);
                    if let Some(Candidate { program: Ok(program), .. }) = made {
                        report.from_cache = true;
                        report.notes = notes;
                        return Ok(Ok(Ready::new(report, executable, program)));
                    }
                }
                notes.push("the cached program could not be loaded and was compiled again".to_owned());
            }
            Found::Damaged(reason) => notes.push(format!("{reason}; compiled again")),
            Found::Nothing => {}
        }
        let mut attempts: Vec<Attempt> = Vec::new();
        let mut compiled: Vec<(Form, LoadedExecutable)> = Vec::new();
        for candidate in &candidates {
            if !recipe.wants_another(&attempts) {
                break;
            }
            let start = Instant::now();
            let (outcome, loop_steps) = match &candidate.program {
                Err(reason) => (Err(reason.clone()), 1),
                Ok(program) => {
                    let outcome = self.compile_program(&program.text).and_then(|executable| {
                        let figures = executable.figures().map_err(|error| error.to_string())?;
                        compiled.push((candidate.form, executable));
                        let probe = (program.loop_steps > 1 && figures.optimal_seconds.is_some()).then(|| {
                            let text = recipe.program(candidate.form, None, true).text;
                            self.compile_program(&text).ok().and_then(|probe| probe.figures().ok())
                        });
                        Ok(whole_loops(figures, program.loop_steps, probe.flatten().as_ref()))
                    });
                    (outcome, program.loop_steps)
                }
            };
            let compile_seconds = start.elapsed().as_secs_f64();
            attempts.push(Attempt { form: candidate.form, outcome, loop_steps, compile_seconds });
        }
        let (form, reason) = recipe.choose(&attempts);
        let mut report = BucketReport { bucket: recipe.bucket, form, reason, attempts, from_cache: false, notes };
        let chosen = compiled.into_iter().find(|(compiled, _)| Some(*compiled) == form);
        let made = candidates.iter().find(|candidate| Some(candidate.form) == form);
        let (Some((_, executable)), Some(Candidate { program: Ok(program), .. })) = (chosen, made) else {
            return Ok(Err(report));
        };
        if let Some(cache) = cache {
            let stored = executable
                .executable()
                .and_then(|executable| executable.serialize())
                .map_err(|error| format!("not cached, the plugin cannot write the program: {error}"))
                .and_then(|bytes| {
                    let description = serde_json::to_string(&report).map_err(|error| error.to_string())?;
                    cache.store(&key, &description, &bytes).map_err(|error| format!("not cached: {error}"))
                });
            report.notes.extend(stored.err());
        }
        Ok(Ok(Ready::new(report, executable, program)))
    }

    fn compile_program(&self, text: &str) -> Result<LoadedExecutable, String> {
        crate::executable::count_compilation();
        match self.compile_in() {
            CompileIn::ThisProcess => self.client.compile(text).map_err(|error| error.to_string()),
            CompileIn::Child { program, time_limit } => {
                let plugin = self.client.plugin().path();
                let compiled =
                    compile_in_child(&program, time_limit, &self.platform, plugin, &CompileFor::Device, text)?;
                self.client.deserialize(&compiled.executable).map_err(|error| error.to_string())
            }
        }
    }

    /// The program that folds constants is small and runs once, so it is compiled in this process.
    fn folding(&self, program: &Program, cache: Option<&Cache>) -> Result<LoadedExecutable, PjrtError> {
        let key = self.key(&["constants", &program.text]);
        if let Some(Found::Entry(_, bytes)) = cache.map(|cache| cache.load(&key))
            && let Ok(executable) = self.client.deserialize(&bytes)
        {
            return Ok(executable);
        }
        crate::executable::count_compilation();
        let executable = self.client.compile(&program.text)?;
        if let (Some(cache), Ok(bytes)) = (cache, executable.executable().and_then(|e| e.serialize())) {
            // The buckets' entries report a cache that cannot be written; once is enough.
            let _ = cache.store(&key, "constants", &bytes);
        }
        Ok(executable)
    }
}

struct Ready {
    report: BucketReport,
    executable: LoadedExecutable,
    inputs: Vec<InputSpec>,
    outputs: Vec<Vec<usize>>,
}

impl Ready {
    fn new(report: BucketReport, executable: LoadedExecutable, program: &Program) -> Self {
        Self { report, executable, inputs: program.inputs.clone(), outputs: program.outputs.clone() }
    }
}

impl Backend for XlaBackend {
    fn info(&self) -> BackendInfo {
        let plugin = self.client.plugin();
        let mut notes = vec![format!("plugin {}", plugin.path().display())];
        notes.extend(plugin.attributes().into_iter().map(|(name, value)| format!("{name}: {value}")));
        if let Some(bytes) = self.memory_limit() {
            notes.push(format!("memory limit {} MiB", bytes >> 20));
        }
        notes.push("a StableHLO function from a file is an attention kernel too".to_owned());
        if self.platform == "cpu" {
            notes.push("threads are the plugin's own: as many as there are cores".to_owned());
        }
        BackendInfo {
            name: self.name(),
            device: self.device(),
            version: format!("PJRT {}, ehun-backend-xla {}", plugin.interface_version(), env!("CARGO_PKG_VERSION")),
            attention_kernels: [Form::Native, Form::Blocked, Form::Flash].map(|form| form.name().to_owned()).to_vec(),
            precisions: vec![Precision::F32, Precision::Bf16],
            static_shapes: true,
            notes,
        }
    }

    fn capabilities(&self, graph: &Graph, options: &Options) -> Capabilities {
        let (kernel, reason) = match &options.attention {
            Attention::Auto => (
                "native or blocked, for each bucket".to_owned(),
                "chosen by the memory and time that the compiler gives for each bucket's programs".to_owned(),
            ),
            Attention::Named(name) => (name.clone(), "asked for".to_owned()),
            Attention::File(path) => (
                format!("imported from {}", path.display()),
                "asked for; native or blocked where the compiler refuses it".to_owned(),
            ),
        };
        let attention = graph
            .attentions()
            .map(|(label, _)| AttentionChoice {
                operation: label.to_owned(),
                kernel: kernel.clone(),
                reason: reason.clone(),
            })
            .collect();
        Capabilities {
            backend: self.name(),
            device: self.device(),
            precision: options.precision,
            attention,
            weight_bytes: weight_bytes(graph, options.precision),
            batch_bytes: None,
            refusals: self.refusals(graph, options),
        }
    }

    fn compile(
        &self,
        graph: Arc<Graph>,
        weights: &WeightStore,
        options: &Options,
    ) -> Result<Box<dyn ehun_backend::Executable>, BackendError> {
        Ok(Box::new(self.compile_xla(graph, weights, options)?))
    }
}

/// Memory of the weights on the device: matrices in the type of the products, vectors in float32.
fn weight_bytes(graph: &Graph, precision: Precision) -> u64 {
    let constant: Vec<_> = graph
        .nodes()
        .iter()
        .filter_map(|node| if let Op::Constant { weight } = node.op { Some(graph.weight(weight)) } else { None })
        .collect();
    let size = |weight: &ehun_graph::WeightRef| {
        let narrow = precision == Precision::Bf16 && weight.shape.len() == 2 && !constant.contains(&weight);
        weight.num_elements() as u64 * if narrow { 2 } else { 4 }
    };
    graph.weights().iter().map(size).sum()
}

/// Memory of this machine in bytes, where the system says it.
fn machine_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib << 10)
}

/// The functions that a file must hold to serve the attention operations of `graph` in `bucket`, with their labels; shown by
/// `ehun explain --attention-signature`.
pub fn attention_signatures(graph: &Graph, bucket: Bucket, precision: Precision) -> Vec<(String, Signature)> {
    graph
        .attentions()
        .map(|(label, spec)| (label.to_owned(), imported::signature(graph, spec, bucket, precision)))
        .collect()
}

/// Reads and checks the attention function of a file for `bucket`.
pub fn read_attention(
    path: &std::path::Path,
    graph: &Graph,
    bucket: Bucket,
    precision: Precision,
) -> Result<Imported, imported::ImportError> {
    imported::read(path, graph, bucket, precision)
}

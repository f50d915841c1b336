//! Ahead of time: what the compiler says of a model's buckets on devices that are not here.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ehun_backend::{Attention, Bucket, Options, Precision};
use ehun_graph::Graph;
use serde::{Deserialize, Serialize};

use crate::choice::{Attempt, BucketReport, Recipe, whole_loops};
use crate::error::XlaError;
use crate::lower::attention::Form;
use crate::lower::{self, Target, imported};
use crate::pjrt::{CompiledFigures, Plugin, Topology};
use crate::plugins;
use crate::target::AotTarget;
use crate::tools;
use crate::worker::{CompileFor, CompileIn, compile_in_child};
use ehun_backend::buckets;

/// What a compilation ahead of time came to. Everything in it is the compiler's estimate, not a measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// What was compiled for: a TPU topology, or a GPU's name or description.
    pub topology: String,
    /// Kind of its devices in the compiler's words.
    pub device_kind: String,
    /// Version of the plugin's interface and its file.
    pub plugin: String,
    /// Type of the products.
    pub precision: Precision,
    /// Memory of a device in bytes, where it is known.
    pub memory_limit: Option<u64>,
    /// A line for each bucket.
    pub buckets: Vec<BucketReport>,
    /// Files of the chosen programs by bucket, where they were asked for.
    pub artefacts: BTreeMap<String, PathBuf>,
}

/// How to compile ahead of time.
#[derive(Debug, Clone)]
pub struct AotConfig {
    /// Plugins by platform, used where the environment names none.
    pub plugins: BTreeMap<String, PathBuf>,
    /// Where programs are compiled; a child is the safe choice, as the TPU compiler may end its process.
    pub compile_in: CompileIn,
    /// Whether every form is compiled, and not only until one serves.
    pub all_forms: bool,
    /// Folder for the compiled programs of the chosen forms.
    pub out: Option<PathBuf>,
}

impl AotConfig {
    /// Compiles in children of this same program, ten minutes each.
    pub fn new() -> std::io::Result<Self> {
        let program = std::env::current_exe()?;
        Ok(Self {
            plugins: BTreeMap::new(),
            compile_in: CompileIn::Child { program, time_limit: Duration::from_secs(600) },
            all_forms: false,
            out: None,
        })
    }
}

/// Whether programs for `platform` can be compiled here without its device: the reason why not. `configured` are plugins by
/// platform, as in [`AotConfig::plugins`].
pub fn without_device(platform: &str, configured: &BTreeMap<String, PathBuf>) -> Result<(), XlaError> {
    match platform {
        "tpu" => Ok(()),
        "cuda" => {
            let plugin = plugins::find("cuda", configured);
            let mut missing: Vec<String> = plugin.as_ref().err().iter().map(ToString::to_string).collect();
            missing.extend(tools::missing(plugin.ok().as_deref()));
            if missing.is_empty() { Ok(()) } else { Err(XlaError::Missing { platform: platform.to_owned(), missing }) }
        }
        "cpu" => {
            Err(XlaError::Refused("xla:cpu is compiled when a model is loaded, and its programs are cached".into()))
        }
        other => Err(XlaError::Refused(format!("xla:{other} is unknown; there are xla:cpu, xla:tpu and xla:cuda"))),
    }
}

/// Compiles every bucket of `graph` for `target`. `told` hears of each bucket when it is done.
pub fn aot(
    target: &AotTarget,
    graph: &Graph,
    options: &Options,
    config: &AotConfig,
    told: &mut dyn FnMut(&BucketReport),
) -> Result<Table, XlaError> {
    if !matches!(options.precision, Precision::F32 | Precision::Bf16) {
        let reason = format!("precision {} is not lowered to XLA here; there are f32 and bf16", options.precision);
        return Err(XlaError::Refused(reason));
    }
    if let Attention::Named(name) = &options.attention
        && crate::Form::from_name(name).is_none()
    {
        let reason = format!("attention `{name}` is unknown; there are native, blocked and flash, or a file");
        return Err(XlaError::Refused(reason));
    }
    let longest = graph.max_positions().map_or(options.max_sequence, |most| most.min(options.max_sequence));
    let buckets = buckets::choose(&options.buckets, longest, options.max_batch_tokens)
        .map_err(|refusal| XlaError::Refused(refusal.to_string()))?;
    let plugin = plugin(target, config)?;
    let named = target.topology(&plugin)?;
    let mut table = Table {
        topology: target.name().to_owned(),
        device_kind: named.device_kind()?,
        plugin: describe(&plugin),
        precision: options.precision,
        memory_limit: target.memory(),
        buckets: Vec::new(),
        artefacts: BTreeMap::new(),
    };
    let table_length = buckets.iter().map(|bucket| bucket.length).max().unwrap_or(1);
    for bucket in buckets {
        let recipe = Recipe {
            graph,
            bucket,
            precision: options.precision,
            attention: &options.attention,
            table_length,
            memory_limit: table.memory_limit,
        };
        let (report, program) = compile_bucket(&recipe, &named, target, &plugin, config);
        if let (Some(folder), Some(bytes)) = (&config.out, program) {
            let place = artefact(folder, target, bucket);
            let written = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&place, bytes));
            match written {
                Ok(()) => {
                    table.artefacts.insert(bucket.to_string(), place);
                }
                Err(error) => return Err(XlaError::Refused(format!("{}: {error}", place.display()))),
            }
        }
        told(&report);
        table.buckets.push(report);
    }
    Ok(table)
}

fn artefact(folder: &std::path::Path, target: &AotTarget, bucket: Bucket) -> PathBuf {
    folder.join(format!("{}-{bucket}.pjrt", target.file_name()))
}

fn plugin(target: &AotTarget, config: &AotConfig) -> Result<Arc<Plugin>, XlaError> {
    let platform = target.platform();
    Ok(plugins::load(platform, &plugins::find(platform, &config.plugins)?)?)
}

fn describe(plugin: &Plugin) -> String {
    let attributes = plugin.attributes();
    let version = attributes.iter().find(|(name, _)| name.contains("version") && !name.contains("stablehlo"));
    let version = version.map_or(String::new(), |(name, value)| format!(", {name} {value}"));
    format!("PJRT {}{version}, {}", plugin.interface_version(), plugin.path().display())
}

fn compile_bucket(
    recipe: &Recipe<'_>,
    named: &Topology,
    target: &AotTarget,
    plugin: &Plugin,
    config: &AotConfig,
) -> (BucketReport, Option<Vec<u8>>) {
    let mut attempts: Vec<Attempt> = Vec::new();
    let mut programs = Vec::new();
    let compile = |text: &str| compile_text(text, named, target, plugin, config);
    for candidate in recipe.candidates() {
        if !config.all_forms && !recipe.wants_another(&attempts) {
            break;
        }
        let start = Instant::now();
        let (outcome, loop_steps) = match candidate.program {
            Err(reason) => (Err(reason), 1),
            Ok(program) => {
                let outcome = compile(&program.text).map(|(figures, bytes)| {
                    programs.push((candidate.form, bytes));
                    let probe = (program.loop_steps > 1)
                        .then(|| compile(&recipe.program(candidate.form, None, true).text).ok());
                    whole_loops(figures, program.loop_steps, probe.flatten().map(|probe| probe.0).as_ref())
                });
                (outcome, program.loop_steps)
            }
        };
        let compile_seconds = start.elapsed().as_secs_f64();
        attempts.push(Attempt { form: candidate.form, outcome, loop_steps, compile_seconds });
    }
    let (form, reason) = recipe.choose(&attempts);
    let program = programs.into_iter().find(|(compiled, _)| Some(*compiled) == form).map(|(_, bytes)| bytes);
    let report = BucketReport { bucket: recipe.bucket, form, reason, attempts, from_cache: false, notes: Vec::new() };
    (report, program)
}

fn compile_text(
    text: &str,
    named: &Topology,
    target: &AotTarget,
    plugin: &Plugin,
    config: &AotConfig,
) -> Result<(CompiledFigures, Vec<u8>), String> {
    crate::executable::count_compilation();
    match &config.compile_in {
        CompileIn::Child { program, time_limit } => {
            let platform = target.platform();
            let target = CompileFor::Absent(target.clone());
            let compiled = compile_in_child(program, *time_limit, platform, plugin.path(), &target, text)?;
            Ok((compiled.figures, compiled.executable))
        }
        CompileIn::ThisProcess => named
            .compile(text)
            .and_then(|executable| Ok((executable.figures()?, executable.serialize().unwrap_or_default())))
            .map_err(|error| error.to_string()),
    }
}

/// The figures of one attention operation on its own in `form`, `bias` without tables: what docs/tpu.md tabulates.
pub fn attention_alone(
    target: &AotTarget,
    graph: &Graph,
    bucket: Bucket,
    precision: Precision,
    attention: &Attention,
    config: &AotConfig,
) -> Result<Result<CompiledFigures, String>, XlaError> {
    let plugin = plugin(target, config)?;
    let named = target.topology(&plugin)?;
    let Some((_, spec)) = graph.attentions().next() else {
        return Err(XlaError::Refused("the graph has no attention".to_owned()));
    };
    let compile = |text: &str| compile_text(text, &named, target, &plugin, config);
    let (form, imported) = match attention {
        Attention::File(path) => match imported::read(path, graph, bucket, precision) {
            Ok(function) => (Form::Imported, Some(function)),
            Err(error) => return Ok(Err(error.to_string())),
        },
        Attention::Named(name) => (Form::from_name(name).unwrap_or(Form::Native), None),
        Attention::Auto => (Form::Native, None),
    };
    let program = |probe: bool| {
        let target =
            Target { bucket, precision, form, table_length: bucket.length, imported: imported.as_ref(), probe };
        lower::attention_alone(graph, spec, target)
    };
    let plain = program(false);
    Ok(compile(&plain.text).map(|(figures, _)| {
        let probe = (plain.loop_steps > 1).then(|| compile(&program(true).text).ok()).flatten();
        whole_loops(figures, plain.loop_steps, probe.map(|probe| probe.0).as_ref())
    }))
}

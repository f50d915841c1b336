//! `ehun compile`: ahead of time for a TPU or GPU that is not there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use ehun_backend::{Attention, Options, Precision};
use ehun_backend_xla::{AotTarget, BucketReport, CompileIn, aot};
use ehun_graph::Graph;
use ehun_models::{Checkpoint, LoadOptions, Model, Outline};

use crate::error::{CommandError, CommandResult, Outcome};
use crate::output::{json_line, line};
use crate::session::{BucketArgs, at_least_one, checkpoint};

/// Flags of `ehun compile`.
#[derive(Debug, Args)]
pub struct Compile {
    /// The backend: xla:tpu, xla:cuda
    #[arg(long, default_value = "xla:tpu", value_name = "NAME")]
    backend: String,
    /// The devices: v4:2x2x1, v5p:2x2x1, v5e:2x2, v6e:2x2, tpu7x:2x2x1; for xla:cuda a100_sxm_80, a6000, b200, h100_sxm, h200,
    /// or a file with the text of a GpuTargetConfigProto
    #[arg(long, value_name = "NAME|FILE")]
    topology: Option<String>,
    /// Directory of a model, or ORG/NAME of one that was pulled [default: the embedded all-MiniLM-L6-v2]
    #[arg(long, value_name = "DIR|ORG/NAME")]
    model: Option<PathBuf>,
    /// Compile the shape of a model from its config.json alone (and modules.json, where there is one): a program holds no
    /// weights, so none need be there
    #[arg(long, value_name = "DIR|FILE", conflicts_with = "model")]
    shape_of: Option<PathBuf>,
    /// Most tokens of a text, below what the model allows
    #[arg(long, value_name = "N")]
    max_tokens: Option<usize>,
    /// Most tokens of a program that is not in a list
    #[arg(long, value_name = "N", default_value_t = 16_384, value_parser = at_least_one)]
    batch_tokens: usize,
    /// In what the products are computed: f32 or bf16
    #[arg(long, default_value = "bf16")]
    precision: Precision,
    /// native, blocked, flash, or a file with a StableHLO function; auto chooses by the compiler's figures
    #[arg(long, default_value = "auto", value_name = "FORM|FILE")]
    attention: Attention,
    #[command(flatten)]
    shapes: BucketArgs,
    /// Longest time for one compilation; a form that takes longer counts as refused
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = at_least_one)]
    time_limit: usize,
    /// Compile every form of each bucket, and not only until one serves
    #[arg(long)]
    all_forms: bool,
    /// Folder for the compiled programs
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

impl Compile {
    /// Compiles.
    pub fn run(self) -> CommandResult {
        let Some(platform) = self.backend.strip_prefix("xla:") else {
            let reason =
                format!("`{}` has no programs to compile ahead of time; xla:tpu and xla:cuda have", self.backend);
            return Err(CommandError::Usage(reason));
        };
        // What is missing is said first, all of it.
        aot::without_device(platform, &BTreeMap::new())?;
        let example = if platform == "tpu" { "v5e:2x2" } else { "h100_sxm" };
        let none = || CommandError::Usage(format!("--topology NAME is needed, for example {example}"));
        let target = AotTarget::of(platform, self.topology.as_deref().ok_or_else(none)?)?;
        let load = LoadOptions { check_finite: false, max_tokens: self.max_tokens, ..LoadOptions::default() };
        let subject = match &self.shape_of {
            Some(path) => shape(path, &load)?.into(),
            None => Subject::from(Model::load(&checkpoint(self.model.as_deref())?, &load)?),
        };
        let count = |text: &str| subject.count(text);
        let options = Options {
            precision: self.precision,
            attention: self.attention.clone(),
            max_sequence: subject.max_tokens,
            max_batch_tokens: subject.max_tokens.max(self.batch_tokens),
            buckets: self.shapes.choice(&count)?,
            ..Options::default()
        };
        let mut config = aot::AotConfig::new().map_err(CommandError::io("this program's own path"))?;
        config.out = self.out.clone();
        config.all_forms = self.all_forms;
        if let CompileIn::Child { time_limit, .. } = &mut config.compile_in {
            *time_limit = Duration::from_secs(self.time_limit as u64);
        }
        let mut told = |report: &BucketReport| eprintln!("{}: {}", report.bucket, report.reason);
        let table = aot::aot(&target, &subject.graph, &options, &config, &mut told)?;
        if self.json {
            json_line(&table)?;
        } else {
            line(&format!("{} on {} ({}), {}", subject.name, table.topology, table.device_kind, table.precision))?;
            line(&format!("{}; every figure is the compiler's estimate, not a measurement", table.plugin))?;
            if let Some(limit) = table.memory_limit {
                line(&format!("memory of one device: {} MiB", mib(limit)))?;
            }
            line(&format!(
                "{:>10} {:>9} {:>9} {:>9} {:>9} {:>17} {:>10} {:>9} {:>10}  why",
                "bucket", "attention", "arg MiB", "temp MiB", "out MiB", "total", "GFLOP", "MiB moved", "est. us"
            ))?;
            table.buckets.iter().try_for_each(|report| line(&row(report, table.memory_limit)))?;
        }
        let all = table.buckets.iter().all(|report| report.form.is_some());
        Ok(if all { Outcome::Done } else { Outcome::SomeFailed })
    }
}

/// What is compiled: a graph and what the shapes are chosen by.
struct Subject {
    name: String,
    graph: Arc<Graph>,
    max_tokens: usize,
    /// Counts the tokens of a sample's texts; there is none where only a configuration is.
    model: Option<Model>,
}

impl Subject {
    fn count(&self, text: &str) -> Result<usize, CommandError> {
        let no_tokenizer = "--sample needs a model with its tokenizer: with --shape-of give --lengths";
        let model = self.model.as_ref().ok_or_else(|| CommandError::Usage(no_tokenizer.into()))?;
        Ok(model.tokenize(text)?.ids.len())
    }
}

impl From<Outline> for Subject {
    fn from(outline: Outline) -> Self {
        Self { name: outline.name, graph: outline.graph, max_tokens: outline.max_tokens, model: None }
    }
}

impl From<Model> for Subject {
    fn from(model: Model) -> Self {
        let (name, graph, max_tokens) = (model.name().to_owned(), model.graph().clone(), model.max_tokens());
        Self { name, graph, max_tokens, model: Some(model) }
    }
}

/// The outline of the model whose directory or `config.json` is at `path`.
fn shape(path: &Path, load: &LoadOptions) -> Result<Outline, CommandError> {
    let is_config = path.is_file() && path.file_name().is_some_and(|name| name == "config.json");
    let directory = match path.parent().filter(|_| is_config) {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => path,
    };
    Ok(Outline::read(&Checkpoint::open(directory)?, load)?)
}

fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}

fn row(report: &BucketReport, limit: Option<u64>) -> String {
    let Some(figures) = report.figures() else {
        return format!("{:>10} {:>9}  {}", report.bucket.to_string(), "none", report.reason);
    };
    let known = |value: Option<f64>, unit: f64| value.map_or_else(|| "-".to_owned(), |v| format!("{:.1}", v / unit));
    let total = figures.total_bytes();
    let share = limit.map_or_else(String::new, |limit| format!(" ({:.1} %)", 100.0 * total as f64 / limit as f64));
    let uncosted = if figures.uncosted > 0 { format!("; {} not costed", figures.uncosted) } else { String::new() };
    format!(
        "{:>10} {:>9} {:>9} {:>9} {:>9} {:>17} {:>10} {:>9} {:>10}  {}{uncosted}",
        report.bucket.to_string(),
        report.form.map_or("none", |form| form.name()),
        mib(figures.argument_bytes),
        mib(figures.temp_bytes),
        mib(figures.output_bytes),
        format!("{}{share}", mib(total)),
        known(figures.flops, 1e9),
        known(figures.bytes_accessed, f64::from(1 << 20)),
        known(figures.optimal_seconds, 1e-6),
        report.reason
    )
}

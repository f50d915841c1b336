//! `ehun compile`: ahead of time for a TPU that is not there.

use std::path::PathBuf;

use clap::Args;
use ehun_backend::{Attention, BucketChoice, Options, Precision};
use ehun_backend_xla::{BucketReport, aot};
use ehun_models::{LoadOptions, Model};

use crate::error::{CommandError, CommandResult, Outcome};
use crate::output::{json_line, line};
use crate::session::checkpoint;

/// Flags of `ehun compile`.
#[derive(Debug, Args)]
pub struct Compile {
    /// The backend: xla:tpu
    #[arg(long, default_value = "xla:tpu", value_name = "NAME")]
    backend: String,
    /// The devices: v4:2x2x1, v5p:2x2x1, v5e:2x2, v6e:2x2, tpu7x:2x2x1
    #[arg(long, value_name = "NAME")]
    topology: String,
    /// Directory of a model, or ORG/NAME of one that was pulled [default: the embedded all-MiniLM-L6-v2]
    #[arg(long, value_name = "DIR|ORG/NAME")]
    model: Option<PathBuf>,
    /// In what the products are computed: f32 or bf16
    #[arg(long, default_value = "bf16")]
    precision: Precision,
    /// native, blocked, flash, or a file with a StableHLO function; auto chooses by the compiler's figures
    #[arg(long, default_value = "auto", value_name = "FORM|FILE")]
    attention: Attention,
    /// Static shapes, batch x length [default: from a usual distribution of lengths]
    #[arg(long, value_name = "BxL[,BxL...]", value_delimiter = ',')]
    buckets: Vec<String>,
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
        if self.backend != "xla:tpu" {
            return Err(CommandError::Usage(format!(
                "`{}` cannot compile without its device; xla:tpu can",
                self.backend
            )));
        }
        let load = LoadOptions { check_finite: false, ..LoadOptions::default() };
        let model = Model::load(&checkpoint(self.model.as_deref())?, &load)?;
        let options = Options {
            precision: self.precision,
            attention: self.attention.clone(),
            max_sequence: model.max_tokens(),
            max_batch_tokens: model.max_tokens().max(16_384),
            buckets: self.shapes()?,
            ..Options::default()
        };
        let mut config = aot::AotConfig::new().map_err(CommandError::io("this program's own path"))?;
        config.out = self.out.clone();
        let mut told = |report: &BucketReport| eprintln!("{}: {}", report.bucket, report.reason);
        let table = aot::aot(&self.topology, model.graph(), &options, &config, &mut told)?;
        if self.json {
            json_line(&table)?;
        } else {
            line(&format!("{} on {} ({}), {}", model.name(), table.topology, table.device_kind, table.precision))?;
            line(&format!("{}; every figure is the compiler's estimate, not a measurement", table.plugin))?;
            line(&format!(
                "{:>10} {:>9} {:>9} {:>9} {:>9} {:>10} {:>9} {:>10}  why",
                "bucket", "attention", "arg MiB", "temp MiB", "out MiB", "GFLOP", "MiB moved", "est. us"
            ))?;
            table.buckets.iter().try_for_each(|report| line(&row(report)))?;
        }
        let all = table.buckets.iter().all(|report| report.form.is_some());
        Ok(if all { Outcome::Done } else { Outcome::SomeFailed })
    }

    fn shapes(&self) -> Result<BucketChoice, CommandError> {
        if self.buckets.is_empty() {
            return Ok(BucketChoice::Default);
        }
        let parse = |text: &String| {
            let (batch, length) = text.split_once('x')?;
            Some((batch.parse().ok()?, length.parse().ok()?))
        };
        let list: Option<Vec<(usize, usize)>> = self.buckets.iter().map(parse).collect();
        let wrong = || CommandError::Usage("--buckets takes BATCHxLENGTH, for example 32x128,8x512".into());
        Ok(BucketChoice::List(list.ok_or_else(wrong)?))
    }
}

fn row(report: &BucketReport) -> String {
    let Some(figures) = report.figures() else {
        return format!("{:>10} {:>9}  {}", report.bucket.to_string(), "none", report.reason);
    };
    let mib = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
    let known = |value: Option<f64>, unit: f64| value.map_or_else(|| "-".to_owned(), |v| format!("{:.1}", v / unit));
    format!(
        "{:>10} {:>9} {:>9} {:>9} {:>9} {:>10} {:>9} {:>10}  {}",
        report.bucket.to_string(),
        report.form.map_or("none", |form| form.name()),
        mib(figures.argument_bytes),
        mib(figures.temp_bytes),
        mib(figures.output_bytes),
        known(figures.flops, 1e9),
        known(figures.bytes_accessed, f64::from(1 << 20)),
        known(figures.optimal_seconds, 1e-6),
        report.reason
    )
}

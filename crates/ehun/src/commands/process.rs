//! `ehun process`: the batch job.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use ehun_documents::{ChunkOptions, Limits, PoolOptions, WorkerPool};
use ehun_engine::Service;
use ehun_models::tasks::tag::Aggregation;
use ehun_models::{Model, Task};
use ehun_pipeline::{
    Classifier, Format, JobOptions, ModelCounter, Output, PartSize, Producer, Report, Shard, Tagger, Tools,
};
use serde::Serialize;

use crate::error::{CommandError, CommandResult, Outcome};
use crate::output::{json_line, line};
use crate::progress::{Mode, Progress};
use crate::session::{ModelArgs, PromptArgs, annotator, at_least_one, producer};

/// Flags of `ehun process`.
#[derive(Debug, Args)]
pub struct Process {
    /// Files and folders
    #[arg(required = true, value_name = "INPUT")]
    inputs: Vec<PathBuf>,
    /// Output folder; `-` is standard output, as JSON Lines
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Form of the output tables: parquet, jsonl, arrow
    #[arg(long, default_value = "parquet")]
    format: Format,
    /// Most tokens of a chunk, special tokens included [default: what the model takes, at most 256]
    #[arg(long, value_name = "N")]
    chunk_tokens: Option<usize>,
    /// Tokens that a chunk shares with the one before it
    #[arg(long, value_name = "N", default_value_t = 0)]
    overlap: usize,
    /// Also embed hidden text (kept apart and not embedded otherwise)
    #[arg(long)]
    hidden: bool,
    /// Also embed boilerplate: navigation, running headers and footers
    #[arg(long)]
    boilerplate: bool,
    /// Field of JSON documents that holds their text [default: all strings]
    #[arg(long, value_name = "NAME")]
    text_field: Option<String>,
    #[command(flatten)]
    prompt: PromptArgs,
    /// Also label each chunk with this model for sequence classification (columns `labels...`)
    #[arg(long, value_name = "DIR|ORG/NAME|NAME")]
    classify: Option<PathBuf>,
    /// Of the labels of a chunk keep the best N [default: all]
    #[arg(long, value_name = "N", requires = "classify", value_parser = at_least_one)]
    top_labels: Option<usize>,
    /// Also find the entities of each chunk with this model for token classification (columns `entities...`)
    #[arg(long, value_name = "DIR|ORG/NAME|NAME")]
    tag: Option<PathBuf>,
    /// How tokens become entities: none, simple, first, average, max
    #[arg(long, default_value = "simple", requires = "tag")]
    aggregation: Aggregation,
    /// Keep chunks with the same words once; the places of the others are in the column `also_at`
    #[arg(long)]
    dedup: bool,
    /// Remove from the output what has no file any more
    #[arg(long)]
    prune: bool,
    /// Process again what failed before
    #[arg(long)]
    retry_failed: bool,
    /// Take only one part of the files, by the hash of their paths: 1/4 ... 4/4 on four machines
    #[arg(long, value_name = "I/N")]
    shard: Option<Shard>,
    /// Documents that are parsed at the same time [default: one for each core]
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// Memory of a parse worker in MB
    #[arg(long, value_name = "MB", default_value_t = 1024)]
    worker_memory: u64,
    /// Time for a document in seconds, and a little more for large ones
    #[arg(long, value_name = "S", default_value_t = 60.0)]
    worker_time: f64,
    /// Documents after which what is done is made durable
    #[arg(long, value_name = "N", default_value_t = 512)]
    part_documents: u64,
    /// Events and the result as JSON Lines on standard output
    #[arg(long)]
    json: bool,
    /// Say nothing but errors
    #[arg(long, short, conflicts_with = "json")]
    quiet: bool,
    #[command(flatten)]
    model: ModelArgs,
}

static STOP: AtomicBool = AtomicBool::new(false);

#[derive(Serialize)]
struct Done<'a> {
    event: &'static str,
    #[serde(flatten)]
    report: &'a Report,
}

impl Process {
    /// Runs the job.
    pub fn run(self) -> CommandResult {
        let to_stdout = self.out.as_os_str() == "-";
        if to_stdout && self.json {
            return Err(CommandError::Usage("--json and --out - would both write to standard output; give one".into()));
        }
        let mode = match (self.quiet, self.json) {
            (true, _) => Mode::Quiet,
            (_, true) => Mode::Json,
            _ => Mode::Human,
        };
        let model = self.model.load(Some(Task::Embed))?;
        let options = self.options(model.max_tokens(), to_stdout)?;
        let counter = ModelCounter::new(Arc::clone(&model), self.prompt.prompt().as_ref())?;
        let service = self.model.serve(&model, false)?;
        let classifier = self.classify.as_deref().map(|name| self.other(name, Task::Classify)).transpose()?;
        let tagger = self.tag.as_deref().map(|name| self.other(name, Task::Tag)).transpose()?;
        let mark = |other: &Option<(Arc<Model>, Service)>| other.as_ref().map(|(model, _)| annotator(model));
        let producer = Producer { labels: mark(&classifier), entities: mark(&tagger), ..producer(&model) };
        let pool = WorkerPool::new(PoolOptions { workers: options.workers, ..PoolOptions::default() })
            .map_err(ehun_pipeline::JobError::from)?;
        stop_on_interrupt();
        let progress = Progress::new(mode);
        let tools = Tools {
            service: &service,
            producer: &producer,
            classifier: classifier.as_ref().map(|(model, service)| Classifier { service, model, top: self.top_labels }),
            tagger: tagger.as_ref().map(|(model, service)| Tagger { service, model, aggregation: self.aggregation }),
            counter: &counter,
            pool: &pool,
            listener: &progress,
            stop: &STOP,
        };
        let report = ehun_pipeline::process(&tools, &options);
        progress.finish();
        let report = report?;
        if mode == Mode::Json {
            json_line(&Done { event: "done", report: &report })?;
        }
        if mode == Mode::Human {
            self.tell(&report, to_stdout)?;
        }
        if report.interrupted {
            if mode != Mode::Json {
                eprintln!("stopped; what is done is kept. Run the same command again to go on.");
            }
            return Ok(Outcome::Interrupted);
        }
        if report.failed > 0 {
            self.list_failures(&report, mode);
            return Ok(Outcome::SomeFailed);
        }
        Ok(if report.failed_before > 0 { Outcome::SomeFailed } else { Outcome::Done })
    }

    /// A model beside the embedding one, on the same backends.
    fn other(&self, name: &Path, task: Task) -> Result<(Arc<Model>, Service), CommandError> {
        let arguments = self.model.with_model(name);
        let model = arguments.load(Some(task))?;
        let service = arguments.serve(&model, false)?;
        Ok((model, service))
    }

    fn options(&self, model_tokens: usize, to_stdout: bool) -> Result<JobOptions, CommandError> {
        let max_tokens = self.chunk_tokens.unwrap_or(model_tokens.min(256));
        if max_tokens > model_tokens {
            return Err(CommandError::Usage(format!(
                "--chunk-tokens {max_tokens}: the model takes {model_tokens} tokens, and no chunk may be cut by it; give at most that"
            )));
        }
        if self.dedup && to_stdout {
            let reason =
                "--dedup needs an output folder: on standard output a chunk is gone before its repetitions are known";
            return Err(CommandError::Usage(reason.into()));
        }
        if self.workers == Some(0) || self.part_documents == 0 {
            return Err(CommandError::Usage("--workers and --part-documents must be at least 1".into()));
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(JobOptions {
            inputs: self.inputs.clone(),
            output: if to_stdout { Output::Stdout } else { Output::Folder(self.out.clone()) },
            format: self.format,
            dedup: self.dedup,
            chunk: ChunkOptions {
                max_tokens,
                overlap: self.overlap,
                include_hidden: self.hidden,
                include_boilerplate: self.boilerplate,
            },
            text_field: self.text_field.clone(),
            limits: Limits {
                memory_bytes: self.worker_memory << 20,
                wall_seconds: self.worker_time,
                ..Limits::default()
            },
            workers: self.workers.unwrap_or(cores),
            prompt: self.prompt.prompt(),
            prune: self.prune,
            retry_failed: self.retry_failed,
            shard: self.shard,
            identity: self.model.identity(),
            parts: PartSize { documents: self.part_documents, ..PartSize::default() },
        })
    }

    fn tell(&self, report: &Report, to_stdout: bool) -> Result<(), CommandError> {
        let mut text = format!(
            "{} documents, {} chunks, {} tokens in {:.1} s",
            report.documents, report.chunks, report.tokens, report.seconds
        );
        if report.unchanged > 0 {
            text += &format!("; {} files unchanged", report.unchanged);
        }
        if report.failed_before > 0 {
            text += &format!(", {} of them failed before (--retry-failed tries them again)", report.failed_before);
        }
        if report.pruned > 0 {
            text += &format!("; {} files gone and removed", report.pruned);
        }
        if to_stdout {
            eprintln!("{text}");
            return Ok(());
        }
        line(&text)?;
        if !report.interrupted {
            for table in &report.tables {
                line(&format!("{}", table.display()))?;
            }
        }
        Ok(())
    }

    fn list_failures(&self, report: &Report, mode: Mode) {
        if mode == Mode::Json {
            return;
        }
        eprintln!("{} of {} documents failed:", report.failed, report.documents);
        for failure in &report.failures {
            eprintln!("  {} ({}): {}", failure.path, failure.code, failure.message);
        }
        let rest = report.failed - report.failures.len() as u64;
        if rest > 0 {
            eprintln!("  ... and {rest} more: they are in the documents table, with status `failed`");
        }
    }
}

/// The first interrupt ends the job in order; the second ends the program, which harms nothing either.
fn stop_on_interrupt() {
    let handler = || {
        if STOP.swap(true, Ordering::SeqCst) {
            std::process::exit(130);
        }
        eprintln!("stopping: what is being processed is finished first (once more to stop at once)");
    };
    // Without a handler the program still ends by an interrupt, and the job is still resumable.
    let _ = ctrlc::set_handler(handler);
}

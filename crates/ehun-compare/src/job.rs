//! The document job on one side, and where its time goes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use ehun_documents::{ChunkOptions, Limits, WorkerPool};
use ehun_engine::{BatchEvent, Observer, Service, ServiceConfig};
use ehun_models::Model;
use ehun_pipeline::{
    ChunkVector, Event, Format, JobOptions, Listener, ModelCounter, Output, PartSize, Producer, chunk_vectors, process,
};
use serde::{Deserialize, Serialize};

use crate::error::CompareError;
use crate::side::Side;

/// Seconds by stage. Stages run beside each other: they do not add up to the time of the job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct StageSeconds {
    /// Parsing and cutting, all threads together.
    pub parse: f64,
    /// Tokenising for the engine.
    pub tokenize: f64,
    /// Waiting for a batch: the mean of the chunks, not their sum.
    pub queue: f64,
    /// Batches on the backend.
    pub run: f64,
    /// Attention in them, where the backend takes the time of operations.
    pub attention: Option<f64>,
    /// Writing and making durable.
    pub write: f64,
}

/// One run of the job.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct JobRun {
    /// From its start to its end.
    pub seconds: f64,
    /// Documents.
    pub documents: u64,
    /// Chunks of them.
    pub chunks: u64,
    /// Tokens of these.
    pub tokens: u64,
    /// Where the time went.
    pub stages: StageSeconds,
    /// Sequences that each attention kernel computed, by the backend's reports.
    pub kernels: BTreeMap<String, usize>,
}

/// What an engine did during a job.
#[derive(Default)]
pub(crate) struct Meter(Mutex<Metered>);

#[derive(Default)]
struct Metered {
    tokenize: f64,
    queue: f64,
    items: usize,
    run: f64,
    attention: Option<f64>,
    kernels: BTreeMap<String, usize>,
}

impl Meter {
    fn take(&self) -> Metered {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Observer for Meter {
    fn batch(&self, event: &BatchEvent<'_>) {
        let mut metered = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        metered.run += event.elapsed.as_secs_f64();
        // The items of a run share its report, which counts once.
        let mut seen = BTreeSet::new();
        for answer in event.results.iter().flatten() {
            metered.tokenize += answer.timing.tokenize.as_secs_f64();
            metered.queue += answer.timing.queue.as_secs_f64();
            metered.items += 1;
            *metered.kernels.entry(answer.output.attention.to_string()).or_default() += 1;
            let report = &answer.output.report;
            if !seen.insert(Arc::as_ptr(report) as usize) {
                continue;
            }
            let of_attention = report.operations.iter().filter(|operation| operation.operation == "attention");
            for operation in of_attention {
                *metered.attention.get_or_insert(0.0) += operation.seconds;
            }
        }
    }
}

/// A side ready to run jobs.
pub(crate) struct Engine<'a> {
    pub(crate) side: &'a Side,
    pub(crate) service: Service,
    pub(crate) meter: Arc<Meter>,
}

impl<'a> Engine<'a> {
    /// Starts the side's service; with `profile` its backend takes the time of each operation.
    pub(crate) fn start(side: &'a Side, batch_tokens: usize, profile: bool) -> Result<Self, CompareError> {
        let meter = Arc::new(Meter::default());
        let config = ServiceConfig {
            name: side.name.clone(),
            workers: side.workers,
            batch_tokens,
            queue_tokens: (batch_tokens * 8).max(65_536),
            profile,
            ..ServiceConfig::default()
        };
        let observers: Vec<Arc<dyn Observer>> = vec![Arc::clone(&meter) as Arc<dyn Observer>];
        let service = Service::start(config, Arc::clone(&side.deployment), observers)
            .map_err(CompareError::io("threads of the engine"))?;
        Ok(Self { side, service, meter })
    }

    /// Puts what the meter has seen since the last time into `run`.
    pub(crate) fn read_meter(&self, run: &mut JobRun) {
        let metered = self.meter.take();
        run.stages.tokenize = metered.tokenize;
        run.stages.queue = metered.queue / metered.items.max(1) as f64;
        run.stages.run = metered.run;
        run.stages.attention = metered.attention;
        run.kernels = metered.kernels;
    }
}

/// What is run.
pub(crate) struct Work<'a> {
    pub(crate) model: &'a Arc<Model>,
    pub(crate) producer: &'a Producer,
    pub(crate) pool: &'a WorkerPool,
    pub(crate) inputs: &'a [PathBuf],
    pub(crate) chunk_tokens: usize,
}

struct Silent;

impl Listener for Silent {
    fn event(&self, _: &Event<'_>) {}
}

static NEVER: AtomicBool = AtomicBool::new(false);

/// Runs the job of `ehun process` into a new folder, which is then read for the vectors where they are `wanted`, and
/// removed.
pub(crate) fn run(
    engine: &Engine<'_>,
    work: &Work<'_>,
    wanted: bool,
) -> Result<(JobRun, Vec<ChunkVector>), CompareError> {
    let folder = tempfile::Builder::new()
        .prefix("ehun-compare-")
        .tempdir()
        .map_err(CompareError::io("a folder for the job's output"))?;
    let counter = ModelCounter::new(Arc::clone(work.model), None)?;
    let tools = ehun_pipeline::Tools {
        service: &engine.service,
        producer: work.producer,
        classifier: None,
        tagger: None,
        counter: &counter,
        pool: work.pool,
        listener: &Silent,
        stop: &NEVER,
    };
    let failed = |source| CompareError::Job { side: engine.side.name.clone(), source };
    let report = process(&tools, &options(work, folder.path())).map_err(failed)?;
    if report.failed > 0 {
        return Err(CompareError::DocumentsFailed {
            side: engine.side.name.clone(),
            failed: report.failed,
            documents: report.documents,
            first: report.failures.first().map_or_else(String::new, |f| format!("{}: {}", f.path, f.message)),
        });
    }
    let mut run = JobRun {
        seconds: report.seconds,
        documents: report.documents,
        chunks: report.chunks,
        tokens: report.tokens,
        ..JobRun::default()
    };
    engine.read_meter(&mut run);
    run.stages.parse = report.stages.parse;
    run.stages.write = report.stages.write;
    let vectors = if wanted { chunk_vectors(&folder.path().join("out")).map_err(failed)? } else { Vec::new() };
    Ok((run, vectors))
}

fn options(work: &Work<'_>, folder: &Path) -> JobOptions {
    JobOptions {
        inputs: work.inputs.to_vec(),
        output: Output::Folder(folder.join("out")),
        format: Format::Parquet,
        dedup: false,
        chunk: chunk_options(work.chunk_tokens),
        text_field: None,
        limits: Limits::default(),
        workers: std::thread::available_parallelism().map_or(1, usize::from),
        prompt: None,
        prune: false,
        retry_failed: false,
        shard: None,
        identity: String::new(),
        parts: PartSize::default(),
    }
}

/// How documents are cut: as `ehun process` does by default.
pub(crate) fn chunk_options(max_tokens: usize) -> ChunkOptions {
    ChunkOptions { max_tokens, overlap: 0, include_hidden: false, include_boilerplate: false }
}

//! The job: sources are found, parsed, cut, embedded and written, each on its own threads, in one order.
//!
//! ```text
//! walk and hash -> parse and cut (several threads) -> put in order, hand to the engine -> wait for vectors, write
//! ```
//!
//! What is between the first step and the last is bounded in sources, bytes and chunks, and what was processed before is read
//! beside the walk, in the same order: memory does not grow with the job.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use ehun_documents::{ParseOptions, TokenCounter, WorkerPool};
use ehun_engine::{EngineError, Input, ItemOptions, Pending, Request, Service, Truncation, tasks};

use crate::annotate::{Asked, ChunkError, Classifier, Tagger};
use crate::error::JobError;
use crate::extra::Annotator;
use crate::gate::Gate;
use crate::job::{Event, Failure, JobOptions, LISTED_FAILURES, Listener, Output, Report};
use crate::known::{Gone, KnownSources, Lookup};
use crate::parse::{Parsed, Parser, fingerprint, hash_file};
use crate::rows::{ChunkRow, DocumentRow, Embedded, Producer};
use crate::sink::Sink;
use crate::source::{SourceFile, Walk};
use crate::store::{Store, work_folder};

/// Chunks that are handed to the engine at once.
const GROUP: usize = 32;
/// Groups that may wait for the writer.
const GROUPS_AHEAD: usize = 16;
/// Bytes of sources that are being processed.
const BYTES_AHEAD: u64 = 256 << 20;

struct Task {
    number: u64,
    file: SourceFile,
    hash: blake3::Hash,
    bytes: u64,
}

/// From the parsing threads, for one source.
enum Piece {
    Document(Box<Parsed>),
    End { name: String, bytes: u64 },
    Stop(JobError),
}

/// To the writer.
enum Step {
    Document(Box<DocumentRow>),
    Chunks(Box<Group>),
    DocumentEnd,
    SourceEnd { name: String, bytes: u64 },
    Stop(JobError),
}

/// Chunks that models are working on.
struct Group {
    rows: Vec<ChunkRow>,
    vectors: Pending,
    labels: Option<Asked>,
    entities: Option<Asked>,
}

/// What a job works with.
pub struct Tools<'a> {
    /// Makes the vectors.
    pub service: &'a Service,
    /// What the vectors come from.
    pub producer: &'a Producer,
    /// Gives chunks labels.
    pub classifier: Option<Classifier<'a>>,
    /// Finds entities.
    pub tagger: Option<Tagger<'a>>,
    /// Counts tokens as the model does.
    pub counter: &'a (dyn TokenCounter + Sync),
    /// Parses.
    pub pool: &'a WorkerPool,
    /// Hears what happens.
    pub listener: &'a dyn Listener,
    /// Set to stop the job: what is being processed is finished, and what is done is kept.
    pub stop: &'a AtomicBool,
}

/// Runs a job.
///
/// # Errors
/// Whatever stops the whole job; what was done until then is kept. A document that fails is in the [`Report`] and in the
/// output, and stops nothing.
pub fn process(tools: &Tools<'_>, options: &JobOptions) -> Result<Report, JobError> {
    let start = Instant::now();
    let settings = settings_hash(tools, options);
    let (skip, scratch) = match &options.output {
        Output::Folder(folder) => (folder.as_path(), work_folder(folder, options.shard)),
        Output::Stdout => (Path::new(""), std::env::temp_dir()),
    };
    // A mistake in the inputs is found before anything is written.
    let walk = Walk::new(&options.inputs, skip, &scratch)?;
    let counting = Walk::new(&options.inputs, skip, &scratch)?;
    let mut sink = match &options.output {
        Output::Folder(folder) => {
            let store = Store::open(folder, options.shard, options.format, tools.producer, options.dedup)?;
            Sink::Store { store: Box::new(store), part: None }
        }
        Output::Stdout => Sink::Stdout(tools.producer.clone()),
    };
    let known = match &sink {
        Sink::Store { store, .. } => store.known(),
        Sink::Stdout(_) => KnownSources::new(Vec::new()),
    };
    let lookup = Lookup::new(known, options.prune.then_some(scratch.as_path()))?;
    let mut report = Report::default();
    let parsing = AtomicU64::new(0);
    let gate = Gate::new(options.workers * 4 + 8, BYTES_AHEAD);
    let parser = Parser {
        pool: tools.pool,
        options: ParseOptions {
            file_name: None,
            text_field: options.text_field.clone(),
            limits: options.limits.clone(),
        },
        chunk: options.chunk.clone(),
        counter: tools.counter,
        settings,
    };

    let gone = std::thread::scope(|scope| {
        let (tasks_out, tasks_in) = mpsc::sync_channel::<Task>(options.workers);
        let (pieces_out, pieces_in) = mpsc::sync_channel::<(u64, Piece)>(options.workers * 2);
        let (steps_out, steps_in) = mpsc::sync_channel::<Step>(GROUPS_AHEAD);
        let tasks_in = Arc::new(Mutex::new(tasks_in));
        let (gate, parser, parsing) = (&gate, &parser, &parsing);

        scope.spawn(move || count(counting, options, tools));
        let walker = scope.spawn(move || walk_all(walk, options, tools, &settings, lookup, gate, &tasks_out));
        for _ in 0..options.workers.max(1) {
            let (tasks_in, pieces_out) = (Arc::clone(&tasks_in), pieces_out.clone());
            scope.spawn(move || parse_all(parser, tools.stop, &tasks_in, &pieces_out, parsing));
        }
        drop(pieces_out);
        drop(tasks_in);
        scope.spawn(move || hand_on(tools, options, pieces_in, &steps_out));

        let written = write_all(&mut sink, tools, options, gate, &steps_in, &mut report);
        // Whoever still waits to hand something on is let go.
        gate.close();
        drop(steps_in);
        let walked = walker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        written?;
        let skipped = walked?;
        report.unchanged = skipped.unchanged;
        report.failed_before = skipped.failed_before;
        Ok::<_, JobError>(skipped.gone)
    })?;

    report.interrupted = tools.stop.load(Ordering::SeqCst);
    if let Sink::Store { mut store, .. } = sink {
        report.tables = store.final_tables();
        let some_gone = gone.as_ref().is_some_and(|gone| gone.count() > 0);
        if !report.interrupted && (store.has_parts() || some_gone || !store.has_tables()) {
            tools.listener.event(&Event::Publishing);
            let mut is_gone = gone.map(Gone::lookup).transpose()?;
            let mut pruned = 0;
            let mut is_dropped = |source: &str| {
                let gone = is_gone.as_mut().map_or(Ok(false), |is_gone| is_gone(source))?;
                pruned += u64::from(gone);
                Ok(gone)
            };
            let publishing = Instant::now();
            report.rows = Some(store.publish(&mut is_dropped)?);
            report.stages.write += publishing.elapsed().as_secs_f64();
            report.pruned = pruned;
        }
    }
    report.stages.parse = Duration::from_nanos(parsing.into_inner()).as_secs_f64();
    report.seconds = start.elapsed().as_secs_f64();
    Ok(report)
}

fn settings_hash(tools: &Tools<'_>, options: &JobOptions) -> blake3::Hash {
    let hash = |annotator: &Option<Annotator>| annotator.as_ref().map(|annotator| annotator.weights_hash.clone());
    let settings = (
        env!("CARGO_PKG_VERSION"),
        &tools.producer.weights_hash,
        (&options.chunk, &options.text_field, format!("{:?}", options.prompt)),
        &options.identity,
        (hash(&tools.producer.labels), tools.classifier.as_ref().and_then(|classifier| classifier.top)),
        (hash(&tools.producer.entities), tools.tagger.as_ref().map(|tagger| tagger.aggregation)),
    );
    blake3::hash(serde_json::to_string(&settings).unwrap_or_default().as_bytes())
}

fn takes(options: &JobOptions, name: &str) -> bool {
    options.shard.is_none_or(|shard| shard.takes(name))
}

fn count(walk: Walk, options: &JobOptions, tools: &Tools<'_>) {
    let mut sources = 0;
    for file in walk {
        // The other walk says what is wrong.
        let Ok(file) = file else { return };
        if tools.stop.load(Ordering::Relaxed) {
            return;
        }
        sources += u64::from(takes(options, &file.name));
    }
    tools.listener.event(&Event::Counted { sources });
}

#[derive(Default)]
struct Skipped {
    unchanged: u64,
    failed_before: u64,
    gone: Option<Gone>,
}

fn walk_all(
    walk: Walk,
    options: &JobOptions,
    tools: &Tools<'_>,
    settings: &blake3::Hash,
    mut lookup: Lookup,
    gate: &Gate,
    tasks: &mpsc::SyncSender<Task>,
) -> Result<Skipped, JobError> {
    let mut skipped = Skipped::default();
    let mut number = 0;
    for file in walk {
        let mut file = file?;
        if !takes(options, &file.name) {
            continue;
        }
        if tools.stop.load(Ordering::SeqCst) {
            return Ok(skipped);
        }
        let hashed = match file.error.take() {
            Some(error) => Err(error),
            None => hash_file(&file),
        };
        let (hash, bytes) = hashed.unwrap_or_else(|error| {
            file.error = Some(error);
            (blake3::hash(b"not readable"), 0)
        });
        if let Some(known) = lookup.find(&file.name)? {
            let unchanged = known.fingerprint == fingerprint(&hash, settings).to_hex().as_str();
            if unchanged && !(known.failed && options.retry_failed) {
                skipped.unchanged += 1;
                skipped.failed_before += u64::from(known.failed);
                tools.listener.event(&Event::Skipped);
                continue;
            }
        }
        if !gate.enter(bytes) || tasks.send(Task { number, file, hash, bytes }).is_err() {
            return Ok(skipped);
        }
        number += 1;
    }
    skipped.gone = lookup.finish()?;
    Ok(skipped)
}

/// Adds the time that it parses, in nanoseconds, to `busy`: what it waits for others is not parsing.
///
/// When the job is stopped, what has not been begun is left: tasks are begun in their order, so those before are complete.
fn parse_all(
    parser: &Parser<'_>,
    stop: &AtomicBool,
    tasks: &Mutex<mpsc::Receiver<Task>>,
    pieces: &mpsc::SyncSender<(u64, Piece)>,
    busy: &AtomicU64,
) {
    loop {
        let next = tasks.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Task { number, file, hash, bytes }) = next else { return };
        if stop.load(Ordering::SeqCst) {
            return;
        }
        let (begun, mut waited) = (Instant::now(), Duration::ZERO);
        let mut give = |parsed| {
            let waiting = Instant::now();
            let given = pieces.send((number, Piece::Document(Box::new(parsed)))).is_ok();
            waited += waiting.elapsed();
            given
        };
        let done = parser.source(&file, hash, &mut give);
        let parsed = begun.elapsed().saturating_sub(waited);
        busy.fetch_add(parsed.as_nanos().try_into().unwrap_or(u64::MAX), Ordering::Relaxed);
        let end = match done {
            Ok(()) => Piece::End { name: file.name, bytes },
            Err(error) => Piece::Stop(error),
        };
        if pieces.send((number, end)).is_err() {
            return;
        }
    }
}

/// Puts the pieces in the order of their sources, hands chunks to the engine, and everything to the writer.
fn hand_on(
    tools: &Tools<'_>,
    options: &JobOptions,
    pieces: mpsc::Receiver<(u64, Piece)>,
    steps: &mpsc::SyncSender<Step>,
) {
    let mut early: BTreeMap<u64, VecDeque<Piece>> = BTreeMap::new();
    let mut current = 0;
    for (number, piece) in pieces {
        early.entry(number).or_default().push_back(piece);
        while let Some(piece) = early.get_mut(&current).and_then(VecDeque::pop_front) {
            let sent = match piece {
                Piece::Document(parsed) => hand_on_document(tools, options, *parsed, steps),
                Piece::End { name, bytes } => {
                    early.remove(&current);
                    current += 1;
                    steps.send(Step::SourceEnd { name, bytes }).is_ok()
                }
                Piece::Stop(error) => {
                    // If it cannot be sent, the writer has stopped already.
                    let _ = steps.send(Step::Stop(error));
                    false
                }
            };
            if !sent {
                return;
            }
        }
    }
}

fn hand_on_document(tools: &Tools<'_>, options: &JobOptions, parsed: Parsed, steps: &mpsc::SyncSender<Step>) -> bool {
    if steps.send(Step::Document(Box::new(parsed.row))).is_err() {
        return false;
    }
    let item_options = ItemOptions { truncation: Truncation::Refuse, prompt: options.prompt.clone() };
    let mut chunks = parsed.chunks.into_iter().peekable();
    while chunks.peek().is_some() {
        let group: Vec<ChunkRow> = chunks.by_ref().take(GROUP).collect();
        let inputs = group.iter().map(|chunk| Input::Text(Arc::clone(&chunk.text))).collect();
        let request = Request { inputs, options: item_options.clone(), deadline: None };
        let step = match ask(tools, group, request) {
            Ok(group) => Step::Chunks(Box::new(group)),
            Err(error) => Step::Stop(JobError::Engine(error)),
        };
        if steps.send(step).is_err() {
            return false;
        }
    }
    steps.send(Step::DocumentEnd).is_ok()
}

/// Hands chunks to every model; `request` is what the embedding model is asked.
fn ask(tools: &Tools<'_>, rows: Vec<ChunkRow>, request: Request) -> Result<Group, EngineError> {
    let vectors = tools.service.request_when_room(request)?;
    let labels = tools.classifier.as_ref().map(|classifier| classifier.ask(&rows)).transpose()?;
    let entities = tools.tagger.as_ref().map(|tagger| tagger.ask(&rows)).transpose()?;
    Ok(Group { rows, vectors, labels, entities })
}

/// Writes what comes. If the job stops between two sources, what was written is made durable all the same.
fn write_all(
    sink: &mut Sink,
    tools: &Tools<'_>,
    options: &JobOptions,
    gate: &Gate,
    steps: &mpsc::Receiver<Step>,
    report: &mut Report,
) -> Result<(), JobError> {
    let mut is_between = true;
    let written = write_steps(sink, tools, options, gate, steps, report, &mut is_between);
    if is_between {
        sink.commit()?;
    }
    written
}

fn write_steps(
    sink: &mut Sink,
    tools: &Tools<'_>,
    options: &JobOptions,
    gate: &Gate,
    steps: &mpsc::Receiver<Step>,
    report: &mut Report,
    is_between: &mut bool,
) -> Result<(), JobError> {
    let mut open: Option<Box<DocumentRow>> = None;
    let (mut documents, mut chunks, mut tokens) = (0, 0, 0);
    for step in steps {
        match step {
            Step::Document(row) => open = Some(row),
            Step::Chunks(group) => {
                let (rows, error) = answer(tools, *group)?;
                *is_between = false;
                let writing = Instant::now();
                sink.chunks(&rows)?;
                report.stages.write += writing.elapsed().as_secs_f64();
                if let Some(row) = &mut open {
                    row.chunks += rows.len() as u32;
                    row.tokens += rows.iter().map(|row| u64::from(row.token_count)).sum::<u64>();
                    row.error = row.error.take().or(error);
                }
            }
            Step::DocumentEnd => {
                let Some(row) = open.take() else { continue };
                documents += 1;
                chunks += u64::from(row.chunks);
                tokens += row.tokens;
                note_failure(&row, tools, report);
                *is_between = false;
                let writing = Instant::now();
                sink.document(*row)?;
                report.stages.write += writing.elapsed().as_secs_f64();
            }
            Step::SourceEnd { name, bytes } => {
                *is_between = true;
                let writing = Instant::now();
                sink.source_end(options)?;
                report.stages.write += writing.elapsed().as_secs_f64();
                gate.leave(bytes);
                tools.listener.event(&Event::Source { path: &name, documents, chunks, tokens });
                report.sources += 1;
                report.documents += u64::from(documents);
                report.chunks += chunks;
                report.tokens += tokens;
                (documents, chunks, tokens) = (0, 0, 0);
            }
            Step::Stop(error) => return Err(error),
        }
    }
    Ok(())
}

fn note_failure(row: &DocumentRow, tools: &Tools<'_>, report: &mut Report) {
    let Some((code, message)) = &row.error else { return };
    tools.listener.event(&Event::Failed { path: &row.path, code, message });
    report.failed += 1;
    if report.failures.len() < LISTED_FAILURES {
        let (path, code, message) = (row.path.clone(), code.clone(), message.clone());
        report.failures.push(Failure { path, code, message });
    }
}

/// Waits for what the models say of a group, and puts it into the rows. The first error of a chunk, which is its document's.
fn answer(tools: &Tools<'_>, group: Group) -> Result<(Vec<ChunkRow>, Option<ChunkError>), JobError> {
    let Group { mut rows, vectors, labels, entities } = group;
    let mut error = fill(&mut rows, vectors)?;
    if let (Some(classifier), Some(labels)) = (&tools.classifier, labels) {
        error = error.or(classifier.answer(labels, &mut rows)?);
    }
    if let (Some(tagger), Some(entities)) = (&tools.tagger, entities) {
        error = error.or(tagger.answer(entities, &mut rows)?);
    }
    Ok((rows, error))
}

/// Puts the vectors into the rows. The first error of a chunk, which is its document's; an error of the whole job where no
/// backend answers.
fn fill(rows: &mut [ChunkRow], pending: Pending) -> Result<Option<ChunkError>, JobError> {
    let mut first = None;
    for (row, item) in rows.iter_mut().zip(pending.wait().items) {
        let embedded = item.and_then(|answer| {
            let (report, attention) = (Arc::clone(&answer.output.report), Arc::clone(&answer.output.attention));
            let vector = tasks::row(answer)?;
            Ok(Embedded {
                vector,
                backend: report.backend.clone(),
                device: report.device.clone(),
                precision: report.precision.name().to_owned(),
                attention,
            })
        });
        match embedded {
            Ok(embedded) => row.embedded = Some(embedded),
            Err(error @ (EngineError::Unavailable(_) | EngineError::ShuttingDown)) => {
                return Err(JobError::Engine(error));
            }
            Err(error) => {
                let code = format!("embedding_{}", error.code());
                first.get_or_insert((code, format!("chunk {}: {error}", row.chunk)));
            }
        }
    }
    Ok(first)
}

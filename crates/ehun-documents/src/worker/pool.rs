//! The main process's side: a pool of workers, each parsing one document at a time.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::frame::{self, FrameError, Request, Response};
use super::source::{SHORTER, SendError, Source};
use super::watchdog::{Watchdog, lock};
use crate::error::{DocumentError, Limit};
use crate::formats::ParseOptions;
use crate::model::Document;

/// The argument that makes the program a worker.
pub const WORKER_ARG: &str = "__parse-worker";

/// Bytes of a document that go in one message with its request. Both fit into the smallest pipe.
const WITH_REQUEST: u64 = 32 << 10;
/// Size of a pipe, if the system grants it; a document or an answer that fits costs no waiting for room.
#[cfg(target_os = "linux")]
const PIPE: libc::c_int = 1 << 20;

/// How workers are started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolOptions {
    /// Workers at the same time, at least 1.
    pub workers: usize,
    /// The program; this one if `None`.
    pub program: Option<PathBuf>,
    /// Its arguments; [`WORKER_ARG`] unless set.
    pub args: Vec<String>,
    /// A worker is replaced after this many documents, which bounds what leaks and fragments.
    pub recycle_after: u64,
}

impl Default for PoolOptions {
    fn default() -> Self {
        PoolOptions {
            workers: std::thread::available_parallelism().map_or(1, usize::from),
            program: None,
            args: vec![WORKER_ARG.to_owned()],
            recycle_after: 500,
        }
    }
}

/// What a pool has done so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PoolStats {
    /// Documents handed to workers.
    pub documents: u64,
    /// Of them, how many gave an error.
    pub failed: u64,
    /// Workers started.
    pub started: u64,
    /// Workers that were killed or died on a document.
    pub lost: u64,
    /// Time between handing a document over and having its answer, all documents together.
    pub total: Duration,
    /// Of that, time in parsers.
    pub parsing: Duration,
}

impl PoolStats {
    /// Share of the time that went into starting workers, pipes and encoding, 0 to 1.
    pub fn hand_over_share(&self) -> f64 {
        let total = self.total.as_secs_f64();
        if total > 0.0 { (total - self.parsing.as_secs_f64()).max(0.0) / total } else { 0.0 }
    }
}

/// Parses documents in worker processes. Usable from many threads at once: a call waits while all workers are busy.
#[derive(Debug)]
pub struct WorkerPool {
    options: PoolOptions,
    program: PathBuf,
    slots: Mutex<Slots>,
    freed: Condvar,
    watchdog: Watchdog,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Slots {
    idle: Vec<Worker>,
    busy: usize,
}

#[derive(Debug, Default)]
struct Counts {
    documents: AtomicU64,
    failed: AtomicU64,
    started: AtomicU64,
    lost: AtomicU64,
    total_nanos: AtomicU64,
    parse_nanos: AtomicU64,
}

impl WorkerPool {
    /// A pool; workers are started when they are first needed.
    ///
    /// # Errors
    /// [`DocumentError::WorkerUnavailable`] if the program's own path is not known or no thread can be started.
    pub fn new(mut options: PoolOptions) -> Result<Self, DocumentError> {
        options.workers = options.workers.max(1);
        options.recycle_after = options.recycle_after.max(1);
        let program = match &options.program {
            Some(program) => program.clone(),
            None => std::env::current_exe().map_err(unavailable)?,
        };
        Ok(WorkerPool {
            options,
            program,
            slots: Mutex::default(),
            freed: Condvar::new(),
            watchdog: Watchdog::start().map_err(unavailable)?,
            counts: Counts::default(),
        })
    }

    /// Parses bytes. The file name of the options, if any, is a hint about their format.
    ///
    /// # Errors
    /// See [`DocumentError`]. Whatever a document does to its worker, it is that document's error and no other's.
    pub fn parse(&self, bytes: &[u8], options: &ParseOptions) -> Result<Document, DocumentError> {
        self.parse_from(&mut Source::Bytes(bytes), bytes.len() as u64, "the document's bytes", options)
    }

    /// Parses a file, which is streamed to the worker: it is never held in this process.
    ///
    /// # Errors
    /// As [`parse`](Self::parse), and [`DocumentError::Io`] if the file cannot be read.
    pub fn parse_path(&self, path: &Path, options: &ParseOptions) -> Result<Document, DocumentError> {
        let io_error = |e: io::Error| DocumentError::Io { path: path.display().to_string(), reason: e.to_string() };
        let metadata = std::fs::metadata(path).map_err(io_error)?;
        if !metadata.is_file() {
            return Err(io_error(io::Error::other("it is no regular file")));
        }
        let file = File::open(path).map_err(io_error)?;
        let mut options = options.clone();
        if options.file_name.is_none() {
            options.file_name = path.file_name().map(|n| n.to_string_lossy().into_owned());
        }
        self.parse_from(&mut Source::File(file), metadata.len(), &path.display().to_string(), &options)
    }

    /// What the pool has done so far.
    pub fn stats(&self) -> PoolStats {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        PoolStats {
            documents: get(&self.counts.documents),
            failed: get(&self.counts.failed),
            started: get(&self.counts.started),
            lost: get(&self.counts.lost),
            total: Duration::from_nanos(get(&self.counts.total_nanos)),
            parsing: Duration::from_nanos(get(&self.counts.parse_nanos)),
        }
    }

    fn parse_from(
        &self,
        source: &mut Source<'_>,
        size: u64,
        name: &str,
        options: &ParseOptions,
    ) -> Result<Document, DocumentError> {
        let result = match size {
            0 => Err(DocumentError::Empty),
            _ if size > options.limits.input_bytes => {
                Err(DocumentError::TooLarge { bytes: size, limit: options.limits.input_bytes })
            }
            _ => self.hand_over(source, size, name, options),
        };
        self.counts.documents.fetch_add(1, Ordering::Relaxed);
        self.counts.failed.fetch_add(u64::from(result.is_err()), Ordering::Relaxed);
        result
    }

    fn hand_over(
        &self,
        source: &mut Source<'_>,
        size: u64,
        name: &str,
        options: &ParseOptions,
    ) -> Result<Document, DocumentError> {
        let slot = Slot::take(self);
        let start = Instant::now();
        let io_error = |reason| DocumentError::Io { path: name.to_owned(), reason };
        let mut message = frame::encode(&Request { options: options.clone(), bytes: size })
            .map_err(|e| io_error(format!("its name cannot be sent: {e}")))?;
        let first = size.min(WITH_REQUEST);
        let read = source.by_ref().take(first).read_to_end(&mut message).map_err(|e| io_error(e.to_string()))?;
        if read as u64 != first {
            return Err(io_error(SHORTER.to_owned()));
        }
        let mut retried = false;
        let (worker, outcome) = loop {
            let idle = slot.idle();
            let is_new = idle.is_none();
            let mut worker = match idle {
                Some(worker) => worker,
                None => self.start()?,
            };
            let wall = options.limits.wall_time(size);
            let watch = self.watchdog.watch(&worker.child, Instant::now() + wall);
            // Idle workers may have been ended from outside, all of them. The message fits into the pipe, so that one that
            // cannot be sent was not read, and another worker can be tried; of new ones a second.
            if worker.input.write_all(&message).is_err() && !(is_new && retried) && !watch.fired() {
                retried |= is_new;
                continue;
            }
            let outcome = worker.exchange(source, size - first, options);
            break (worker, outcome.map_err(|fault| (fault, watch.fired().then_some(wall))));
        };
        let add = |counter: &AtomicU64, n: u128| counter.fetch_add(n as u64, Ordering::Relaxed);
        add(&self.counts.total_nanos, start.elapsed().as_nanos());
        match outcome {
            Ok(response) => {
                add(&self.counts.parse_nanos, response.parse_nanos.into());
                let sound = response.result.as_ref().map_or(Ok(()), Document::check);
                if response.spent || sound.is_err() {
                    add(&self.counts.lost, 1);
                } else if worker.documents < self.options.recycle_after {
                    slot.give_back(worker);
                }
                sound.map_err(|e| crashed(&format!("the answer is not sound: {e}")))?;
                response.result
            }
            Err((fault, timed_out)) => {
                add(&self.counts.lost, 1);
                let (status, said) = worker.end();
                if let Some(wall) = timed_out {
                    return Err(DocumentError::Timeout { seconds: wall.as_secs_f64(), clock: "wall".to_owned() });
                }
                Err(match fault {
                    Fault::Source(reason) => io_error(reason),
                    Fault::Answer(FrameError::TooLong) => {
                        DocumentError::LimitExceeded { limit: Limit::OutputBytes, value: options.limits.output_bytes() }
                    }
                    Fault::Answer(FrameError::Garbage(what)) => crashed(&what),
                    Fault::Answer(FrameError::Closed) | Fault::Pipe => death(status, &said, size, options),
                })
            }
        }
    }

    fn start(&self) -> Result<Worker, DocumentError> {
        let mut command = Command::new(&self.program);
        command.args(&self.options.args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Keys and tokens in the environment are none of a parser's business.
        command.env_clear();
        for name in ["LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT"] {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        // Ctrl-C goes to a terminal's whole group; what is in flight is to be finished.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn().map_err(unavailable)?;
        self.counts.started.fetch_add(1, Ordering::Relaxed);
        match (child.stdin.take(), child.stdout.take(), child.stderr.take()) {
            (Some(input), Some(output), Some(errors)) => {
                #[cfg(target_os = "linux")]
                {
                    widen(&input);
                    widen(&output);
                }
                Ok(Worker {
                    child: Arc::new(Mutex::new(child)),
                    input,
                    output,
                    said: Some(std::thread::Builder::new().spawn(move || last_words(errors)).map_err(unavailable)?),
                    documents: 0,
                })
            }
            _ => Err(unavailable(io::Error::other("no pipes"))),
        }
    }
}

/// Makes a pipe larger, if the system's limit for the user allows it.
#[cfg(target_os = "linux")]
fn widen(pipe: &impl std::os::fd::AsRawFd) {
    // SAFETY: fcntl with numbers on a descriptor that is open for as long as its owner is borrowed.
    unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_SETPIPE_SZ, PIPE) };
}

/// The right to one worker.
struct Slot<'p> {
    pool: &'p WorkerPool,
}

impl<'p> Slot<'p> {
    fn take(pool: &'p WorkerPool) -> Self {
        let mut slots = lock(&pool.slots);
        while slots.busy >= pool.options.workers {
            slots = pool.freed.wait(slots).unwrap_or_else(PoisonError::into_inner);
        }
        slots.busy += 1;
        Slot { pool }
    }

    fn idle(&self) -> Option<Worker> {
        lock(&self.pool.slots).idle.pop()
    }

    fn give_back(&self, worker: Worker) {
        lock(&self.pool.slots).idle.push(worker);
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        lock(&self.pool.slots).busy -= 1;
        self.pool.freed.notify_one();
    }
}

#[derive(Debug)]
struct Worker {
    child: Arc<Mutex<Child>>,
    input: ChildStdin,
    output: ChildStdout,
    /// Reads standard error to its end and keeps the last of it.
    said: Option<JoinHandle<String>>,
    documents: u64,
}

enum Fault {
    /// The document could not be read to its end.
    Source(String),
    /// The worker took no more bytes.
    Pipe,
    Answer(FrameError),
}

impl Worker {
    /// Sends the `left` bytes that did not go with the request and reads the answer.
    fn exchange(&mut self, source: &mut Source<'_>, left: u64, options: &ParseOptions) -> Result<Response, Fault> {
        self.documents += 1;
        let sent = source.send(&mut self.input, left);
        if let Err(SendError::Source(reason)) = sent {
            return Err(Fault::Source(reason));
        }
        let answer = frame::read(&mut self.output, options.limits.output_bytes());
        // A worker that refuses the document says why before it closes the pipe.
        answer.map_err(|fault| if sent.is_err() { Fault::Pipe } else { Fault::Answer(fault) })
    }

    /// Kills the process if it still runs; how it ended and the last of what it said.
    fn end(mut self) -> (Option<ExitStatus>, String) {
        let status = {
            let mut child = lock(&self.child);
            // A process that closed its pipe is about to end by itself: its own status tells more than a kill.
            let mut status = child.try_wait().ok().flatten();
            for _ in 0..50 {
                if status.is_some() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(2));
                status = child.try_wait().ok().flatten();
            }
            if status.is_none() {
                let _ = child.kill();
                status = child.wait().ok();
            }
            status
        };
        let said = self.said.take().and_then(|thread| thread.join().ok()).unwrap_or_default();
        (status, said)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Also after `end`: killing and waiting for a process that was waited for does nothing.
        let mut child = lock(&self.child);
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Reads a pipe to its end and keeps the last 4 KiB, so that a worker never blocks on it.
fn last_words(mut errors: ChildStderr) -> String {
    let mut kept: Vec<u8> = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(n @ 1..) = errors.read(&mut buffer) {
        kept.extend_from_slice(&buffer[..n]);
        kept.drain(..kept.len().saturating_sub(4096));
    }
    String::from_utf8_lossy(&kept).into_owned()
}

fn unavailable(error: io::Error) -> DocumentError {
    DocumentError::WorkerUnavailable { reason: error.to_string() }
}

fn crashed(reason: &str) -> DocumentError {
    DocumentError::WorkerCrashed { reason: reason.to_owned() }
}

/// What a worker's death says about the document.
fn death(status: Option<ExitStatus>, said: &str, size: u64, options: &ParseOptions) -> DocumentError {
    let limits = &options.limits;
    if said.contains("memory allocation of") {
        return DocumentError::OutOfMemory { limit: limits.memory_bytes };
    }
    #[cfg(unix)]
    if let Some(signal) = status.and_then(|s| std::os::unix::process::ExitStatusExt::signal(&s)) {
        if signal == libc::SIGXCPU {
            let seconds = limits.wall_time(size).as_secs_f64() * limits.cpu_factor;
            return DocumentError::Timeout { seconds, clock: "CPU".to_owned() };
        }
        let what = match signal {
            _ if said.contains("overflowed its stack") => "the stack overflowed".to_owned(),
            libc::SIGKILL => "killed from outside, perhaps by the system for want of memory".to_owned(),
            _ => format!("signal {signal}"),
        };
        return crashed(&what);
    }
    match status {
        Some(status) => crashed(&status.to_string()),
        None => crashed("the process is gone"),
    }
}

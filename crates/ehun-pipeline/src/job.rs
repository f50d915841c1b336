//! What a job is asked to do, what it says while it does it, and what came of it.

use std::path::PathBuf;

use ehun_documents::{ChunkOptions, Limits};
use ehun_engine::Prompt;
use serde::Serialize;

use crate::export::Format;
use crate::store::Shard;

/// Where the output goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// A folder, with a journal: the job can be gone on with.
    Folder(PathBuf),
    /// Standard output, as JSON Lines with `"table": "documents"` or `"chunks"`; nothing is remembered.
    Stdout,
}

/// What a job is asked to do.
#[derive(Debug, Clone)]
pub struct JobOptions {
    /// Files and folders.
    pub inputs: Vec<PathBuf>,
    /// Where the output goes.
    pub output: Output,
    /// Its form, in a folder.
    pub format: Format,
    /// Keep chunks with the same words once, in a folder.
    pub dedup: bool,
    /// How documents are cut.
    pub chunk: ChunkOptions,
    /// The field of JSON objects that holds their text; all strings if `None`.
    pub text_field: Option<String>,
    /// What one document may cost.
    pub limits: Limits,
    /// Documents that are parsed at the same time.
    pub workers: usize,
    /// What is put before each chunk; `None` is the model's default prompt.
    pub prompt: Option<Prompt>,
    /// Remove what is in the output and whose file is gone.
    pub prune: bool,
    /// Process again what failed before.
    pub retry_failed: bool,
    /// Take only a part of the sources.
    pub shard: Option<Shard>,
    /// What else decides the vectors (backend, precision, attention): another value and everything is processed again.
    pub identity: String,
    /// When what is done is made durable.
    pub parts: PartSize,
}

/// When a part is closed and made durable: whatever comes first.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PartSize {
    /// Documents.
    pub documents: u64,
    /// Chunks.
    pub chunks: u64,
    /// Seconds since it was begun.
    pub seconds: f64,
}

impl Default for PartSize {
    fn default() -> Self {
        Self { documents: 512, chunks: 8192, seconds: 20.0 }
    }
}

/// Something that happened in a job.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event<'a> {
    /// So many sources there are.
    Counted {
        /// Files of this job.
        sources: u64,
    },
    /// A source is done already.
    Skipped,
    /// A source is done, with its attachments and members.
    Source {
        /// Its path.
        path: &'a str,
        /// Documents in it, itself included.
        documents: u32,
        /// Chunks of them.
        chunks: u64,
        /// Tokens of these.
        tokens: u64,
    },
    /// A document failed; the job goes on.
    Failed {
        /// Its path.
        path: &'a str,
        /// A short stable name.
        code: &'a str,
        /// What was wrong and what to do.
        message: &'a str,
    },
    /// The final tables are being made.
    Publishing,
}

/// Hears what happens. Called from several threads.
pub trait Listener: Sync {
    /// Something happened.
    fn event(&self, event: &Event<'_>);
}

/// A document that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// Its path.
    pub path: String,
    /// A short stable name.
    pub code: String,
    /// What was wrong and what to do.
    pub message: String,
}

/// Failures of which a report holds the text; the rest is counted, and all of them are rows of the output.
pub const LISTED_FAILURES: usize = 1000;

/// What came of a job.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Report {
    /// Sources processed by this run.
    pub sources: u64,
    /// Documents in them.
    pub documents: u64,
    /// Chunks of these.
    pub chunks: u64,
    /// Tokens of the chunks.
    pub tokens: u64,
    /// Documents that failed in this run.
    pub failed: u64,
    /// The first of them.
    pub failures: Vec<Failure>,
    /// Sources that were done before and have not changed.
    pub unchanged: u64,
    /// Sources of these that failed before and were not tried again.
    pub failed_before: u64,
    /// Sources removed because their files are gone.
    pub pruned: u64,
    /// Time of the run in seconds.
    pub seconds: f64,
    /// Whether it was stopped before the end.
    pub interrupted: bool,
    /// Files of the output.
    pub tables: Vec<PathBuf>,
    /// Rows of the final tables, documents and chunks, where they were written by this run.
    pub rows: Option<(u64, u64)>,
}

//! The output folder: final tables, parts that are not in them yet, the journal, the lock.
//!
//! ```text
//! DIR/documents.parquet, DIR/chunks.parquet    what readers read; replaced whole, by renaming
//! DIR/.ehun/job.json                           what the tables were made with
//! DIR/.ehun/journal                            what is done
//! DIR/.ehun/parts/N.documents.parquet, ...     what is done and not in the final tables yet
//! DIR/.ehun/next/                              final tables that are being made
//! DIR/.ehun/documents.parquet, chunks.parquet  full tables, where the output has another form or repeated chunks once
//! DIR/.ehun/lock                               held while a run lasts
//! ```
//!
//! Order of things: a part is written, synchronised, renamed, and then marked in the journal. Final tables are written,
//! synchronised, marked, renamed, marked again, and only then the parts they hold are deleted. A crash anywhere leaves
//! either the state before or one that [`Store::open`] carries on from.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Instant;

use arrow_schema::{Schema, SchemaRef};
use serde::{Deserialize, Serialize};

use crate::dedup::Repeats;
use crate::error::JobError;
use crate::export::{Format, export};
use crate::extra::Extra;
use crate::journal::{Journal, Record};
use crate::known::KnownSources;
use crate::merge::{Cursor, Files, Input, IsDropped, merge};
use crate::parts::{Chain, Said};
use crate::rows::{ChunkRow, DocumentRow, Producer, chunk_batch, chunk_schema, document_batch, document_schema};
use crate::source::key;
use crate::table::{PUBLICATION, TableWriter, publication, read_table, rename, sync_folder};

/// The table of chunks.
const CHUNKS: &str = "chunks";

/// Which of how many parts of the sources a run takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// From 0.
    pub index: u32,
    /// At least 1.
    pub count: u32,
}

impl std::str::FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (index, count) = text.split_once('/')?;
            let (index, count): (u32, u32) = (index.parse().ok()?, count.parse().ok()?);
            (1..=count).contains(&index).then_some(Self { index: index - 1, count })
        };
        parse().ok_or_else(|| format!("`{text}` is no shard; the second of four is written 2/4"))
    }
}

impl Shard {
    /// Whether a source belongs to it: by the hash of its path, so that every run agrees.
    pub(crate) fn takes(&self, name: &str) -> bool {
        let mut first = [0; 8];
        first.copy_from_slice(&key(name)[..8]);
        u64::from_le_bytes(first) % u64::from(self.count.max(1)) == u64::from(self.index)
    }
}

/// What the tables of a folder were made with; other vectors must not be mixed with them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Job {
    model: String,
    weights_hash: String,
    dimension: usize,
    format: Format,
    #[serde(default)]
    dedup: bool,
}

fn suffix(shard: Option<Shard>) -> String {
    let shard = shard.filter(|shard| shard.count > 1);
    shard.map_or_else(String::new, |s| format!("-{:05}-of-{:05}", s.index, s.count))
}

/// Where a job keeps what is its own in the output folder.
pub(crate) fn work_folder(folder: &Path, shard: Option<Shard>) -> PathBuf {
    folder.join(format!(".ehun{}", suffix(shard)))
}

fn part_path(parts: &Path, number: u64, table: &str) -> PathBuf {
    parts.join(format!("{number:08}.{table}.parquet"))
}

/// An output folder that this run holds.
pub(crate) struct Store {
    folder: PathBuf,
    work: PathBuf,
    suffix: String,
    format: Format,
    dedup: bool,
    producer: Producer,
    journal: Journal,
    chains: Vec<Chain>,
    next_part: u64,
    /// Held until the store is dropped.
    _lock: File,
}

/// Rows that are being written and become durable together.
pub(crate) struct Part {
    number: u64,
    documents: TableWriter,
    chunks: TableWriter,
    producer: Producer,
    first: String,
    last: String,
    started: Instant,
}

impl Part {
    pub(crate) fn add_document(&mut self, row: DocumentRow) -> Result<(), JobError> {
        if self.first.is_empty() {
            self.first.clone_from(&row.source);
        }
        self.last.clone_from(&row.source);
        let batch = document_batch(&[row]).map_err(JobError::file("documents"))?;
        self.documents.write(&batch)
    }

    pub(crate) fn add_chunks(&mut self, rows: &[ChunkRow]) -> Result<(), JobError> {
        let batch = chunk_batch(rows, &self.producer).map_err(JobError::file("chunks"))?;
        self.chunks.write(&batch)
    }

    /// Documents, chunks, and seconds since it was begun.
    pub(crate) fn size(&self) -> (u64, u64, f64) {
        (self.documents.rows(), self.chunks.rows(), self.started.elapsed().as_secs_f64())
    }
}

impl Store {
    /// Takes hold of `folder`, makes it where there is none, and brings what a crash left to a clean state.
    pub(crate) fn open(
        folder: &Path,
        shard: Option<Shard>,
        format: Format,
        producer: &Producer,
        dedup: bool,
    ) -> Result<Self, JobError> {
        let suffix = suffix(shard);
        let work = work_folder(folder, shard);
        let fresh = !work.join("job.json").exists();
        let parts = work.join("parts");
        fs::create_dir_all(&parts).map_err(JobError::io(folder, "create"))?;
        let lock_path = work.join("lock");
        let lock = File::create(&lock_path).map_err(JobError::io(&lock_path, "create"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => return Err(JobError::Locked { folder: folder.to_owned() }),
            Err(fs::TryLockError::Error(error)) => return Err(JobError::io(&lock_path, "lock")(error)),
        }
        let mut said = Said::default();
        let journal = Journal::open(&work.join("journal"), |record| said.hear(record))?;
        let mut store = Self {
            folder: folder.to_owned(),
            work,
            suffix,
            format,
            dedup,
            producer: producer.clone(),
            journal,
            next_part: said.next_part(),
            chains: said.chains,
            _lock: lock,
        };
        store.check_job(fresh)?;
        match said.publishing {
            Some(through) => store.install(through)?,
            None => store.clear_next()?,
        }
        store.delete_stray_parts()?;
        Ok(store)
    }

    fn conflict(&self, reason: String) -> JobError {
        JobError::Conflict { folder: self.folder.clone(), reason }
    }

    fn check_job(&self, fresh: bool) -> Result<(), JobError> {
        let Producer { model, weights_hash, dimension, .. } = self.producer.clone();
        let job = Job { model, weights_hash, dimension, format: self.format, dedup: self.dedup };
        let path = self.work.join("job.json");
        if fresh {
            let taken = self.outputs().into_iter().map(|(_, to)| to).find(|to| to.exists());
            if let Some(taken) = taken {
                let reason = format!("{} is there and is not of this command; give another folder", taken.display());
                return Err(self.conflict(reason));
            }
            let text = serde_json::to_vec_pretty(&job).map_err(JobError::file(&path))?;
            let new = self.work.join("job.json.new");
            fs::write(&new, text).map_err(JobError::io(&new, "write"))?;
            File::open(&new).and_then(|file| file.sync_all()).map_err(JobError::io(&new, "synchronise"))?;
            return rename(&new, &path);
        }
        let text = fs::read(&path).map_err(JobError::io(&path, "read"))?;
        let before: Job = serde_json::from_slice(&text).map_err(JobError::file(&path))?;
        if (before.weights_hash.as_str(), before.dimension) != (job.weights_hash.as_str(), job.dimension) {
            return Err(self.conflict(format!(
                "it holds vectors of {} ({} wide, weights {}...), which cannot be mixed with those of {} ({} wide); give another folder",
                before.model,
                before.dimension,
                &before.weights_hash[..before.weights_hash.len().min(12)],
                job.model,
                job.dimension
            )));
        }
        if before.format != job.format {
            let reason =
                format!("its tables are {0}; use `--format {0}`, or give another folder", before.format.name());
            return Err(self.conflict(reason));
        }
        if before.dedup != job.dedup {
            let what = if before.dedup {
                "keep repeated chunks once; give `--dedup`"
            } else {
                "have every chunk; leave out `--dedup`"
            };
            return Err(self.conflict(format!("its tables {what}, or another folder")));
        }
        Ok(())
    }

    fn next_folder(&self) -> PathBuf {
        self.work.join("next")
    }

    fn clear_next(&self) -> Result<(), JobError> {
        let next = self.next_folder();
        match fs::remove_dir_all(&next) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(JobError::io(&next, "remove")(error)),
            _ => Ok(()),
        }
    }

    /// Parts that the journal does not know, or that are in the final tables.
    fn delete_stray_parts(&self) -> Result<(), JobError> {
        let folder = self.work.join("parts");
        for entry in fs::read_dir(&folder).map_err(JobError::io(&folder, "read"))? {
            let path = entry.map_err(JobError::io(&folder, "read"))?.path();
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            let number = name.split('.').next().and_then(|number| number.parse::<u64>().ok());
            let known = number.is_some_and(|number| self.chains.iter().any(|chain| chain.has(number)));
            if !known || name.ends_with(".new") {
                fs::remove_file(&path).map_err(JobError::io(&path, "remove"))?;
            }
        }
        Ok(())
    }

    fn part_path(&self, number: u64, table: &str) -> PathBuf {
        part_path(&self.work.join("parts"), number, table)
    }

    /// Whether what readers read is made from the full table, which then lies beside the journal.
    fn is_derived(&self, table: &str) -> bool {
        self.format != Format::Parquet || (self.dedup && table == CHUNKS)
    }

    /// Where the full Parquet tables of before are: the output itself, or beside the journal where that is something else.
    fn base(&self, table: &str) -> PathBuf {
        if self.is_derived(table) { self.work.join(format!("{table}.parquet")) } else { self.output(table) }
    }

    /// The file that readers read.
    fn output(&self, table: &str) -> PathBuf {
        self.folder.join(format!("{table}{}.{}", self.suffix, self.format.extension()))
    }

    /// Where that is made.
    fn next_output(&self, table: &str) -> PathBuf {
        self.next_folder().join(format!("{table}.output.{}", self.format.extension()))
    }

    /// Files of `next` and where they go.
    fn outputs(&self) -> Vec<(PathBuf, PathBuf)> {
        let next = self.next_folder();
        let mut outputs = Vec::new();
        for table in ["documents", "chunks"] {
            outputs.push((next.join(format!("{table}.parquet")), self.base(table)));
            if self.is_derived(table) {
                outputs.push((self.next_output(table), self.output(table)));
            }
        }
        outputs
    }

    /// The files that readers read.
    pub(crate) fn final_tables(&self) -> Vec<PathBuf> {
        vec![self.output("documents"), self.output(CHUNKS)]
    }

    /// What has been processed before.
    pub(crate) fn known(&self) -> KnownSources {
        KnownSources::new(self.tables("documents"))
    }

    /// The full table of before, then the chains of parts, the oldest first.
    fn tables(&self, table: &'static str) -> Vec<Files> {
        // Both or none: rows are taken from the two side by side.
        let has_base = self.base("documents").exists() && self.base(CHUNKS).exists();
        let base = has_base.then(|| Box::new(std::iter::once(self.base(table))) as Files);
        let chains = self.chains.iter().map(|chain| {
            let parts = self.work.join("parts");
            Box::new((chain.first..=chain.last).map(move |number| part_path(&parts, number, table))) as Files
        });
        base.into_iter().chain(chains).collect()
    }

    /// Begins a part.
    pub(crate) fn begin(&mut self) -> Result<Part, JobError> {
        let number = self.next_part;
        self.next_part += 1;
        let create = |table: &str, schema| {
            TableWriter::create(&self.part_path(number, table).with_extension("parquet.new"), &schema)
        };
        Ok(Part {
            number,
            documents: create("documents", document_schema())?,
            chunks: create("chunks", chunk_schema(self.producer.dimension, Extra::of_producer(&self.producer)))?,
            producer: self.producer.clone(),
            first: String::new(),
            last: String::new(),
            started: Instant::now(),
        })
    }

    /// Makes a part durable and marks it as done.
    pub(crate) fn commit(&mut self, part: Part) -> Result<(), JobError> {
        let Part { number, documents, chunks, first, last, .. } = part;
        if documents.rows() == 0 {
            return Ok(());
        }
        documents.finish()?;
        chunks.finish()?;
        for table in ["documents", "chunks"] {
            let path = self.part_path(number, table);
            fs::rename(path.with_extension("parquet.new"), &path).map_err(JobError::io(&path, "write"))?;
        }
        sync_folder(&self.work.join("parts"))?;
        self.journal.add(&Record::Part { number, first: first.clone(), last: last.clone() })?;
        Chain::add(&mut self.chains, number, &first, last);
        Ok(())
    }

    /// Whether there is anything that is not in the final tables.
    pub(crate) fn has_parts(&self) -> bool {
        !self.chains.is_empty()
    }

    pub(crate) fn has_tables(&self) -> bool {
        self.outputs().iter().all(|(_, to)| to.exists())
    }

    /// Makes new final tables of those of before and the parts, without the sources that `is_dropped`. Rows of documents and
    /// of chunks.
    pub(crate) fn publish(&mut self, is_dropped: IsDropped<'_>) -> Result<(u64, u64), JobError> {
        self.clear_next()?;
        let next = self.next_folder();
        fs::create_dir_all(&next).map_err(JobError::io(&next, "create"))?;
        let (documents_path, chunks_path) = (next.join("documents.parquet"), next.join("chunks.parquet"));
        // The same number in both, so that a reader can tell two tables of one publication from an old and a new one.
        let base = Some(self.base("documents")).filter(|base| base.exists());
        let number = base.map(|base| publication(&base)).transpose()?.flatten().unwrap_or(0) + 1;
        let numbered = |schema: SchemaRef| {
            let note = (PUBLICATION.to_owned(), number.to_string());
            SchemaRef::new(Schema::clone(&schema).with_metadata(HashMap::from([note])))
        };
        let mut documents = TableWriter::create(&documents_path, &numbered(document_schema()))?;
        let mut extra = Extra::of_producer(&self.producer);
        for path in self.tables(CHUNKS).into_iter().flatten() {
            // Rows of before keep what they have, also where this job does not ask for it.
            extra = extra.or(Extra::of_schema(&read_table(&path, None, 1)?.schema()));
        }
        let mut chunks = TableWriter::create(&chunks_path, &numbered(chunk_schema(self.producer.dimension, extra)))?;
        merge(&mut self.inputs(), is_dropped, &mut documents, &mut chunks)?;
        let mut rows = (documents.finish()?, chunks.finish()?);
        if self.is_derived("documents") {
            export(&documents_path, &self.next_output("documents"), self.format, None)?;
        }
        if self.is_derived(CHUNKS) {
            let repeats = self.dedup.then(|| Repeats::find(&chunks_path, &self.work)).transpose()?;
            rows.1 = export(&chunks_path, &self.next_output(CHUNKS), self.format, repeats)?;
        }
        sync_folder(&next)?;
        let through = self.chains.iter().map(|chain| chain.last).max().unwrap_or(self.next_part - 1);
        self.journal.add(&Record::Publish { through })?;
        self.install(through)?;
        self.delete_stray_parts()?;
        Ok(rows)
    }

    fn inputs(&self) -> Vec<Input> {
        let pairs = self.tables("documents").into_iter().zip(self.tables(CHUNKS));
        let input =
            |(documents, chunks)| Input { documents: Cursor::new(documents, None), chunks: Cursor::new(chunks, None) };
        pairs.map(input).collect()
    }

    /// Moves the tables of `next` to their places. May be repeated: what has been moved is not there any more.
    fn install(&mut self, through: u64) -> Result<(), JobError> {
        for (from, to) in self.outputs() {
            if from.exists() {
                fs::rename(&from, &to).map_err(JobError::io(&to, "write"))?;
            }
        }
        sync_folder(&self.folder)?;
        sync_folder(&self.work)?;
        self.journal.reset(&Record::Published { through })?;
        Chain::forget(&mut self.chains, through);
        self.clear_next()
    }
}

#[cfg(test)]
mod tests;

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

use arrow_array::{Array, StringArray};
use arrow_schema::{Schema, SchemaRef};
use serde::{Deserialize, Serialize};

use crate::dedup::Repeats;
use crate::error::JobError;
use crate::export::{Format, export};
use crate::extra::Extra;
use crate::journal::{Journal, Record};
use crate::merge::{Cursor, Input, merge};
use crate::rows::{
    ChunkRow, DocumentRow, FAILED, Producer, chunk_batch, chunk_schema, document_batch, document_schema,
};
use crate::source::{key, order};
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

/// What is known of a source that has been processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) fingerprint: [u8; 16],
    pub(crate) failed: bool,
    /// Whether this run came across it.
    pub(crate) seen: bool,
    /// Which table said so: a later one replaces what an earlier one said.
    table: u32,
}

/// By [`key`]: about 50 bytes for a source.
pub(crate) type Index = HashMap<[u8; 16], Known>;

struct PartName {
    number: u64,
    first: String,
    last: String,
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
    parts: Vec<PartName>,
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
        let shard = shard.filter(|shard| shard.count > 1);
        let suffix = shard.map_or_else(String::new, |s| format!("-{:05}-of-{:05}", s.index, s.count));
        let work = folder.join(format!(".ehun{suffix}"));
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
        let (journal, records) = Journal::open(&work.join("journal"))?;
        let mut store = Self {
            folder: folder.to_owned(),
            work,
            suffix,
            format,
            dedup,
            producer: producer.clone(),
            journal,
            parts: Vec::new(),
            next_part: 1,
            _lock: lock,
        };
        store.check_job(fresh)?;
        store.recover(records)?;
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

    fn recover(&mut self, records: Vec<Record>) -> Result<(), JobError> {
        let mut through = 0;
        let mut publishing = None;
        for record in records {
            match record {
                Record::Part { number, first, last } => {
                    self.parts.push(PartName { number, first, last });
                    self.next_part = self.next_part.max(number + 1);
                }
                Record::Publish { through } => publishing = Some(through),
                Record::Published { through: done } => {
                    through = done;
                    publishing = None;
                }
            }
        }
        self.next_part = self.next_part.max(through + 1);
        self.parts.retain(|part| part.number > through);
        match publishing {
            Some(through) => self.install(through)?,
            None => self.clear_next()?,
        }
        self.delete_stray_parts()
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
            let known = number.is_some_and(|number| self.parts.iter().any(|part| part.number == number));
            if !known || name.ends_with(".new") {
                fs::remove_file(&path).map_err(JobError::io(&path, "remove"))?;
            }
        }
        Ok(())
    }

    fn part_path(&self, number: u64, table: &str) -> PathBuf {
        self.work.join("parts").join(format!("{number:08}.{table}.parquet"))
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
    pub(crate) fn index(&self) -> Result<Index, JobError> {
        let mut index = Index::new();
        let base = Some(self.base("documents")).filter(|base| base.exists());
        let parts = self.parts.iter().map(|part| self.part_path(part.number, "documents"));
        for (table, path) in (0..).zip(base.into_iter().chain(parts)) {
            for batch in read_table(&path, Some(&["source", "fingerprint", "status"]), 4096)? {
                let batch = batch?;
                let column = |name: &str| {
                    let column = batch.column_by_name(name).and_then(|c| c.as_any().downcast_ref::<StringArray>());
                    let missing = || JobError::File { path: path.clone(), message: format!("no text column `{name}`") };
                    column.ok_or_else(missing)
                };
                let (sources, fingerprints, states) = (column("source")?, column("fingerprint")?, column("status")?);
                for row in 0..batch.num_rows() {
                    let fingerprint = short(fingerprints.value(row));
                    let mut known = Known { fingerprint, failed: states.value(row) == FAILED, seen: false, table };
                    let entry = index.entry(key(sources.value(row))).or_insert(known);
                    if entry.table == table {
                        known.failed |= entry.failed;
                    }
                    *entry = known;
                }
            }
        }
        Ok(index)
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
        self.parts.push(PartName { number, first, last });
        Ok(())
    }

    /// Whether there is anything that is not in the final tables.
    pub(crate) fn has_parts(&self) -> bool {
        !self.parts.is_empty()
    }

    pub(crate) fn has_tables(&self) -> bool {
        self.outputs().iter().all(|(_, to)| to.exists())
    }

    /// Makes new final tables of those of before and the parts, without the sources that `is_dropped`. Rows of documents and
    /// of chunks.
    pub(crate) fn publish(&mut self, is_dropped: &dyn Fn(&str) -> bool) -> Result<(u64, u64), JobError> {
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
        let mut inputs = self.inputs();
        let mut extra = Extra::of_producer(&self.producer);
        for input in &inputs {
            // Rows of before keep what they have, also where this job does not ask for it.
            for path in input.chunks.files() {
                extra = extra.or(Extra::of_schema(&read_table(path, None, 1)?.schema()));
            }
        }
        let mut chunks = TableWriter::create(&chunks_path, &numbered(chunk_schema(self.producer.dimension, extra)))?;
        merge(&mut inputs, is_dropped, &mut documents, &mut chunks)?;
        let mut rows = (documents.finish()?, chunks.finish()?);
        if self.is_derived("documents") {
            export(&documents_path, &self.next_output("documents"), self.format, None)?;
        }
        if self.is_derived(CHUNKS) {
            let repeats = self.dedup.then(|| Repeats::find(&chunks_path)).transpose()?;
            rows.1 = export(&chunks_path, &self.next_output(CHUNKS), self.format, repeats)?;
        }
        sync_folder(&next)?;
        let through = self.parts.iter().map(|part| part.number).max().unwrap_or(self.next_part - 1);
        self.journal.add(&Record::Publish { through })?;
        self.install(through)?;
        self.delete_stray_parts()?;
        Ok(rows)
    }

    /// The tables of before, then the parts; parts whose sources rise from one to the next are one input.
    fn inputs(&self) -> Vec<Input> {
        let mut chains: Vec<(Vec<PathBuf>, Vec<PathBuf>)> = Vec::new();
        if self.base("documents").exists() && self.base("chunks").exists() {
            chains.push((vec![self.base("documents")], vec![self.base("chunks")]));
        }
        let mut last: Option<&str> = None;
        for part in &self.parts {
            if last.is_none_or(|last| order(last, &part.first).is_ge()) {
                chains.push((Vec::new(), Vec::new()));
            }
            if let Some((documents, chunks)) = chains.last_mut() {
                documents.push(self.part_path(part.number, "documents"));
                chunks.push(self.part_path(part.number, "chunks"));
            }
            last = Some(&part.last);
        }
        let input = |(documents, chunks)| Input { documents: Cursor::new(documents), chunks: Cursor::new(chunks) };
        chains.into_iter().map(input).collect()
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
        self.parts.retain(|part| part.number > through);
        self.clear_next()
    }
}

/// The first 16 bytes of a fingerprint, which is written in hexadecimal; zeros where it is not.
fn short(fingerprint: &str) -> [u8; 16] {
    blake3::Hash::from_hex(fingerprint).map(|hash| crate::source::truncated(&hash)).unwrap_or_default()
}

#[cfg(test)]
mod tests;

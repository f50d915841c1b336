//! Sorting what does not fit into memory: records go to temporary files in sorted runs, and the runs are merged.
//!
//! The files have no names (where the system can do that), so whatever ends the program, nothing is left of them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{BufReader, BufWriter, ErrorKind, Read, Seek, Write};
use std::path::{Path, PathBuf};

use crate::error::JobError;

/// Runs that are merged at once; each holds a buffer and an open file.
const FAN_IN: usize = 32;
const BUFFER_BYTES: usize = 32 << 10;
/// What a record costs beside its bytes.
const RECORD_BYTES: usize = size_of::<Entry>();

/// A key, which decides the order byte by byte, and what belongs to it.
pub(crate) type Record = (Vec<u8>, Vec<u8>);

fn failed(folder: &Path) -> impl FnOnce(std::io::Error) -> JobError {
    JobError::io(folder, "keep temporary files in")
}

/// Records one after the other in a temporary file.
pub(crate) struct Spool {
    folder: PathBuf,
    file: BufWriter<File>,
}

impl Spool {
    /// An empty one, in a file in `folder`.
    pub(crate) fn new(folder: &Path) -> Result<Self, JobError> {
        let file = tempfile::tempfile_in(folder).map_err(failed(folder))?;
        Ok(Self { folder: folder.to_owned(), file: BufWriter::with_capacity(BUFFER_BYTES, file) })
    }

    pub(crate) fn add(&mut self, key: &[u8], value: &[u8]) -> Result<(), JobError> {
        let mut write = |part: &[u8]| {
            self.file.write_all(&(part.len() as u64).to_le_bytes())?;
            self.file.write_all(part)
        };
        write(key).and_then(|()| write(value)).map_err(failed(&self.folder))
    }

    /// From the first record on.
    pub(crate) fn read(self) -> Result<Records, JobError> {
        let mut file = self.file.into_inner().map_err(|error| failed(&self.folder)(error.into_error()))?;
        file.rewind().map_err(failed(&self.folder))?;
        Ok(Records { folder: self.folder, file: BufReader::with_capacity(BUFFER_BYTES, file) })
    }
}

/// The records of a [`Spool`].
pub(crate) struct Records {
    folder: PathBuf,
    file: BufReader<File>,
}

impl Records {
    fn part(&mut self) -> std::io::Result<Option<Vec<u8>>> {
        let mut length = [0; 8];
        match self.file.read_exact(&mut length) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
            done => done?,
        }
        let mut part = vec![0; u64::from_le_bytes(length) as usize];
        self.file.read_exact(&mut part)?;
        Ok(Some(part))
    }
}

impl Iterator for Records {
    type Item = Result<Record, JobError>;

    fn next(&mut self) -> Option<Self::Item> {
        let record = self.part().and_then(|key| Ok(key.zip(self.part()?)));
        record.map_err(failed(&self.folder)).transpose()
    }
}

/// Where a record is in the buffer.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    at: usize,
    key: usize,
    value: usize,
}

/// Takes records in any order and gives them sorted, with about `budget` bytes of memory.
pub(crate) struct Sorter {
    folder: PathBuf,
    budget: usize,
    bytes: Vec<u8>,
    entries: Vec<Entry>,
    /// Runs by how often their records have been merged: so that each record is written a few times only.
    levels: Vec<Vec<Records>>,
}

impl Sorter {
    /// One that keeps its files in `folder`, and needs none for less than `budget` bytes.
    pub(crate) fn new(folder: &Path, budget: usize) -> Self {
        Self { folder: folder.to_owned(), budget, bytes: Vec::new(), entries: Vec::new(), levels: Vec::new() }
    }

    pub(crate) fn add(&mut self, key: &[u8], value: &[u8]) -> Result<(), JobError> {
        let size = self.bytes.len() + self.entries.len() * RECORD_BYTES + key.len() + value.len();
        if size > self.budget && !self.entries.is_empty() {
            self.spill()?;
        }
        self.entries.push(Entry { at: self.bytes.len(), key: key.len(), value: value.len() });
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        Ok(())
    }

    fn sort(&mut self) {
        let bytes = &self.bytes;
        let parts = |entry: &Entry| bytes[entry.at..entry.at + entry.key + entry.value].split_at(entry.key);
        self.entries.sort_unstable_by(|a, b| parts(a).cmp(&parts(b)));
    }

    fn spill(&mut self) -> Result<(), JobError> {
        self.sort();
        let mut spool = Spool::new(&self.folder)?;
        for Entry { at, key, value } in self.entries.drain(..) {
            let (key, value) = self.bytes[at..at + key + value].split_at(key);
            spool.add(key, value)?;
        }
        self.bytes.clear();
        let mut run = spool.read()?;
        for level in 0.. {
            if self.levels.len() == level {
                self.levels.push(Vec::new());
            }
            self.levels[level].push(run);
            if self.levels[level].len() < FAN_IN {
                break;
            }
            let mut merged = Spool::new(&self.folder)?;
            for record in Merged::new(std::mem::take(&mut self.levels[level]))? {
                let (key, value) = record?;
                merged.add(&key, &value)?;
            }
            run = merged.read()?;
        }
        Ok(())
    }

    /// All records, the smallest first.
    pub(crate) fn finish(mut self) -> Result<Sorted, JobError> {
        if self.levels.is_empty() {
            self.sort();
            return Ok(Sorted::Memory { bytes: self.bytes, entries: self.entries.into_iter() });
        }
        self.spill()?;
        self.bytes = Vec::new();
        Ok(Sorted::Files(Merged::new(self.levels.into_iter().flatten().collect())?))
    }
}

/// What a [`Sorter`] took, in order.
pub(crate) enum Sorted {
    Memory { bytes: Vec<u8>, entries: std::vec::IntoIter<Entry> },
    Files(Merged),
}

impl Iterator for Sorted {
    type Item = Result<Record, JobError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::Memory { bytes, entries } => entries.next().map(|Entry { at, key, value }| {
                let (key, value) = bytes[at..at + key + value].split_at(key);
                Ok((key.to_vec(), value.to_vec()))
            }),
            Self::Files(merged) => merged.next(),
        }
    }
}

/// Runs as one.
pub(crate) struct Merged {
    runs: Vec<Records>,
    /// The next record of each run.
    heads: BinaryHeap<Reverse<(Record, usize)>>,
}

impl Merged {
    fn new(runs: Vec<Records>) -> Result<Self, JobError> {
        let mut merged = Self { heads: BinaryHeap::with_capacity(runs.len()), runs };
        for run in 0..merged.runs.len() {
            merged.refill(run)?;
        }
        Ok(merged)
    }

    fn refill(&mut self, run: usize) -> Result<(), JobError> {
        if let Some(record) = self.runs[run].next() {
            self.heads.push(Reverse((record?, run)));
        }
        Ok(())
    }
}

impl Iterator for Merged {
    type Item = Result<Record, JobError>;

    fn next(&mut self) -> Option<Self::Item> {
        let Reverse((record, run)) = self.heads.pop()?;
        Some(self.refill(run).map(|()| record))
    }
}

/// Sorted records of which the next can be looked at.
pub(crate) struct Ahead {
    records: Box<dyn Iterator<Item = Result<Record, JobError>> + Send>,
    next: Option<Record>,
}

impl Ahead {
    pub(crate) fn new(
        records: impl Iterator<Item = Result<Record, JobError>> + Send + 'static,
    ) -> Result<Self, JobError> {
        let mut records: Box<dyn Iterator<Item = _> + Send> = Box::new(records);
        let next = records.next().transpose()?;
        Ok(Self { records, next })
    }

    /// The value of the next record, if its key begins with `prefix`.
    pub(crate) fn take(&mut self, prefix: &[u8]) -> Result<Option<Vec<u8>>, JobError> {
        if !self.next.as_ref().is_some_and(|(key, _)| key.starts_with(prefix)) {
            return Ok(None);
        }
        let taken = self.next.take().map(|(_, value)| value);
        self.next = self.records.next().transpose()?;
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn as_if_sorted_in_memory(
            records in proptest::collection::vec(
                (proptest::collection::vec(0u8..4, 0..5), proptest::collection::vec(0u8..3, 0..40)),
                0..3000,
            ),
            budget in prop_oneof![Just(0usize), Just(200), Just(5000), Just(1 << 20)],
        ) {
            let folder = tempfile::tempdir().unwrap();
            let mut sorter = Sorter::new(folder.path(), budget);
            for (key, value) in &records {
                sorter.add(key, value).unwrap();
            }
            let sorted: Vec<Record> = sorter.finish().unwrap().map(Result::unwrap).collect();
            let mut expected = records.clone();
            expected.sort();
            prop_assert_eq!(sorted, expected);
            prop_assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn open_files_stay_few_however_many_runs() {
        let folder = tempfile::tempdir().unwrap();
        let mut sorter = Sorter::new(folder.path(), 0);
        for number in (0..5000u32).rev() {
            sorter.add(&number.to_be_bytes(), &[]).unwrap();
            assert!(sorter.levels.iter().all(|level| level.len() < FAN_IN));
        }
        assert_eq!(sorter.levels.len(), 3);
        let keys: Vec<Vec<u8>> = sorter.finish().unwrap().map(|record| record.unwrap().0).collect();
        assert!(keys.iter().eq((0..5000u32).map(|number| number.to_be_bytes().to_vec()).collect::<Vec<_>>().iter()));
    }
}

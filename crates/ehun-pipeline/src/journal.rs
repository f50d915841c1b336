//! What is done, one line for each fact, each made durable before anything relies on it.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::JobError;
use crate::table::rename;

/// A fact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Record {
    /// The part with this number is whole and durable.
    Part {
        number: u64,
        /// Its first and last source, in the order of sources.
        first: String,
        last: String,
    },
    /// New final tables, which hold all parts up to this number, are durable in the folder `next`.
    Publish { through: u64 },
    /// The final tables hold all parts up to this number.
    Published { through: u64 },
}

#[derive(Serialize, Deserialize)]
struct Line {
    record: Record,
    check: String,
}

fn check_of(record: &Record) -> String {
    let text = serde_json::to_string(record).unwrap_or_default();
    blake3::hash(text.as_bytes()).to_hex()[..16].to_owned()
}

fn line_of(record: &Record) -> String {
    let line = Line { record: record.clone(), check: check_of(record) };
    serde_json::to_string(&line).unwrap_or_default() + "\n"
}

/// The journal of a job folder.
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
}

impl Journal {
    /// Opens the journal, which need not exist, and gives what it says to `each`, one fact after the other. A line that a crash
    /// cut short, and what follows it, is as if it had not been written, and is taken out.
    pub(crate) fn open(path: &Path, mut each: impl FnMut(Record)) -> Result<Self, JobError> {
        let mut options = OpenOptions::new();
        let file = options.create(true).read(true).append(true).open(path).map_err(JobError::io(path, "open"))?;
        let mut reader = BufReader::new(&file);
        let mut whole = 0;
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = reader.read_until(b'\n', &mut line).map_err(JobError::io(path, "read"))?;
            let Some(content) = line.strip_suffix(b"\n") else { break };
            let Ok(Line { record, check }) = serde_json::from_slice(content) else { break };
            if check != check_of(&record) {
                break;
            }
            each(record);
            whole += read as u64;
        }
        file.set_len(whole).map_err(JobError::io(path, "write"))?;
        file.sync_all().map_err(JobError::io(path, "synchronise"))?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Adds a fact and makes it durable.
    pub(crate) fn add(&mut self, record: &Record) -> Result<(), JobError> {
        self.file.write_all(line_of(record).as_bytes()).map_err(JobError::io(&self.path, "write"))?;
        self.file.sync_data().map_err(JobError::io(&self.path, "synchronise"))
    }

    /// Replaces everything by one fact.
    pub(crate) fn reset(&mut self, record: &Record) -> Result<(), JobError> {
        let new = self.path.with_extension("new");
        let mut file = File::create(&new).map_err(JobError::io(&new, "create"))?;
        file.write_all(line_of(record).as_bytes()).map_err(JobError::io(&new, "write"))?;
        file.sync_all().map_err(JobError::io(&new, "synchronise"))?;
        rename(&new, &self.path)?;
        self.file = OpenOptions::new().append(true).open(&self.path).map_err(JobError::io(&self.path, "open"))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn read(path: &Path) -> (Journal, Vec<Record>) {
        let mut records = Vec::new();
        (Journal::open(path, |record| records.push(record)).unwrap(), records)
    }

    #[test]
    fn a_torn_end_is_forgotten_wherever_it_is_torn() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let records: Vec<Record> = (1..=3)
            .map(|number| Record::Part { number, first: format!("a{number}"), last: format!("ä{number}") })
            .collect();
        let whole: String = records.iter().map(line_of).collect();
        let ends: Vec<usize> = whole.match_indices('\n').map(|(at, _)| at + 1).collect();
        for cut in 0..=whole.len() {
            fs::write(&path, &whole.as_bytes()[..cut]).unwrap();
            let (mut journal, found) = read(&path);
            let expected = ends.iter().filter(|&&end| end <= cut).count();
            assert_eq!(found, records[..expected], "cut at {cut}");
            let next = Record::Publish { through: 9 };
            journal.add(&next).unwrap();
            assert_eq!(read(&path).1.last(), Some(&next));
        }
    }

    #[test]
    fn a_damaged_line_ends_the_journal() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let records = [Record::Publish { through: 1 }, Record::Published { through: 1 }];
        let whole: String = records.iter().map(line_of).collect();
        fs::write(&path, whole.replacen("\"through\":1", "\"through\":2", 1)).unwrap();
        assert_eq!(read(&path).1, []);
        let (mut journal, _) = read(&path);
        journal.reset(&records[1]).unwrap();
        journal.add(&records[0]).unwrap();
        assert_eq!(read(&path).1, [records[1].clone(), records[0].clone()]);
    }
}

//! The final tables from what is there: the tables of before and the parts since, source by source.
//!
//! Every input is in the order of sources, so the merge holds one batch of rows for each input, however many documents there
//! are. A source that is in several inputs is taken whole from the newest.

use std::path::PathBuf;

use arrow_array::{Array, RecordBatch, StringArray};

use crate::error::JobError;
use crate::source::order;
use crate::table::{Batches, TableWriter, read_table};

const BATCH_ROWS: usize = 1024;

/// Names of files, made as they are needed.
pub(crate) type Files = Box<dyn Iterator<Item = PathBuf> + Send>;

/// The rows of several tables, one after the other, whose sources rise from the first to the last.
pub(crate) struct Cursor {
    files: Files,
    columns: Option<&'static [&'static str]>,
    batches: Option<Batches>,
    batch: Option<(RecordBatch, StringArray)>,
    row: usize,
}

impl Cursor {
    /// Over `files`; with `columns`, only those, and `source` must be among them.
    pub(crate) fn new(files: Files, columns: Option<&'static [&'static str]>) -> Self {
        Self { files, columns, batches: None, batch: None, row: 0 }
    }

    /// The source of the next row.
    fn source(&mut self) -> Result<Option<&str>, JobError> {
        while self.batch.as_ref().is_none_or(|(batch, _)| self.row >= batch.num_rows()) {
            self.row = 0;
            self.batch = None;
            match self.batches.as_mut().and_then(Iterator::next) {
                Some(batch) => {
                    let batch = batch?;
                    let sources = strings_of(&batch, "source")?.clone();
                    self.batch = Some((batch, sources));
                }
                None => match self.files.next() {
                    Some(file) => self.batches = Some(read_table(&file, self.columns, BATCH_ROWS)?),
                    None => return Ok(None),
                },
            }
        }
        Ok(self.batch.as_ref().map(|(_, sources)| sources.value(self.row)))
    }

    /// Goes past the rows of `source`, which is the next one or not there at all, and gives them to `each`.
    pub(crate) fn pass(
        &mut self,
        source: &str,
        each: &mut dyn FnMut(&RecordBatch) -> Result<(), JobError>,
    ) -> Result<(), JobError> {
        while self.source()? == Some(source) {
            let Some((batch, sources)) = &self.batch else { break };
            let start = self.row;
            let end = (start..batch.num_rows()).find(|&row| sources.value(row) != source).unwrap_or(batch.num_rows());
            each(&batch.slice(start, end - start))?;
            self.row = end;
        }
        Ok(())
    }
}

/// A text column of a table of the job.
pub(crate) fn strings_of<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a StringArray, JobError> {
    let column = batch.column_by_name(name).and_then(|column| column.as_any().downcast_ref::<StringArray>());
    let missing =
        || JobError::Settings(format!("a table of the job has no text column `{name}`; remove its tables and `.ehun`"));
    column.ok_or_else(missing)
}

/// The next source of several tables, and which of them is the newest that has it. `last` is the one before, and is replaced.
pub(crate) fn next_source<'a>(
    cursors: impl Iterator<Item = &'a mut Cursor>,
    last: &mut Option<String>,
) -> Result<Option<(String, usize)>, JobError> {
    let mut next: Option<(String, usize)> = None;
    for (number, cursor) in cursors.enumerate() {
        let Some(source) = cursor.source()? else { continue };
        // Of equal sources the later table wins.
        if next.as_ref().is_none_or(|(best, _)| order(source, best).is_le()) {
            next = Some((source.to_owned(), number));
        }
    }
    if let Some((source, _)) = &next {
        if last.as_ref().is_some_and(|last| order(last, source).is_ge()) {
            let reason =
                "the tables of this folder are not in the order of their sources, so they cannot be gone on with";
            return Err(JobError::Settings(format!("{reason}; give another folder")));
        }
        *last = Some(source.clone());
    }
    Ok(next)
}

/// The two tables of one input.
pub(crate) struct Input {
    pub(crate) documents: Cursor,
    pub(crate) chunks: Cursor,
}

/// Says of each source, in their order, whether it is left out.
pub(crate) type IsDropped<'a> = &'a mut dyn FnMut(&str) -> Result<bool, JobError>;

/// Merges `inputs`, the oldest first, and leaves out the sources that `is_dropped`.
pub(crate) fn merge(
    inputs: &mut [Input],
    is_dropped: IsDropped<'_>,
    documents: &mut TableWriter,
    chunks: &mut TableWriter,
) -> Result<(), JobError> {
    let mut last = None;
    while let Some((source, winner)) = next_source(inputs.iter_mut().map(|input| &mut input.documents), &mut last)? {
        let dropped = is_dropped(&source)?;
        for (number, input) in inputs.iter_mut().enumerate() {
            let taken = number == winner && !dropped;
            let write = |to: &mut TableWriter, rows: &RecordBatch| if taken { to.write(rows) } else { Ok(()) };
            input.documents.pass(&source, &mut |rows| write(documents, rows))?;
            input.chunks.pass(&source, &mut |rows| write(chunks, rows))?;
        }
    }
    Ok(())
}

//! The final tables from what is there: the tables of before and the parts since, source by source.
//!
//! Every input is in the order of sources, so the merge holds one batch of rows for each input, however many documents there
//! are. A source that is in several inputs is taken whole from the newest.

use std::collections::VecDeque;
use std::path::PathBuf;

use arrow_array::{Array, RecordBatch, StringArray};

use crate::error::JobError;
use crate::source::order;
use crate::table::{Batches, TableWriter, read_table};

const BATCH_ROWS: usize = 1024;

/// The rows of several tables, one after the other, whose sources rise from the first to the last.
pub(crate) struct Cursor {
    files: VecDeque<PathBuf>,
    batches: Option<Batches>,
    batch: Option<(RecordBatch, StringArray)>,
    row: usize,
}

impl Cursor {
    pub(crate) fn new(files: Vec<PathBuf>) -> Self {
        Self { files: files.into(), batches: None, batch: None, row: 0 }
    }

    /// The tables that have not been begun.
    pub(crate) fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.files.iter()
    }

    /// The source of the next row.
    fn source(&mut self) -> Result<Option<&str>, JobError> {
        while self.batch.as_ref().is_none_or(|(batch, _)| self.row >= batch.num_rows()) {
            self.row = 0;
            self.batch = None;
            match self.batches.as_mut().and_then(Iterator::next) {
                Some(batch) => {
                    let batch = batch?;
                    let sources = sources_of(&batch)?;
                    self.batch = Some((batch, sources));
                }
                None => match self.files.pop_front() {
                    Some(file) => self.batches = Some(read_table(&file, None, BATCH_ROWS)?),
                    None => return Ok(None),
                },
            }
        }
        Ok(self.batch.as_ref().map(|(_, sources)| sources.value(self.row)))
    }

    /// Goes past the rows of `source`, which is the next one or not there at all; writes them to `to`.
    fn pass(&mut self, source: &str, mut to: Option<&mut TableWriter>) -> Result<(), JobError> {
        while self.source()? == Some(source) {
            let Some((batch, sources)) = &self.batch else { break };
            let start = self.row;
            let end = (start..batch.num_rows()).find(|&row| sources.value(row) != source).unwrap_or(batch.num_rows());
            if let Some(to) = to.as_deref_mut() {
                to.write(&batch.slice(start, end - start))?;
            }
            self.row = end;
        }
        Ok(())
    }
}

fn sources_of(batch: &RecordBatch) -> Result<StringArray, JobError> {
    let column = batch.column_by_name("source").and_then(|column| column.as_any().downcast_ref::<StringArray>());
    let missing = || JobError::Settings("a table of the job has no column `source`; remove the folder `.ehun`".into());
    column.cloned().ok_or_else(missing)
}

/// The two tables of one input.
pub(crate) struct Input {
    pub(crate) documents: Cursor,
    pub(crate) chunks: Cursor,
}

/// Merges `inputs`, the oldest first, and leaves out the sources that `is_dropped`.
pub(crate) fn merge(
    inputs: &mut [Input],
    is_dropped: &dyn Fn(&str) -> bool,
    documents: &mut TableWriter,
    chunks: &mut TableWriter,
) -> Result<(), JobError> {
    loop {
        let mut next: Option<(String, usize)> = None;
        for (number, input) in inputs.iter_mut().enumerate() {
            let Some(source) = input.documents.source()? else { continue };
            // Of equal sources the later input wins.
            if next.as_ref().is_none_or(|(best, _)| order(source, best).is_le()) {
                next = Some((source.to_owned(), number));
            }
        }
        let Some((source, winner)) = next else { return Ok(()) };
        let dropped = is_dropped(&source);
        for (number, input) in inputs.iter_mut().enumerate() {
            let taken = number == winner && !dropped;
            input.documents.pass(&source, taken.then_some(&mut *documents))?;
            input.chunks.pass(&source, taken.then_some(&mut *chunks))?;
        }
    }
}

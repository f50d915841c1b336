//! Where the rows of a job go: into parts of a folder, or onto standard output.

use std::io::Write;

use crate::error::JobError;
use crate::export::write_lines;
use crate::job::JobOptions;
use crate::rows::{ChunkRow, DocumentRow, Producer, chunk_batch, document_batch};
use crate::store::{Part, Store};

/// What takes the rows.
pub(crate) enum Sink {
    Store { store: Box<Store>, part: Option<Box<Part>> },
    Stdout(Producer),
}

impl Sink {
    fn part(&mut self) -> Result<Option<&mut Part>, JobError> {
        match self {
            Self::Stdout(_) => Ok(None),
            Self::Store { store, part } => {
                if part.is_none() {
                    *part = Some(Box::new(store.begin()?));
                }
                Ok(part.as_deref_mut())
            }
        }
    }

    /// Takes chunks of the document that is under way.
    pub(crate) fn chunks(&mut self, rows: &[ChunkRow]) -> Result<(), JobError> {
        if let Self::Stdout(producer) = self {
            let batch = chunk_batch(rows, producer).map_err(JobError::file("chunks"))?;
            return print("chunks", &batch);
        }
        self.part()?.map_or(Ok(()), |part| part.add_chunks(rows))
    }

    /// Takes a document; its chunks came before.
    pub(crate) fn document(&mut self, row: DocumentRow) -> Result<(), JobError> {
        if let Self::Stdout(_) = self {
            return print("documents", &document_batch(&[row]).map_err(JobError::file("documents"))?);
        }
        self.part()?.map_or(Ok(()), |part| part.add_document(row))
    }

    /// A source is complete: the part may be closed.
    pub(crate) fn source_end(&mut self, options: &JobOptions) -> Result<(), JobError> {
        let Self::Store { part: Some(part), .. } = self else { return Ok(()) };
        let (documents, chunks, seconds) = part.size();
        let most = options.parts;
        if documents >= most.documents || chunks >= most.chunks || seconds >= most.seconds {
            self.commit()?;
        }
        Ok(())
    }

    /// Makes durable what was written.
    pub(crate) fn commit(&mut self) -> Result<(), JobError> {
        if let Self::Store { store, part } = self
            && let Some(part) = part.take()
        {
            store.commit(*part)?;
        }
        Ok(())
    }
}

/// Rows as JSON Lines on standard output, each with the name of its table.
fn print(table: &str, batch: &arrow_array::RecordBatch) -> Result<(), JobError> {
    let mut lines = Vec::new();
    let stdout = || JobError::io("standard output", "write");
    write_lines(batch, &mut lines).map_err(stdout())?;
    let mut out = std::io::stdout().lock();
    for line in lines.split_inclusive(|&byte| byte == b'\n') {
        // An object is never empty, so what follows its first brace is a member.
        write!(out, "{{\"table\":\"{table}\",").and_then(|()| out.write_all(&line[1..])).map_err(stdout())?;
    }
    out.flush().map_err(stdout())
}

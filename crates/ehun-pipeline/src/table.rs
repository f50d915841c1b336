//! Parquet files, written so that a torn one never has a name that is read.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_schema::SchemaRef;
use parquet::arrow::ArrowWriter;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};
use parquet::basic::Compression;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::schema::types::ColumnPath;

use crate::error::JobError;
use crate::extra::conform;

/// Rows of a row group of chunks: about 13 MB of 384-wide vectors, which is what a reader holds at once.
const ROW_GROUP_ROWS: usize = 8192;
/// A row group is closed early when it has grown to this size in memory: texts of documents may be long.
const ROW_GROUP_BYTES: usize = 32 << 20;

/// Key in the metadata of both final tables: which publication of its folder a table belongs to, counted from 1.
pub(crate) const PUBLICATION: &str = "ehun.publication";

/// Makes the names in `folder` durable.
pub(crate) fn sync_folder(folder: &Path) -> Result<(), JobError> {
    // A folder can be opened and synchronised on Unix alone; elsewhere a rename is as durable as the system makes it.
    if cfg!(unix) {
        File::open(folder).and_then(|f| f.sync_all()).map_err(JobError::io(folder, "synchronise"))?;
    }
    Ok(())
}

/// Moves `from` over `to` and makes that durable.
pub(crate) fn rename(from: &Path, to: &Path) -> Result<(), JobError> {
    fs::rename(from, to).map_err(JobError::io(to, "write"))?;
    to.parent().map_or(Ok(()), sync_folder)
}

/// A table that is being written to `path`. Dropped unfinished, it leaves no file.
pub(crate) struct TableWriter {
    path: PathBuf,
    schema: SchemaRef,
    writer: Option<ArrowWriter<BufWriter<File>>>,
    rows: u64,
}

impl TableWriter {
    pub(crate) fn create(path: &Path, schema: &SchemaRef) -> Result<Self, JobError> {
        let file = File::create(path).map_err(JobError::io(path, "create"))?;
        // What the schema notes is given to readers that know no Arrow as well.
        let mut notes = vec![KeyValue::new("writer".into(), format!("ehun {}", env!("CARGO_PKG_VERSION")))];
        notes.extend(schema.metadata().iter().map(|(key, value)| KeyValue::new(key.clone(), value.clone())));
        let plain = ["text", "embedding.list.item", "embedding.list.element", "document_id", "fingerprint"];
        let mut properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
            .set_key_value_metadata(Some(notes));
        for column in plain {
            let column = ColumnPath::new(column.split('.').map(str::to_owned).collect());
            properties = properties.set_column_dictionary_enabled(column, false);
        }
        let writer = ArrowWriter::try_new(BufWriter::new(file), schema.clone(), Some(properties.build()))
            .map_err(JobError::file(path))?;
        Ok(Self { path: path.to_owned(), schema: Arc::clone(schema), writer: Some(writer), rows: 0 })
    }

    /// Writes rows; columns that they lack are null.
    pub(crate) fn write(&mut self, batch: &RecordBatch) -> Result<(), JobError> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let batch = conform(batch, &self.schema).map_err(JobError::file(&self.path))?;
        writer.write(&batch).map_err(JobError::file(&self.path))?;
        self.rows += batch.num_rows() as u64;
        if writer.in_progress_size() > ROW_GROUP_BYTES {
            writer.flush().map_err(JobError::file(&self.path))?;
        }
        Ok(())
    }

    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    /// Writes the rest and makes the file durable under its name.
    pub(crate) fn finish(mut self) -> Result<u64, JobError> {
        if let Some(writer) = self.writer.take() {
            let finished = writer.into_inner().map_err(JobError::file(&self.path)).and_then(|mut buffer| {
                buffer.flush().map_err(JobError::io(&self.path, "write"))?;
                buffer.get_ref().sync_all().map_err(JobError::io(&self.path, "synchronise"))
            });
            if let Err(error) = finished {
                let _ = fs::remove_file(&self.path);
                return Err(error);
            }
        }
        Ok(self.rows)
    }
}

impl Drop for TableWriter {
    fn drop(&mut self) {
        if self.writer.take().is_some() {
            // What is half written is of no use; if it cannot be removed, the next run does it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Reads a table batch by batch; with `columns`, only those.
pub(crate) fn read_table(path: &Path, columns: Option<&[&str]>, rows: usize) -> Result<Batches, JobError> {
    let file = File::open(path).map_err(JobError::io(path, "open"))?;
    let mut builder = ParquetRecordBatchReaderBuilder::try_new(file).map_err(JobError::file(path))?;
    if let Some(columns) = columns {
        let schema = builder.parquet_schema();
        for column in columns {
            if !schema.columns().iter().any(|leaf| leaf.path().parts().first().is_some_and(|root| root == column)) {
                let message = format!("there is no column `{column}`; this file was not written by this program");
                return Err(JobError::File { path: path.to_owned(), message });
            }
        }
        let mask = ProjectionMask::columns(schema, columns.iter().copied());
        builder = builder.with_projection(mask);
    }
    let reader = builder.with_batch_size(rows).build().map_err(JobError::file(path))?;
    Ok(Batches { path: path.to_owned(), reader })
}

/// The publication that a final table belongs to; `None` for one of an earlier version.
pub(crate) fn publication(path: &Path) -> Result<Option<u64>, JobError> {
    let file = File::open(path).map_err(JobError::io(path, "open"))?;
    // The reader's own schema is without what the file notes.
    let builder = ParquetRecordBatchReaderBuilder::try_new(file).map_err(JobError::file(path))?;
    Ok(builder.schema().metadata().get(PUBLICATION).and_then(|number| number.parse().ok()))
}

/// The batches of a table.
pub(crate) struct Batches {
    path: PathBuf,
    reader: ParquetRecordBatchReader,
}

impl Batches {
    pub(crate) fn schema(&self) -> SchemaRef {
        self.reader.schema()
    }
}

impl Iterator for Batches {
    type Item = Result<RecordBatch, JobError>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.reader.next()?.map_err(JobError::file(&self.path)))
    }
}

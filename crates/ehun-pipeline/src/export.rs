//! Tables in other forms: JSON Lines and Arrow IPC.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;

use arrow_array::{
    Array, FixedSizeListArray, Float32Array, ListArray, RecordBatch, StringArray, StructArray, UInt32Array, UInt64Array,
};
use arrow_schema::Schema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::dedup::Repeats;
use crate::error::JobError;
use crate::table::{PUBLICATION, TableWriter, publication, read_table};

/// The form of the output tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Apache Parquet.
    #[default]
    Parquet,
    /// One JSON object a line.
    Jsonl,
    /// Arrow IPC file (Feather version 2).
    Arrow,
}

impl Format {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        self.extension()
    }

    /// The extension of its files.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Parquet => "parquet",
            Self::Jsonl => "jsonl",
            Self::Arrow => "arrow",
        }
    }
}

impl std::str::FromStr for Format {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let all = [Self::Parquet, Self::Jsonl, Self::Arrow];
        let found = all.into_iter().find(|format| format.name() == name);
        found.ok_or_else(|| format!("`{name}` is no output format; there are parquet, jsonl and arrow"))
    }
}

/// Writes the Parquet table `from` to `to` in the form `format`, without what is repeated, and makes it durable. The number of its
/// rows.
pub(crate) fn export(from: &Path, to: &Path, format: Format, mut repeats: Option<Repeats>) -> Result<u64, JobError> {
    let mut read = read_table(from, None, 1024)?;
    let schema = if repeats.is_some() { Repeats::schema(&read.schema()) } else { read.schema() };
    // What the table notes goes with it: the reader's schema is without.
    let noted = match publication(from)? {
        Some(number) => {
            let note = HashMap::from([(PUBLICATION.to_owned(), number.to_string())]);
            Arc::new(Schema::clone(&schema).with_metadata(note))
        }
        None => schema.clone(),
    };
    let (mut rows, mut left) = (0, None);
    let mut next = || -> Result<Option<RecordBatch>, JobError> {
        let Some(batch) = left.take().map_or_else(|| read.next().transpose(), |batch| Ok(Some(batch)))? else {
            return Ok(None);
        };
        let batch = match &mut repeats {
            Some(repeats) => {
                let (kept, done) = repeats.apply(&batch, &schema)?;
                left = (done < batch.num_rows()).then(|| batch.slice(done, batch.num_rows() - done));
                kept
            }
            None => batch,
        };
        rows += batch.num_rows() as u64;
        Ok(Some(batch))
    };
    let batches = std::iter::from_fn(|| next().transpose());
    if format == Format::Parquet {
        let mut writer = TableWriter::create(to, &noted)?;
        for batch in batches {
            writer.write(&batch?)?;
        }
        return writer.finish();
    }
    let file = File::create(to).map_err(JobError::io(to, "create"))?;
    let mut buffer = BufWriter::new(file);
    match format {
        Format::Arrow => {
            let mut writer = arrow_ipc::writer::FileWriter::try_new(&mut buffer, &noted).map_err(JobError::file(to))?;
            for batch in batches {
                writer.write(&batch?).map_err(JobError::file(to))?;
            }
            writer.finish().map_err(JobError::file(to))?;
        }
        _ => {
            for batch in batches {
                write_lines(&batch?, &mut buffer).map_err(JobError::io(to, "write"))?;
            }
        }
    }
    buffer.flush().map_err(JobError::io(to, "write"))?;
    buffer.get_ref().sync_all().map_err(JobError::io(to, "synchronise"))?;
    Ok(rows)
}

/// Writes each row as a JSON object.
pub(crate) fn write_lines(batch: &RecordBatch, to: &mut dyn Write) -> std::io::Result<()> {
    let schema = batch.schema();
    for row in 0..batch.num_rows() {
        let mut object = Map::new();
        for (field, column) in schema.fields().iter().zip(batch.columns()) {
            object.insert(field.name().clone(), value(column.as_ref(), row));
        }
        serde_json::to_writer(&mut *to, &Value::Object(object))?;
        to.write_all(b"\n")?;
    }
    Ok(())
}

/// A value of one of the column types of the two tables; anything else would be null.
fn value(column: &dyn Array, row: usize) -> Value {
    if column.is_null(row) {
        return Value::Null;
    }
    let any = column.as_any();
    if let Some(texts) = any.downcast_ref::<StringArray>() {
        return texts.value(row).into();
    }
    if let Some(numbers) = any.downcast_ref::<UInt32Array>() {
        return numbers.value(row).into();
    }
    if let Some(numbers) = any.downcast_ref::<UInt64Array>() {
        return numbers.value(row).into();
    }
    if let Some(numbers) = any.downcast_ref::<Float32Array>() {
        return serde_json::to_value(numbers.value(row)).unwrap_or_default();
    }
    if let Some(object) = any.downcast_ref::<StructArray>() {
        let members = object.fields().iter().zip(object.columns());
        return members.map(|(field, column)| (field.name().clone(), value(column.as_ref(), row))).collect();
    }
    let items = match (any.downcast_ref::<ListArray>(), any.downcast_ref::<FixedSizeListArray>()) {
        (Some(list), _) => list.value(row),
        (_, Some(list)) => list.value(row),
        _ => return Value::Null,
    };
    (0..items.len()).map(|i| value(items.as_ref(), i)).collect()
}

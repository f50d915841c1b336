//! Chunks with the same words are kept once, with the places of the others.
//!
//! The full table stays beside the journal, and the table that readers read is made of it anew whenever it changes: so the first
//! of several equal chunks may go or change, and the next one takes its place, whatever was processed in which run. A pass over
//! the texts finds what is repeated, and a second one writes. Memory holds about 50 bytes for a chunk and 100 for a
//! repeated one, and no text.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use arrow_array::builder::{UInt32Builder, UInt64Builder};
use arrow_array::cast::AsArray;
use arrow_array::types::{UInt32Type, UInt64Type};
use arrow_array::{Array, ArrayRef, BooleanArray, RecordBatch};
use arrow_schema::{ArrowError, DataType, Field, Fields, Schema, SchemaRef};
use arrow_select::filter::filter_record_batch;

use crate::error::JobError;
use crate::extra::list;
use crate::rows::strings;
use crate::table::read_table;

/// The column of places.
pub(crate) const ALSO_AT: &str = "also_at";

/// Where a chunk is that is not kept.
struct Place {
    document_id: Arc<str>,
    path: Arc<str>,
    chunk: u32,
    page: Option<u32>,
    char_start: u64,
    char_end: u64,
}

/// What is repeated in a table of chunks.
pub(crate) struct Repeats {
    /// By the row that is kept.
    places: HashMap<u64, Vec<Place>>,
    /// A bit for each row: whether it is left out.
    dropped: Vec<u64>,
    next_row: u64,
}

fn fields() -> Fields {
    vec![
        Field::new("document_id", DataType::Utf8, false),
        Field::new("path", DataType::Utf8, false),
        Field::new("chunk", DataType::UInt32, false),
        Field::new("page", DataType::UInt32, true),
        Field::new("char_start", DataType::UInt64, false),
        Field::new("char_end", DataType::UInt64, false),
    ]
    .into()
}

/// Half of the blake3 of a text's words: equal for texts that differ in whitespace alone.
fn key(text: &str) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new();
    for word in text.split_whitespace() {
        hasher.update(word.as_bytes());
        hasher.update(b" ");
    }
    crate::source::truncated(&hasher.finalize())
}

impl Repeats {
    /// Reads the table once.
    pub(crate) fn find(path: &Path) -> Result<Self, JobError> {
        let columns = ["document_id", "path", "chunk", "page", "char_start", "char_end", "text"];
        let mut first: HashMap<[u8; 16], u64> = HashMap::new();
        let mut this = Self { places: HashMap::new(), dropped: Vec::new(), next_row: 0 };
        let mut last: (Arc<str>, Arc<str>) = ("".into(), "".into());
        let mut row = 0;
        for batch in read_table(path, Some(&columns), 1024)? {
            let batch = batch?;
            let column = |name: &str| {
                let missing = || JobError::File { path: path.to_owned(), message: format!("no column `{name}`") };
                batch.column_by_name(name).ok_or_else(missing)
            };
            let text = |name: &str| Ok::<_, JobError>(column(name)?.as_string::<i32>());
            let (ids, paths, texts) = (text("document_id")?, text("path")?, text("text")?);
            let (chunks, pages) =
                (column("chunk")?.as_primitive::<UInt32Type>(), column("page")?.as_primitive::<UInt32Type>());
            let starts = column("char_start")?.as_primitive::<UInt64Type>();
            let ends = column("char_end")?.as_primitive::<UInt64Type>();
            this.dropped.resize((row as usize + batch.num_rows()).div_ceil(64), 0);
            for i in 0..batch.num_rows() {
                let kept = *first.entry(key(texts.value(i))).or_insert(row);
                if kept != row {
                    this.dropped[(row / 64) as usize] |= 1 << (row % 64);
                    // The rows of a document follow each other: they share its names.
                    if *last.0 != *ids.value(i) || *last.1 != *paths.value(i) {
                        last = (ids.value(i).into(), paths.value(i).into());
                    }
                    this.places.entry(kept).or_default().push(Place {
                        document_id: Arc::clone(&last.0),
                        path: Arc::clone(&last.1),
                        chunk: chunks.value(i),
                        page: (!pages.is_null(i)).then(|| pages.value(i)),
                        char_start: starts.value(i),
                        char_end: ends.value(i),
                    });
                }
                row += 1;
            }
        }
        Ok(this)
    }

    /// `schema` with the column of places.
    pub(crate) fn schema(schema: &SchemaRef) -> SchemaRef {
        let item = Field::new("item", DataType::Struct(fields()), false);
        let column = Field::new(ALSO_AT, DataType::List(Arc::new(item)), true);
        let all = schema.fields().iter().map(|field| field.as_ref().clone()).chain([column]);
        Arc::new(Schema::new(all.collect::<Vec<_>>()))
    }

    /// The rows of the next batch that are kept, with the places of those that are not. Batches come in the table's order.
    pub(crate) fn apply(&mut self, batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch, ArrowError> {
        let rows = self.next_row..self.next_row + batch.num_rows() as u64;
        self.next_row = rows.end;
        let is_kept = |row: u64| self.dropped[(row / 64) as usize] >> (row % 64) & 1 == 0;
        let mask: BooleanArray = rows.clone().map(|row| Some(is_kept(row))).collect();
        let kept = filter_record_batch(batch, &mask)?;
        let of_row: Vec<Vec<Place>> =
            rows.filter(|row| is_kept(*row)).map(|row| self.places.remove(&row).unwrap_or_default()).collect();
        let mut columns = kept.columns().to_vec();
        columns.push(places(&of_row)?);
        RecordBatch::try_new(Arc::clone(schema), columns)
    }
}

fn places(of_row: &[Vec<Place>]) -> Result<ArrayRef, ArrowError> {
    let all = || of_row.iter().flatten();
    let (mut chunks, mut pages) = (UInt32Builder::new(), UInt32Builder::new());
    let (mut starts, mut ends) = (UInt64Builder::new(), UInt64Builder::new());
    for place in all() {
        chunks.append_value(place.chunk);
        pages.append_option(place.page);
        starts.append_value(place.char_start);
        ends.append_value(place.char_end);
    }
    let columns: Vec<ArrayRef> = vec![
        strings(all().map(|place| Some(&*place.document_id))),
        strings(all().map(|place| Some(&*place.path))),
        Arc::new(chunks.finish()),
        Arc::new(pages.finish()),
        Arc::new(starts.finish()),
        Arc::new(ends.finish()),
    ];
    let lengths: Vec<_> = of_row.iter().map(|places| Some(places.len())).collect();
    Ok(Arc::new(list(fields(), columns, &lengths)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whitespace_makes_no_other_text() {
        assert_eq!(key("a  b\nc "), key("a b c"));
        assert_ne!(key("ab c"), key("a bc"));
        assert_ne!(key(""), key("a"));
    }
}

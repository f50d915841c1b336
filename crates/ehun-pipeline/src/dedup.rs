//! Chunks with the same words are kept once, with the places of the others.
//!
//! The full table stays beside the journal, and the table that readers read is made of it anew whenever it changes: so the first
//! of several equal chunks may go or change, and the next one takes its place, whatever was processed in which run.
//!
//! A pass over the texts notes the hash and the place of each chunk. Sorted by hash, the repeated ones stand together; sorted by
//! row, what was found goes beside a second pass, which writes. The sorting is done in temporary files, so memory does not
//! grow with the number of chunks; only the places of one chunk are held together, because they are one value of its row.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::builder::{UInt32Builder, UInt64Builder};
use arrow_array::cast::AsArray;
use arrow_array::types::{UInt32Type, UInt64Type};
use arrow_array::{Array, ArrayRef, BooleanArray, RecordBatch};
use arrow_schema::{ArrowError, DataType, Field, Fields, Schema, SchemaRef};
use arrow_select::filter::filter_record_batch;
use serde::{Deserialize, Serialize};

use crate::error::JobError;
use crate::extra::list;
use crate::rows::strings;
use crate::sort::{Ahead, Sorter};
use crate::table::read_table;

/// Places that are held at a time, but for those of one row.
const PLACES: usize = 4096;

/// Memory for each of the sorts.
const SORT_BYTES: usize = 8 << 20;

/// The column of places.
pub(crate) const ALSO_AT: &str = "also_at";

/// Where a chunk is.
#[derive(Serialize, Deserialize)]
struct Place {
    document_id: String,
    path: String,
    chunk: u32,
    page: Option<u32>,
    char_start: u64,
    char_end: u64,
}

/// What is repeated in a table of chunks.
pub(crate) struct Repeats {
    table: PathBuf,
    /// By the row that is kept, then by the row that is not.
    places: Ahead,
    /// The rows that are left out.
    dropped: Ahead,
    next_row: u64,
    /// [`PLACES`].
    most_places: usize,
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
    /// Reads the table once, with temporary files in the folder `scratch`.
    pub(crate) fn find(path: &Path, scratch: &Path) -> Result<Self, JobError> {
        Self::find_within(path, scratch, SORT_BYTES)
    }

    fn find_within(path: &Path, scratch: &Path, budget: usize) -> Result<Self, JobError> {
        let mut by_text = Sorter::new(scratch, budget);
        note_chunks(path, &mut by_text)?;
        let (mut places, mut dropped) = (Sorter::new(scratch, budget), Sorter::new(scratch, budget));
        let mut kept = Vec::new();
        for record in by_text.finish()? {
            let (hash_and_row, place) = record?;
            if kept.get(..16) == hash_and_row.get(..16) {
                let row = &hash_and_row[16..];
                places.add(&[&kept[16..], row].concat(), &place)?;
                dropped.add(row, &[])?;
            } else {
                kept = hash_and_row;
            }
        }
        let (places, dropped) = (Ahead::new(places.finish()?)?, Ahead::new(dropped.finish()?)?);
        Ok(Self { table: path.to_owned(), places, dropped, next_row: 0, most_places: PLACES })
    }

    /// `schema` with the column of places.
    pub(crate) fn schema(schema: &SchemaRef) -> SchemaRef {
        let item = Field::new("item", DataType::Struct(fields()), false);
        let column = Field::new(ALSO_AT, DataType::List(Arc::new(item)), true);
        let all = schema.fields().iter().map(|field| field.as_ref().clone()).chain([column]);
        Arc::new(Schema::new(all.collect::<Vec<_>>()))
    }

    /// Those of the next rows that are kept, with the places of those that are not; and how many rows these were, which is fewer
    /// than `batch` has where their places would be too many. Rows come in the table's order.
    pub(crate) fn apply(&mut self, batch: &RecordBatch, schema: &SchemaRef) -> Result<(RecordBatch, usize), JobError> {
        let mut is_kept = Vec::with_capacity(batch.num_rows());
        let (mut of_row, mut held) = (Vec::new(), 0);
        while is_kept.len() < batch.num_rows() && held < self.most_places {
            let row = self.next_row.to_be_bytes();
            self.next_row += 1;
            let kept = self.dropped.take(&row)?.is_none();
            is_kept.push(kept);
            if kept {
                let mut here = Vec::new();
                while let Some(place) = self.places.take(&row)? {
                    here.push(serde_json::from_slice(&place).map_err(JobError::file(&self.table))?);
                }
                held += here.len();
                of_row.push(here);
            }
        }
        let rows = is_kept.len();
        let with_places = || {
            let kept = filter_record_batch(&batch.slice(0, rows), &BooleanArray::from(is_kept))?;
            let mut columns = kept.columns().to_vec();
            columns.push(places(&of_row)?);
            RecordBatch::try_new(Arc::clone(schema), columns)
        };
        Ok((with_places().map_err(JobError::file(&self.table))?, rows))
    }
}

/// Gives `by_text` a record for each chunk: the hash of its words and its row, and its place.
fn note_chunks(path: &Path, by_text: &mut Sorter) -> Result<(), JobError> {
    let columns = ["document_id", "path", "chunk", "page", "char_start", "char_end", "text"];
    let mut row = 0u64;
    for batch in read_table(path, Some(&columns), 1024)? {
        let batch = batch?;
        let column = |name: &str| {
            let missing = || JobError::File { path: path.to_owned(), message: format!("no column `{name}`") };
            batch.column_by_name(name).ok_or_else(missing)
        };
        let text = |name: &str| Ok::<_, JobError>(column(name)?.as_string::<i32>());
        let (ids, paths, texts) = (text("document_id")?, text("path")?, text("text")?);
        let chunks = column("chunk")?.as_primitive::<UInt32Type>();
        let pages = column("page")?.as_primitive::<UInt32Type>();
        let starts = column("char_start")?.as_primitive::<UInt64Type>();
        let ends = column("char_end")?.as_primitive::<UInt64Type>();
        for i in 0..batch.num_rows() {
            let place = Place {
                document_id: ids.value(i).to_owned(),
                path: paths.value(i).to_owned(),
                chunk: chunks.value(i),
                page: (!pages.is_null(i)).then(|| pages.value(i)),
                char_start: starts.value(i),
                char_end: ends.value(i),
            };
            let place = serde_json::to_vec(&place).map_err(JobError::file(path))?;
            by_text.add(&[&key(texts.value(i))[..], &row.to_be_bytes()].concat(), &place)?;
            row += 1;
        }
    }
    Ok(())
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
    use proptest::prelude::*;

    use super::*;
    use crate::table::TableWriter;

    /// Writes a table of chunks with these texts, each a document of its own, and gives the rows that are kept with the rows
    /// at the places of the others.
    fn kept(texts: &[String], budget: usize) -> Vec<(u32, Vec<u32>)> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chunks.parquet");
        let numbers = || (0..texts.len() as u32).collect::<Vec<_>>();
        let longs = || Arc::new(arrow_array::UInt64Array::from_iter_values(numbers().into_iter().map(u64::from)));
        let names: Vec<String> = (0..texts.len()).map(|i| format!("d{i}")).collect();
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("document_id", strings(names.iter().map(|name| Some(name.as_str())))),
            ("path", strings(names.iter().map(|name| Some(name.as_str())))),
            ("chunk", Arc::new(arrow_array::UInt32Array::from(numbers()))),
            (
                "page",
                Arc::new(arrow_array::UInt32Array::from_iter(numbers().into_iter().map(|n| (n > 0).then_some(n)))),
            ),
            ("char_start", longs()),
            ("char_end", longs()),
            ("text", strings(texts.iter().map(|text| Some(text.as_str())))),
        ];
        let batch = RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, c)| (n, c, true))).unwrap();
        let mut writer = TableWriter::create(&path, &batch.schema()).unwrap();
        writer.write(&batch).unwrap();
        writer.finish().unwrap();

        let mut repeats = Repeats::find_within(&path, folder.path(), budget).unwrap();
        // In pieces, too, where memory is short.
        repeats.most_places = budget.max(2);
        let mut kept = Vec::new();
        for batch in read_table(&path, None, 7).unwrap() {
            let mut left = batch.unwrap();
            let schema = Repeats::schema(&left.schema());
            while left.num_rows() > 0 {
                let (batch, rows) = repeats.apply(&left, &schema).unwrap();
                assert!(rows > 0, "it would not end");
                left = left.slice(rows, left.num_rows() - rows);
                let also = batch.column_by_name(ALSO_AT).unwrap().as_list::<i32>();
                for row in 0..batch.num_rows() {
                    let places = also.value(row);
                    let places = places.as_struct();
                    let chunks = places.column_by_name("chunk").unwrap().as_primitive::<UInt32Type>().values().to_vec();
                    let pages = places.column_by_name("page").unwrap().as_primitive::<UInt32Type>();
                    assert_eq!(pages.iter().map(|page| page.unwrap_or(0)).collect::<Vec<_>>(), chunks);
                    let own = batch.column_by_name("chunk").unwrap().as_primitive::<UInt32Type>().value(row);
                    kept.push((own, chunks));
                }
            }
        }
        kept
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn the_first_of_equal_texts_has_the_places_of_the_others(
            texts in proptest::collection::vec("[ab ]{0,3}", 1..60),
            budget in prop_oneof![Just(0usize), Just(1 << 20)],
        ) {
            let mut expected: Vec<(u32, Vec<u32>)> = Vec::new();
            for (row, text) in (0..).zip(&texts) {
                let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
                match expected.iter_mut().find(|(first, _)| words(&texts[*first as usize]) == words(text)) {
                    Some((_, places)) => places.push(row),
                    None => expected.push((row, Vec::new())),
                }
            }
            prop_assert_eq!(kept(&texts, budget), expected);
        }
    }

    #[test]
    fn whitespace_makes_no_other_text() {
        assert_eq!(key("a  b\nc "), key("a b c"));
        assert_ne!(key("ab c"), key("a bc"));
        assert_ne!(key(""), key("a"));
    }
}

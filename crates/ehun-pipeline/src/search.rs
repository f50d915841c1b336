//! Semantic search by brute force: every vector is compared, one batch of rows after the other.

use std::cmp::Ordering;
use std::fs;
use std::path::{Path, PathBuf};

use arrow_array::{
    Array, FixedSizeListArray, Float32Array, ListArray, RecordBatch, StringArray, StructArray, UInt32Array, UInt64Array,
};
use serde::Serialize;

use crate::dedup::ALSO_AT;
use crate::error::JobError;
use crate::table::read_table;

/// A chunk that was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Hit {
    /// Cosine with the query.
    pub score: f32,
    /// Path of the document.
    pub path: String,
    /// blake3 of its bytes.
    pub document_id: String,
    /// Number of the chunk in it.
    pub chunk: u32,
    /// Page where it begins.
    pub page: Option<u32>,
    /// Headings that it stands under.
    pub heading_path: Vec<String>,
    /// First character in the document's text.
    pub char_start: u64,
    /// Character after the last.
    pub char_end: u64,
    /// Its text.
    pub text: String,
    /// Where else the same words are, in tables that keep repeated chunks once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub also_at: Vec<OtherPlace>,
}

/// A place of a chunk that is kept elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OtherPlace {
    /// Path of the document.
    pub path: String,
    /// Number of the chunk in it.
    pub chunk: u32,
}

const COLUMNS: [&str; 10] = [
    "path",
    "document_id",
    "chunk",
    "page",
    "heading_path",
    "char_start",
    "char_end",
    "text",
    "embedding",
    "weights_hash",
];

/// The tables of chunks in the output folder of a job: one, or one for each shard.
pub fn chunk_tables(folder: &Path) -> Result<Vec<PathBuf>, JobError> {
    let mut tables = Vec::new();
    for entry in fs::read_dir(folder).map_err(JobError::io(folder, "read"))? {
        let path = entry.map_err(JobError::io(folder, "read"))?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if name == "chunks.parquet" || (name.starts_with("chunks-") && name.ends_with(".parquet")) {
            tables.push(path);
        }
    }
    tables.sort();
    if tables.is_empty() {
        let unfinished = fs::read_dir(folder)
            .map_err(JobError::io(folder, "read"))?
            .flatten()
            .any(|entry| entry.file_name().to_string_lossy().starts_with(".ehun"));
        let reason = if unfinished {
            "its job has not been finished; run the same `ehun process` again"
        } else {
            "there is no chunks.parquet; make it with `ehun process INPUT... --out DIR`"
        };
        return Err(JobError::Conflict { folder: folder.to_owned(), reason: reason.to_owned() });
    }
    Ok(tables)
}

/// The `count` chunks of `tables` whose vectors have the largest cosine with `query`, the best first; of equal ones those
/// that come first in the tables. `weights_hash` is of the model that made `query`: vectors of another one are an error.
pub fn search(tables: &[PathBuf], query: &[f32], weights_hash: &str, count: usize) -> Result<Vec<Hit>, JobError> {
    let norm = length(query);
    let mut best: Vec<Hit> = Vec::with_capacity(count + 1);
    for table in tables {
        let mut columns = COLUMNS.to_vec();
        if read_table(table, None, 1)?.schema().column_with_name(ALSO_AT).is_some() {
            columns.push(ALSO_AT);
        }
        for batch in read_table(table, Some(&columns), 2048)? {
            scan(&batch?, query, norm, weights_hash, count, &mut best)
                .map_err(|message| JobError::File { path: table.clone(), message })?;
        }
    }
    Ok(best)
}

fn length(vector: &[f32]) -> f64 {
    vector.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt()
}

fn column<'a, T: 'static>(batch: &'a RecordBatch, name: &str) -> Result<&'a T, String> {
    let column = batch.column_by_name(name).and_then(|column| column.as_any().downcast_ref());
    column.ok_or_else(|| format!("column `{name}` is not of the type that this program writes"))
}

fn scan(
    batch: &RecordBatch,
    query: &[f32],
    query_length: f64,
    weights_hash: &str,
    count: usize,
    best: &mut Vec<Hit>,
) -> Result<(), String> {
    let vectors: &FixedSizeListArray = column(batch, "embedding")?;
    let hashes: &StringArray = column(batch, "weights_hash")?;
    if vectors.value_length() as usize != query.len() || (0..hashes.len()).any(|i| hashes.value(i) != weights_hash) {
        return Err(format!(
            "its vectors ({} wide) were made by another model than the query's ({} wide); give the same `--model` as to `ehun process`",
            vectors.value_length(),
            query.len()
        ));
    }
    let values = vectors.values().as_any().downcast_ref::<Float32Array>().ok_or("the vectors are not float32")?;
    let offset = vectors.value_offset_at(0);
    for (row, vector) in values.values()[offset..].chunks_exact(query.len()).take(batch.num_rows()).enumerate() {
        if vectors.is_null(row) {
            continue;
        }
        let dot: f64 = vector.iter().zip(query).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
        let score = (dot / (length(vector) * query_length).max(1e-12)) as f32;
        let place = best.partition_point(|hit| hit.score.total_cmp(&score) != Ordering::Less);
        if place < count {
            best.insert(place, hit(batch, row, score)?);
            best.truncate(count);
        }
    }
    Ok(())
}

fn also_at(batch: &RecordBatch, row: usize) -> Result<Vec<OtherPlace>, String> {
    if batch.column_by_name(ALSO_AT).is_none() {
        return Ok(Vec::new());
    }
    let places = column::<ListArray>(batch, ALSO_AT)?.value(row);
    let places: &StructArray = places.as_any().downcast_ref().ok_or("`also_at` is no list of places")?;
    let of = |name: &str| places.column_by_name(name).ok_or("`also_at` is no list of places");
    let paths: &StringArray = of("path")?.as_any().downcast_ref().ok_or("`also_at.path` is no text")?;
    let chunks: &UInt32Array = of("chunk")?.as_any().downcast_ref().ok_or("`also_at.chunk` is no number")?;
    Ok((0..places.len()).map(|i| OtherPlace { path: paths.value(i).to_owned(), chunk: chunks.value(i) }).collect())
}

fn hit(batch: &RecordBatch, row: usize, score: f32) -> Result<Hit, String> {
    let text = |name| Ok::<_, String>(column::<StringArray>(batch, name)?.value(row).to_owned());
    let pages: &UInt32Array = column(batch, "page")?;
    let headings = column::<ListArray>(batch, "heading_path")?.value(row);
    let headings: &StringArray = headings.as_any().downcast_ref().ok_or("`heading_path` is no list of texts")?;
    Ok(Hit {
        score,
        path: text("path")?,
        document_id: text("document_id")?,
        chunk: column::<UInt32Array>(batch, "chunk")?.value(row),
        page: (!pages.is_null(row)).then(|| pages.value(row)),
        heading_path: headings.iter().flatten().map(str::to_owned).collect(),
        char_start: column::<UInt64Array>(batch, "char_start")?.value(row),
        char_end: column::<UInt64Array>(batch, "char_end")?.value(row),
        text: text("text")?,
        also_at: also_at(batch, row)?,
    })
}

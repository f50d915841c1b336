//! The vectors of a job's output, for those who compare two of them.

use std::path::Path;

use arrow_array::{Array, FixedSizeListArray, Float32Array, StringArray, UInt32Array};

use crate::error::JobError;
use crate::search::{chunk_tables, column};
use crate::table::read_table;

/// A chunk with its vector.
#[derive(Debug, Clone, PartialEq)]
pub struct ChunkVector {
    /// Path of its document.
    pub path: String,
    /// Its number in the document.
    pub chunk: u32,
    /// Its tokens, special tokens included.
    pub tokens: u32,
    /// Its vector; empty where it has none.
    pub vector: Vec<f32>,
}

/// All chunks in the output folder of a job, in the order of the tables.
pub fn chunk_vectors(folder: &Path) -> Result<Vec<ChunkVector>, JobError> {
    let mut all = Vec::new();
    for table in chunk_tables(folder)? {
        let wrong = |message: String| JobError::File { path: table.clone(), message };
        for batch in read_table(&table, Some(&["path", "chunk", "token_count", "embedding"]), 2048)? {
            let batch = batch?;
            let paths: &StringArray = column(&batch, "path").map_err(wrong)?;
            let chunks: &UInt32Array = column(&batch, "chunk").map_err(wrong)?;
            let tokens: &UInt32Array = column(&batch, "token_count").map_err(wrong)?;
            let vectors: &FixedSizeListArray = column(&batch, "embedding").map_err(wrong)?;
            for row in 0..batch.num_rows() {
                let vector = if vectors.is_null(row) { None } else { Some(vectors.value(row)) };
                let values = vector.as_ref().and_then(|vector| vector.as_any().downcast_ref::<Float32Array>());
                all.push(ChunkVector {
                    path: paths.value(row).to_owned(),
                    chunk: chunks.value(row),
                    tokens: tokens.value(row),
                    vector: values.map(|values| values.values().to_vec()).unwrap_or_default(),
                });
            }
        }
    }
    Ok(all)
}

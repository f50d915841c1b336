//! A batch in runs of one static shape: as many as it takes, and their rows put together without the padding.

use std::ops::Range;
use std::time::Instant;

use ehun_graph::{Graph, RaggedBatch, Rows};

use crate::error::BackendError;
use crate::executable::{Bucket, OutputRows};

/// Sequences of a batch that go through one run of a bucket.
#[derive(Debug, Clone)]
pub struct Piece<'a> {
    /// The batch.
    pub batch: &'a RaggedBatch,
    /// The shape.
    pub bucket: Bucket,
    /// Places of the sequences in the batch; at most as many as the bucket has.
    pub sequences: Range<usize>,
}

impl Piece<'_> {
    /// Appends what a run gave for `value`, padded rows of the bucket, without its padding.
    pub fn append(&self, value: &mut OutputRows, rows: &[f32]) {
        match value.rows {
            Rows::Tokens => {
                for (row, sequence) in self.sequences.clone().enumerate() {
                    let start = row * self.bucket.length * value.width;
                    value.data.extend_from_slice(&rows[start..][..self.batch.len_of(sequence) * value.width]);
                }
            }
            Rows::Sequences => value.data.extend_from_slice(&rows[..self.sequences.len() * value.width]),
            Rows::Constant(_) if value.data.is_empty() => value.data = rows.to_vec(),
            Rows::Constant(_) => {}
        }
    }
}

/// Runs `batch` piece by piece: `run` computes one and appends its rows to the outputs. Returns the outputs of `graph`, packed,
/// and the number of pieces.
///
/// # Errors
/// [`BackendError::Deadline`] where it passes before a piece, and what `run` returns.
pub fn run_pieces(
    graph: &Graph,
    batch: &RaggedBatch,
    bucket: Bucket,
    deadline: Option<Instant>,
    mut run: impl FnMut(&Piece<'_>, &mut [OutputRows]) -> Result<(), BackendError>,
) -> Result<(Vec<OutputRows>, usize), BackendError> {
    let mut values: Vec<OutputRows> = graph
        .outputs()
        .iter()
        .map(|output| {
            let node = graph.node(output.value);
            OutputRows { name: output.name.clone(), rows: node.rows, width: node.width, data: Vec::new() }
        })
        .collect();
    let sequences = batch.num_sequences();
    let constant = values.iter().any(|value| matches!(value.rows, Rows::Constant(_)));
    let pieces = sequences.div_ceil(bucket.batch).max(usize::from(constant));
    for piece in 0..pieces {
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Err(BackendError::Deadline);
        }
        let first = piece * bucket.batch;
        let sequences = first..sequences.min(first + bucket.batch);
        run(&Piece { batch, bucket, sequences }, &mut values)?;
    }
    Ok((values, pieces))
}

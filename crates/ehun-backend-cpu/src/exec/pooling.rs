//! Pooling: the token rows of a sequence become one row.

use std::sync::{Mutex, PoisonError};

use ehun_graph::{Activation, PoolingMode, RaggedBatch};

use super::product::Product;
use crate::aligned::Aligned;
use crate::gemm::{MatMut, MatRef, Residual};
use crate::pool::ThreadPool;
use crate::rows;
use crate::simd::Isa;

/// Token rows of a product that is pooled at once.
const ROWS: usize = 112;

/// Pools every sequence of `batch`: `x` has the token rows, `out` one row of `x.cols()` values every `stride` values for
/// each sequence. An empty sequence becomes zeros.
pub(crate) fn pool_rows(
    pool: &ThreadPool,
    batch: &RaggedBatch,
    mode: PoolingMode,
    x: MatRef<'_>,
    out: &mut [f32],
    stride: usize,
) {
    let width = x.cols();
    let one = |sequence: usize, row: &mut [f32]| {
        let (all, range) = (batch.rows(sequence), batch.pooling_range(sequence));
        let row = &mut row[..width];
        if all.is_empty() {
            row.fill(0.0);
            return;
        }
        let of_range = || range.clone().map(|position| (position, x.row(all.start + position)));
        match mode {
            PoolingMode::Cls => row.copy_from_slice(x.row(all.start + range.start)),
            PoolingMode::LastToken => row.copy_from_slice(x.row(all.start + range.end - 1)),
            PoolingMode::Max => {
                row.fill(f32::NEG_INFINITY);
                for (_, x) in of_range() {
                    maximum(row, x);
                }
            }
            PoolingMode::Mean => weighted(row, of_range().map(|(_, x)| (1.0, x)), range.len() as f64),
            PoolingMode::MeanSqrtLen => {
                weighted(row, of_range().map(|(_, x)| (1.0, x)), (range.len() as f64).sqrt());
            }
            PoolingMode::WeightedMean => {
                let sum: f64 = range.clone().map(|position| (position + 1) as f64).sum();
                weighted(row, of_range().map(|(position, x)| ((position + 1) as f64, x)), sum);
            }
        }
    };
    pool.run_rows(out, stride, 1, |first, block| {
        block.chunks_mut(stride).enumerate().for_each(|(i, row)| one(first + i, row));
    });
}

fn maximum(row: &mut [f32], x: &[f32]) {
    row.iter_mut().zip(x).for_each(|(max, x)| *max = if *x > *max { *x } else { *max });
}

/// `row = sum weight x / divisor`. Summed in float64: the mean of thousands of rows then is as good as that of a few.
fn weighted<'x>(row: &mut [f32], rows: impl Iterator<Item = (f64, &'x [f32])>, divisor: f64) {
    let mut sums = vec![0.0f64; row.len()];
    for (weight, x) in rows {
        sums.iter_mut().zip(x).for_each(|(sum, x)| *sum += weight * f64::from(*x));
    }
    row.iter_mut().zip(&sums).for_each(|(out, sum)| *out = (sum / divisor) as f32);
}

/// What all chunks of a pooled product share.
pub(crate) struct MaxOfLinear<'a> {
    pub(crate) isa: Isa,
    pub(crate) pool: &'a ThreadPool,
    pub(crate) batch: &'a RaggedBatch,
    /// Token rows: the first `width` of every `stride` values.
    pub(crate) x: &'a [f32],
    pub(crate) width: usize,
    pub(crate) stride: usize,
    pub(crate) activation: Option<Activation>,
}

impl MaxOfLinear<'_> {
    /// `out = activation(max over the pooling range of (x W^T + b))`, zeros for an empty sequence. `out` has a row every
    /// `stride` values for each sequence. A thread takes the channels of one chunk; beside `out`, it holds
    /// a block of rows of that chunk and no more.
    pub(crate) fn run(&self, chunks: &[Product], out: &mut [f32], stride: usize) {
        // The columns of each chunk, of all sequences.
        let mut columns: Vec<Vec<&mut [f32]>> = chunks.iter().map(|_| Vec::new()).collect();
        for mut row in out.chunks_mut(stride) {
            for (chunk, columns) in chunks.iter().zip(&mut columns) {
                let (part, rest) = row.split_at_mut(chunk.n());
                columns.push(part);
                row = rest;
            }
        }
        let columns: Vec<_> = columns.into_iter().map(Mutex::new).collect();
        self.pool.run(chunks.len(), |task| {
            let mut columns = columns[task].lock().unwrap_or_else(PoisonError::into_inner);
            self.chunk(&chunks[task], &mut columns);
        });
    }

    fn chunk(&self, product: &Product, out: &mut [&mut [f32]]) {
        let n = product.n();
        out.iter_mut().for_each(|row| row.fill(f32::NEG_INFINITY));
        let tokens = self.batch.num_tokens();
        let mut block = Aligned::zeroed(ROWS.min(tokens) * n);
        let mut sequence = 0;
        for first in (0..tokens).step_by(ROWS) {
            let count = ROWS.min(tokens - first);
            let data = &mut block.as_mut_slice()[..count * n];
            let x = MatRef::new(&self.x[first * self.stride..], count, self.width, self.stride);
            product.multiply(self.pool, x, None, Residual::None, MatMut::new(data, count, n, n));
            for (i, x) in data.chunks_exact(n).enumerate() {
                while self.batch.rows(sequence).end <= first + i {
                    sequence += 1;
                }
                let position = first + i - self.batch.rows(sequence).start;
                if self.batch.pooling_range(sequence).contains(&position) {
                    maximum(out[sequence], x);
                }
            }
        }
        for (sequence, row) in out.iter_mut().enumerate() {
            if self.batch.len_of(sequence) == 0 {
                row.fill(0.0);
            } else if let Some(function) = self.activation {
                rows::activation_in_place(self.isa, function, row);
            }
        }
    }
}

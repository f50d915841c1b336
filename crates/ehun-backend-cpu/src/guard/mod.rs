//! Attention between guard pages: the conformance suite finds what a kernel reads or writes outside its sequence.
//!
//! Each sequence runs alone. Its rows of queries, keys, values and result, and the tables of the bias, lie in memory of
//! their own that begins or ends at a page which nobody may touch; what is only read is on pages that cannot be
//! written. A step outside ends the program (a conformance run is a child process for that reason), and what was
//! touched is said on standard error. Between the rows lie values that may be neither used nor changed.

mod fault;
mod memory;

use std::sync::{Arc, Mutex, PoisonError};

use ehun_backend::{BackendError, Refusal};
use ehun_graph::{AttentionSpec, RaggedBatch};

use crate::attention::BiasTables;
use crate::exec::{AttentionKernel, Call};
use crate::gemm::{MatMut, MatRef};
use crate::pool::{SyncPtr, ThreadPool};
pub(crate) use memory::{Guarded, Place, untouched};

/// Values between two rows: an odd number, so that rows lie on every alignment.
const GAP: usize = 5;
/// Up to so many tokens a sequence runs twice, once at each end of its pages.
const TWICE: usize = 129;

/// A kernel that runs between guard pages.
pub(crate) struct GuardedKernel(Arc<dyn AttentionKernel>);

impl GuardedKernel {
    /// `kernel` between guard pages; from here on faults are reported.
    pub(crate) fn new(kernel: Arc<dyn AttentionKernel>) -> Self {
        fault::report_faults();
        Self(kernel)
    }
}

fn failed(message: String) -> BackendError {
    BackendError::Failed(message)
}

/// The rows of a sequence with [`GAP`] values between them.
fn rows(name: &'static str, rows: MatRef<'_>, place: Place) -> Result<Guarded, String> {
    let stride = rows.cols() + GAP;
    let len = (rows.rows() * stride).saturating_sub(GAP);
    let mut memory = Guarded::new(name, len, place, 4)?;
    for i in 0..rows.rows() {
        memory.values_mut()[i * stride..][..rows.cols()].copy_from_slice(rows.row(i));
    }
    memory.freeze();
    Ok(memory)
}

/// One sequence with all that it reads.
struct Alone<'a> {
    spec: &'a AttentionSpec,
    batch: RaggedBatch,
    bias: BiasTables<'a>,
    q: MatRef<'a>,
    k: MatRef<'a>,
    v: MatRef<'a>,
}

impl Alone<'_> {
    /// Runs it at `place` in its pages: the result, packed.
    fn run(&self, kernel: &dyn AttentionKernel, pool: &ThreadPool, place: Place) -> Result<Vec<f32>, BackendError> {
        let tokens = self.batch.num_tokens();
        let inputs = [("queries", self.q), ("keys", self.k), ("values", self.v)];
        let mut memory = Vec::new();
        for (name, matrix) in inputs {
            memory.push(rows(name, matrix, place).map_err(failed)?);
        }
        let table = |name, values: &[f32]| Guarded::holding(name, values, place).map_err(failed);
        let buckets = table("the bucket table", self.bias.buckets)?;
        let key_positions = table("key positions", self.bias.key_positions)?;
        let query_positions = table("query positions", self.bias.query_positions)?;
        let width = self.spec.num_heads * self.spec.value_dim;
        let stride = width + GAP;
        let mut out = Guarded::new("the result", (tokens * stride).saturating_sub(GAP), place, 4).map_err(failed)?;
        let view = |i: usize| {
            let cols = inputs[i].1.cols();
            MatRef::new(memory[i].values(), tokens, cols, cols + GAP)
        };
        let call = Call {
            spec: self.spec,
            bias: BiasTables {
                buckets: buckets.values(),
                key_positions: key_positions.values(),
                query_positions: query_positions.values(),
            },
            batch: &self.batch,
            q: view(0),
            k: view(1),
            v: view(2),
            out: MatMut::new(out.values_mut(), tokens, width, stride),
        };
        kernel.run(pool, call)?;
        let between = |row: &[f32]| row.get(width..).unwrap_or_default().iter().all(|&value| untouched(value));
        if let Some(row) = out.values().chunks(stride).position(|row| !between(row)) {
            return Err(failed(format!(
                "length {tokens}: written between the rows {row} and {} of the result",
                row + 1
            )));
        }
        if !out.intact() {
            return Err(failed(format!("length {tokens}: written outside the result")));
        }
        if let Some(at) = out.values().chunks(stride).flat_map(|row| &row[..width]).position(|&value| untouched(value))
        {
            let (row, column) = (at / width, at % width);
            return Err(failed(format!("length {tokens}: row {row}, column {column} of the result was not written")));
        }
        Ok(out.values().chunks(stride).flat_map(|row| &row[..width]).copied().collect())
    }
}

impl AttentionKernel for GuardedKernel {
    fn describe(&self) -> String {
        self.0.describe()
    }

    fn reason(&self) -> String {
        self.0.reason()
    }

    fn supports(&self, operation: &str, spec: &AttentionSpec) -> Vec<Refusal> {
        self.0.supports(operation, spec)
    }

    fn name_for(&self, len: usize) -> &str {
        self.0.name_for(len)
    }

    fn scratch_bytes(&self, spec: &AttentionSpec, longest: usize) -> usize {
        self.0.scratch_bytes(spec, longest)
    }

    fn run(&self, pool: &ThreadPool, mut call: Call<'_>) -> Result<(), BackendError> {
        let width = call.spec.num_heads * call.spec.value_dim;
        let stride = call.out.stride();
        let out = SyncPtr(call.out.as_mut_ptr());
        let failure: Mutex<Option<BackendError>> = Mutex::new(None);
        let (spec, bias, batch) = (call.spec, call.bias, call.batch);
        let inputs = [call.q, call.k, call.v];
        pool.run(batch.num_sequences(), |sequence| {
            let range = batch.rows(sequence);
            if range.is_empty() {
                return;
            }
            let [q, k, v] = inputs.map(|matrix| matrix.part(range.clone(), 0..matrix.cols()));
            let alone = Alone { spec, batch: RaggedBatch::from_ids(&[vec![0; range.len()]]), bias, q, k, v };
            let result = alone.run(&*self.0, pool, Place::Last).and_then(|last| {
                if range.len() <= TWICE {
                    let first = alone.run(&*self.0, pool, Place::First)?;
                    if first.iter().zip(&last).any(|(a, b)| a.to_bits() != b.to_bits()) {
                        let place = "the result depends on where its rows lie in memory";
                        return Err(failed(format!("length {}: {place}", range.len())));
                    }
                }
                Ok(last)
            });
            match result {
                Ok(values) => {
                    for (i, row) in range.zip(values.chunks(width)) {
                        // SAFETY: the row is one of the result's, and of this sequence alone.
                        unsafe { std::slice::from_raw_parts_mut(out.get().add(i * stride), width) }
                            .copy_from_slice(row);
                    }
                }
                Err(error) => {
                    failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                }
            }
        });
        failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }
}

//! A complete attention kernel behind the C interface `include/ehun_attention.h`.
//!
//! ```text
//! cargo build --release
//! ehun conform --attention target/release/libattention_plugin.so
//! ```
//!
//! What crosses the border is in [`interface`]; [`Row`] is the computation, in safe Rust over slices: all scores of a query
//! row, their softmax, the weighed sum of the values.

mod interface;

use interface::{ALIBI, BUCKETED, Batch, Spec};
use std::ffi::{c_char, c_int};

/// The version of the interface.
#[unsafe(no_mangle)]
pub extern "C" fn ehun_attention_abi() -> u32 {
    interface::ABI
}

/// Name and version.
#[unsafe(no_mangle)]
pub extern "C" fn ehun_attention_describe() -> *const c_char {
    c"example-rust 1.0".as_ptr()
}

/// It takes every specification, so there are no reasons to write.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ehun_attention_supports(_: *const Spec, _: *mut c_char, _: usize) -> usize {
    0
}

/// Scratch for the scores of one row.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ehun_attention_plan(_: *const Spec, longest: u64) -> u64 {
    longest * size_of::<f32>() as u64
}

/// Computes a batch.
///
/// # Safety
/// The pointers are what the header says they are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ehun_attention_run(
    spec: *const Spec,
    batch: *const Batch,
    error: *mut c_char,
    capacity: usize,
) -> c_int {
    // A panic must not cross the border: it becomes the error of this batch.
    let work = std::panic::catch_unwind(|| {
        // SAFETY: both are valid for the call, by the interface.
        let (spec, batch) = unsafe { (&*spec, &*batch) };
        for sequence in 0..batch.num_sequences() {
            let (start, length) = batch.sequence(sequence);
            for i in 0..length {
                for head in 0..spec.num_heads() {
                    Row { spec, batch, start, length, i, head }.compute();
                }
            }
        }
    });
    match work {
        Ok(()) => 0,
        Err(_) => {
            // SAFETY: room for `capacity` bytes, by the interface.
            unsafe { interface::write(error, capacity, "the kernel panicked; see standard error") };
            1
        }
    }
}

/// One query row of one head.
struct Row<'a> {
    spec: &'a Spec,
    batch: &'a Batch,
    /// The sequence's first row in the batch, and its rows.
    start: usize,
    length: usize,
    i: usize,
    head: usize,
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

impl Row<'_> {
    fn compute(&self) {
        let kv = self.head / self.spec.group();
        let keys = self.spec.visible(self.i, self.length);
        let scores = &mut self.batch.scratch(self.length)[..keys.len()];
        for (score, j) in scores.iter_mut().zip(keys.clone()) {
            *score = self.score(j, self.batch.k(self.start + j, kv, self.spec));
        }
        // The largest score is taken off, so that no exponential overflows.
        let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut sum = 0.0;
        for score in scores.iter_mut() {
            *score = (*score - largest).exp();
            sum += *score;
        }
        let out = self.batch.out(self.start + self.i, self.head, self.spec);
        out.fill(0.0);
        for (weight, j) in scores.iter().zip(keys) {
            for (out, v) in out.iter_mut().zip(self.batch.v(self.start + j, kv, self.spec)) {
                *out += weight * v;
            }
        }
        out.iter_mut().for_each(|out| *out /= sum);
    }

    fn score(&self, j: usize, k: &[f32]) -> f32 {
        let (spec, head) = (self.spec, self.head);
        let q = self.batch.q(self.start + self.i, head, spec);
        let relative = j as i64 - self.i as i64;
        let entry = self.batch.table_row(relative);
        let mut product = dot(q, k);
        if let Some(position) = spec.key_position(entry, head) {
            product += dot(q, position);
        }
        if let Some(position) = spec.query_position(entry, head) {
            product += dot(k, position);
        }
        let mut score = spec.scale * product;
        if spec.soft_cap != 0.0 {
            score = spec.soft_cap * (score / spec.soft_cap).tanh();
        }
        match spec.bias_kind {
            ALIBI => score - spec.slope(head) * relative.unsigned_abs() as f32,
            BUCKETED => score + spec.bucket(entry, head),
            _ => score,
        }
    }
}

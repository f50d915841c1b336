//! `include/ehun_attention.h` in Rust: the structs field by field, and what they point to as slices.

use std::ffi::{c_char, c_void};
use std::ops::Range;
use std::slice::{from_raw_parts, from_raw_parts_mut};

/// `EHUN_ATTENTION_ABI`
pub const ABI: u32 = 1;
/// `EHUN_BIAS_ALIBI`
pub const ALIBI: u32 = 1;
/// `EHUN_BIAS_BUCKETED`
pub const BUCKETED: u32 = 2;

/// `struct ehun_attention_spec`
#[repr(C)]
pub struct Spec {
    struct_size: u32,
    num_heads: u32,
    num_kv_heads: u32,
    head_dim: u32,
    value_dim: u32,
    pub bias_kind: u32,
    pub scale: f32,
    pub soft_cap: f32,
    left: i64,
    right: i64,
    slopes: *const f32,
    bucket_table: *const f32,
    key_positions: *const f32,
    query_positions: *const f32,
    table_rows: u32,
}

/// `struct ehun_attention_batch`
#[repr(C)]
pub struct Batch {
    struct_size: u32,
    num_sequences: u32,
    cu_seqlens: *const u64,
    q: *const f32,
    k: *const f32,
    v: *const f32,
    out: *mut f32,
    q_stride: u64,
    k_stride: u64,
    v_stride: u64,
    out_stride: u64,
    relative_rows: *const u32,
    relative_origin: i64,
    scratch: *mut c_void,
}

impl Spec {
    /// Query heads.
    pub fn num_heads(&self) -> usize {
        self.num_heads as usize
    }

    /// Query heads that share a key and value head.
    pub fn group(&self) -> usize {
        (self.num_heads / self.num_kv_heads) as usize
    }

    /// The keys that row `i` of a sequence of `length` sees.
    pub fn visible(&self, i: usize, length: usize) -> Range<usize> {
        let first = if self.left < 0 { 0 } else { i.saturating_sub(self.left as usize) };
        let end = if self.right < 0 { length } else { length.min(i + self.right as usize + 1) };
        first..end
    }

    /// The factor of ALiBi.
    pub fn slope(&self, head: usize) -> f32 {
        // SAFETY: one for every head.
        unsafe { *self.slopes.add(head) }
    }

    /// What a bucket adds to a score.
    pub fn bucket(&self, entry: usize, head: usize) -> f32 {
        // SAFETY: a row of all heads for every entry.
        unsafe { *self.bucket_table.add(entry * self.num_heads() + head) }
    }

    /// The position that a query meets, where the bias has such a term.
    pub fn key_position(&self, entry: usize, head: usize) -> Option<&[f32]> {
        self.position(self.key_positions, entry, head)
    }

    /// The position that a key meets, where the bias has such a term.
    pub fn query_position(&self, entry: usize, head: usize) -> Option<&[f32]> {
        self.position(self.query_positions, entry, head)
    }

    fn position(&self, table: *const f32, entry: usize, head: usize) -> Option<&[f32]> {
        let dim = self.head_dim as usize;
        // SAFETY: where it is not null, the table has rows of all heads for every entry.
        (!table.is_null()).then(|| unsafe { from_raw_parts(table.add((entry * self.num_heads() + head) * dim), dim) })
    }
}

impl Batch {
    /// Sequences.
    pub fn num_sequences(&self) -> usize {
        self.num_sequences as usize
    }

    /// First row and number of rows of a sequence.
    pub fn sequence(&self, sequence: usize) -> (usize, usize) {
        // SAFETY: there is one bound more than there are sequences.
        let bounds = unsafe { from_raw_parts(self.cu_seqlens.add(sequence), 2) };
        (bounds[0] as usize, (bounds[1] - bounds[0]) as usize)
    }

    /// A head of a query row.
    pub fn q(&self, row: usize, head: usize, spec: &Spec) -> &[f32] {
        let dim = spec.head_dim as usize;
        // SAFETY: every row has all heads, by the interface.
        unsafe { from_raw_parts(self.q.add(row * self.q_stride as usize + head * dim), dim) }
    }

    /// A head of a key row.
    pub fn k(&self, row: usize, head: usize, spec: &Spec) -> &[f32] {
        let dim = spec.head_dim as usize;
        // SAFETY: as for queries.
        unsafe { from_raw_parts(self.k.add(row * self.k_stride as usize + head * dim), dim) }
    }

    /// A head of a value row.
    pub fn v(&self, row: usize, head: usize, spec: &Spec) -> &[f32] {
        let dim = spec.value_dim as usize;
        // SAFETY: as for queries.
        unsafe { from_raw_parts(self.v.add(row * self.v_stride as usize + head * dim), dim) }
    }

    /// A head of a row of the result, to write.
    #[allow(clippy::mut_from_ref, reason = "the result is not part of what the reference covers")]
    pub fn out(&self, row: usize, head: usize, spec: &Spec) -> &mut [f32] {
        let dim = spec.value_dim as usize;
        // SAFETY: as for queries; only this call of `run` has the rows, and one slice is held at a time.
        unsafe { from_raw_parts_mut(self.out.add(row * self.out_stride as usize + head * dim), dim) }
    }

    /// The table row of a relative position; 0 where the bias has no table.
    pub fn table_row(&self, relative: i64) -> usize {
        if self.relative_rows.is_null() {
            return 0;
        }
        // SAFETY: there is an entry for every relative position in a sequence.
        unsafe { *self.relative_rows.offset((self.relative_origin + relative) as isize) as usize }
    }

    /// Scratch for `length` scores.
    #[allow(clippy::mut_from_ref, reason = "scratch is not part of what the reference covers")]
    pub fn scratch(&self, length: usize) -> &mut [f32] {
        // SAFETY: `ehun_attention_plan` asked for so much, aligned to 64 bytes; one slice is held at a time.
        unsafe { from_raw_parts_mut(self.scratch.cast::<f32>(), length) }
    }
}

/// Writes `text`, cut to `capacity`, ended by a zero.
///
/// # Safety
/// `to` has room for `capacity` bytes.
pub unsafe fn write(to: *mut c_char, capacity: usize, text: &str) {
    let count = text.len().min(capacity.saturating_sub(1));
    if capacity > 0 {
        // SAFETY: at most `capacity` bytes in all.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr().cast::<c_char>(), to, count);
            *to.add(count) = 0;
        }
    }
}

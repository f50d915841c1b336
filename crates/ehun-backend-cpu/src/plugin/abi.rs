//! The types of `include/ehun_attention.h`. Their layout is the interface: fields are added at the end alone.

use std::ffi::{c_char, c_void};

/// Version of the interface.
pub(super) const ABI: u32 = 1;

pub(super) const BIAS_NONE: u32 = 0;
pub(super) const BIAS_ALIBI: u32 = 1;
pub(super) const BIAS_BUCKETED: u32 = 2;
pub(super) const BIAS_DISENTANGLED: u32 = 3;

/// `struct ehun_attention_spec`
#[repr(C)]
pub(super) struct Spec {
    pub struct_size: u32,
    pub num_heads: u32,
    pub num_kv_heads: u32,
    pub head_dim: u32,
    pub value_dim: u32,
    pub bias_kind: u32,
    pub scale: f32,
    pub soft_cap: f32,
    pub left: i64,
    pub right: i64,
    pub slopes: *const f32,
    pub bucket_table: *const f32,
    pub key_positions: *const f32,
    pub query_positions: *const f32,
    pub table_rows: u32,
}

// SAFETY: the tables are only read, and outlive every call that is given the specification.
unsafe impl Sync for Spec {}

/// `struct ehun_attention_batch`
#[repr(C)]
pub(super) struct Batch {
    pub struct_size: u32,
    pub num_sequences: u32,
    pub cu_seqlens: *const u64,
    pub q: *const f32,
    pub k: *const f32,
    pub v: *const f32,
    pub out: *mut f32,
    pub q_stride: u64,
    pub k_stride: u64,
    pub v_stride: u64,
    pub out_stride: u64,
    pub relative_rows: *const u32,
    pub relative_origin: i64,
    pub scratch: *mut c_void,
}

pub(super) type AbiFn = unsafe extern "C" fn() -> u32;
pub(super) type DescribeFn = unsafe extern "C" fn() -> *const c_char;
pub(super) type SupportsFn = unsafe extern "C" fn(*const Spec, *mut c_char, usize) -> usize;
pub(super) type PlanFn = unsafe extern "C" fn(*const Spec, u64) -> u64;
pub(super) type RunFn = unsafe extern "C" fn(*const Spec, *const Batch, *mut c_char, usize) -> i32;

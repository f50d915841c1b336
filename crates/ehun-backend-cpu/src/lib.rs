//! The native CPU backend: packed ragged execution, no padding anywhere, weights packed once.
//!
//! # Kernels
//! Plain functions over slices; every one takes (or was made with) an [`Isa`](simd::Isa), the instruction set. None of
//! their bits depend on the number of rows, a row's place, or the threads.
//!
//! | module | what |
//! | --- | --- |
//! | [`simd`] | instruction sets: detection, `EHUN_CPU`, the vector type |
//! | [`pool`] | threads that share tasks and sleep when idle |
//! | [`attention`] | `naive` and `flash` attention over packed ragged rows |
//! | [`gemm`] | products with packed weights (f32, f16, bf16, int8) and a fused epilogue |
//! | [`rows`] | norms, activations, gates, sums, rotary, softmax, L2 normalisation |
//!
//! # The backend
//! [`CpuBackend`] lowers a graph onto these kernels: passes fuse operations, everything between attention and pooling runs
//! row block by row block on all threads, and memory of values is reused by their lifetimes.

mod aligned;
pub mod attention;
mod backend;
mod exec;
pub mod gemm;
#[cfg(unix)]
mod guard;
mod plugin;
pub mod pool;
pub mod rows;
pub mod simd;
#[cfg(test)]
mod testing;
mod vmath;

#[cfg(unix)]
pub use backend::GuardedCpuFactory;
pub use backend::{CpuBackend, CpuFactory, NAME};

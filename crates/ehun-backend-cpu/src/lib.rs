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
//! | [`gemm`] | products with packed weights and a fused epilogue |

mod aligned;
pub mod gemm;
pub mod pool;
pub mod simd;
#[cfg(test)]
mod testing;
mod vmath;

//! From a graph to results.
//!
//! ```text
//! Graph -> Ir -> select, fuse -> Ir -> schedule -> stages, slots -> lower -> Program -> run(batch)
//! ```
//!
//! | module | what |
//! | --- | --- |
//! | [`ir`] | steps and values that passes rewrite |
//! | [`select`] | pooling that reads one row moves up, so that the last block computes that row alone |
//! | [`fuse`] | operations become one step |
//! | [`schedule`] | stages of row-wise steps between attention and pooling; memory of values |
//! | [`program`], [`product`] | packed weights, places of operands |
//! | [`run`], [`block`] | stages on all threads, block by block |
//! | [`attention`] | the seam behind which attention kernels are exchanged |
//! | [`pooling`], [`embedding`], [`context`] | what is not a kernel of [`crate::rows`] |

mod attention;
mod block;
mod context;
mod embedding;
mod executable;
mod fuse;
mod ir;
mod pooling;
mod product;
mod profile;
mod program;
mod run;
mod schedule;
mod select;
#[cfg(test)]
mod tests;

pub(crate) use attention::{AttentionKernel, Call, Guard, choose, kernel_names};
pub(crate) use executable::{Compile, CpuExecutable, Fusion, batch_steps};
pub(crate) use product::MAX_INT8_INPUTS;
pub(crate) use schedule::schedule;

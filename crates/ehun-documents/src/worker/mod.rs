//! Parsers in worker processes, so that no file can harm more than itself.
//!
//! The main process starts copies of its own program with a hidden argument and speaks frames with them over pipes. A
//! worker has no files, no network and no environment, and limits on memory, CPU and wall time. One that dies, hangs
//! or grows past a limit costs the document it was at, and is replaced.

mod child;
mod frame;
mod pool;
mod sandbox;
mod source;
mod watchdog;

pub use child::{serve, serve_with_ocr, worker_main};
pub use pool::{PoolOptions, PoolStats, WORKER_ARG, WorkerPool};

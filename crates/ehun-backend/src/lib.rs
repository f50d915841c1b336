//! The contract between the engine and everything that runs a graph.
//!
//! This page is written for someone who writes a backend. It is all that is needed.
//!
//! # What you implement
//!
//! 1. [`Backend`]: one device or runtime. [`Backend::capabilities`] answers *before* anything is loaded: which attention
//!    kernel each attention operation would get, at which precision, with how much memory; and for what it cannot do, a
//!    **list of reasons** ([`Refusal`]), each naming the operation and the limit. [`Backend::compile`] turns a graph and
//!    its weights into an [`Executable`]; it fails with the same list.
//! 2. [`Executable`]: a compiled model. [`Executable::shape_policy`] says which batches it takes; [`Executable::plan`] is
//!    called once for a batch (bucket, padding, kernels, memory) and [`Executable::run`] computes it.
//! 3. [`BackendFactory`]: opens a backend by its name, or says why it is not to be had here. Register it in a
//!    [`Registry`].
//!
//! # What you promise
//!
//! - **Nothing happens silently.** No other device, precision or attention kernel than was asked for and accepted. If it
//!   cannot be done as asked, refuse. `auto` may choose; what it chose is in the [`RunReport`].
//! - **A sequence depends on nothing but itself.** With [`ShapePolicy::Ragged`], the bits of a sequence's result are the
//!   same alone or in any batch, at any place in it, with any number of threads. So whatever changes bits is chosen for
//!   each sequence by its own length from a table that is fixed at build time, never by the batch, the clock or a
//!   measurement. With [`ShapePolicy::Buckets`] this holds for each bucket, and the report names the bucket.
//! - **Constant rows are folded** when the graph is compiled, not computed for every batch.
//! - **Input is checked** ([`ehun_graph::RaggedBatch::check`]) before it is used: no lookup outside a table.
//! - **Empty is legal.** A batch without sequences and a sequence without tokens run, and an empty sequence pools to
//!   zeros.
//! - **Errors are typed** ([`BackendError`]), and what is left after one is usable: the next batch runs. A panic is caught
//!   by [`run`] and becomes [`BackendError::Panicked`] for that batch.
//! - **Threads.** Both traits are `Send + Sync`; `plan` and `run` may be called from several threads at once.
//!
//! # What checks it
//!
//! `ehun-conformance` runs every operation and every attention specification against an interpreter in float64 and checks
//! the laws above. A backend that passes for what it claims is interchangeable with any other that does.

mod backend;
pub mod buckets;
mod error;
mod executable;
mod options;
mod pieces;
mod progress;
mod registry;
mod shapes;
pub mod wheel;

pub use backend::{AttentionChoice, Backend, BackendInfo, Capabilities};
pub use error::{BackendError, Refusal};
pub use executable::{
    Bucket, Executable, OpTime, OutputRows, Outputs, Placement, Plan, RunOptions, RunReport, ShapePolicy, run,
};
pub use options::{Attention, BucketChoice, Options, Precision};
pub use pieces::{Piece, run_pieces};
pub use progress::{OnProgress, Progress};
pub use registry::{BackendFactory, BackendStatus, Registry, Unavailable};
pub use shapes::BucketSource;

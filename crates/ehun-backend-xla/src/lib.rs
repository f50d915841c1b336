//! The graph lowered to StableHLO and run on any PJRT plugin: CPU, TPU, CUDA.
//!
//! One lowering serves every device that XLA compiles for. The attention is the *native* one that the compiler fuses, a
//! *blocked* form where a bucket's own compiled figures ask for it, a *flash* form kept to measure what forcing it costs,
//! or a function that the user hands over as a StableHLO file.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`pjrt`] | safe Rust around the C interface of plugins |
//! | [`plugins`] | where plugins are found and how they get there |
//! | [`lower`] | the graph as StableHLO text |
//! | [`choice`] | which attention form a bucket gets, by the compiled programs' figures |
//! | [`cache`] | compiled programs on disk |
//! | [`worker`] | compilation in a child process |
//! | [`aot`], [`target`] | what the compiler says of devices that are not here |
//!
//! What is deliberately absent: a model's name, tokenisation, the forming of batches, and any belief about which attention
//! form is faster.

pub mod aot;
mod backend;
pub mod cache;
pub mod choice;
mod error;
mod executable;
pub mod lower;
mod parameters;
pub mod pjrt;
pub mod plugins;
pub mod target;
mod tools;
pub mod worker;

pub use backend::{XlaBackend, XlaConfig, XlaFactory, attention_signatures, read_attention};
pub use choice::{Attempt, BucketReport};
pub use error::XlaError;
pub use executable::{XlaExecutable, compilations};
pub use lower::attention::Form;
pub use lower::imported::Signature;
pub use plugins::{InstallError, install};
pub use target::AotTarget;
pub use worker::{CompileIn, WORKER_ARGUMENT, compile_worker_main};

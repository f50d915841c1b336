//! The judge of every backend: a float64 interpreter of the graph, and the conformance suite built on it.
//!
//! [`Interpreter`] computes a graph with plain loops in float64, one obvious function for each operation, so that it can
//! be checked by reading. Whatever else computes a graph is compared with it: [`conform`] runs every operation, every
//! attention specification and the laws of the contract on a backend, and gives a [`Report`]. How far a number may be off
//! is derived from the arithmetic ([`judge`]), never chosen by looking at results. `docs/conformance.md` has the
//! derivations.
//!
//! An attention kernel without a backend is judged through [`KernelBackend`].

pub mod html;
pub mod interpreter;
pub mod judge;
pub mod kernel;
mod random;
mod report;
mod suite;

pub use interpreter::attention::{AttentionInputs, BiasTables};
pub use interpreter::{Interpreter, OutputRows64};
pub use judge::{Judge, Judged, Numerics};
pub use kernel::{AttentionKernel, KernelBackend, NodeInputs};
pub use report::{Check, Group, Outcome, Report, Worst};
pub use suite::{ConformOptions, Pattern, Profile, Progress, SUITE_VERSION, conform, conform_with};

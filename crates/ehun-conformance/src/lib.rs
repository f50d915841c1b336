//! The judge of every backend: a float64 interpreter of the graph, and (built on it) the conformance suite.
//!
//! [`Interpreter`] computes a graph with plain loops in float64, one obvious function for each operation, so that it can
//! be checked by reading. Whatever else computes a graph is compared with it.

pub mod interpreter;

pub use interpreter::{Interpreter, OutputRows64};

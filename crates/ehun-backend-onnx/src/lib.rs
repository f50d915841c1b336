//! The graph lowered to ONNX and run by ONNX Runtime and its execution providers: CPU, TensorRT, OpenVINO, CoreML, DirectML,
//! QNN, CUDA.
//!
//! One model with symbolic shapes serves every batch. ONNX Runtime is a shared library that is loaded from a path when it is
//! needed; nothing of it is linked or built. A provider that was asked for must take every product of the model: if it does
//! not, that is a refusal, and never a move to the CPU.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`lower`] | the graph as an ONNX model |
//! | [`proto`] | the messages of the format that this needs |
//! | [`runtime`] | safe Rust around the C interface |
//! | [`provider`] | the execution providers by name |
//! | [`library`] | where the library is found and how it gets there |
//! | [`mod@export`] | the model as a file |
//!
//! Only float32 is claimed. What is deliberately absent: a model's name, tokenisation, the forming of batches.

mod backend;
mod executable;
pub mod export;
pub mod library;
pub mod lower;
pub mod proto;
pub mod provider;
pub mod runtime;

pub use backend::{OnnxBackend, OnnxConfig, OnnxFactory};
pub use executable::OnnxExecutable;
pub use export::export;
pub use library::{InstallError, install};
pub use lower::attention::Form;

//! ONNX Runtime's CPU provider against goldens, the conformance suite and planted faults.

mod common;
mod conformance;
mod export;
mod faults;
#[path = "../../../../tests/golden.rs"]
mod golden;
mod goldens;

//! The program: where it is, how it is built, and the demonstration of it.

use std::path::PathBuf;

use crate::command::{Outcome, cargo, program, root, run};
use crate::model;

/// The program as `cargo build --release` leaves it.
pub fn ehun() -> PathBuf {
    target().join("release/ehun")
}

/// Where cargo builds.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// Builds it.
pub fn build() -> Outcome {
    model::setup(&[])?;
    run(&mut cargo(&["build", "--release", "--locked", "--package", "ehun"]))
}

/// Sets up, builds, runs the main job on the example documents and searches the result.
pub fn demo(_: &[String]) -> Outcome {
    build()?;
    let out = "target/demo";
    run(&mut program(ehun(), &["process", "examples/documents", "--out", out]))?;
    let query = "how were the tides predicted before computers";
    println!("\n$ ehun search {out} \"{query}\" -k 3");
    run(&mut program(ehun(), &["search", out, query, "-k", "3"]))
}

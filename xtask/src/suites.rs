//! What a person runs: the demonstration, the tests, the benchmarks, the long suites.

use crate::command::{Outcome, cargo, root, run};
use crate::{fetch, floors, model};

/// Sets up, builds, runs the main job on the example documents and searches the result.
pub fn demo(_: &[String]) -> Outcome {
    model::setup(&[])?;
    run(&mut cargo(&["build", "--release", "--locked", "--package", "ehun"]))?;
    let ehun = root().join("target/release/ehun");
    run(&mut crate::command::program(&ehun, &["process", "examples/documents", "--out", "target/demo"]))?;
    run(&mut crate::command::program(&ehun, &["search", "target/demo", "how were tides predicted", "-k", "3"]))
}

/// Fetches what tests need and runs all of them.
pub fn test(_: &[String]) -> Outcome {
    model::setup(&[])?;
    fetch::models(&[])?;
    fetch::plugins(&[])?;
    floors::check(&[])?;
    run(&mut cargo(&["test", "--release", "--locked", "--workspace"]))
}

/// Benchmarks by name.
pub fn bench(arguments: &[String]) -> Outcome {
    Err(format!("there is no benchmark `{}`", arguments.join(" ")))
}

/// The long suites.
pub fn soak(_: &[String]) -> Outcome {
    test(&[])
}

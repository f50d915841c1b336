//! What a person runs: the demonstration, the tests, the benchmarks, the long suites.

use std::path::PathBuf;

use crate::command::{Outcome, cargo, program, python, root, run};
use crate::{fetch, floors, model, models};

/// The program as `cargo build --release` leaves it.
fn ehun() -> PathBuf {
    target().join("release/ehun")
}

fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

fn build() -> Outcome {
    model::setup(&[])?;
    run(&mut cargo(&["build", "--release", "--locked", "--package", "ehun"]))
}

fn text(path: impl AsRef<std::path::Path>) -> String {
    path.as_ref().to_string_lossy().into_owned()
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

/// Fetches what tests need and runs all of them.
pub fn test(_: &[String]) -> Outcome {
    model::setup(&[])?;
    models::small()?;
    fetch::plugins(&[])?;
    floors::check(&[])?;
    run(&mut cargo(&["test", "--release", "--locked", "--workspace", "--features", "ehun-models/hub"]))?;
    readers()
}

/// What the main job writes is read by pyarrow, DuckDB, Polars and pandas.
fn readers() -> Outcome {
    build()?;
    let folder = root().join("tests/python");
    let python = python("tests", &folder.join("requirements.txt"))?;
    let out = text(target().join("tests/tables"));
    let models = ["--classify", "goldens/bert.sequence-classification", "--tag", "goldens/bert.token-classification"];
    let job = [&["process", "--quiet", "examples/documents", "--out", &out], &models[..]].concat();
    run(&mut program(ehun(), &job))?;
    run(&mut program(&python, &[text(folder.join("read_tables.py")), out]))
}

/// Benchmarks by name.
pub fn bench(arguments: &[String]) -> Outcome {
    let (name, rest) = arguments.split_first().map_or(("", &[][..]), |(name, rest)| (name.as_str(), rest));
    match name {
        "peers" => peers(rest),
        "quality" => quality(rest),
        "kernels" => kernels(rest),
        "attention" => attention(rest),
        "start" => start(rest),
        "forward" => {
            let mut command =
                cargo(&["run", "--release", "--package", "ehun-backend-cpu", "--example", "forward", "--"]);
            run(command.args(rest))
        }
        _ => Err("there are `bench peers` (other engines, the same texts), `bench quality` (STS, Cranfield), \
                  `bench kernels` (products beside other crates), `bench attention` (naive and flash over the length), \
                  `bench forward` (one pass, by operation), `bench start` (time to the first vector, memory)"
            .to_owned()),
    }
}

/// The matrix product beside other crates, which no crate of ours depends on: a workspace of its own.
fn kernels(rest: &[String]) -> Outcome {
    let each: Vec<Vec<String>> =
        if rest.is_empty() { vec![vec!["1".into()], vec!["2".into()]] } else { vec![rest.to_vec()] };
    for arguments in each {
        let manifest = ["run", "--release", "--locked", "--manifest-path", "tools/gemm-peers/Cargo.toml", "--"];
        run(cargo(&manifest).args(arguments).env("CARGO_TARGET_DIR", target().join("gemm-peers")))?;
    }
    Ok(())
}

fn peers(rest: &[String]) -> Outcome {
    let model = fetch::MINILM.fetch()?;
    run(&mut cargo(&["build", "--release", "--locked", "--package", "ehun-engine", "--example", "contestant"]))?;
    let folder = root().join("tools/bench");
    let python = python("bench", &folder.join("requirements.txt"))?;
    let contestant = text(target().join("release/examples/contestant"));
    let script = text(folder.join("peers.py"));
    let half = text(root().join("assets/model"));
    let mut command =
        program(&python, &[script, "--ehun".into(), contestant, "--model".into(), text(model), "--half".into(), half]);
    run(command.args(rest))
}

/// The attention kernels over the length.
fn attention(rest: &[String]) -> Outcome {
    let example = ["run", "--release", "--package", "ehun-backend-cpu", "--example", "attention_curve", "--"];
    run(cargo(&example).args(rest))
}

/// Start and memory of the program.
fn start(rest: &[String]) -> Outcome {
    build()?;
    let script = text(root().join("tools/bench/start.py"));
    run(program("python3", &[script, "--ehun".into(), text(ehun())]).args(rest))
}

fn quality(rest: &[String]) -> Outcome {
    build()?;
    let model = fetch::MINILM.fetch()?;
    let folder = root().join("tools/bench");
    let python = python("bench", &folder.join("requirements.txt"))?;
    let script = text(folder.join("quality.py"));
    let mut command = program(&python, &[script, "--ehun".into(), text(ehun()), "--reference".into(), text(model)]);
    run(command.args(rest))
}

/// The long suites: the large real model, and the job is killed at 200 moments instead of a few.
pub fn soak(_: &[String]) -> Outcome {
    model::setup(&[])?;
    models::all(&[])?;
    run(&mut cargo(&[
        "test",
        "--release",
        "--locked",
        "--package",
        "ehun-models",
        "--test",
        "real",
        "--",
        "--nocapture",
    ]))?;
    let mut command =
        cargo(&["test", "--release", "--locked", "--package", "ehun", "--test", "command", "--", "crash"]);
    run(command.env("EHUN_KILLS", "200"))
}

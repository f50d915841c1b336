//! What `cargo xtask test` runs: all tests of the crates, and what other programs make of Ehun's output.

use std::path::PathBuf;

use crate::command::{Outcome, cargo, program, python, root, run, text};
use crate::product::{build, ehun, target};
use crate::{fetch, floors, model, models};

/// Where property tests (proptest) take the seed of their cases from.
pub const SEED: &str = "PROPTEST_RNG_SEED";

/// The tests of all crates.
pub fn crates() -> std::process::Command {
    cargo(&["test", "--release", "--locked", "--workspace", "--features", "ehun-models/hub"])
}

/// Fetches what tests need and runs all of them. Property tests try the same cases each time, so that what fails fails again, and
/// because of the change that is tested; `cargo xtask soak properties` tries others.
pub fn test(_: &[String]) -> Outcome {
    model::setup(&[])?;
    models::small()?;
    fetch::plugins(&[])?;
    floors::check(&[])?;
    run(crates().env(SEED, std::env::var(SEED).unwrap_or_else(|_| "0".to_owned())))?;
    // That has built the program too: `build` would make it again, without the features that the other crates' tests want.
    conforming_plugins()?;
    readers()?;
    clients()?;
    exported()
}

/// The attention plug-ins of `examples/plugins` in the conformance suite.
pub fn plugin_examples(_: &[String]) -> Outcome {
    build()?;
    conforming_plugins()
}

/// Builds the attention plug-ins of `examples/plugins` and runs the quick profile of the conformance suite on each.
fn conforming_plugins() -> Outcome {
    let folder = target().join("plugins");
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let examples = root().join("examples/plugins");
    let manifest = text(examples.join("rust/Cargo.toml"));
    run(&mut cargo(&["build", "--release", "--locked", "--manifest-path", &manifest, "--target-dir", &text(&folder)]))?;
    let library = format!("{}attention_plugin{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    let mut plugins = vec![folder.join("release").join(library)];
    let c = folder.join(format!("attention_c{}", std::env::consts::DLL_SUFFIX));
    let include = text(root().join("include"));
    let source = text(examples.join("c/attention.c"));
    let mut cc = program("cc", &["-O2", "-shared", "-fPIC", "-I", &include, &source, "-lm", "-o", &text(&c)]);
    match cc.status() {
        Ok(status) if status.success() => plugins.push(c),
        Ok(status) => return Err(format!("cc {source}: {status}")),
        Err(error) => println!("not run: the example in C (no C compiler `cc`: {error})"),
    }
    for plugin in plugins {
        run(&mut program(ehun(), &["conform", "--quick", "--attention", &text(plugin)]))?;
    }
    Ok(())
}

/// What the main job writes is read by pyarrow, DuckDB, Polars and pandas, and its shards as one dataset.
fn readers() -> Outcome {
    let folder = root().join("tests/python");
    let python = python("tests", &folder.join("requirements.txt"))?;
    let folders = ["tables", "shard-1", "shard-2"].map(|name| target().join("tests").join(name));
    for folder in folders.iter().filter(|folder| folder.exists()) {
        std::fs::remove_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    let folders = folders.map(text);
    let models = ["--classify", "goldens/bert.sequence-classification", "--tag", "goldens/bert.token-classification"];
    let shards: [&[&str]; 3] = [&[], &["--shard", "1/2"], &["--shard", "2/2"]];
    for (out, shard) in folders.iter().zip(shards) {
        let job = [&["process", "--quiet", "examples/documents", "--out", out], &models[..], shard].concat();
        run(&mut program(ehun(), &job))?;
    }
    run(&mut program(&python, &[&[text(folder.join("read_tables.py"))], &folders[..]].concat()))
}

/// What the server says is read by the clients that people use, and it survives what a schema lets them send.
fn clients() -> Outcome {
    let python = client_python()?;
    run(&mut program(&python, &[text(root().join("tests/python/clients.py")), text(ehun())]))?;
    requests(&[])
}

fn client_python() -> Result<PathBuf, String> {
    python("clients", &root().join("tests/python/requirements-clients.txt"))
}

/// Requests made from the OpenAPI document, as many as are asked for.
pub fn fuzz_http(rest: &[String]) -> Outcome {
    build()?;
    requests(rest)
}

fn requests(rest: &[String]) -> Outcome {
    let script = text(root().join("tests/python/fuzz_http.py"));
    run(program(client_python()?, &[script, text(ehun())]).args(rest))
}

/// What `ehun export` writes runs in plain onnxruntime, with the vectors that Ehun gives.
fn exported() -> Outcome {
    let Some(library) = fetch::onnxruntime() else {
        println!("not run: an exported model in plain onnxruntime (cargo xtask plugins)");
        return Ok(());
    };
    let folder = root().join("tests/python");
    let python = python("onnx", &folder.join("requirements-onnx.txt"))?;
    let source = fetch::MINILM.fetch()?;
    let out = target().join("tests/export");
    let error = |e: std::io::Error| format!("{}: {e}", out.display());
    std::fs::create_dir_all(&out).map_err(error)?;
    let vectors = out.join("vectors.jsonl");
    let texts = text(folder.join("texts.txt"));
    let mut embed = program(ehun(), &["embed", "--backend", "onnx", "--model", &text(&source), "--file", &texts]);
    let file = std::fs::File::create(&vectors).map_err(error)?;
    run(embed.env("EHUN_ONNXRUNTIME", library).stdout(file))?;
    let script = text(folder.join("run_onnx.py"));
    let tokenizer = text(source.join("tokenizer.json"));
    // Both forms of attention, and weights inside and beside the model.
    for (name, flags) in [("native", &[][..]), ("fused", &["--weights-beside"][..])] {
        let onnx = text(out.join(name).with_extension("onnx"));
        let mut export = program(ehun(), &["export", "--model", &text(&source), "--attention", name, "--out", &onnx]);
        run(export.args(flags))?;
        let arguments = [script.clone(), onnx, texts.clone(), text(&vectors), tokenizer.clone()];
        run(&mut program(&python, &arguments))?;
    }
    Ok(())
}

//! What a person runs: the demonstration, the tests, the benchmarks, the long suites.

use std::path::PathBuf;

use crate::command::{Outcome, cargo, program, python, root, run};
use crate::{documents, fetch, floors, model, models, xla};

/// The program as `cargo build --release` leaves it.
pub(crate) fn ehun() -> PathBuf {
    target().join("release/ehun")
}

pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

pub(crate) fn build() -> Outcome {
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
    plugin_examples(&[])?;
    readers()?;
    clients()?;
    exported()
}

/// Builds the attention plug-ins of `examples/plugins` and runs the quick profile of the conformance suite on each.
pub fn plugin_examples(_: &[String]) -> Outcome {
    build()?;
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

/// What the server says is read by the clients that people use, and it survives what a schema lets them send.
fn clients() -> Outcome {
    let python = client_python()?;
    run(&mut program(&python, &[text(root().join("tests/python/clients.py")), text(ehun())]))?;
    fuzz_http(&[])
}

fn client_python() -> Result<PathBuf, String> {
    python("clients", &root().join("tests/python/requirements-clients.txt"))
}

/// Requests made from the OpenAPI document, as many as are asked for.
pub fn fuzz_http(rest: &[String]) -> Outcome {
    build()?;
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

/// Benchmarks by name.
pub fn bench(arguments: &[String]) -> Outcome {
    let (name, rest) = arguments.split_first().map_or(("", &[][..]), |(name, rest)| (name.as_str(), rest));
    match name {
        "peers" => peers(rest),
        "quality" => quality(rest),
        "serve" => serve(rest),
        "kernels" => kernels(rest),
        "attention" => attention(rest),
        "start" => start(rest),
        "forward" => {
            let mut command =
                cargo(&["run", "--release", "--package", "ehun-backend-cpu", "--example", "forward", "--"]);
            run(command.args(rest))
        }
        "restart" => xla::restart(rest),
        "documents" => documents_per_second(rest),
        _ => Err("there are `bench peers` (other engines, the same texts), `bench quality` (STS, Cranfield), \
                  `bench serve` (through HTTP beside the engine alone), \
                  `bench documents DIR...` (pages of PDF a second beside pdfium), \
                  `bench kernels` (products beside other crates), `bench attention` (naive and flash over the length), \
                  `bench forward` (one pass, by operation), `bench start` (time to the first vector, memory), \
                  `bench restart` (the same on XLA's CPU plugin, with compiled programs in the cache)"
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

/// The server beside the engine without it: throughput, added latency, overload.
fn serve(rest: &[String]) -> Outcome {
    build()?;
    let model = fetch::MINILM.fetch()?;
    run(&mut cargo(&["build", "--release", "--locked", "--package", "ehun-server", "--example", "drive"]))?;
    let drive = target().join("release/examples/drive");
    run(program(drive, &[text(ehun()), text(model)]).args(rest))
}

/// Pages of PDF a second in two workers, beside pdfium in two processes.
fn documents_per_second(rest: &[String]) -> Outcome {
    run(&mut cargo(&["build", "--release", "--locked", "--package", "ehun-documents", "--example", "survey"]))?;
    let folder = root().join("tools/pdf");
    let python = python("pdf", &folder.join("requirements.txt"))?;
    let survey = text(target().join("release/examples/survey"));
    let mut command = program(&python, &[text(folder.join("pages_per_second.py")), "--survey".into(), survey]);
    run(command.args(rest))
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

/// The long suites by name.
pub fn soak(arguments: &[String]) -> Outcome {
    let (name, rest) = arguments.split_first().map_or(("", &[][..]), |(name, rest)| (name.as_str(), rest));
    match name {
        "kill" => kill(),
        "documents" => documents::soak(rest),
        "programs" => xla::soak(),
        "models" => large_models(),
        _ => Err(
            "there are `soak kill` (the job is killed at 200 random moments and compared with an undisturbed run), \
                  `soak documents DIR...` (the job over trees of hard files: what came of them, and its memory) \
                  `soak programs` (10,000 requests to a model on XLA: no compilation, no growth) and \
                  `soak models` (the large real models beside transformers)"
                .to_owned(),
        ),
    }
}

/// The real models that are too large for the tests of every change.
fn large_models() -> Outcome {
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
    ]))
}

/// The job is killed at 200 moments instead of a few.
fn kill() -> Outcome {
    model::setup(&[])?;
    let mut command =
        cargo(&["test", "--release", "--locked", "--package", "ehun", "--test", "command", "--", "crash"]);
    run(command.env("EHUN_KILLS", "200"))
}

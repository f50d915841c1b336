//! Benchmarks: each runs both sides in one go and prints ratios.

use crate::command::{Outcome, cargo, program, python, root, run, text};
use crate::product::{build, ehun, target};
use crate::{fetch, xla};

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
    let page = text(root().join("docs/benchmarks.md"));
    // What `rest` says comes after, and so it wins.
    let ours =
        ["--ehun", &contestant, "--model", &text(model), "--half", &half, "--markdown", &page].map(str::to_owned);
    run(program(&python, &[vec![script], ours.to_vec()].concat()).args(rest))
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

/// The server beside the engine without it: throughput, added latency, overload; and what clients notice of swaps.
fn serve(rest: &[String]) -> Outcome {
    build()?;
    let model = fetch::MINILM.fetch()?;
    run(&mut cargo(&["build", "--release", "--locked", "--package", "ehun-server", "--example", "drive"]))?;
    let drive = target().join("release/examples/drive");
    run(program(drive, &[text(ehun()), text(model)]).args(rest))?;
    fetch::plugins(&[])?;
    run(program("python3", &[text(root().join("tests/python/swap_serve.py")), text(ehun())]).args(rest))
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

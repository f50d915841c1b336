//! The long work around the XLA backend: tables of whole models for TPUs, the restart of a service, the leak check.

use std::path::PathBuf;
use std::time::Instant;

use crate::command::{Outcome, cargo, program, root, run};
use crate::fetch;

/// Models whose shapes are in `tools/xla/shapes`, with the longest bucket of each.
const SHAPES: [(&str, usize); 4] =
    [("minilm-l6", 512), ("mpnet-base", 512), ("modernbert-base", 8192), ("qwen3-0.6b", 8192)];
const LENGTHS: [usize; 8] = [64, 128, 256, 512, 1024, 2048, 4096, 8192];
const CHIPS: [&str; 2] = ["v5e:1x1", "v6e:1x1"];
/// Tokens of a program: what docs/tpu.md tabulates.
const TOKENS: usize = 4096;

fn ehun() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    target.join("release/ehun")
}

/// `tpu [FOLDER [MODEL...]]`: compiles every shape for every chip and bucket into FOLDER, a file each; what is there is
/// kept, so that it can be stopped. Needs libtpu (`ehun backends install xla:tpu --accept-licence`) and no TPU.
pub fn tpu(arguments: &[String]) -> Outcome {
    run(&mut cargo(&["build", "--release", "--locked", "--package", "ehun"]))?;
    let out = arguments.first().map_or_else(|| root().join("target/tpu"), PathBuf::from);
    std::fs::create_dir_all(&out).map_err(|error| format!("{}: {error}", out.display()))?;
    let mut refused = Vec::new();
    let asked = |name: &str| arguments.len() < 2 || arguments[1..].iter().any(|wanted| wanted == name);
    for (name, longest) in SHAPES.into_iter().filter(|(name, _)| asked(name)) {
        for chip in CHIPS {
            for length in LENGTHS.into_iter().filter(|&length| length <= longest) {
                let bucket = format!("{}x{length}", (TOKENS / length).max(1));
                let file = out.join(format!("{name}-{}-{bucket}.json", chip.replace(':', "-")));
                if file.exists() {
                    continue;
                }
                println!("{name} {chip} {bucket}");
                let shape = format!("tools/xla/shapes/{name}");
                let arguments = ["compile", "--topology", chip, "--shape-of", &shape, "--buckets", &bucket, "--json"];
                let output =
                    program(ehun(), &arguments).output().map_err(|error| format!("{}: {error}", ehun().display()))?;
                if output.stdout.is_empty() {
                    return Err(String::from_utf8_lossy(&output.stderr).into_owned());
                }
                // 3 is a bucket that no form serves, which is a line of the table; it is told at the end.
                if !output.status.success() {
                    refused.push(format!("{name} {chip} {bucket}"));
                }
                std::fs::write(&file, output.stdout).map_err(|error| format!("{}: {error}", file.display()))?;
            }
        }
    }
    let folder = out.to_string_lossy().into_owned();
    run(&mut program("python3", &["tools/xla/table.py".to_owned(), folder]))?;
    if refused.is_empty() { Ok(()) } else { Err(format!("no form fits: {}", refused.join(", "))) }
}

/// The time from the start of a process to the first vector, with programs in the cache and without, on XLA's CPU plugin.
pub fn restart(_: &[String]) -> Outcome {
    run(&mut cargo(&["build", "--release", "--locked", "--package", "ehun"]))?;
    fetch::plugins(&[])?;
    let cache = root().join("target/restart");
    if cache.exists() {
        std::fs::remove_dir_all(&cache).map_err(|error| format!("{}: {error}", cache.display()))?;
    }
    let once = |what: &str| -> Outcome {
        let start = Instant::now();
        let mut command = program(ehun(), &["embed", "--quiet", "--backend", "xla:cpu", "a text"]);
        command.env("XDG_CACHE_HOME", &cache).env("EHUN_PJRT_PLUGIN_CPU", plugin());
        let output = command.output().map_err(|error| error.to_string())?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        println!("{what}: {:.2} s", start.elapsed().as_secs_f64());
        Ok(())
    };
    once("empty cache")?;
    (0..5).try_for_each(|_| once("full cache"))
}

fn plugin() -> PathBuf {
    root().join(".cache/plugins/xla-cpu/pjrt_c_api_cpu_plugin.so")
}

/// 10,000 requests to a service on XLA's CPU plugin: no compilation, no handle and no memory left behind.
pub fn soak() -> Outcome {
    fetch::plugins(&[])?;
    let mut command = cargo(&["test", "--release", "--locked", "--package", "ehun-backend-xla", "--test", "steady"]);
    run(command.args(["--", "--nocapture"]).env("EHUN_REQUESTS", "10000"))
}

/// Rounds of the leak check.
const ROUNDS: usize = 20;

/// Valgrind over the foreign interface: compile, load, run, read back and free, so many rounds. What is lost as often as
/// there were rounds, under a call of this project, is a leak; what the plugin loses once is its own.
pub fn leaks(_: &[String]) -> Outcome {
    fetch::plugins(&[])?;
    let build = ["test", "--release", "--locked", "--package", "ehun-backend-xla", "--test", "leaks", "--no-run"];
    let output = cargo(&build).args(["--message-format", "json"]).output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let test = text
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["target"]["name"] == "leaks")
        .find_map(|message| message["executable"].as_str().map(str::to_owned))
        .ok_or("the test `leaks` was not built")?;
    let report = root().join("target/leaks.xml");
    let flags = ["--leak-check=full", "--show-leak-kinds=definite", "--xml=yes"].map(str::to_owned);
    let mut command = program("valgrind", &flags);
    command.arg(format!("--xml-file={}", report.display())).arg(test).env("EHUN_ROUNDS", ROUNDS.to_string());
    run(&mut command)?;
    let text = std::fs::read_to_string(&report).map_err(|error| format!("{}: {error}", report.display()))?;
    judge(&text)
}

/// Reads valgrind's report.
fn judge(report: &str) -> Outcome {
    let lost: Vec<(usize, &str)> = report
        .split("<error>")
        .skip(1)
        .filter(|error| error.contains("Leak_DefinitelyLost"))
        .filter_map(|error| {
            let blocks = error.split_once("<leakedblocks>")?.1.split_once('<')?.0.parse().ok()?;
            Some((blocks, error))
        })
        .collect();
    let blocks: usize = lost.iter().map(|(blocks, _)| blocks).sum();
    let leaks: Vec<&str> = lost
        .iter()
        .filter(|(blocks, error)| *blocks >= ROUNDS && error.contains("ehun_backend_xla"))
        .map(|(_, error)| *error)
        .collect();
    println!("{ROUNDS} rounds: {blocks} blocks lost in {} places, {} of them in every round", lost.len(), leaks.len());
    match leaks.first() {
        None => Ok(()),
        Some(first) => Err(format!("memory is lost in every round:\n{first}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leak_of_every_round_is_told_from_one_of_the_plugin() {
        let error = |blocks: usize, function: &str| {
            format!(
                "<error><kind>Leak_DefinitelyLost</kind><leakedblocks>{blocks}</leakedblocks><fn>{function}</fn></error>"
            )
        };
        assert!(judge(&error(1, "ehun_backend_xla::pjrt::runtime")).is_ok());
        assert!(judge(&error(400, "xla::Once")).is_ok());
        assert!(judge(&(error(1, "x") + &error(ROUNDS, "ehun_backend_xla::pjrt::runtime"))).is_err());
    }
}

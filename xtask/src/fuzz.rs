//! `cargo xtask fuzz [TARGET] [SECONDS]`, `cargo xtask fuzz http ...`: the fuzz targets of `fuzz/`, built without cargo-fuzz.

use std::path::PathBuf;
use std::process::Command;

use crate::command::{Outcome, program, root, run};
use crate::tests;

const TARGETS: [&str; 2] = ["safetensors", "config"];

/// What libFuzzer needs to see where a run goes: the flags of cargo-fuzz.
const COVERAGE: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                        -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
                        -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1";

/// Runs each target, or the one that is named, for ten minutes, or as many seconds as are given, from its corpus.
pub fn fuzz(arguments: &[String]) -> Outcome {
    if let Some((_, rest)) = arguments.split_first().filter(|(name, _)| *name == "http") {
        return tests::fuzz_http(rest);
    }
    let named: Vec<&str> = arguments.iter().map(String::as_str).filter(|name| TARGETS.contains(name)).collect();
    let seconds = arguments.iter().find_map(|text| text.parse::<u64>().ok()).unwrap_or(600);
    if named.len() + usize::from(arguments.iter().any(|text| text.parse::<u64>().is_ok())) < arguments.len() {
        return Err(format!("usage: cargo xtask fuzz [{}] [SECONDS]", TARGETS.join("|")));
    }
    let target = root().join("target/fuzz");
    build(&target)?;
    let binaries = target.join(format!("{}-unknown-linux-gnu/release", std::env::consts::ARCH));
    for name in TARGETS.into_iter().filter(|name| named.is_empty() || named.contains(name)) {
        println!("fuzzing {name} for {seconds} seconds");
        let corpus = root().join("fuzz/corpus").join(name);
        // What is found goes into the first folder; the corpus of the repository stays small.
        let found = target.join("corpus").join(name);
        std::fs::create_dir_all(&found).map_err(|e| format!("{}: {e}", found.display()))?;
        let mut command = Command::new(binaries.join(name));
        command
            .args([&found, &corpus])
            .arg(format!("-max_total_time={seconds}"))
            .args(["-max_len=16384", "-rss_limit_mb=2048", "-timeout=10", "-print_final_stats=1"])
            .arg(format!("-artifact_prefix={}/", target.display()))
            .current_dir(root());
        run(&mut command)?;
    }
    Ok(())
}

/// With the address sanitizer where there is a nightly toolchain, else without.
fn build(target: &PathBuf) -> Outcome {
    let nightly = Command::new("rustup").args(["which", "--toolchain", "nightly", "cargo"]).output();
    let nightly = nightly.is_ok_and(|output| output.status.success());
    if !nightly {
        println!("there is no nightly toolchain: without the address sanitizer");
    }
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let cargo = ["build", "--release", "--manifest-path", "fuzz/Cargo.toml", "--target", &triple];
    let mut command = if nightly {
        program("rustup", &[&["run", "nightly", "cargo"], &cargo[..]].concat())
    } else {
        program("cargo", &cargo)
    };
    let flags = if nightly { format!("{COVERAGE} -Zsanitizer=address") } else { COVERAGE.to_owned() };
    run(command.env("RUSTFLAGS", flags).env("CARGO_TARGET_DIR", target).env_remove("CARGO").env_remove("RUSTC"))
}

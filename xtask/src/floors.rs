//! The floors of the house: a crate uses what is below it, never what is beside or above it.

use crate::command::{Outcome, cargo};

/// The floor of each crate.
const FLOORS: &[(&str, u32)] = &[
    ("ehun-graph", 1),
    ("ehun-models", 2),
    ("ehun-backend", 2),
    ("ehun-backend-cpu", 3),
    ("ehun-backend-xla", 3),
    ("ehun-backend-onnx", 3),
    ("ehun-conformance", 3),
    ("ehun-engine", 4),
    ("ehun-documents", 4),
    ("ehun-pipeline", 5),
    ("ehun-remote", 5),
    ("ehun-compare", 6),
    ("ehun-server", 6),
    // The command is a face too, but it starts the server, so it stands one step above.
    ("ehun", 7),
];

/// Words that must not be in the sources of a crate: no model's name in a backend, no device's name in a model.
const WORDS: &[(&str, &[&str])] = &[
    ("ehun-backend", &["minilm", "modernbert", "qwen", "deberta", "roberta"]),
    ("ehun-backend-cpu", &["minilm", "modernbert", "qwen", "roberta"]),
    ("ehun-backend-xla", &["minilm", "modernbert", "qwen", "roberta"]),
    ("ehun-backend-onnx", &["minilm", "modernbert", "qwen", "roberta"]),
    ("ehun-models", &["cuda", "avx2", "avx512", "tpu", "pjrt", "xla"]),
    ("ehun-graph", &["minilm", "cuda", "avx2", "avx512", "tpu", "pjrt", "xla"]),
];

/// Checks the arrows between crates and the words in their sources.
pub fn check(_: &[String]) -> Outcome {
    let output = cargo(&["metadata", "--format-version", "1", "--no-deps", "--offline", "--locked"])
        .output()
        .map_err(|e| format!("cargo metadata: {e}"))?;
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)
        .map_err(|e| format!("cargo metadata: {e}: {}", String::from_utf8_lossy(&output.stderr)))?;
    let mut faults = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let name = package["name"].as_str().unwrap_or_default();
        if name == "xtask" {
            continue;
        }
        let Some(floor) = floor_of(name) else {
            faults.push(format!("`{name}` has no floor; give it one in xtask/src/floors.rs"));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            // Tests may look anywhere: an oracle is often on another floor.
            let of_tests = dependency["kind"].as_str() == Some("dev");
            let below = dependency["name"].as_str().unwrap_or_default();
            if let Some(other) = floor_of(below).filter(|&other| other >= floor && !of_tests) {
                faults.push(format!("`{name}` (floor {floor}) uses `{below}` (floor {other})"));
            }
        }
        let manifest = package["manifest_path"].as_str().unwrap_or_default();
        words(name, manifest, &mut faults)?;
    }
    if faults.is_empty() {
        println!("floors: every arrow points down");
        return Ok(());
    }
    Err(faults.join("\n"))
}

fn floor_of(name: &str) -> Option<u32> {
    FLOORS.iter().find(|(known, _)| *known == name).map(|(_, floor)| *floor)
}

fn words(name: &str, manifest: &str, faults: &mut Vec<String>) -> Outcome {
    let Some((_, forbidden)) = WORDS.iter().find(|(known, _)| *known == name) else { return Ok(()) };
    let folder = std::path::Path::new(manifest).with_file_name("src");
    let mut folders = vec![folder];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        for path in entries.filter_map(|entry| entry.ok().map(|entry| entry.path())) {
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let Ok(text) = std::fs::read_to_string(&path) else { continue };
            // What stands in tests is no part of the crate.
            let text = text.split("#[cfg(test)]").next().unwrap_or_default().to_lowercase();
            let words: std::collections::HashSet<&str> = text.split(|c: char| !c.is_alphanumeric()).collect();
            for word in forbidden.iter().filter(|word| words.contains(**word)) {
                faults.push(format!("{}: `{word}` has no place in `{name}`", path.display()));
            }
        }
    }
    Ok(())
}

//! The attention plug-ins in `examples/plugins`: compiled here, loaded by the CPU backend, and judged.

use std::path::{Path, PathBuf};
use std::process::Command;

use ehun_backend::{Attention, BackendFactory};
use ehun_backend_cpu::CpuFactory;
use ehun_conformance::{ConformOptions, Group, Outcome, Profile, Report, conform};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Compiles C source to a shared library; nothing where there is no C compiler.
fn compile(source: &Path, name: &str) -> Option<PathBuf> {
    let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.so"));
    let compiled = Command::new("cc")
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-I"])
        .arg(root().join("include"))
        .arg(source)
        .args(["-lm", "-o"])
        .arg(&library)
        .output();
    match compiled {
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            Some(library)
        }
        Err(error) => {
            println!("not run: no C compiler `cc` ({error})");
            None
        }
    }
}

fn judge(library: &Path, only: Option<&str>) -> Report {
    let backend = CpuFactory.open("cpu").expect("a CPU");
    let options = ConformOptions {
        profile: Profile::Quick,
        attention: Attention::File(library.to_owned()),
        groups: vec![Group::Attention, Group::Laws],
        only: only.map(str::to_owned),
        ..ConformOptions::default()
    };
    conform(backend.as_ref(), &options)
}

#[test]
fn the_example_in_c_conforms() {
    let Some(library) = compile(&root().join("examples/plugins/c/attention.c"), "example") else { return };
    let report = judge(&library, None);
    assert!(report.passed(), "{}", report.table());
    assert_eq!(report.count(Outcome::Refused), 0, "{}", report.table());
    assert_eq!(report.kernels.keys().collect::<Vec<_>>(), ["example-c 1.0"]);
}

/// The example with one line changed.
fn changed(from: &str, to: &str, name: &str) -> Option<PathBuf> {
    let source = std::fs::read_to_string(root().join("examples/plugins/c/attention.c")).expect("the example");
    assert!(source.contains(from), "the example has no `{from}`");
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.c"));
    std::fs::write(&path, source.replace(from, to)).expect("a place to write");
    compile(&path, name)
}

#[test]
fn a_wrong_plugin_is_found() {
    let Some(library) = changed("i + spec->right + 1", "i + spec->right + 2", "too_wide") else { return };
    let report = judge(&library, Some("causal"));
    assert!(!report.passed(), "{}", report.table());
}

#[test]
fn what_a_plugin_refuses_is_refused_in_its_words() {
    let line = "    if (spec->value_dim > WIDEST_VALUE) {";
    let refusing =
        "    if (spec->soft_cap != 0) { snprintf(reasons, capacity, \"no soft cap\\nask again\"); return 2; }\n";
    let Some(library) = changed(line, &format!("{refusing}{line}"), "no_soft_cap") else { return };
    let report = judge(&library, Some("soft cap"));
    assert_eq!(report.count(Outcome::Passed) + report.count(Outcome::Failed), 0, "{}", report.table());
    let notes: Vec<&String> = report.checks.iter().flat_map(|check| &check.notes).collect();
    assert!(notes.iter().any(|note| note.ends_with("no soft cap")), "{notes:?}");
    assert!(notes.iter().any(|note| note.ends_with("ask again")), "{notes:?}");
}

#[test]
fn an_error_of_a_plugin_is_an_error_of_the_batch() {
    let line = "    double *sums = batch->scratch;";
    let failing = "    if (capacity > 0) { snprintf(error, capacity, \"planted\"); return 7; }\n";
    let Some(library) = changed(line, &format!("{failing}{line}"), "failing") else { return };
    let report = judge(&library, Some("factor 1"));
    let failure = report.failures().next().expect("a failure");
    assert!(failure.notes[0].contains("error 7: planted"), "{:?}", failure.notes);
}

#[test]
fn another_version_of_the_interface_is_refused() {
    let Some(library) = changed("return EHUN_ATTENTION_ABI;", "return 99;", "version") else { return };
    let report = judge(&library, Some("factor 1"));
    assert_eq!(report.checks.len(), 1);
    assert_eq!(report.checks[0].outcome, Outcome::Refused);
    assert!(report.checks[0].notes[0].contains("version 99"), "{:?}", report.checks[0].notes);
}

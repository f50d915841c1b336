//! Conformance of foreign code: what passes is remembered and let in, what does not is reported, whatever it does.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{Ran, command, root};

/// A plug-in made of the C example with one line changed; nothing where there is no C compiler.
fn plugin(folder: &Path, name: &str, change: Option<(&str, &str)>) -> Option<PathBuf> {
    let mut source = std::fs::read_to_string(root().join("examples/plugins/c/attention.c")).unwrap();
    if let Some((from, to)) = change {
        assert!(source.contains(from), "the example has no `{from}`");
        source = source.replacen(from, to, 1);
    }
    let (file, library) = (folder.join(format!("{name}.c")), folder.join(format!("{name}.so")));
    std::fs::write(&file, source).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-shared", "-fPIC", "-I"]).arg(root().join("include")).arg(&file).args(["-lm", "-o"]).arg(&library);
    match cc.output() {
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

/// Runs the command with a data folder of its own.
fn ehun(data: &Path, arguments: &[&str]) -> Ran {
    let output = command(arguments).env("XDG_DATA_HOME", data).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// Where the rows of the keys begin in the example, which every fault below changes.
const KEY: &str = "float next = score(spec, batch, q, k, i, j, head);";
const START: &str = "    double *sums = batch->scratch;";
const WRITE: &str = "                for (uint32_t c = 0; c < spec->value_dim; c++) out[c] = (float)(sums[c] / sum);";

/// (name, line, its replacement, checks to run, what must be said)
const FAULTS: &[(&str, &str, &str, &str, &[&str])] = &[
    (
        "null",
        START,
        "    double *sums = batch->num_sequences ? 0 : batch->scratch;",
        "factor 1",
        &["SIGSEGV", "factor 1"],
    ),
    (
        "abort",
        START,
        "    if (batch->cu_seqlens[1] == 64) __builtin_trap();\n    double *sums = batch->scratch;",
        "factor 1",
        &["ended by signal"],
    ),
    (
        "exit",
        START,
        "    extern void exit(int); exit(0);\n    double *sums = batch->scratch;",
        "factor 1",
        &["ended by itself", "before the suite was through"],
    ),
    (
        "hang",
        START,
        "    for (volatile int wait = 1; wait;) {}\n    double *sums = batch->scratch;",
        "factor 1",
        &["it hangs"],
    ),
    (
        "key behind",
        KEY,
        "float next = score(spec, batch, q, k, i, j, head) + 0 * k[batch->k_stride * (uint64_t)(j + 1 == length)];",
        "factor 1",
        &["guard page", "behind the last of keys"],
    ),
    (
        "key before",
        KEY,
        "float next = score(spec, batch, q, k, i, j, head); { volatile float before = i == 0 && j == 0 && kv == 0 ? k[-1] : 0; (void)before; }",
        "factor 1",
        &["guard page", "before the first of keys"],
    ),
    (
        "input",
        KEY,
        "float next = score(spec, batch, q, k, i, j, head); *(volatile float *)k = k[0];",
        "factor 1",
        &["may only be read: keys"],
    ),
    (
        "out behind",
        WRITE,
        "                for (uint32_t c = 0; c <= spec->value_dim; c++) out[c] = (float)(sums[c % spec->value_dim] / sum);",
        "factor 1",
        &["behind the last of the result"],
    ),
    (
        "out between",
        WRITE,
        "                for (uint32_t c = 0; c < spec->value_dim; c++) out[c] = (float)(sums[c] / sum);\n                if (i + 1 < length) out[batch->out_stride - (size_t)head * spec->value_dim - 1] = 0;",
        "factor 1",
        &["written between the rows"],
    ),
    (
        "out unwritten",
        WRITE,
        "                for (uint32_t c = 0; c < spec->value_dim; c++) if (i != 5 || c != 3) out[c] = (float)(sums[c] / sum);",
        "factor 1",
        &["row 5, column 3 of the result was not written"],
    ),
    (
        "scratch",
        START,
        "    double *sums = batch->scratch; sums[spec->value_dim] = 0;",
        "factor 1",
        &["behind the last of scratch"],
    ),
    (
        "relative",
        KEY,
        "float next = score(spec, batch, q, k, i, j, head) + (batch->relative_rows ? (float)((volatile const uint32_t *)batch->relative_rows)[batch->relative_origin + length] : 0);",
        "bucketed",
        &["behind the last of relative_rows"],
    ),
];

#[test]
fn foreign_code_that_crashes_hangs_or_steps_outside_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    for (name, from, to, only, said) in FAULTS {
        let Some(library) = plugin(folder.path(), name, Some((from, to))) else { return };
        let library = library.to_string_lossy().into_owned();
        let limit = if *name == "hang" { "2" } else { "60" };
        let ran = ehun(
            folder.path(),
            &[
                "conform",
                "--quick",
                "--attention",
                &library,
                "--group",
                "attention",
                "--only",
                only,
                "--time-limit",
                limit,
            ],
        );
        assert_eq!(ran.code, Some(1), "{name}: {}\n{}", ran.stdout, ran.stderr);
        for text in *said {
            assert!(ran.stdout.contains(text), "{name} says nothing of `{text}`: {}\n{}", ran.stdout, ran.stderr);
        }
    }
}

#[test]
fn a_wrong_kernel_is_reported_with_its_worst_error_and_the_place() {
    let folder = tempfile::tempdir().unwrap();
    let wrong = [
        ("no correction", "sum *= correction;", "sum *= 1;", "full"),
        ("missing last key", "j < end; j++", "j < end - (length > 64); j++", "factor 1"),
    ];
    for (name, from, to, only) in wrong {
        let Some(library) = plugin(folder.path(), name, Some((from, to))) else { return };
        let library = library.to_string_lossy().into_owned();
        let arguments =
            ["conform", "--quick", "--json", "--attention", &library, "--group", "attention", "--only", only];
        let ran = ehun(folder.path(), &arguments);
        assert_eq!(ran.code, Some(1), "{name}: {}", ran.stderr);
        let report: ehun_conformance::Report = serde_json::from_str(&ran.stdout).unwrap();
        let worst = report.failures().next().and_then(|check| check.worst.clone()).unwrap();
        assert!(worst.ratio() > 1.0 && worst.place.contains("row"), "{name}: {worst:?}");
    }
}

#[test]
fn a_plugin_is_let_in_once_it_has_passed_here() {
    let folder = tempfile::tempdir().unwrap();
    // It takes only what the embedded model needs, so that the whole suite is quick on it.
    let (line, narrow) =
        ("    if (spec->value_dim > WIDEST_VALUE) {", "spec->head_dim != 32 || spec->num_kv_heads != spec->num_heads");
    let refusing = format!(
        "    if ({narrow} || spec->bias_kind || spec->left >= 0 || spec->right >= 0 || spec->soft_cap != 0) {{\n        \
         snprintf(reasons, capacity, \"only plain heads of 32\");\n        return 1;\n    }}\n{line}"
    );
    let Some(library) = plugin(folder.path(), "good", Some((line, refusing.as_str()))) else { return };
    let library = library.to_string_lossy().into_owned();
    let (text, out) = (folder.path().join("a.txt"), folder.path().join("out"));
    std::fs::write(&text, "A kernel is let in once it has passed.").unwrap();
    let (text, out) = (text.to_string_lossy().into_owned(), out.to_string_lossy().into_owned());
    let process = ["process", "--quiet", &text, "--out", &out, "--attention", &library];
    let config = folder.path().join("ehun.toml");
    std::fs::write(&config, format!("[service.default]\nattention = {library:?}\n")).unwrap();
    let config = config.to_string_lossy().into_owned();

    for refused in [&process[..], &["serve", "--listen", "127.0.0.1:0", "--config", &config]] {
        let ran = ehun(folder.path(), refused);
        assert_eq!(ran.code, Some(1), "{}", ran.stderr);
        assert!(ran.stderr.contains("has not passed") && ran.stderr.contains("ehun conform"), "{}", ran.stderr);
    }
    let quick = ["conform", "--quick", "--attention", &library, "--group", "honesty"];
    ehun(folder.path(), &quick).expect(0);
    assert_eq!(ehun(folder.path(), &process).code, Some(1), "a part of the suite is not the suite");
    let mut trusting = process.to_vec();
    trusting.push("--trust");
    ehun(folder.path(), &trusting).expect(0);

    let said = ehun(folder.path(), &["conform", "--attention", &library]).expect(0);
    assert!(said.contains("remembered for"), "{said}");
    ehun(folder.path(), &process).expect(0);

    // Another file of the same name is another plug-in.
    plugin(folder.path(), "good", Some(("example-c 1.0", "example-c 1.1"))).unwrap();
    let ran = ehun(folder.path(), &process);
    assert_eq!(ran.code, Some(1), "{}", ran.stdout);
}

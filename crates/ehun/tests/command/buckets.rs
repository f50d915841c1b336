//! The static shapes of a service: what its file says is what is compiled, and no backend ignores it in silence.

use std::path::Path;

use serde_json::{Value, json};

use crate::common::{command, ehun, root, write_all, xla_cpu_plugin};
use crate::server::{Server, free_address};

/// A file with one service of the golden model.
fn file(folder: &Path, backends: &str, buckets: &str) -> String {
    let model = root().join("goldens/st-mean").canonicalize().unwrap();
    let text = format!("[service.a]\nmodel = {model:?}\nbackends = {backends}\nbuckets = {buckets}\n");
    std::fs::write(folder.join("ehun.toml"), text).unwrap();
    folder.join("ehun.toml").to_str().unwrap().to_owned()
}

#[test]
fn the_shapes_in_the_file_are_those_compiled() {
    let Some(plugin) = xla_cpu_plugin() else { return println!("not run: the CPU plugin is not installed") };
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().to_str().unwrap();
    let variables = [("EHUN_PJRT_PLUGIN_CPU", plugin.to_str().unwrap()), ("XDG_CACHE_HOME", cache)];
    write_all(folder.path(), &[("texts.txt", b"tides\nmoon\n"), ("lengths.txt", b"5 2\n")]);
    let mut programs = Vec::new();
    for buckets in [r#""2x16,1x32""#, r#"{ lengths = "lengths.txt" }"#, r#"{ sample = "texts.txt" }"#] {
        let config = file(folder.path(), r#"["xla:cpu", "cpu"]"#, buckets);
        let server = Server::start_with(&["--config", &config], free_address(), &variables);
        let (status, head, answer) = server.post("/v1/embeddings", &json!({"input": "tides"}));
        assert!(status == 200 && head.contains("x-ehun-backend: xla:cpu"), "{buckets}: {head} {answer}");
        programs.push(server.get("/v1/services")["services"][0]["warm_up"]["programs"].as_u64());
    }
    // The texts are of one length, which gets three programs beside the three of the longest, as in the histogram; without
    // either there are 24.
    assert_eq!(programs, [Some(2), Some(6), Some(6)]);

    let model = root().join("goldens/st-mean");
    let arguments = ["embed", "--model", model.to_str().unwrap(), "--buckets", "2x16", "--backend", "xla:cpu,cpu"];
    let output = command(&[&arguments[..], &["tides"]].concat()).envs(variables).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && said.contains("the buckets are not for cpu"), "{said}");
}

#[test]
fn shapes_that_nothing_has_or_a_file_that_is_not_there_are_refused() {
    for arguments in
        [&["embed", "--backend", "cpu", "--buckets", "2x16", "tides"][..], &["explain", "--buckets", "2x16"]]
    {
        let said = ehun(arguments);
        assert_eq!(said.code, Some(2), "{}", said.stderr);
        assert!(said.stderr.contains("cpu takes batches of any shape"), "{}", said.stderr);
    }
    let folder = tempfile::tempdir().unwrap();
    let listen = free_address().to_string();
    let serve = |buckets: &str| -> (Option<i32>, String) {
        let config = file(folder.path(), r#"["cpu"]"#, buckets);
        let said = ehun(&["serve", "--listen", &listen, "--admin", "off", "--config", &config]);
        (said.code, said.stderr)
    };
    for (buckets, code, words) in [
        (r#""2x16""#, 1, "cpu takes batches of any shape"),
        (r#"{ lengths = "nothing.txt" }"#, 1, "nothing.txt: No such file"),
        (r#""2by16""#, 2, "line 4"),
    ] {
        let (ended, said) = serve(buckets);
        assert!(ended == Some(code) && said.contains(words), "{buckets}: {ended:?} {said}");
    }
    // What names no shape asks for nothing.
    let said: Value = serde_json::from_str(&ehun(&["explain", "--buckets", "auto", "--json"]).expect(0)).unwrap();
    assert_eq!(said["backends"][0]["backend"], "cpu");
}

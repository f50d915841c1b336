//! A service whose first backend is not to be had: the one that is named after it answers, and the reason is on show.

use std::path::Path;

use serde_json::json;

use crate::common::{command, ehun};
use crate::server::{Server, free_address};

#[test]
fn a_service_falls_to_the_backend_that_is_named_next() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text.so");
    std::fs::write(&text, "this is text\n").unwrap();
    let config = folder.path().join("ehun.toml");
    std::fs::write(&config, "[service.search]\nbackends = [\"xla:cpu\", \"cpu\"]\nthreads = 1\n").unwrap();
    for (plugin, words) in [(Path::new("/nowhere/plugin.so"), "No such file"), (&text, "is no shared library")] {
        let plugin = plugin.to_str().unwrap();
        let variables = [("EHUN_PJRT_PLUGIN_CPU", plugin)];
        let server = Server::start_with(&["--config", config.to_str().unwrap()], free_address(), &variables);
        let (status, head, answer) = server.post("/v1/embeddings", &json!({"input": "tides"}));
        assert!(status == 200 && head.contains("x-ehun-backend: cpu"), "{head} {answer}");
        let service = &server.get("/v1/services")["services"][0];
        assert_eq!(service["backends"].as_array().map(Vec::len), Some(1), "{service}");
        let left_out = &service["left_out"][0];
        assert_eq!(left_out["backend"], "xla:cpu", "{service}");
        let reason = left_out["reason"].as_str().unwrap();
        assert!(reason.contains(words) && reason.contains(plugin), "{reason}");
    }
}

#[test]
fn without_a_next_backend_it_is_an_error() {
    let run = |backends: &str| {
        let mut command = command(&["embed", "--backend", backends, "tides"]);
        let output = command.env("EHUN_PJRT_PLUGIN_CPU", "/nowhere/plugin.so").output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, said) = run("xla:cpu");
    assert!(code == Some(1) && said.contains("backend `xla:cpu` is not available"), "{said}");
    // All that are named, each with its reason.
    let (code, said) = run("xla:cpu,xla:cpu");
    assert!(code == Some(1) && said.contains("none of the backends can be made ready: xla:cpu: "), "{said}");
    let (code, said) = run("xla:cpu,cpu");
    assert!(code == Some(0) && said.contains("xla:cpu is left out: "), "{said}");
    // A name that no backend has is a mistake, whatever is named after it.
    let said = ehun(&["embed", "--backend", "xla:abacus,cpu", "tides"]);
    assert!(said.code == Some(1) && said.stderr.contains("this program was built with"), "{}", said.stderr);
}

/// What is missing for compiling without a GPU is said, all of it.
#[test]
fn compiling_for_cuda_says_what_is_missing() {
    if ["/usr/local/cuda", "/opt/cuda"].iter().any(|folder| Path::new(folder).exists()) {
        return println!("not run: NVIDIA's tools are here");
    }
    let mut command = command(&["compile", "--backend", "xla:cuda", "--topology", "h100_sxm"]);
    for unset in ["EHUN_PJRT_PLUGIN_CUDA", "CUDA_HOME", "XLA_FLAGS", "PATH"] {
        command.env_remove(unset);
    }
    let output = command.env("XDG_DATA_HOME", "/nowhere").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    for words in ["EHUN_PJRT_PLUGIN_CUDA is not set", "ptxas (", "libdevice.10.bc ("] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let said = ehun(&["compile", "--backend", "xla:tpu"]);
    assert!(said.code == Some(2) && said.stderr.contains("--topology NAME is needed"), "{}", said.stderr);
}

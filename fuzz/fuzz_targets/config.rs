//! Any bytes as the configuration of a model: `config.json`, and after a NUL byte each `modules.json` and `1_Pooling/config.json`.
//! Weights and tokenizer are those of the golden of the family that the configuration names. It is refused, or there is a graph
//! that the weights fit.

#![no_main]

use std::path::{Path, PathBuf};

use ehun_models::{Checkpoint, LoadOptions, Model};
use libfuzzer_sys::fuzz_target;

const FILES: [&str; 3] = ["config.json", "modules.json", "1_Pooling/config.json"];

/// The golden whose `model_type` the text names, BERT's where it names none.
fn golden(text: &[u8]) -> PathBuf {
    let config: serde_json::Value = serde_json::from_slice(text).unwrap_or_default();
    let kind = config["model_type"].as_str().unwrap_or("bert");
    let name = match kind {
        "nomic_bert" => "nomic-bert",
        "gemma3_text" => "gemma3",
        "jina_embeddings_v3" => "jina-v3",
        "new" => "gte",
        "t5" | "mt5" => "t5-encoder",
        other => other,
    };
    let goldens = Path::new(env!("CARGO_MANIFEST_DIR")).join("../goldens");
    let folder = goldens.join(name);
    // The name is any text: it must not lead elsewhere.
    if name.contains(['/', '\\', '.', '\0']) || !folder.is_dir() { goldens.join("bert") } else { folder }
}

fuzz_target!(|data: &[u8]| {
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder");
    let parts: Vec<&[u8]> = data.splitn(FILES.len(), |&byte| byte == 0).collect();
    let golden = golden(parts[0]);
    for file in ["model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        let _ = std::os::unix::fs::symlink(golden.join(file), folder.path().join(file));
    }
    for (file, part) in FILES.iter().zip(&parts) {
        let path = folder.path().join(file);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).expect("a folder");
        }
        std::fs::write(path, part).expect("a file");
    }
    let options = LoadOptions { check_finite: false, ..LoadOptions::default() };
    if let Ok(checkpoint) = Checkpoint::open(folder.path())
        && let Ok(model) = Model::load(&checkpoint, &options)
    {
        model.graph().check_weights(model.weights()).expect("a loaded model's weights fit its graph");
        assert!(model.max_tokens() > 0);
    }
});

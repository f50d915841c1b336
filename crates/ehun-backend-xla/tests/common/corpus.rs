//! The texts of the repository and their lengths in tokens.

use std::path::{Path, PathBuf};

use ehun_models::{Checkpoint, LoadOptions, Model};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The model that `cargo xtask models` fetches, or a line that says that the test did not run.
pub fn minilm() -> Option<Model> {
    let folder = root().join(".cache/models/all-MiniLM-L6-v2");
    if !folder.join("model.safetensors").exists() {
        println!("not run: no all-MiniLM-L6-v2 (cargo xtask models)");
        return None;
    }
    Some(Model::load(&Checkpoint::open(folder).unwrap(), &LoadOptions::default()).unwrap())
}

/// The abstracts of the Cranfield collection.
pub fn cranfield() -> Vec<String> {
    let text = std::fs::read_to_string(root().join("data/cranfield/cran.all.1400.xml")).unwrap();
    let texts = text.split("<text>").skip(1).filter_map(|rest| rest.split("</text>").next());
    texts.map(|text| text.split_whitespace().collect::<Vec<_>>().join(" ")).filter(|text| !text.is_empty()).collect()
}

/// The paragraphs of the reference vectors.
pub fn paragraphs() -> Vec<String> {
    let text = std::fs::read(root().join("tests/reference/paragraphs.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

//! The model that is part of the program: all-MiniLM-L6-v2 with its weights rounded to float16.

use std::fs;
use std::path::Path;

use ehun_graph::WeightStore;
use half::f16;
use safetensors::Dtype;
use safetensors::tensor::TensorView;

use crate::command::{Outcome, root};
use crate::fetch::MINILM;

/// Files that are taken as they are.
const FILES: &[&str] = &[
    "config.json",
    "config_sentence_transformers.json",
    "modules.json",
    "sentence_bert_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "1_Pooling/config.json",
];

/// blake3 of the converted weights: rounding to nearest even leaves no room for another result.
const CONVERTED: &str = "c1798f9ebb42adaf108c9bd42ad91336c69f6b507d68b00af11bd9d4dfc65768";

/// Makes `assets/model`, which the build of the program includes.
pub fn setup(_: &[String]) -> Outcome {
    let target = root().join("assets/model");
    let weights = target.join("model.safetensors");
    let error = |path: &Path, e: std::io::Error| format!("{}: {e}", path.display());
    if fs::read(&weights).is_ok_and(|bytes| hash(&bytes) == CONVERTED) {
        return Ok(());
    }
    let source = MINILM.fetch()?;
    for file in FILES {
        let to = target.join(file);
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder).map_err(|e| error(folder, e))?;
        }
        fs::copy(source.join(file), &to).map_err(|e| error(&to, e))?;
    }
    let converted = to_f16(&source.join("model.safetensors"))?;
    if hash(&converted) != CONVERTED {
        return Err(format!("the converted weights have the hash {}, not {CONVERTED}", hash(&converted)));
    }
    fs::write(&weights, converted).map_err(|e| error(&weights, e))?;
    println!("the embedded model is in {}", target.display());
    Ok(())
}

fn hash(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

fn to_f16(path: &Path) -> Result<Vec<u8>, String> {
    let store = WeightStore::open(&[path]).map_err(|e| e.to_string())?;
    // `position_ids` is a counter that old versions of transformers stored; it is no weight.
    let mut names: Vec<&str> = store.names().filter(|name| store.dtype(name).is_some()).collect();
    names.sort_unstable();
    let mut tensors = Vec::new();
    for name in names {
        let Some(view) = store.view(name) else { continue };
        let bytes: Vec<u8> = view.to_f32().iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect();
        tensors.push((name, view.shape.to_vec(), bytes));
    }
    let views = tensors
        .iter()
        .map(|(name, shape, bytes)| Ok((*name, TensorView::new(Dtype::F16, shape.clone(), bytes)?)))
        .collect::<Result<Vec<_>, safetensors::SafeTensorError>>()
        .map_err(|e| e.to_string())?;
    safetensors::serialize(views, None).map_err(|e| e.to_string())
}

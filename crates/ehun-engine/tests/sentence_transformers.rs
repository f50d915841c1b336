//! The vectors of 500 real texts are those of sentence-transformers: `tests/reference`, made by
//! `tools/reference/embeddings.py`.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ehun_backend::{Attention, BackendFactory, Options};
use ehun_backend_cpu::CpuFactory;
use ehun_engine::{Deployment, HealthPolicy, Input, Request, Service, ServiceConfig, tasks};
use ehun_models::{Checkpoint, LoadOptions, Model};

const WIDTH: usize = 384;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn reference() -> Result<(Vec<String>, Vec<f32>), Box<dyn Error>> {
    let folder = root().join("tests/reference");
    let texts: Vec<String> = serde_json::from_slice(&std::fs::read(folder.join("paragraphs.json"))?)?;
    let bytes = std::fs::read(folder.join("all-MiniLM-L6-v2.f32"))?;
    let vectors: Vec<f32> = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    assert_eq!(vectors.len(), texts.len() * WIDTH);
    Ok((texts, vectors))
}

/// The vectors of `texts` by the model in `directory`, or `None` where it was not fetched.
fn embed(directory: &str, attention: &str, texts: &[String]) -> Result<Option<Vec<Vec<f32>>>, Box<dyn Error>> {
    let directory = root().join(directory);
    if !directory.join("model.safetensors").exists() {
        println!("not run: {} is not there (cargo xtask setup, cargo xtask models)", directory.display());
        return Ok(None);
    }
    let model = Arc::new(Model::load(&Checkpoint::open(directory)?, &LoadOptions::default())?);
    let options = Options { attention: attention.parse::<Attention>()?, ..Options::default() };
    let deployment = Deployment::of_model(model, &[CpuFactory.open("cpu")?], &options, HealthPolicy::default())?;
    let config = ServiceConfig { queue_tokens: usize::MAX, ..ServiceConfig::default() };
    let service = Service::start(config, deployment, Vec::new())?;
    let inputs = texts.iter().map(|text| Input::from(text.as_str())).collect();
    let response = service.request(Request::new(inputs))?.wait();
    let mut vectors = Vec::new();
    for item in response.items {
        vectors.push(tasks::row(item?)?);
    }
    Ok(Some(vectors))
}

#[test]
fn float32_weights_give_its_vectors_to_2e_6_in_every_component() -> Result<(), Box<dyn Error>> {
    let (texts, want) = reference()?;
    for attention in ["auto", "naive", "flash"] {
        let Some(vectors) = embed(".cache/models/all-MiniLM-L6-v2", attention, &texts)? else { return Ok(()) };
        let mut worst = (0.0, 0);
        for (i, (vector, want)) in vectors.iter().zip(want.chunks(WIDTH)).enumerate() {
            assert_eq!(vector.len(), WIDTH);
            for (a, b) in vector.iter().zip(want) {
                let difference = (a - b).abs();
                assert!(difference.is_finite());
                if difference > worst.0 {
                    worst = (difference, i);
                }
            }
        }
        println!("{attention}: largest difference {:.2e}, text {}", worst.0, worst.1);
        assert!(worst.0 <= 2e-6, "{attention}: {:.2e} at text {}", worst.0, worst.1);
    }
    Ok(())
}

#[test]
fn float16_weights_keep_the_cosine_at_0_99999() -> Result<(), Box<dyn Error>> {
    let (texts, want) = reference()?;
    let Some(vectors) = embed("assets/model", "auto", &texts)? else { return Ok(()) };
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum::<f64>();
    let mut least: f64 = 1.0;
    for (vector, want) in vectors.iter().zip(want.chunks(WIDTH)) {
        least = least.min(dot(vector, want) / (dot(vector, vector) * dot(want, want)).sqrt());
    }
    println!("least cosine {least:.8}");
    assert!(least >= 0.99999, "least cosine {least}");
    Ok(())
}

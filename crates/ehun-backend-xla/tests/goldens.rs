//! Every golden checkpoint on XLA's CPU plugin: what transformers and sentence-transformers answer.

mod common;
#[path = "../../../tests/golden.rs"]
mod golden;

use std::path::PathBuf;

use ehun_backend::{BucketChoice, Options, Precision, RunOptions};
use ehun_backend_xla::XlaBackend;
use golden::{Golden, folders, larger, share};

/// Rows of fewer columns are logits.
const VECTOR: usize = 16;

/// 1 less the cosine.
fn apart(got: &[f64], want: &[f64]) -> f64 {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    1.0 - dot(got, want) / (dot(got, got) * dot(want, want)).sqrt()
}

/// The share of the tolerance at f32, the worst of all cases. At bf16 1 less the cosine: of each case where the output is
/// a vector, of all cases together where it is logits, as a few numbers alone are no direction.
fn worst(backend: &XlaBackend, golden: &Golden, precision: Precision) -> f64 {
    let options = Options {
        precision,
        buckets: BucketChoice::List(vec![golden.bucket()]),
        cache: Some(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("programs")),
        ..Options::default()
    };
    let executable = backend.compile_xla(golden.model.graph().clone(), golden.model.weights(), &options).unwrap();
    let outputs = ehun_backend::run(&executable, &golden.batch, &RunOptions::default()).unwrap();
    let answers = golden.answers(&outputs);
    if precision == Precision::F32 {
        return answers.iter().map(|(got, want)| share(got, want, golden.tolerance)).fold(0.0, larger);
    }
    let of_each = answers.iter().filter(|_| outputs.values[0].width >= VECTOR).map(|(got, want)| apart(got, want));
    let (got, want): (Vec<_>, Vec<_>) = answers.iter().cloned().unzip();
    larger(of_each.fold(0.0, larger), apart(&got.concat(), &want.concat()))
}

fn all(precision: Precision, allowed: f64) {
    let Some(backend) = common::backend() else { return };
    let mut failed = Vec::new();
    for folder in folders() {
        let golden = Golden::read(&folder);
        let worst = worst(&backend, &golden, precision);
        println!("{:<40} {worst:.2e}", golden.name);
        if worst > allowed {
            failed.push(format!("{} {worst:.2e}", golden.name));
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn every_golden_is_met_in_f32() {
    all(Precision::F32, 1.0);
}

#[test]
fn bf16_keeps_the_direction() {
    all(Precision::Bf16, 1e-3);
}

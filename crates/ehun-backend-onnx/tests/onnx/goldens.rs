//! Every golden checkpoint on ONNX Runtime's CPU provider: what transformers and sentence-transformers answer.

use ehun_backend::{Attention, BackendError, BucketChoice, Options, RunOptions};
use ehun_backend_onnx::OnnxBackend;

use crate::common;
use crate::golden::{Golden, folders, larger, share};

/// The worst of all cases as the share of the tolerance, or nothing where the form is refused.
fn worst(backend: &OnnxBackend, golden: &Golden, attention: &Attention) -> Option<f64> {
    let options = Options {
        attention: attention.clone(),
        buckets: BucketChoice::List(vec![golden.bucket()]),
        ..Options::default()
    };
    let executable = match backend.compile_onnx(golden.model.graph().clone(), golden.model.weights(), &options) {
        Err(BackendError::Refused(_)) if *attention != Attention::Auto => return None,
        compiled => compiled.unwrap(),
    };
    let outputs = ehun_backend::run(&executable, &golden.batch, &RunOptions::default()).unwrap();
    let answers = golden.answers(&outputs);
    Some(answers.iter().map(|(got, want)| share(got, want, golden.tolerance)).fold(0.0, larger))
}

/// Every golden in a form; returns how many there are and how many were run.
fn all(attention: &Attention) -> Option<(usize, usize)> {
    let backend = common::backend()?;
    let folders = folders();
    let (mut ran, mut failed) = (0, Vec::new());
    for folder in &folders {
        let golden = Golden::read(folder);
        let name = &golden.name;
        let Some(worst) = worst(&backend, &golden, attention) else {
            println!("{name:<40} refused");
            continue;
        };
        println!("{name:<40} {worst:.2e}");
        ran += 1;
        if worst > 1.0 {
            failed.push(format!("{name} {worst:.2e}"));
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
    Some((folders.len(), ran))
}

#[test]
fn every_golden_is_met_with_native_attention() {
    if let Some((there, ran)) = all(&Attention::Named("native".into())) {
        assert_eq!(ran, there, "the native form takes every specification");
    }
}

#[test]
fn every_golden_is_met_with_the_fused_operator_where_it_can() {
    if let Some((there, ran)) = all(&Attention::Named("fused".into())) {
        assert!(ran > there / 2, "{ran} of {there}");
    }
}

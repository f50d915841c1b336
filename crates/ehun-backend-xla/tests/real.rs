//! Real texts and real weights: padding of chosen buckets as the engine forms batches, and the vectors against the native
//! CPU backend.

mod common;
#[path = "common/corpus.rs"]
mod corpus;

use std::path::PathBuf;

use ehun_backend::buckets::{MAX_PROGRAMS, choose, pick};
use ehun_backend::{BackendFactory, Bucket, BucketChoice, Options, Precision, RunOptions};
use ehun_engine::{Shape, split};
use ehun_graph::{RaggedBatch, SequenceInput};

/// The share of rows that are padding when the engine batches items of these lengths.
fn padding(lengths: &[usize], buckets: &[Bucket]) -> f64 {
    let (mut rows, mut tokens) = (0, 0);
    for part in split(&Shape::Buckets(buckets.to_vec()), lengths) {
        let longest = part.iter().map(|&item| lengths[item]).max().unwrap();
        let bucket = buckets[pick(buckets, part.len(), longest).unwrap()];
        rows += part.len().div_ceil(bucket.batch) * bucket.batch * bucket.length;
        tokens += part.iter().map(|&item| lengths[item]).sum::<usize>();
    }
    1.0 - tokens as f64 / rows as f64
}

/// Every second text is the sample; what then comes are these, the other half, or all of them.
#[test]
fn real_texts_pad_less_than_a_tenth() {
    let Some(model) = corpus::minilm() else { return };
    let corpora = [("abstracts", corpus::cranfield()), ("paragraphs", corpus::paragraphs())];
    for (name, texts) in corpora {
        let lengths: Vec<usize> = texts.iter().map(|text| model.tokenize(text.as_str()).unwrap().ids.len()).collect();
        let half = |odd: usize| lengths.iter().copied().skip(odd).step_by(2).collect::<Vec<_>>();
        let buckets = choose(&BucketChoice::Sample(half(0)), model.max_tokens(), 4096).unwrap();
        assert!(buckets.len() <= MAX_PROGRAMS, "{}", buckets.len());
        let (seen, unseen, all) =
            (padding(&half(0), &buckets), padding(&half(1), &buckets), padding(&lengths, &buckets));
        println!(
            "{name}: {} texts, {} programs, padding {:.1} % of the sample, {:.1} % of the rest, {:.1} % of all",
            texts.len(),
            buckets.len(),
            100.0 * seen,
            100.0 * unseen,
            100.0 * all
        );
        assert!(seen < 0.1 && unseen < 0.1 && all < 0.1, "{name}: {seen} {unseen} {all}");
    }
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// The least cosine over real paragraphs: rounding is all that may differ at f32.
#[test]
fn vectors_are_those_of_the_native_backend() {
    let Some(backend) = common::backend() else { return };
    let Some(model) = corpus::minilm() else { return };
    let inputs: Vec<SequenceInput> =
        corpus::paragraphs().iter().step_by(8).map(|text| model.embed_input(text, None).unwrap()).collect();
    let native = ehun_backend_cpu::CpuFactory.open(ehun_backend_cpu::NAME).unwrap();
    let native = native.compile(model.graph().clone(), model.weights(), &Options::default()).unwrap();
    for (precision, least) in [(Precision::F32, 0.999_999), (Precision::Bf16, 0.999)] {
        let options = Options {
            precision,
            buckets: BucketChoice::List(vec![(8, 64), (4, 256)]),
            cache: Some(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("programs")),
            ..Options::default()
        };
        let executable = backend.compile_xla(model.graph().clone(), model.weights(), &options).unwrap();
        let mut worst = 1.0f64;
        for part in inputs.chunks(8) {
            let batch = RaggedBatch::pack(part).unwrap();
            let run = |executable: &dyn ehun_backend::Executable| {
                ehun_backend::run(executable, &batch, &RunOptions::default()).unwrap()
            };
            let (got, want) = (run(&executable), run(native.as_ref()));
            for sequence in 0..part.len() {
                worst = worst.min(cosine(got.values[0].row(sequence), want.values[0].row(sequence)));
            }
        }
        println!("{precision}: {} paragraphs, least cosine 1 - {:.1e}", inputs.len(), 1.0 - worst);
        assert!(worst >= least, "{precision}: {worst}");
    }
}

//! Rounds of everything that the foreign interface makes: program, executable, serialised form, buffers, events, errors. What
//! was made is freed. `cargo xtask leaks` runs this under valgrind, with more rounds.

mod common;

use std::sync::Arc;

use ehun_backend::{BucketChoice, Options, RunOptions};
use ehun_backend_xla::pjrt::{Client, live_handles};
use ehun_backend_xla::plugins;
use ehun_graph::{GraphBuilder, Index, PoolingMode, RaggedBatch, WeightRef, WeightStore};

#[test]
fn what_is_made_is_freed() {
    let Some(backend) = common::backend() else { return };
    let rounds: usize = std::env::var("EHUN_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3);
    let mut b = GraphBuilder::new();
    let x = b.embedding("words", WeightRef::whole("words", &[5, 2]), Index::TokenId).unwrap();
    let pooled = b.pooling("pooling", x, PoolingMode::Mean).unwrap();
    b.output("embedding", pooled);
    let graph = Arc::new(b.finish().unwrap());
    let table: Vec<f32> = (0..10).map(|i| i as f32).collect();
    let weights = WeightStore::from_tensors(vec![("words".into(), vec![5, 2], table)]).unwrap();
    let cache = tempfile::tempdir().unwrap();
    let options = Options {
        buckets: BucketChoice::List(vec![(2, 4)]),
        cache: Some(cache.path().to_owned()),
        ..Options::default()
    };
    let batch = RaggedBatch::from_ids(&[[1u32, 3].as_slice(), &[4]]);
    let plugin = plugins::load("cpu", &common::plugin().unwrap()).unwrap();
    let client = Client::of(&plugin).unwrap();
    let before = live_handles();
    let mut most = before.buffers;
    for round in 0..rounds {
        if round % 2 == 0 {
            // Every other round compiles and serialises, the ones between load what was written.
            std::fs::remove_dir_all(cache.path()).unwrap();
        }
        let executable = backend.compile_xla(graph.clone(), &weights, &options).unwrap();
        let report = executable.reports().next().unwrap();
        assert_eq!((report.from_cache, report.notes.as_slice()), (round % 2 == 1, [].as_slice()));
        let outputs = ehun_backend::run(&executable, &batch, &RunOptions::default()).unwrap();
        assert_eq!(outputs.values[0].data, [4.0, 5.0, 8.0, 9.0]);
        most = most.max(live_handles().buffers);
        // The plugin's errors are handles too.
        assert!(client.compile("this is no program").is_err());
        drop(executable);
        assert_eq!(live_handles(), before, "round {round}");
    }
    assert!(most > before.buffers, "the counter counts");
}

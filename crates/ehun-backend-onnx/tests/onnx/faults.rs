//! What is not to be had is said, with a reason; what a session cannot do leaves it usable.

use std::sync::Arc;

use ehun_backend::{
    Attention, Backend, BackendError, BackendFactory, BucketChoice, Executable, Options, Precision, RunOptions,
};
use ehun_backend_onnx::{OnnxConfig, OnnxFactory};
use ehun_graph::{AttentionSpec, Graph, GraphBuilder, Index, PoolingMode, RaggedBatch, WeightRef, WeightStore};

use crate::common;

/// Looked-up rows, one attention, a linear and a pooling.
fn small(spec: AttentionSpec) -> (Arc<Graph>, WeightStore) {
    let width = spec.num_heads * spec.head_dim;
    let mut builder = GraphBuilder::new();
    let table = builder.embedding("rows", WeightRef::whole("table", &[10, width]), Index::TokenId).unwrap();
    let keys =
        builder.embedding("keys", WeightRef::whole("keys", &[10, spec.num_kv_heads * spec.head_dim]), Index::TokenId);
    let keys = keys.unwrap();
    let mixed = builder.attention("attention", table, keys, keys, spec).unwrap();
    let out = builder.linear("out", mixed, WeightRef::whole("out", &[3, width]), None).unwrap();
    let pooled = builder.pooling("pooling", out, PoolingMode::Mean).unwrap();
    builder.output("pooled", pooled);
    let graph = builder.finish().unwrap();
    let tensors = graph
        .weights()
        .iter()
        .map(|weight| {
            let count: usize = weight.shape.iter().product();
            let values = (0..count).map(|i| ((i * 37 % 19) as f32 - 9.0) / 9.0).collect();
            (weight.name.clone(), weight.shape.clone(), values)
        })
        .collect();
    (Arc::new(graph), WeightStore::from_tensors(tensors).unwrap())
}

fn options() -> Options {
    Options { buckets: BucketChoice::List(vec![(2, 8)]), threads: Some(1), ..Options::default() }
}

#[test]
fn a_library_that_is_none_is_said_by_its_path() {
    let folder = tempfile::tempdir().unwrap();
    let absent = folder.path().join("libonnxruntime.so");
    let open = |library: &std::path::Path| {
        let factory = OnnxFactory::new(OnnxConfig { library: Some(library.to_owned()) });
        factory.open("onnx:cpu").err().expect("there is no such library").to_string()
    };
    assert!(open(&absent).contains(&absent.display().to_string()));
    let text = folder.path().join("text.so");
    std::fs::write(&text, "no library").unwrap();
    assert!(open(&text).contains("not loaded"), "{}", open(&text));
    let error = OnnxFactory::default().open("onnx:abacus").err().unwrap().to_string();
    assert!(error.contains("onnx:cpu") && error.contains("onnx:qnn"), "{error}");
}

#[test]
fn a_provider_that_is_not_there_is_refused_and_names_its_package() {
    let Some(factory) = common::factory() else { return };
    for (name, package) in [
        ("onnx:tensorrt", "onnxruntime-gpu"),
        ("onnx:openvino", "onnxruntime-openvino"),
        ("onnx:coreml", "onnxruntime"),
        ("onnx:directml", "onnxruntime-directml"),
        ("onnx:qnn", "onnxruntime-qnn"),
        ("onnx:cuda", "onnxruntime-gpu"),
    ] {
        let error = factory.open(name).err().expect("the CPU's library has no other provider").to_string();
        assert!(error.contains(package) && error.contains("CPUExecutionProvider"), "{error}");
    }
    // The short name is the CPU, which reports what it is.
    assert!(factory.knows("onnx"));
    assert_eq!(factory.open("onnx").unwrap().info().name, "onnx:cpu");
}

#[test]
fn what_is_not_claimed_is_refused_before_anything_is_loaded() {
    let Some(backend) = common::backend() else { return };
    let (graph, weights) = small(AttentionSpec::full(2, 4));
    let (grouped, _) = small(AttentionSpec { num_kv_heads: 1, ..AttentionSpec::full(2, 4) });
    let fused = Attention::Named("fused".into());
    let cases = [
        (&graph, Options { precision: Precision::F16, ..options() }, "f16"),
        (&graph, Options { attention: Attention::Named("flash".into()), ..options() }, "native and fused"),
        (&graph, Options { attention: Attention::File("mine.so".into()), ..options() }, "mine.so"),
        (&grouped, Options { attention: fused, ..options() }, "as many key heads"),
        (&graph, Options { buckets: BucketChoice::List(vec![]), ..options() }, "empty"),
    ];
    for (graph, options, word) in cases {
        let said = backend.capabilities(graph, &options).refusals;
        assert!(said.iter().any(|refusal| refusal.reason.contains(word)), "{word}: {said:?}");
        match backend.compile(graph.clone(), &weights, &options) {
            Err(BackendError::Refused(refusals)) => assert_eq!(refusals, said),
            other => panic!("{word}: {:?}", other.err()),
        }
    }
}

#[test]
fn the_report_says_where_every_node_ran() {
    let Some(backend) = common::backend() else { return };
    let (graph, weights) = small(AttentionSpec::full(2, 4));
    for (form, operator) in [("native", "Softmax"), ("fused", "MultiHeadAttention")] {
        let options = Options { attention: Attention::Named(form.into()), ..options() };
        let executable = backend.compile_onnx(graph.clone(), &weights, &options).unwrap();
        let placement = executable.placement();
        assert_eq!(placement.len(), 1, "{placement:?}");
        assert_eq!(placement[0].provider, "CPUExecutionProvider");
        assert!(placement[0].operators.contains_key(operator), "{placement:?}");
        let nodes: usize = placement[0].operators.values().sum();
        let batch = RaggedBatch::from_ids(&[vec![1, 2, 3], vec![4]]);
        let outputs = ehun_backend::run(&executable, &batch, &RunOptions::default()).unwrap();
        assert_eq!(outputs.report.device, format!("CPUExecutionProvider ({nodes} nodes)"));
        assert_eq!(outputs.report.attention.keys().collect::<Vec<_>>(), [form]);
    }
}

#[test]
fn a_batch_larger_than_its_bucket_runs_in_pieces_with_the_same_bits() {
    let Some(backend) = common::backend() else { return };
    let (graph, weights) = small(AttentionSpec::full(2, 4));
    let executable = backend.compile_onnx(graph, &weights, &options()).unwrap();
    let sequences: Vec<Vec<u32>> = vec![vec![1, 2, 3], vec![], vec![9; 8], vec![5, 6], vec![7]];
    let run = |sequences: &[Vec<u32>]| {
        let batch = RaggedBatch::from_ids(sequences);
        ehun_backend::run(&executable, &batch, &RunOptions::default()).unwrap()
    };
    let all = run(&sequences);
    assert_eq!(all.report.padding_tokens, 3 * 2 * 8 - 14);
    assert!(all.values[0].row(1).iter().all(|&x| x == 0.0), "an empty sequence pools to zeros");
    for (i, sequence) in sequences.iter().enumerate() {
        assert_eq!(run(std::slice::from_ref(sequence)).values[0].data, all.values[0].row(i));
    }
    let long = RaggedBatch::from_ids(&[vec![1; 9]]);
    assert!(matches!(executable.plan(&long), Err(BackendError::Refused(_))));
}

//! What the contract asks beside numbers: refusals with reasons, deadlines, reports, empty input.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{Bert, bert, compile, run, sequences, weights};
use ehun_backend::{Attention, Backend, BackendError, Options, Precision, Registry, RunOptions, ShapePolicy};
use ehun_backend_cpu::{CpuBackend, CpuFactory, simd::Isa};
use ehun_graph::{
    AttentionSpec, Graph, GraphBuilder, Index, PoolingMode, RaggedBatch, SequenceInput, WeightRef, WeightStore,
};

fn model() -> Graph {
    let mut b = GraphBuilder::new();
    let x = bert(&mut b, &Bert::SMALL).expect("a graph");
    let pooled = b.pooling("pooling", x, PoolingMode::Mean).expect("pooling");
    b.output("embedding", pooled);
    b.finish().expect("a graph")
}

/// One attention over embeddings, with heads of this width.
fn attention_of(head_dim: usize) -> Graph {
    let mut b = GraphBuilder::new();
    let x = b.embedding("word", WeightRef::whole("word", &[10, head_dim]), Index::TokenId).expect("a table");
    b.scope("layer.0");
    let y = b.attention("self", x, x, x, AttentionSpec::full(1, head_dim)).expect("attention");
    b.output("tokens", y);
    b.finish().expect("a graph")
}

#[test]
fn the_registry_opens_it() {
    let registry = Registry::new().with(CpuFactory);
    let backend = registry.open("cpu").expect("the backend");
    let info = backend.info();
    assert_eq!(info.attention_kernels, ["naive", "flash"]);
    assert_eq!(info.precisions, [Precision::F32, Precision::Int8]);
    assert!(info.device.contains("thread"), "{}", info.device);
}

#[test]
fn compile_refuses_exactly_what_capabilities_refuse() {
    let backend = CpuBackend::new(Isa::best());
    let named = |name: &str| Attention::Named(name.into());
    let cases = [
        (attention_of(64), Options::default(), vec![]),
        (attention_of(256), Options { attention: named("flash"), ..Options::default() }, vec![]),
        (attention_of(257), Options::default(), vec!["layer.0.self: head width 257 is above 256", "value head width"]),
        (attention_of(64), Options { precision: Precision::Int8, ..Options::default() }, vec![]),
        (attention_of(64), Options { precision: Precision::F16, ..Options::default() }, vec!["precision f16"]),
        (attention_of(64), Options { precision: Precision::Bf16, ..Options::default() }, vec!["precision bf16"]),
        (
            attention_of(64),
            Options { attention: named("fast"), ..Options::default() },
            vec!["no attention kernel `fast`"],
        ),
        (
            attention_of(64),
            Options { attention: Attention::File("./kernel.so".into()), threads: Some(0), ..Options::default() },
            vec!["0 threads", "attention from `./kernel.so`"],
        ),
    ];
    for (graph, options, reasons) in cases {
        let capabilities = backend.capabilities(&graph, &options);
        let store = weights(&graph, 1);
        let compiled = backend.compile(Arc::new(graph), &store, &options);
        assert_eq!(capabilities.refusals.len(), reasons.len(), "{:?}", capabilities.refusals);
        for (refusal, reason) in capabilities.refusals.iter().zip(&reasons) {
            assert!(refusal.to_string().contains(reason), "{refusal} has no `{reason}`");
        }
        match compiled.err() {
            None => assert!(reasons.is_empty()),
            Some(error) => assert_eq!(error, BackendError::Refused(capabilities.refusals)),
        }
    }
}

#[test]
fn a_passed_deadline_ends_the_run_and_the_next_one_is_right() {
    let graph = model();
    let executable = compile(&graph, &weights(&graph, 3), 2, "auto");
    let batch = RaggedBatch::pack(&sequences(&[500; 8], Bert::SMALL.vocabulary, 1)).expect("a batch");
    let wanted = ehun_backend::run(&*executable, &batch, &RunOptions::default()).expect("a result").values;
    let plan = executable.plan(&batch).expect("a plan");
    let late = RunOptions { deadline: Some(Instant::now()), profile: false };
    assert_eq!(executable.run(&plan, &batch, &late).expect_err("too late"), BackendError::Deadline);
    let soon = RunOptions { deadline: Some(Instant::now() + Duration::from_micros(300)), profile: false };
    assert_eq!(executable.run(&plan, &batch, &soon).expect_err("too late"), BackendError::Deadline);
    let values = executable.run(&plan, &batch, &RunOptions::default()).expect("a result").values;
    assert_eq!(values, wanted);
}

#[test]
fn batches_that_are_too_large_or_wrong_are_errors_by_kind() {
    let graph = model();
    let backend = CpuBackend::new(Isa::best());
    let options = Options { max_sequence: 300, max_batch_tokens: 200, ..Options::default() };
    let executable = backend.compile(Arc::new(graph.clone()), &weights(&graph, 3), &options).expect("it compiles");
    assert_eq!(executable.shape_policy(), ShapePolicy::Ragged { max_tokens: 300 });
    run(&*executable, &sequences(&[300], Bert::SMALL.vocabulary, 1));
    let large = RaggedBatch::pack(&sequences(&[200, 101], Bert::SMALL.vocabulary, 1)).expect("a batch");
    assert!(matches!(executable.plan(&large), Err(BackendError::Refused(_))));
    let foreign = RaggedBatch::from_ids(&[[Bert::SMALL.vocabulary as u32]]);
    assert!(matches!(executable.plan(&foreign), Err(BackendError::InvalidInput(_))));
}

#[test]
fn nothing_is_legal() {
    let graph = model();
    let executable = compile(&graph, &weights(&graph, 3), 2, "auto");
    assert!(run(&*executable, &[]).values[0].data.is_empty());
    let outputs = run(&*executable, &vec![SequenceInput::default(); 3]);
    assert_eq!(outputs.values[0].data, vec![0.0; 3 * Bert::SMALL.width]);
}

#[test]
fn the_report_says_what_ran() {
    let graph = model();
    let executable = compile(&graph, &weights(&graph, 3), 2, "auto");
    let batch = RaggedBatch::pack(&sequences(&[3, 0, 2000, 500], 50, 1)[..2]).expect("a batch");
    let plan = executable.plan(&batch).expect("a plan");
    let options = RunOptions { deadline: None, profile: true };
    let report = executable.run(&plan, &batch, &options).expect("a result").report;
    assert_eq!((report.backend.as_str(), report.tokens, report.sequences), ("cpu", 3, 2));
    assert!(report.device.ends_with("2 threads)"), "{}", report.device);
    assert_eq!(report.attention.iter().collect::<Vec<_>>(), [(&"naive".to_owned(), &1)]);
    let names: Vec<&str> = report.operations.iter().map(|operation| operation.operation.as_str()).collect();
    assert_eq!(names, ["embedding", "layer_norm", "linear", "attention", "linear+add", "linear+gelu", "pooling"]);
    let Bert { width, inner, layers, .. } = Bert::SMALL;
    let flops = |name: &str| report.operations.iter().find(|found| found.operation == name).map(|found| found.flops);
    assert_eq!(flops("linear+gelu"), Some((2 * 3 * width * inner * layers) as u64));
    assert_eq!(flops("attention"), Some((2 * 3 * 3 * 2 * width * layers) as u64));
}

#[test]
fn weights_of_16_bits_compute_what_their_widened_form_does() {
    let graph = model();
    let wide = weights(&graph, 5);
    let mut names: Vec<String> = wide.names().map(str::to_owned).collect();
    names.sort();
    for bits in ["F16", "BF16"] {
        // The same numbers twice: rounded to 16 bits, and those widened again.
        let (mut narrow, mut widened) = (Vec::new(), Vec::new());
        for name in &names {
            let view = wide.view(name).expect("a tensor");
            let (shape, values) = (view.shape.to_vec(), view.to_f32());
            let (bytes, values): (Vec<u8>, Vec<f32>) = if bits == "F16" {
                let halves: Vec<half::f16> = values.iter().map(|x| half::f16::from_f32(*x)).collect();
                (halves.iter().flat_map(|x| x.to_le_bytes()).collect(), halves.iter().map(|x| x.to_f32()).collect())
            } else {
                let halves: Vec<half::bf16> = values.iter().map(|x| half::bf16::from_f32(*x)).collect();
                (halves.iter().flat_map(|x| x.to_le_bytes()).collect(), halves.iter().map(|x| x.to_f32()).collect())
            };
            narrow.push((name.clone(), shape.clone(), bytes));
            widened.push((name.clone(), shape, values));
        }
        let narrow = WeightStore::from_bytes(safetensors_of(bits, &narrow)).expect("weights");
        let widened = WeightStore::from_tensors(widened).expect("weights");
        let batch = sequences(&[5, 80], Bert::SMALL.vocabulary, 2);
        let [a, b] = [&narrow, &widened].map(|store| run(&*compile(&graph, store, 2, "auto"), &batch).values);
        assert_eq!(a, b, "{bits}");
    }
}

/// A safetensors file, written by hand: the format is a length, a JSON header and the bytes.
fn safetensors_of(dtype: &str, tensors: &[(String, Vec<usize>, Vec<u8>)]) -> Vec<u8> {
    let mut offset = 0;
    let mut header = serde_json::Map::new();
    for (name, shape, bytes) in tensors {
        let entry = serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + bytes.len()]});
        header.insert(name.clone(), entry);
        offset += bytes.len();
    }
    let header = serde_json::Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    tensors.iter().for_each(|(_, _, bytes)| file.extend_from_slice(bytes));
    file
}

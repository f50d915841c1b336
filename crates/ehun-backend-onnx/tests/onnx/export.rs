//! The exported file, loaded by the runtime as a stranger would.

use ehun_backend_onnx::export::ExportOptions;
use ehun_backend_onnx::runtime::{Runtime, Session, SessionRequest};
use ehun_backend_onnx::{Form, export, library, provider};
use ehun_graph::{AttentionSpec, GraphBuilder, Index, PoolingMode, RotaryScaling, RotarySpec, WeightRef, WeightStore};

/// A graph with a rotary embedding of every kind of table, attention and pooling.
#[test]
fn an_exported_model_has_free_lengths_and_rotary_tables_by_length() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/plugins/onnxruntime");
    let Some(path) = library::in_folder(&folder) else {
        println!("not run: no ONNX Runtime library (cargo xtask plugins)");
        return;
    };
    let runtime = Runtime::load(&path).unwrap();
    let mut builder = GraphBuilder::new();
    let x = builder.embedding("rows", WeightRef::whole("table", &[10, 8]), Index::TokenId).unwrap();
    let scaling = RotaryScaling::DynamicNtk { factor: 2.0, original_max_position: 4 };
    let q = builder.rotary("rotary", x, RotarySpec { scaling, ..RotarySpec::plain(4, 100.0) }).unwrap();
    let k = builder.rotary("rotary", x, RotarySpec::plain(4, 100.0)).unwrap();
    let y = builder.attention("attention", q, k, x, AttentionSpec::full(2, 4)).unwrap();
    let pooled = builder.pooling("pooling", y, PoolingMode::WeightedMean).unwrap();
    builder.output("embedding", pooled);
    let graph = builder.finish().unwrap();
    let values = (0..80).map(|i| (i as f32 * 0.7).sin()).collect();
    let weights = WeightStore::from_tensors(vec![("table".into(), vec![10, 8], values)]).unwrap();

    let out = tempfile::tempdir().unwrap();
    let file = out.path().join("model.onnx");
    let options = ExportOptions { longest: 16, form: Form::Native, pooling_starts: false, weights_beside: false };
    let exported = export(&graph, &weights, &options, &file).unwrap();
    assert_eq!(exported.outputs, ["embedding"]);
    assert_eq!(exported.inputs, ["attention_mask", "input_ids"]);
    assert!(exported.data.is_none());
    let model = std::fs::read(&file).unwrap();
    let request = SessionRequest { model: &model, files: &[], provider: &provider::PROVIDERS[0], threads: Some(1) };
    let session = Session::new(&runtime, &request).unwrap();
    let run = |ids: &[i64], mask: &[i64], length: i64| {
        let shape = vec![ids.len() as i64 / length, length];
        let mut rows = Vec::new();
        let inputs = [("input_ids", ids, shape.clone()), ("attention_mask", mask, shape)];
        session.run(&inputs, &["embedding".to_owned()], &mut |_, data| rows = data.to_vec()).unwrap();
        rows
    };
    let alone = run(&[1, 2, 3, 4, 5, 6], &[1; 6], 6);
    let padded = run(&[1, 2, 3, 4, 5, 6, 0, 7, 0, 0, 0, 0, 0, 0], &[1, 1, 1, 1, 1, 1, 0, 1, 0, 0, 0, 0, 0, 0], 7);
    assert_eq!(alone.len(), 8);
    for (a, b) in alone.iter().zip(&padded) {
        assert!((a - b).abs() < 1e-6, "{alone:?} {padded:?}");
    }
    // A second sequence of another length has other frequencies.
    assert_ne!(padded[..8], padded[8..]);
}

//! What holds while a compiled model runs: buckets, splitting, no compilation, no growth, imported attention.

mod common;

use std::sync::Arc;

use ehun_backend::{
    Attention, BackendError, Bucket, BucketChoice, Executable, OnProgress, Options, Precision, RunOptions,
};
use ehun_backend_xla::{Form, XlaConfig, attention_signatures};
use ehun_conformance::Interpreter;
use ehun_graph::{
    Activation, AttentionSpec, Band, Graph, GraphBuilder, Index, PoolingMode, RaggedBatch, RotaryScaling, RotarySpec,
    SequenceInput, ValueId, WeightRef, WeightStore,
};

/// Numbers that look random and are the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    fn below(&mut self, bound: usize) -> usize {
        ((self.next() + 1.0) / 2.0 * bound as f32) as usize % bound
    }
}

const VOCABULARY: usize = 50;

/// An encoder of the shape of MiniLM with two layers: post-norm, erf GELU, mean pooling, unit length.
fn encoder(width: usize, heads: usize, positions: usize) -> (Arc<Graph>, WeightStore) {
    let mut b = GraphBuilder::new();
    let mut tensors: Vec<(String, Vec<usize>)> = Vec::new();
    let mut tensor = |name: &str, shape: &[usize]| {
        tensors.push((name.to_owned(), shape.to_vec()));
        WeightRef::whole(name, shape)
    };
    let words = b.embedding("words", tensor("words", &[VOCABULARY, width]), Index::TokenId).unwrap();
    let types = b.embedding("types", tensor("types", &[2, width]), Index::TokenType).unwrap();
    let places = tensor("places", &[positions, width]);
    let places = b.embedding("positions", places, Index::Position { offset: 0 }).unwrap();
    let x = b.add("sum", words, types).unwrap();
    let mut x = b.add("sum", x, places).unwrap();
    for layer in 0..2 {
        b.scope(format!("layer.{layer}"));
        let mut linear = |b: &mut GraphBuilder, name: &str, x: ValueId, out: usize| {
            let weight = tensor(&format!("{layer}.{name}.weight"), &[out, b.width(x)]);
            let bias = tensor(&format!("{layer}.{name}.bias"), &[out]);
            b.linear(name, x, weight, Some(bias)).unwrap()
        };
        let [q, k, v] = ["q", "k", "v"].map(|name| linear(&mut b, name, x, width));
        let mixed = b.attention("self", q, k, v, AttentionSpec::full(heads, width / heads)).unwrap();
        let mixed = linear(&mut b, "output", mixed, width);
        let sum = b.add("residual", x, mixed).unwrap();
        let sum = b.layer_norm("norm", sum, None, None, 1e-12).unwrap();
        let up = linear(&mut b, "up", sum, 4 * width);
        let up = b.activation("gelu", up, Activation::Gelu).unwrap();
        let down = linear(&mut b, "down", up, width);
        let sum = b.add("residual", sum, down).unwrap();
        x = b.layer_norm("norm", sum, None, None, 1e-12).unwrap();
    }
    let pooled = b.pooling("pooling", x, PoolingMode::Mean).unwrap();
    let unit = b.l2_normalize("normalize", pooled).unwrap();
    b.output("embedding", unit);
    (Arc::new(b.finish().unwrap()), weights(tensors))
}

fn weights(tensors: Vec<(String, Vec<usize>)>) -> WeightStore {
    let mut random = Random(1);
    let filled = tensors
        .into_iter()
        .map(|(name, shape)| {
            let scale = 1.0 / (*shape.last().unwrap() as f32).sqrt();
            let data = (0..shape.iter().product::<usize>()).map(|_| random.next() * scale).collect();
            (name, shape, data)
        })
        .collect();
    WeightStore::from_tensors(filled).unwrap()
}

fn batch(random: &mut Random, lengths: &[usize]) -> RaggedBatch {
    let sequences: Vec<SequenceInput> = lengths
        .iter()
        .map(|&length| SequenceInput {
            token_ids: (0..length).map(|_| random.below(VOCABULARY) as u32).collect(),
            token_types: (0..length).map(|_| random.below(2) as u32).collect(),
            pooling_start: if length > 3 { random.below(3) } else { 0 },
        })
        .collect();
    RaggedBatch::pack(&sequences).unwrap()
}

fn cosine(a: &[f32], b: &[f64]) -> f64 {
    let dot = |x: &mut dyn Iterator<Item = f64>| x.sum::<f64>();
    let ab = dot(&mut a.iter().zip(b).map(|(&a, &b)| f64::from(a) * b));
    let aa = dot(&mut a.iter().map(|&a| f64::from(a).powi(2)));
    let bb = dot(&mut b.iter().map(|&b| b * b));
    ab / (aa * bb).sqrt()
}

fn list(buckets: &[(usize, usize)]) -> Options {
    Options { buckets: BucketChoice::List(buckets.to_vec()), ..Options::default() }
}

/// The f64 reference, f32 and bf16 on an encoder, with batches that are larger than their bucket and mixed in length.
#[test]
fn an_encoder_agrees_with_float64() {
    let Some(backend) = common::backend() else { return };
    let (graph, weights) = encoder(48, 4, 40);
    let interpreter = Interpreter::new(&graph, &weights).unwrap();
    let input = batch(&mut Random(5), &[7, 1, 0, 30, 12, 40, 3]);
    let want = interpreter.run(&input).unwrap();
    for (precision, least) in [(Precision::F32, 0.999_999_9), (Precision::Bf16, 0.999)] {
        let options = Options { precision, ..list(&[(2, 16), (3, 40)]) };
        let executable = backend.compile_xla(graph.clone(), &weights, &options).unwrap();
        let outputs = ehun_backend::run(&executable, &input, &RunOptions::default()).unwrap();
        assert_eq!(outputs.report.bucket, Some(Bucket { batch: 3, length: 40 }));
        assert_eq!(outputs.report.padding_tokens, 3 * 3 * 40 - 93);
        for sequence in 0..input.num_sequences() {
            let (got, want) = (outputs.values[0].row(sequence), want[0].row(sequence));
            if input.len_of(sequence) == 0 {
                assert!(got.iter().all(|&x| x == 0.0));
            } else {
                let cosine = cosine(got, want);
                assert!(cosine >= least, "{precision} sequence {sequence}: {cosine}");
            }
        }
    }
}

#[test]
fn what_no_bucket_holds_is_refused_by_length() {
    let Some(backend) = common::backend() else { return };
    let (graph, weights) = encoder(32, 2, 64);
    let executable = backend.compile_xla(graph, &weights, &list(&[(2, 16)])).unwrap();
    let input = batch(&mut Random(2), &[17]);
    let Err(BackendError::Refused(refusals)) = executable.plan(&input) else { panic!("it does not fit") };
    assert!(refusals[0].reason.contains("17 tokens") && refusals[0].reason.contains("16"), "{refusals:?}");
    let long = batch(&mut Random(2), &[65]);
    assert!(matches!(executable.plan(&long), Err(BackendError::InvalidInput(_))));
}

/// Frequencies that depend on the length of each sequence come from the host with the batch.
#[test]
fn dynamic_rotary_depends_on_each_sequence() {
    let Some(backend) = common::backend() else { return };
    let mut b = GraphBuilder::new();
    let x = b.embedding("words", WeightRef::whole("words", &[VOCABULARY, 16]), Index::TokenId).unwrap();
    let mut spec = RotarySpec::plain(8, 10_000.0);
    spec.scaling = RotaryScaling::DynamicNtk { factor: 2.0, original_max_position: 8 };
    let turned = b.rotary("rotary", x, spec).unwrap();
    b.output("rows", turned);
    let graph = Arc::new(b.finish().unwrap());
    let weights = weights(vec![("words".into(), vec![VOCABULARY, 16])]);
    let executable = backend.compile_xla(graph.clone(), &weights, &list(&[(4, 24)])).unwrap();
    let input = batch(&mut Random(3), &[5, 24, 0, 13]);
    let got = ehun_backend::run(&executable, &input, &RunOptions::default()).unwrap();
    let want = Interpreter::new(&graph, &weights).unwrap().run(&input).unwrap();
    for (got, want) in got.values[0].data.iter().zip(&want[0].data) {
        assert!((f64::from(*got) - want).abs() < 1e-6, "{got} {want}");
    }
}

/// A function of the right signature is used, one of another is refused with both shown.
#[test]
fn imported_attention() {
    let Some(backend) = common::backend() else { return };
    let (graph, weights) = encoder(32, 2, 24);
    let signatures = attention_signatures(&graph, Bucket { batch: 2, length: 8 }, Precision::F32);
    let t = "tensor<2x2x8x16xf32>";
    assert_eq!(signatures[0].1.types, format!("({t}, {t}, {t}, tensor<2xi32>) -> {t}"));
    let folder = tempfile::tempdir().unwrap();
    // A function that gives back the values as they are: not attention, which is how the test sees that it ran.
    let text = format!(
        "module @jit_kernel {{\n  func.func public @main(%arg0: {t}, %arg1: {t}, %arg2: {t}, %arg3: tensor<2xi32>) -> \
         ({t}) {{\n    %0 = call @helper(%arg2) : ({t}) -> {t}\n    return %0 : {t}\n  }}\n  func.func private \
         @helper(%arg0: {t}) -> {t} {{\n    return %arg0 : {t}\n  }}\n}}\n"
    );
    std::fs::write(folder.path().join("2x8.mlir"), text).unwrap();
    let imported = Attention::File(folder.path().to_owned());
    let options = Options { attention: imported.clone(), ..list(&[(2, 8)]) };
    let executable = backend.compile_xla(graph.clone(), &weights, &options).unwrap();
    assert_eq!(executable.reports().next().unwrap().form, Some(Form::Imported));
    let input = batch(&mut Random(4), &[8, 5]);
    let outputs = ehun_backend::run(&executable, &input, &RunOptions::default()).unwrap();
    assert_eq!(outputs.report.attention.get("imported"), Some(&2));
    let native = backend.compile_xla(graph.clone(), &weights, &list(&[(2, 8)])).unwrap();
    let other = ehun_backend::run(&native, &input, &RunOptions::default()).unwrap();
    assert_ne!(outputs.values[0].data, other.values[0].data);
    // The other bucket has no file: it gets the native form, and the reason is on record.
    let mixed = Options { attention: imported.clone(), ..list(&[(2, 8), (2, 16)]) };
    let executable = backend.compile_xla(graph.clone(), &weights, &mixed).unwrap();
    let report = executable.reports().find(|report| report.bucket.length == 16).unwrap();
    assert_eq!(report.form, Some(Form::Native));
    assert!(report.reason.contains("neither 2x16.mlir nor any.mlir"), "{}", report.reason);
    std::fs::copy(folder.path().join("2x8.mlir"), folder.path().join("2x16.mlir")).unwrap();
    let wrong = Options { attention: Attention::File(folder.path().join("2x8.mlir")), ..list(&[(2, 16)]) };
    let Err(BackendError::Refused(refusals)) = backend.compile_xla(graph, &weights, &wrong) else {
        panic!("it does not fit")
    };
    assert!(refusals[0].reason.contains("2x2x8x16") && refusals[0].reason.contains("2x2x16x16"), "{refusals:?}");
}

/// Attention written once with symbolic sizes: every bucket gets it, and it computes what the native form does.
fn attention_text(rule: &str, right: &str) -> String {
    let b = "${batch}";
    let l = "${length}";
    let (t, s) = (format!("tensor<{b}x2x{l}x16xf32>"), format!("tensor<{b}x2x{l}x{l}xf32>"));
    let (i, c) = (format!("tensor<{b}x2x{l}x{l}xi32>"), format!("tensor<{b}x2x{l}x{l}xi1>"));
    let r = format!("tensor<{b}x2x{l}xf32>");
    format!(
        "// attention: {rule}\nmodule @m {{\n  func.func public @main(%q: {t}, %k: {t}, %v: {t}, %n: tensor<{b}xi32>) -> {t} {{
    %0 = stablehlo.dot_general %q, %k, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3] : ({t}, {t}) -> {s}
    %scale = stablehlo.constant dense<0.25> : {s}
    %1 = stablehlo.multiply %0, %scale : {s}
    %key = stablehlo.iota dim = 3 : {i}
    %row = stablehlo.iota dim = 2 : {i}
    %end = stablehlo.broadcast_in_dim %n, dims = [0] : (tensor<{b}xi32>) -> {i}
    %valid = stablehlo.compare LT, %key, %end, SIGNED : ({i}, {i}) -> {c}
    %right = stablehlo.constant dense<{right}> : {i}
    %last = stablehlo.add %row, %right : {i}
    %near = stablehlo.compare LE, %key, %last, SIGNED : ({i}, {i}) -> {c}
    %seen = stablehlo.and %valid, %near : {c}
    %never = stablehlo.constant dense<-1.0e30> : {s}
    %2 = stablehlo.select %seen, %1, %never : {c}, {s}
    %least = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %3 = stablehlo.reduce(%2 init: %least) applies stablehlo.maximum across dimensions = [3] : ({s}, tensor<f32>) -> {r}
    %4 = stablehlo.broadcast_in_dim %3, dims = [0, 1, 2] : ({r}) -> {s}
    %5 = stablehlo.subtract %2, %4 : {s}
    %6 = call @weigh(%5) : ({s}) -> {s}
    %7 = stablehlo.reduce(%6 init: %zero) applies stablehlo.add across dimensions = [3] : ({s}, tensor<f32>) -> {r}
    %8 = stablehlo.broadcast_in_dim %7, dims = [0, 1, 2] : ({r}) -> {s}
    %9 = stablehlo.divide %6, %8 : {s}
    %10 = stablehlo.dot_general %9, %v, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2] : ({s}, {t}) -> {t}
    return %10 : {t}\n  }}\n  func.func private @weigh(%x: {s}) -> {s} {{\n    %0 = stablehlo.exponential %x : {s}
    return %0 : {s}\n  }}\n}}\n"
    )
}

/// Two attention operations that see different keys, the second with the first's result as its operand.
fn full_then_causal() -> (Arc<Graph>, WeightStore) {
    let mut b = GraphBuilder::new();
    let x = b.embedding("words", WeightRef::whole("words", &[VOCABULARY, 32]), Index::TokenId).unwrap();
    let first = b.attention("full", x, x, x, AttentionSpec::full(2, 16)).unwrap();
    let causal = AttentionSpec { band: Band::CAUSAL, ..AttentionSpec::full(2, 16) };
    let second = b.attention("causal", first, first, x, causal).unwrap();
    b.output("rows", second);
    (Arc::new(b.finish().unwrap()), weights(vec![("words".into(), vec![VOCABULARY, 32])]))
}

/// A function says which keys a row sees; one that does not is not taken for causal attention, whose types are the same.
#[test]
fn imported_attention_says_what_it_computes() {
    let Some(backend) = common::backend() else { return };
    let (graph, weights) = full_then_causal();
    let full = "scale 0.25, sees all before and all after, cap none, bias none";
    let causal = "scale 0.25, sees all before and 0 after, cap none, bias none";
    let rules: Vec<String> = attention_signatures(&graph, Bucket { batch: 2, length: 8 }, Precision::F32)
        .into_iter()
        .map(|(_, signature)| signature.rule)
        .collect();
    assert_eq!(rules, [full, causal]);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("any.full.mlir"), attention_text(full, "${length}")).unwrap();
    let options = Options { attention: Attention::File(folder.path().to_owned()), ..list(&[(2, 8), (3, 24)]) };
    let Err(BackendError::Refused(refusals)) = backend.compile_xla(graph.clone(), &weights, &options) else {
        panic!("a causal function is missing")
    };
    let reason = &refusals[0].reason;
    assert!(reason.contains(full) && reason.contains(causal) && reason.contains("3x2x24x16"), "{reason}");
    std::fs::write(folder.path().join("any.causal.mlir"), attention_text(causal, "0")).unwrap();
    let executable = backend.compile_xla(graph.clone(), &weights, &options).unwrap();
    assert!(executable.reports().all(|report| report.form == Some(Form::Imported)));
    let interpreter = Interpreter::new(&graph, &weights).unwrap();
    for lengths in [&[8, 3][..], &[24, 1, 17]] {
        let input = batch(&mut Random(6), lengths);
        let got = ehun_backend::run(&executable, &input, &RunOptions::default()).unwrap();
        let want = interpreter.run(&input).unwrap();
        for (got, want) in got.values[0].data.iter().zip(&want[0].data) {
            assert!((f64::from(*got) - want).abs() < 1e-5, "{got} {want}");
        }
    }
}

/// A warm-up says which program is next, how many are done, and when all are.
#[test]
fn a_warm_up_is_told_program_by_program() {
    let told = Arc::new(std::sync::Mutex::new(Vec::new()));
    let hears = Arc::clone(&told);
    let progress: OnProgress = Arc::new(move |progress| hears.lock().unwrap().push(progress));
    let config = XlaConfig { progress: Some(progress), ..XlaConfig::default() };
    let Some(backend) = common::backend_with(config) else { return };
    let (graph, weights) = encoder(32, 2, 24);
    backend.compile_xla(graph, &weights, &list(&[(1, 8), (2, 8), (2, 24)])).unwrap();
    let told = told.lock().unwrap();
    let counts: Vec<(usize, usize)> = told.iter().map(|progress| (progress.done, progress.total)).collect();
    assert_eq!(counts, [(0, 3), (1, 3), (2, 3), (3, 3)]);
    assert_eq!(told[1].next, Some(Bucket { batch: 2, length: 8 }));
    assert!(told.windows(2).all(|pair| pair[0].elapsed <= pair[1].elapsed));
    assert!(told[0].left().is_none() && told[1].left().is_some() && told[3].next.is_none());
    let lines: Vec<String> = told.iter().map(ToString::to_string).collect();
    assert_eq!(lines[0], "program 1 of 3, 1x8");
    assert!(lines[1].starts_with("program 2 of 3, 2x8, about "), "{}", lines[1]);
    assert!(lines[3].starts_with("program 3 of 3 ready after "), "{}", lines[3]);
}

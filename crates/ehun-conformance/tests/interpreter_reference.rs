//! The interpreter against PyTorch and transformers in float64 (`data/reference.py`): attention of every kind, rotary of
//! every kind, and pooling and norms by hand.

use ehun_conformance::Interpreter;
use ehun_graph::{
    AttentionSpec, Band, Bias, BucketRule, GraphBuilder, Index, LogBucketRule, RaggedBatch, RotaryLayout,
    RotaryScaling, RotarySpec, ValueId, WeightRef, WeightStore,
};
use serde_json::Value;

/// Builds graphs whose token rows are given numbers: token `i` of the only sequence looks up row `i` of a table.
struct Given {
    builder: GraphBuilder,
    tensors: Vec<(String, Vec<usize>, Vec<f32>)>,
    /// Largest loss in bringing the numbers to float32.
    rounding: f64,
}

impl Given {
    fn new() -> Self {
        Self { builder: GraphBuilder::new(), tensors: Vec::new(), rounding: 0.0 }
    }

    fn weight(&mut self, name: &str, case: &Value, width: usize) -> WeightRef {
        let numbers = numbers(&case[name]);
        let shape = [numbers.len() / width, width];
        let data: Vec<f32> = numbers.iter().map(|&x| x as f32).collect();
        let loss = numbers.iter().zip(&data).map(|(a, b)| (a - f64::from(*b)).abs());
        self.rounding = loss.fold(self.rounding, f64::max);
        self.tensors.push((name.to_owned(), shape.to_vec(), data));
        WeightRef::whole(name, &shape)
    }

    fn tokens(&mut self, name: &str, case: &Value, width: usize) -> ValueId {
        let weight = self.weight(name, case, width);
        self.builder.embedding(name, weight, Index::TokenId).expect("an embedding")
    }

    fn constant(&mut self, name: &str, case: &Value, width: usize) -> ValueId {
        let weight = self.weight(name, case, width);
        self.builder.constant(name, weight).expect("a constant")
    }

    fn run(mut self, out: ValueId, length: usize) -> Vec<f64> {
        self.builder.output("out", out);
        let graph = self.builder.finish().expect("a graph");
        let weights = WeightStore::from_tensors(self.tensors).expect("weights");
        // A neighbour on either side: its rows must not be seen.
        let ids: Vec<u32> = (0..length as u32).collect();
        let batch = RaggedBatch::from_ids(&[vec![0, 1], ids, vec![], vec![1]]);
        let outputs = Interpreter::new(&graph, &weights).expect("weights").run(&batch).expect("a result");
        let width = outputs[0].width;
        outputs[0].data[2 * width..(2 + length) * width].to_vec()
    }
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().expect("an array").iter().map(|x| x.as_f64().expect("a number")).collect()
}

fn uint(case: &Value, key: &str) -> usize {
    case[key].as_u64().unwrap_or_else(|| panic!("{key} in {case}")) as usize
}

fn float(case: &Value, key: &str) -> f64 {
    case[key].as_f64().unwrap_or_else(|| panic!("{key} in {case}"))
}

fn attention(case: &Value) -> (Vec<f64>, f64) {
    let mut given = Given::new();
    let (num_heads, num_kv_heads) = (uint(case, "heads"), uint(case, "kv_heads"));
    let (head_dim, value_dim) = (uint(case, "head_dim"), uint(case, "value_dim"));
    let q = given.tokens("q", case, num_heads * head_dim);
    let k = given.tokens("k", case, num_kv_heads * head_dim);
    let v = given.tokens("v", case, num_kv_heads * value_dim);
    let side = |key: &str| case[key].as_u64().map(|n| n as u32);
    let bias = match case["bias"].as_str() {
        Some("alibi") => Bias::Alibi { slopes: numbers(&case["slopes"]).iter().map(|&x| x as f32).collect() },
        Some("bucketed") => Bias::Bucketed {
            table: given.constant("table", case, num_heads),
            rule: BucketRule {
                num_buckets: uint(case, "num_buckets") as u32,
                max_distance: uint(case, "max_distance") as u32,
                bidirectional: case["bidirectional"].as_bool().expect("a flag"),
            },
        },
        Some("disentangled") => {
            let mut table = |name: &str| match case[name] {
                Value::Null => None,
                _ => Some(given.constant(name, case, num_heads * head_dim)),
            };
            Bias::Disentangled {
                key_positions: table("key_positions"),
                query_positions: table("query_positions"),
                rule: LogBucketRule {
                    span: uint(case, "span") as u32,
                    buckets: uint(case, "buckets") as u32,
                    max_position: uint(case, "max_position") as u32,
                },
            }
        }
        _ => Bias::None,
    };
    let spec = AttentionSpec {
        num_heads,
        num_kv_heads,
        head_dim,
        value_dim,
        scale: float(case, "scale") as f32,
        soft_cap: case["soft_cap"].as_f64().map(|cap| cap as f32),
        band: Band { left: side("left"), right: side("right") },
        bias,
    };
    let out = given.builder.attention("attention", q, k, v, spec).expect("attention");
    let rounding = given.rounding;
    (given.run(out, uint(case, "length")), rounding)
}

fn rotary(case: &Value) -> (Vec<f64>, f64) {
    let mut given = Given::new();
    let head_dim = uint(case, "head_dim");
    let x = given.tokens("x", case, uint(case, "heads") * head_dim);
    let s = &case["scaling"];
    let original_max_position = s["original_max_position_embeddings"].as_u64().unwrap_or(16) as u32;
    let scaling = match s["rope_type"].as_str() {
        Some("linear") => RotaryScaling::Linear { factor: float(s, "factor") },
        Some("dynamic") => RotaryScaling::DynamicNtk { factor: float(s, "factor"), original_max_position },
        Some("yarn") => RotaryScaling::Yarn {
            factor: float(s, "factor"),
            original_max_position,
            beta_fast: float(s, "beta_fast"),
            beta_slow: float(s, "beta_slow"),
            attention_factor: float(case, "attention_factor"),
            truncate: s["truncate"].as_bool().unwrap_or(true),
        },
        Some("llama3") => RotaryScaling::Llama3 {
            factor: float(s, "factor"),
            low_freq_factor: float(s, "low_freq_factor"),
            high_freq_factor: float(s, "high_freq_factor"),
            original_max_position,
        },
        _ => RotaryScaling::None,
    };
    let interleaved = case["interleaved"].as_bool().expect("a flag");
    let layout = if interleaved { RotaryLayout::Interleaved } else { RotaryLayout::HalfSplit };
    let spec =
        RotarySpec { head_dim, rotary_dim: uint(case, "rotary_dim"), layout, theta: float(case, "theta"), scaling };
    let out = given.builder.rotary("rotary", x, spec).expect("rotary");
    let rounding = given.rounding;
    (given.run(out, uint(case, "length")), rounding)
}

#[test]
fn attention_and_rotary_are_those_of_torch() {
    let cases: Vec<Value> = serde_json::from_str(include_str!("data/reference.json")).expect("reference numbers");
    assert!(cases.len() >= 26);
    for case in &cases {
        // Rotary frequencies are float32 on both sides and may differ in the last bit.
        let ((found, rounding), slack) = match case["kind"].as_str() {
            Some("attention") => (attention(case), 1e-12),
            _ => (rotary(case), 1e-6),
        };
        let tolerance = slack + 100.0 * rounding;
        let want = numbers(&case["out"]);
        assert_eq!(found.len(), want.len(), "{}", case["name"]);
        let worst = found.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(worst <= tolerance, "{}: off by {worst:e}, allowed {tolerance:e}", case["name"]);
    }
}

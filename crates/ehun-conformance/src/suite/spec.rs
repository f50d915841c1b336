//! The attention specifications that are tried.

use ehun_graph::{
    AttentionSpec, Band, Bias, BucketRule, Graph, GraphBuilder, GraphError, Index, LogBucketRule, SequenceInput,
    WeightRef, WeightStore,
};

use super::Profile;
use super::data::{Pattern, qkv};
use crate::random::Random;

/// The bias of a [`SpecPlan`], without its tables.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum BiasPlan {
    /// Nothing.
    None,
    /// Slopes `2^(-8 (h + 1) / heads)`.
    Alibi,
    /// A table of normal deviates.
    Bucketed(BucketRule),
    /// Tables of normal deviates.
    Disentangled {
        /// Content to position.
        c2p: bool,
        /// Position to content.
        p2c: bool,
        /// Which row.
        rule: LogBucketRule,
    },
}

/// An attention specification without the values of its tables.
#[derive(Debug, Clone, PartialEq)]
pub struct SpecPlan {
    /// Name in the report.
    pub name: String,
    /// Query heads.
    pub num_heads: usize,
    /// Key and value heads.
    pub num_kv_heads: usize,
    /// Width of a query or key head.
    pub head_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// Factor on the products; `None` is `1 / sqrt(head_dim)`.
    pub scale: Option<f32>,
    /// Bound on the scores.
    pub soft_cap: Option<f32>,
    /// How far a row sees.
    pub band: Band,
    /// What is added.
    pub bias: BiasPlan,
    /// The longest sequence that is tried with it. Beyond 129 only long ones are.
    pub longest: usize,
}

impl SpecPlan {
    /// Full attention with `heads` heads of `dim`.
    pub fn full(name: impl Into<String>, heads: usize, dim: usize) -> Self {
        Self {
            name: name.into(),
            num_heads: heads,
            num_kv_heads: heads,
            head_dim: dim,
            value_dim: dim,
            scale: None,
            soft_cap: None,
            band: Band::FULL,
            bias: BiasPlan::None,
            longest: 129,
        }
    }

    fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Factor on the products.
    pub fn scale(&self) -> f32 {
        self.scale.unwrap_or((1.0 / (self.head_dim as f64).sqrt()) as f32)
    }

    /// Whether the result stays the same when the keys change places.
    pub fn ignores_positions(&self) -> bool {
        self.band == Band::FULL && self.bias == BiasPlan::None
    }

    /// Widths of the rows of q, k and v.
    pub fn widths(&self) -> (usize, usize, usize) {
        (self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim, self.num_kv_heads * self.value_dim)
    }
}

/// The specifications of a profile.
pub fn plans(profile: Profile) -> Vec<SpecPlan> {
    let both = BucketRule { num_buckets: 32, max_distance: 128, bidirectional: true };
    let one = BucketRule { num_buckets: 32, max_distance: 128, bidirectional: false };
    let log = LogBucketRule { span: 32, buckets: 32, max_position: 128 };
    let clamped = LogBucketRule { span: 24, buckets: 0, max_position: 24 };
    let disentangled = |name: &str, c2p, p2c, rule| {
        SpecPlan::full(name, 2, 32).with(|s| s.bias = BiasPlan::Disentangled { c2p, p2c, rule })
    };
    let band = |name: &str, left, right| SpecPlan::full(name, 2, 32).with(|s| s.band = Band { left, right });
    let grouped = |heads, kv_heads| {
        SpecPlan::full(format!("{heads} heads on {kv_heads}"), heads, 16).with(|s| s.num_kv_heads = kv_heads)
    };
    let long = if profile == Profile::Full { 4096 } else { 1000 };

    let mut plans = vec![
        SpecPlan::full("full", 2, 64),
        grouped(6, 2),
        grouped(4, 1),
        SpecPlan::full("narrow values", 2, 32).with(|s| s.value_dim = 16),
        SpecPlan::full("wide values", 2, 16).with(|s| s.value_dim = 48),
        SpecPlan::full("factor 1", 2, 16).with(|s| s.scale = Some(1.0)),
        band("causal", None, Some(0)),
        band("window of 1", Some(1), Some(1)),
        band("window of 64", Some(64), Some(64)),
        band("causal window of 7", Some(7), Some(0)),
        band("unlimited left, 3 to the right", None, Some(3)),
        band("to the right only", Some(0), None),
        SpecPlan::full("alibi", 4, 16).with(|s| s.bias = BiasPlan::Alibi),
        SpecPlan::full("bucketed", 3, 16).with(|s| s.bias = BiasPlan::Bucketed(both)),
        SpecPlan::full("bucketed in one direction, causal", 2, 16).with(|s| {
            s.bias = BiasPlan::Bucketed(one);
            s.band = Band::CAUSAL;
        }),
        disentangled("disentangled", true, true, log),
        disentangled("disentangled, c2p alone", true, false, log),
        disentangled("disentangled, p2c alone", false, true, log),
        disentangled("disentangled, clamped positions", true, true, clamped),
        SpecPlan::full("full, long", 1, 64).with(|s| s.longest = long),
        SpecPlan::full("alibi, causal, soft cap", 2, 32).with(|s| {
            s.bias = BiasPlan::Alibi;
            s.band = Band::CAUSAL;
            s.soft_cap = Some(2.0);
        }),
        SpecPlan::full("soft cap", 2, 32).with(|s| s.soft_cap = Some(1.5)),
        SpecPlan::full("soft cap, causal window, grouped heads", 4, 16).with(|s| {
            s.soft_cap = Some(50.0);
            s.band = Band { left: Some(31), right: Some(0) };
            s.num_kv_heads = 2;
        }),
    ];
    plans.extend([8, 16, 24, 128, 256].map(|dim| SpecPlan::full(format!("width {dim}"), 1, dim)));
    if profile == Profile::Full {
        plans.extend(
            [32, 40, 48, 56, 80, 96, 112, 160, 192, 224].map(|dim| SpecPlan::full(format!("width {dim}"), 2, dim)),
        );
        plans.extend([
            SpecPlan::full("12 heads", 12, 64),
            SpecPlan::full("1 head", 1, 32),
            grouped(8, 4),
            band("window of 0", Some(0), Some(0)),
            band("window of 127", Some(127), Some(127)),
            band("63 to the left, 64 to the right", Some(63), Some(64)),
            band("causal, long", None, Some(0)).with(|s| s.longest = 4096),
            band("window of 128, long", Some(128), Some(128)).with(|s| s.longest = 4096),
            SpecPlan::full("alibi, long", 2, 32).with(|s| {
                s.bias = BiasPlan::Alibi;
                s.longest = 4096;
            }),
            SpecPlan::full("bucketed, long", 2, 32).with(|s| {
                s.bias = BiasPlan::Bucketed(both);
                s.longest = 4096;
            }),
            SpecPlan::full("bucketed, window, soft cap", 2, 32).with(|s| {
                s.bias = BiasPlan::Bucketed(both);
                s.band = Band::window(20);
                s.soft_cap = Some(3.0);
            }),
            SpecPlan::full("bucketed, grouped heads", 4, 16).with(|s| {
                s.bias = BiasPlan::Bucketed(both);
                s.num_kv_heads = 2;
            }),
            disentangled(
                "disentangled, long",
                true,
                true,
                LogBucketRule { span: 256, buckets: 256, max_position: 512 },
            )
            .with(|s| s.longest = 4096),
            disentangled("disentangled, causal, soft cap", true, true, log).with(|s| {
                s.band = Band::CAUSAL;
                s.soft_cap = Some(2.0);
            }),
        ]);
    }
    plans
}

/// One sequence of an attention case.
#[derive(Debug, Clone)]
pub struct CaseSequence {
    /// What its rows look like.
    pub pattern: Pattern,
    /// Ids (rows of the query table) and types (rows of the key and value tables).
    pub input: SequenceInput,
}

/// A graph of one attention operation whose queries are looked up by token id and whose keys and values by token type, so
/// that any rows can be brought together by the input alone.
#[derive(Debug, Clone)]
pub struct AttentionCase {
    /// The graph with the output `out`.
    pub graph: Graph,
    /// Its tables.
    pub weights: WeightStore,
    /// Sequences to judge.
    pub sequences: Vec<CaseSequence>,
    /// Sequences of NaN.
    pub poison: Vec<SequenceInput>,
}

/// The case of `plan` with a sequence for each of `sequences`.
pub fn attention_case(plan: &SpecPlan, sequences: &[(Pattern, usize)]) -> Result<AttentionCase, String> {
    let mut random = Random::named(&plan.name);
    let (mut q, mut k, mut v) = (Vec::new(), Vec::new(), Vec::new());
    let mut place = |pattern: Pattern, length: usize, random: &mut Random| {
        let start = (q.len() / plan.widths().0) as u32;
        let rows = qkv(pattern, length, plan.widths(), plan.head_dim, plan.scale(), random);
        q.extend(rows.q);
        k.extend(rows.k);
        v.extend(rows.v);
        let ids: Vec<u32> = (start..start + length as u32).collect();
        SequenceInput { token_ids: ids.clone(), token_types: ids, pooling_start: 0 }
    };
    let poison = [5, 64, 17].map(|length| place(Pattern::Poison, length, &mut random)).to_vec();
    let sequences = sequences
        .iter()
        .map(|&(pattern, length)| CaseSequence { pattern, input: place(pattern, length, &mut random) })
        .collect();
    let (graph, weights) = attention_graph(plan, (q, k, v), &mut random)?;
    Ok(AttentionCase { graph, weights, sequences, poison })
}

/// The graph of one attention operation over tables with these rows.
pub fn attention_graph(
    plan: &SpecPlan,
    (q, k, v): (Vec<f32>, Vec<f32>, Vec<f32>),
    random: &mut Random,
) -> Result<(Graph, WeightStore), String> {
    let (q_width, k_width, v_width) = plan.widths();
    let mut tensors = vec![
        ("q".to_owned(), vec![q.len() / q_width, q_width], q),
        ("k".to_owned(), vec![k.len() / k_width, k_width], k),
        ("v".to_owned(), vec![v.len() / v_width, v_width], v),
    ];
    let mut b = GraphBuilder::new();
    let build = |b: &mut GraphBuilder, tensors: &mut Vec<(String, Vec<usize>, Vec<f32>)>, random: &mut Random| {
        let whole =
            |tensors: &[(String, Vec<usize>, Vec<f32>)], i: usize| WeightRef::whole(&tensors[i].0, &tensors[i].1);
        let q = b.embedding("q", whole(tensors, 0), Index::TokenId)?;
        let k = b.embedding("k", whole(tensors, 1), Index::TokenType)?;
        let v = b.embedding("v", whole(tensors, 2), Index::TokenType)?;
        let mut table = |b: &mut GraphBuilder, name: &str, rows: usize, width: usize| {
            tensors.push((name.to_owned(), vec![rows, width], random.normals(rows * width, 1.0)));
            b.constant(name, WeightRef::whole(name, &[rows, width]))
        };
        let heads = plan.num_heads;
        let bias = match plan.bias {
            BiasPlan::None => Bias::None,
            BiasPlan::Alibi => {
                Bias::Alibi { slopes: (1..=heads).map(|h| 2f32.powf(-8.0 * h as f32 / heads as f32)).collect() }
            }
            BiasPlan::Bucketed(rule) => {
                Bias::Bucketed { table: table(b, "bias", rule.num_buckets as usize, heads)?, rule }
            }
            BiasPlan::Disentangled { c2p, p2c, rule } => {
                let rows = 2 * rule.span as usize;
                let mut optional =
                    |wanted: bool, name: &str| wanted.then(|| table(b, name, rows, heads * plan.head_dim)).transpose();
                Bias::Disentangled {
                    key_positions: optional(c2p, "key_positions")?,
                    query_positions: optional(p2c, "query_positions")?,
                    rule,
                }
            }
        };
        let spec = AttentionSpec {
            num_heads: heads,
            num_kv_heads: plan.num_kv_heads,
            head_dim: plan.head_dim,
            value_dim: plan.value_dim,
            scale: plan.scale(),
            soft_cap: plan.soft_cap,
            band: plan.band,
            bias,
        };
        let out = b.attention("attention", q, k, v, spec)?;
        b.output("out", out);
        Ok::<(), GraphError>(())
    };
    build(&mut b, &mut tensors, random).map_err(|e| e.to_string())?;
    let graph = b.finish().map_err(|e| e.to_string())?;
    let weights = WeightStore::from_tensors(tensors).map_err(|e| e.to_string())?;
    Ok((graph, weights))
}

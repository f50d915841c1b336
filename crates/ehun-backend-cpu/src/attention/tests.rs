//! Both kernels against float64, and the promises about bits.

use ehun_graph::{Band, BucketRule, LogBucketRule, ValueId};
use proptest::prelude::*;

use super::*;
use crate::testing::{isas, random};

/// A case: a specification, its tables and the lengths of a batch.
struct Case {
    spec: AttentionSpec,
    buckets: Vec<f32>,
    key_positions: Vec<f32>,
    query_positions: Vec<f32>,
}

impl Case {
    fn new(spec: AttentionSpec) -> Self {
        let mut case = Self { buckets: Vec::new(), key_positions: Vec::new(), query_positions: Vec::new(), spec };
        match &case.spec.bias {
            Bias::None | Bias::Alibi { .. } => {}
            Bias::Bucketed { rule, .. } => case.buckets = random(rule.num_buckets as usize * case.spec.num_heads, 40),
            Bias::Disentangled { key_positions, query_positions, rule } => {
                let len = 2 * rule.span as usize * case.spec.num_heads * case.spec.head_dim;
                case.key_positions = random(if key_positions.is_some() { len } else { 0 }, 41);
                case.query_positions = random(if query_positions.is_some() { len } else { 0 }, 42);
            }
        }
        case
    }

    fn tables(&self) -> BiasTables<'_> {
        BiasTables {
            buckets: &self.buckets,
            key_positions: &self.key_positions,
            query_positions: &self.query_positions,
        }
    }

    /// Widths of q, k, v and the result.
    fn widths(&self) -> [usize; 4] {
        let s = &self.spec;
        [s.num_heads * s.head_dim, s.num_kv_heads * s.head_dim, s.num_kv_heads * s.value_dim, s.num_heads * s.value_dim]
    }

    /// Runs a kernel on rows `[q | k | v]`.
    fn run(&self, isa: Isa, pool: &ThreadPool, choice: Choice, qkv: &[f32], cu_seqlens: &[usize]) -> Vec<f32> {
        let [q, k, v, o] = self.widths();
        let (width, tokens) = (q + k + v, *cu_seqlens.last().expect("a batch"));
        let view = |from: usize, cols: usize| MatRef::new(&qkv[from.min(qkv.len())..], tokens, cols, width);
        let inputs = Inputs { q: view(0, q), k: view(q, k), v: view(q + k, v) };
        let mut out = vec![f32::NAN; tokens * o];
        let to = MatMut::new(&mut out, tokens, o, o);
        attention(isa, pool, choice, &self.spec, &self.tables(), inputs, cu_seqlens, to);
        out
    }

    /// The definition in float64, and for each element the sum of the magnitudes of the weighted values.
    fn exact(&self, qkv: &[f32], cu_seqlens: &[usize]) -> Vec<f64> {
        let [q, k, v, o] = self.widths();
        let width = q + k + v;
        let s = &self.spec;
        let mut out = vec![0.0; qkv.len() / width * o];
        let at = |row: usize, col: usize| f64::from(qkv[row * width + col]);
        for w in cu_seqlens.windows(2) {
            let len = w[1] - w[0];
            for h in 0..s.num_heads {
                let g = h / (s.num_heads / s.num_kv_heads);
                for i in 0..len {
                    let visible = s.band.visible(i, len);
                    let scores: Vec<f64> = visible
                        .clone()
                        .map(|j| {
                            let dot = |a: &dyn Fn(usize) -> f64, b: &dyn Fn(usize) -> f64| {
                                (0..s.head_dim).map(|p| a(p) * b(p)).sum::<f64>()
                            };
                            let query = |p: usize| at(w[0] + i, h * s.head_dim + p);
                            let key = |p: usize| at(w[0] + j, q + g * s.head_dim + p);
                            let mut score = dot(&query, &key);
                            if let Bias::Disentangled { rule, .. } = &s.bias {
                                let row = rule.row(i as i64 - j as i64);
                                let table =
                                    |t: &[f32], p: usize| f64::from(t[(row * s.num_heads + h) * s.head_dim + p]);
                                if !self.key_positions.is_empty() {
                                    score += dot(&query, &|p| table(&self.key_positions, p));
                                }
                                if !self.query_positions.is_empty() {
                                    score += dot(&key, &|p| table(&self.query_positions, p));
                                }
                            }
                            score *= f64::from(s.scale);
                            if let Some(cap) = s.soft_cap {
                                score = f64::from(cap) * (score / f64::from(cap)).tanh();
                            }
                            match &s.bias {
                                Bias::Alibi { slopes } => score - f64::from(slopes[h]) * (i as f64 - j as f64).abs(),
                                Bias::Bucketed { rule, .. } => {
                                    score + f64::from(self.buckets[rule.bucket(j as i64 - i as i64) * s.num_heads + h])
                                }
                                _ => score,
                            }
                        })
                        .collect();
                    let max = scores.iter().copied().fold(f64::MIN, f64::max);
                    let sum: f64 = scores.iter().map(|x| (x - max).exp()).sum();
                    for c in 0..s.value_dim {
                        let value = |j: usize| at(w[0] + j, q + k + g * s.value_dim + c);
                        let weighted =
                            scores.iter().zip(visible.clone()).map(|(x, j)| (x - max).exp() / sum * value(j));
                        out[(w[0] + i) * o + h * s.value_dim + c] = weighted.sum();
                    }
                }
            }
        }
        out
    }
}

/// Every kind of band, bias, cap and grouping, and head widths from 8 to 256.
fn cases() -> Vec<Case> {
    // Kernels are given the tables themselves; which value of a graph they are does not matter.
    let value = |i: u32| serde_json::from_value::<ValueId>(i.into()).expect("an id is a number");
    let full = |heads: usize, d: usize| AttentionSpec::full(heads, d);
    let log = LogBucketRule { span: 16, buckets: 16, max_position: 64 };
    let disentangled = |c2p: bool, p2c: bool, rule| Bias::Disentangled {
        key_positions: c2p.then(|| value(0)),
        query_positions: p2c.then(|| value(1)),
        rule,
    };
    let bucketed = |bidirectional| Bias::Bucketed {
        table: value(0),
        rule: BucketRule { num_buckets: 32, max_distance: 128, bidirectional },
    };
    let alibi = Bias::Alibi { slopes: vec![0.5, 0.25] };
    let specs = vec![
        full(2, 8),
        full(1, 12),
        full(2, 32),
        full(1, 64),
        full(1, 80),
        full(1, 256),
        AttentionSpec { value_dim: 40, ..full(2, 24) },
        AttentionSpec { num_kv_heads: 2, ..full(4, 16) },
        AttentionSpec { num_kv_heads: 1, ..full(3, 16) },
        AttentionSpec { band: Band::CAUSAL, ..full(2, 16) },
        AttentionSpec { band: Band::window(5), ..full(2, 16) },
        AttentionSpec { band: Band { left: Some(70), right: Some(0) }, ..full(1, 16) },
        AttentionSpec { band: Band { left: Some(0), right: None }, ..full(1, 16) },
        AttentionSpec { band: Band { left: Some(0), right: Some(0) }, ..full(1, 16) },
        AttentionSpec { soft_cap: Some(2.0), scale: 0.9, ..full(2, 16) },
        AttentionSpec { bias: alibi.clone(), ..full(2, 16) },
        AttentionSpec { bias: alibi, band: Band::CAUSAL, soft_cap: Some(3.0), ..full(2, 16) },
        AttentionSpec { bias: bucketed(true), ..full(2, 16) },
        AttentionSpec { bias: bucketed(false), scale: 1.0, ..full(2, 16) },
        AttentionSpec { bias: disentangled(true, true, log), scale: 0.3, ..full(2, 16) },
        AttentionSpec { bias: disentangled(true, false, log), ..full(2, 16) },
        AttentionSpec { bias: disentangled(false, true, LogBucketRule { buckets: 0, ..log }), ..full(1, 16) },
        AttentionSpec { bias: disentangled(true, true, log), band: Band::window(20), ..full(1, 32) },
    ];
    specs.into_iter().map(Case::new).collect()
}

const KERNELS: [AttentionKernel; 2] = [AttentionKernel::Naive, AttentionKernel::Flash];

fn offsets(lengths: &[usize]) -> Vec<usize> {
    let mut sum = 0;
    std::iter::once(0)
        .chain(lengths.iter().map(|len| {
            sum += len;
            sum
        }))
        .collect()
}

fn qkv(case: &Case, tokens: usize, seed: u64) -> Vec<f32> {
    let [q, k, v, _] = case.widths();
    random(tokens * (q + k + v), seed).iter().map(|x| x * 2.0).collect()
}

#[test]
fn both_kernels_follow_the_definition_on_every_instruction_set() {
    let pool = ThreadPool::new(2);
    let cu_seqlens = offsets(&[1, 0, 17, 33, 300, 2]);
    for (number, case) in cases().iter().enumerate() {
        let x = qkv(case, 353, number as u64);
        let want = case.exact(&x, &cu_seqlens);
        for isa in isas() {
            for kernel in KERNELS {
                let got = case.run(isa, &pool, Choice::Fixed(kernel), &x, &cu_seqlens);
                for (i, (g, w)) in got.iter().zip(&want).enumerate() {
                    let error = (f64::from(*g) - w).abs();
                    // Values are in [-2, 2]; the scores' error, about 1e-6 of up to 20, passes into the weights.
                    assert!(error < 1e-5, "{isa:?} {kernel:?} case {number} {:?} at {i}: {g}, not {w}", case.spec);
                }
            }
        }
    }
}

#[test]
fn long_sequences_cross_blocks() {
    let pool = ThreadPool::new(2);
    for spec in [AttentionSpec::full(1, 32), AttentionSpec { band: Band::window(64), ..AttentionSpec::full(1, 8) }] {
        let case = Case::new(spec);
        let x = qkv(&case, 1500, 77);
        let want = case.exact(&x, &[0, 1500]);
        for isa in Isa::available() {
            for kernel in KERNELS {
                let got = case.run(isa, &pool, Choice::Fixed(kernel), &x, &[0, 1500]);
                let worst = got.iter().zip(&want).map(|(g, w)| (f64::from(*g) - w).abs()).fold(0.0, f64::max);
                assert!(worst < 2e-6, "{isa:?} {kernel:?}: {worst}");
            }
        }
    }
}

#[test]
fn large_scores_do_not_overflow() {
    let pool = ThreadPool::new(1);
    let case = Case::new(AttentionSpec { scale: 100.0, ..AttentionSpec::full(1, 16) });
    let x = qkv(&case, 300, 5);
    for isa in isas() {
        for kernel in KERNELS {
            assert!(case.run(isa, &pool, Choice::Fixed(kernel), &x, &[0, 300]).iter().all(|v| v.is_finite()));
        }
    }
}

#[test]
fn auto_decides_by_the_length_alone() {
    for isa in isas() {
        let up_to = if isa.name().starts_with("avx512") { 512 } else { 128 };
        for (len, kernel) in [(1, 0), (up_to, 0), (up_to + 1, 1), (8192, 1)] {
            assert_eq!(Choice::Auto.kernel(isa, len), [AttentionKernel::Naive, AttentionKernel::Flash][kernel]);
        }
        for kernel in KERNELS {
            assert_eq!(Choice::Fixed(kernel).kernel(isa, 100), kernel);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// A sequence's rows have the same bits alone, anywhere in a batch, and for any number of threads.
    #[test]
    fn a_sequence_depends_on_itself_alone(
        number in 0usize..23, before in 0usize..40, len in prop_oneof![1usize..60, 200usize..330], after in 0usize..300,
        threads in 1usize..4, seed in 0u64..1000,
    ) {
        let all = cases();
        let case = &all[number];
        let (one, many) = (ThreadPool::new(1), ThreadPool::new(threads));
        let lengths = [before, len, after];
        let x = qkv(case, before + len + after, seed);
        let [q, k, v, o] = case.widths();
        let mine = before * (q + k + v)..(before + len) * (q + k + v);
        for isa in isas() {
            for choice in [Choice::Auto, Choice::Fixed(KERNELS[0]), Choice::Fixed(KERNELS[1])] {
                let alone = case.run(isa, &one, choice, &x[mine.clone()], &[0, len]);
                let batch = case.run(isa, &many, choice, &x, &offsets(&lengths));
                let part = &batch[before * o..(before + len) * o];
                prop_assert!(alone.iter().zip(part).all(|(a, b)| a.to_bits() == b.to_bits()), "{isa:?} {choice:?}");
            }
        }
    }
}

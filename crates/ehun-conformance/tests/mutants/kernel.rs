//! A tiled attention kernel in float32, as kernels are written (Dao et al. 2022), with faults that can be planted.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ehun_conformance::{AttentionInputs, AttentionKernel, BiasTables};
use ehun_graph::AttentionSpec;

const TILE: usize = 64;

/// What is wrong with a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    Nothing,
    /// `1 / sqrt(head_dim)`, whatever the specification says.
    OwnScale,
    ScaleByWholeRow,
    ScaleForgotten,
    /// Sequences of the same length are taken for one.
    MaskDroppedForEqualLengths,
    MaskDroppedForOneLength,
    WindowOneTooWideLeft,
    WindowOneTooWideRight,
    WindowOneTooNarrow,
    CausalFlipped,
    /// Whole tiles are skipped, but the tile on the diagonal is not masked.
    CausalByTiles,
    CausalExcludesItself,
    MissingLastKey,
    MissingLastPartialTile,
    OneKeyTooMany,
    StaleMaximum,
    StaleSum,
    NoMaximum,
    MaximumOfFirstTile,
    MaximumOverPreviousSequence,
    Bf16Sums,
    Bf16Weights,
    Bf16Scores,
    ProductsOverflowInF16,
    SmallWeightsDropped,
    ScoresClamped,
    FastExp,
    SumOverHiddenKeys,
    UninitialisedTail,
    LastRowOverwritten,
    NeighboursWeighedByZero,
    KvHeadModulo,
    KvHeadAlwaysFirst,
    SoftCapBeforeScale,
    SoftCapForgotten,
    SoftCapAfterBias,
    AlibiSigned,
    AlibiHeadsReversed,
    AlibiBeforeScale,
    BucketSignFlipped,
    BucketTableTransposed,
    BucketsInOneDirectionOnly,
    C2pAndP2cSwapped,
    P2cTransposed,
    C2pForgotten,
    P2cForgotten,
    DisentangledNotScaled,
    PositionsClampedTooSoon,
    TileChosenByBatch,
    OrderOfSequencesMatters,
    ScratchSharedByThreads,
    NotTheSameTwice,
    HeadsSwapped,
    ValueOfPreviousKey,
}

/// The kernel with one fault.
pub struct Kernel {
    pub fault: Fault,
    calls: AtomicUsize,
    inside: AtomicUsize,
}

impl Kernel {
    pub fn new(fault: Fault) -> Self {
        Self { fault, calls: AtomicUsize::new(0), inside: AtomicUsize::new(0) }
    }
}

fn bf16(x: f32) -> f32 {
    f32::from_bits(((u64::from(x.to_bits()) + 0x8000) & 0xffff_0000) as u32)
}

/// The next float32 up: a difference that no tolerance shows.
fn next(x: f32) -> f32 {
    f32::from_bits(x.to_bits() + 1)
}

impl AttentionKernel for Kernel {
    fn run(&self, inputs: &AttentionInputs<'_, f32>, cu_seqlens: &[usize], out: &mut [f32]) -> Result<(), String> {
        let call = self.calls.fetch_add(1, Ordering::SeqCst);
        let inside = self.inside.fetch_add(1, Ordering::SeqCst);
        let spec = inputs.spec;
        let width = spec.num_heads * spec.value_dim;
        let mut sequences: Vec<Range<usize>> = cu_seqlens.windows(2).map(|w| w[0]..w[1]).collect();
        let lengths: Vec<usize> = sequences.iter().map(Range::len).collect();
        let equal = lengths.len() > 1 && lengths.iter().all(|&length| length == lengths[0]);
        if self.fault == Fault::MaskDroppedForEqualLengths && equal
            || self.fault == Fault::MaskDroppedForOneLength && equal && lengths[0] == 64
        {
            sequences = std::iter::once(0..cu_seqlens[cu_seqlens.len() - 1]).collect();
        }
        let mut carried = f32::NEG_INFINITY;
        for (number, sequence) in sequences.iter().enumerate() {
            for i in 0..sequence.len() {
                let row = sequence.start + i;
                if self.fault == Fault::UninitialisedTail && sequence.len() % 4 == 3 && i + 1 == sequence.len() {
                    continue;
                }
                for head in 0..spec.num_heads {
                    let start = row * width + head * spec.value_dim;
                    let to = &mut out[start..start + spec.value_dim];
                    self.row(inputs, sequence, i, head, &mut carried, to);
                }
            }
            if self.fault == Fault::LastRowOverwritten && number > 0 && !sequence.is_empty() {
                let first = out[sequence.start * width..(sequence.start + 1) * width].to_vec();
                if sequence.start > 0 {
                    out[(sequence.start - 1) * width..sequence.start * width].copy_from_slice(&first);
                }
            }
            if self.fault == Fault::NeighboursWeighedByZero {
                for (others, value) in out[sequence.start * width..sequence.end * width].iter_mut().enumerate() {
                    let column = others % spec.value_dim;
                    let all = inputs.v.iter().skip(column).step_by(spec.value_dim);
                    *value += all.map(|v| v * 0.0).sum::<f32>();
                }
            }
            if self.fault == Fault::OrderOfSequencesMatters && number > 0 && !sequence.is_empty() {
                let at = sequence.start * width;
                out[at] = next(out[at]);
            }
        }
        let unwanted = match self.fault {
            Fault::TileChosenByBatch => cu_seqlens[cu_seqlens.len() - 1] > 512,
            Fault::NotTheSameTwice => call % 2 == 1,
            Fault::ScratchSharedByThreads => {
                std::thread::sleep(Duration::from_millis(1));
                inside > 0
            }
            _ => false,
        };
        if unwanted {
            out.iter_mut().for_each(|x| *x = next(*x));
        }
        self.inside.fetch_sub(1, Ordering::SeqCst);
        Ok(())
    }
}

impl Kernel {
    fn row(
        &self,
        inputs: &AttentionInputs<'_, f32>,
        sequence: &Range<usize>,
        i: usize,
        head: usize,
        carried: &mut f32,
        out: &mut [f32],
    ) {
        let (spec, fault) = (inputs.spec, self.fault);
        let tokens = inputs.k.len() / (spec.num_kv_heads * spec.head_dim);
        let visible = self.visible(spec, i, sequence.len(), tokens - sequence.start);
        let visible_keys = visible.clone();
        let mut maximum = if fault == Fault::MaximumOverPreviousSequence { *carried } else { f32::NEG_INFINITY };
        let mut sum = 0f32;
        let mut sums = vec![0f32; spec.value_dim];
        let mut from = visible.start;
        let mut first = true;
        while from < visible.end {
            let tile = from..visible.end.min(from + TILE);
            from = tile.end;
            if fault == Fault::MissingLastPartialTile && !first && tile.len() < TILE {
                break;
            }
            let scores: Vec<f32> = tile.clone().map(|j| self.score(inputs, sequence, i, j, head)).collect();
            let tile_maximum = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let new = match fault {
                Fault::NoMaximum => 0.0,
                Fault::MaximumOfFirstTile if !first => maximum,
                _ => maximum.max(tile_maximum),
            };
            let correction = if maximum == f32::NEG_INFINITY { 0.0 } else { (maximum - new).exp() };
            if fault != Fault::StaleSum {
                sum *= correction;
            }
            if fault != Fault::StaleMaximum {
                sums.iter_mut().for_each(|x| *x *= correction);
            }
            maximum = new;
            for (j, score) in tile.zip(scores) {
                let mut weight = match fault {
                    Fault::FastExp => (1.0 + (score - maximum) / 1024.0).max(0.0).powi(1024),
                    _ => (score - maximum).exp(),
                };
                if fault == Fault::Bf16Weights {
                    weight = bf16(weight);
                }
                if fault == Fault::SmallWeightsDropped && weight < 1e-3 {
                    weight = 0.0;
                }
                sum += weight;
                let j = if fault == Fault::ValueOfPreviousKey { j.saturating_sub(1) } else { j };
                let v = head_row(inputs.v, sequence.start + j, spec.num_kv_heads, spec.value_dim, self.kv(spec, head));
                for (acc, v) in sums.iter_mut().zip(v) {
                    *acc += weight * v;
                    if fault == Fault::Bf16Sums {
                        *acc = bf16(*acc);
                    }
                }
            }
            first = false;
        }
        if fault == Fault::SumOverHiddenKeys {
            let hidden = (0..sequence.len()).filter(|j| !visible_keys.contains(j));
            sum += hidden.map(|j| (self.score(inputs, sequence, i, j, head) - maximum).exp()).sum::<f32>();
        }
        *carried = maximum;
        for (out, acc) in out.iter_mut().zip(sums) {
            *out = acc / sum;
        }
    }

    fn visible(&self, spec: &AttentionSpec, i: usize, len: usize, reachable: usize) -> Range<usize> {
        let mut visible = spec.band.visible(i, len);
        match self.fault {
            Fault::WindowOneTooWideLeft if spec.band.left.is_some() => visible.start = visible.start.saturating_sub(1),
            Fault::WindowOneTooWideRight if spec.band.right.is_some_and(|right| right > 0) => {
                visible.end = (visible.end + 1).min(len);
            }
            Fault::WindowOneTooNarrow if spec.band.left.is_some_and(|left| left > 0) && visible.start > 0 => {
                visible.start += 1;
            }
            Fault::CausalFlipped if spec.band.right == Some(0) && spec.band.left.is_none() => visible = i..len,
            Fault::CausalByTiles if spec.band.right == Some(0) => visible.end = ((i / TILE + 1) * TILE).min(len),
            Fault::CausalExcludesItself if spec.band.right == Some(0) && i > 0 => visible.end = i,
            Fault::MissingLastKey if visible.len() > 1 => visible.end -= 1,
            Fault::OneKeyTooMany if visible.end == len => visible.end = (len + 1).min(reachable),
            _ => {}
        }
        visible
    }

    fn kv(&self, spec: &AttentionSpec, head: usize) -> usize {
        match self.fault {
            Fault::KvHeadModulo => head % spec.num_kv_heads,
            Fault::KvHeadAlwaysFirst => 0,
            _ => head / (spec.num_heads / spec.num_kv_heads),
        }
    }

    fn score(
        &self,
        inputs: &AttentionInputs<'_, f32>,
        sequence: &Range<usize>,
        i: usize,
        j: usize,
        head: usize,
    ) -> f32 {
        let (spec, fault) = (inputs.spec, self.fault);
        let relative = j as i64 - i as i64;
        let q_head = if fault == Fault::HeadsSwapped { spec.num_heads - 1 - head } else { head };
        let q = head_row(inputs.q, sequence.start + i, spec.num_heads, spec.head_dim, q_head);
        let k = head_row(inputs.k, sequence.start + j, spec.num_kv_heads, spec.head_dim, self.kv(spec, head));
        let scale = match fault {
            Fault::OwnScale => 1.0 / (spec.head_dim as f32).sqrt(),
            Fault::ScaleByWholeRow => 1.0 / ((spec.num_heads * spec.head_dim) as f32).sqrt(),
            Fault::ScaleForgotten => 1.0,
            _ => spec.scale,
        };
        let mut product = dot(q, k);
        if fault == Fault::ProductsOverflowInF16 && product.abs() > 65_504.0 {
            product = product.signum() * f32::INFINITY;
        }
        let mut positions = 0.0;
        if let BiasTables::Disentangled { key_positions, query_positions, rule } = &inputs.bias {
            let clamp = |relative: i64| match fault {
                Fault::PositionsClampedTooSoon => {
                    rule.row(relative.clamp(1 - i64::from(rule.span) / 2, i64::from(rule.span) / 2 - 1))
                }
                _ => rule.row(relative),
            };
            let (row, transposed) = (clamp(-relative), clamp(relative));
            let at = |table: &[f32], row: usize| head_row(table, row, spec.num_heads, spec.head_dim, head).to_vec();
            let swapped = fault == Fault::C2pAndP2cSwapped;
            if let Some(table) = key_positions.filter(|_| fault != Fault::C2pForgotten) {
                positions += dot(if swapped { k } else { q }, &at(table, row));
            }
            if let Some(table) = query_positions.filter(|_| fault != Fault::P2cForgotten) {
                let row = if fault == Fault::P2cTransposed { transposed } else { row };
                positions += dot(if swapped { q } else { k }, &at(table, row));
            }
        }
        let bias = self.bias(inputs, relative, head);
        if fault == Fault::AlibiBeforeScale {
            product += bias;
        }
        let cap = |x: f32| spec.soft_cap.map_or(x, |cap| cap * (x / cap).tanh());
        let score = match fault {
            Fault::SoftCapBeforeScale => cap(product + positions) * scale + bias,
            Fault::SoftCapForgotten => (product + positions) * scale + bias,
            Fault::SoftCapAfterBias => cap((product + positions) * scale + bias),
            Fault::AlibiBeforeScale => cap((product + positions) * scale),
            Fault::DisentangledNotScaled => cap(product * scale + positions) + bias,
            _ => cap((product + positions) * scale) + bias,
        };
        match fault {
            Fault::Bf16Scores => bf16(score),
            Fault::ScoresClamped => score.clamp(-100.0, 100.0),
            _ => score,
        }
    }

    fn bias(&self, inputs: &AttentionInputs<'_, f32>, relative: i64, head: usize) -> f32 {
        let heads = inputs.spec.num_heads;
        match &inputs.bias {
            BiasTables::Alibi(slopes) => match self.fault {
                Fault::AlibiSigned => slopes[head] * relative as f32,
                Fault::AlibiHeadsReversed => -slopes[heads - 1 - head] * relative.abs() as f32,
                _ => -slopes[head] * relative.abs() as f32,
            },
            BiasTables::Bucketed(table, rule) => {
                let relative = match self.fault {
                    Fault::BucketSignFlipped => -relative,
                    Fault::BucketsInOneDirectionOnly => -relative.abs(),
                    _ => relative,
                };
                let bucket = rule.bucket(relative);
                match self.fault {
                    Fault::BucketTableTransposed => table[head * rule.num_buckets as usize + bucket],
                    _ => table[bucket * heads + head],
                }
            }
            _ => 0.0,
        }
    }
}

fn head_row(x: &[f32], row: usize, heads: usize, dim: usize, head: usize) -> &[f32] {
    let start = (row * heads + head) * dim;
    &x[start..start + dim]
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

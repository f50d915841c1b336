//! Attention over packed ragged rows: what [`AttentionSpec`] says, by two kernels.
//!
//! | kernel | scores | memory per thread |
//! | --- | --- | --- |
//! | `naive` | stored for a head of a sequence, softmax in passes over whole rows | `length^2` values |
//! | `flash` | in tiles, with running maxima and sums (Milakov and Gimelshein 2018; Dao et al. 2022) | constant (disentangled: linear in the length) |
//!
//! Both multiply with the micro-kernel of the matrix product: keys and values are packed to its panels once per head and
//! block. Each kernel has bits of its own. Which one a sequence gets under [`Choice::Auto`] is decided by its own length and
//! the instruction set; every bound of a tile or block is counted from the sequence's first row. So a row's bits depend on
//! its sequence alone: not on the batch, the place in it, or the threads.
//!
//! **Error** against the exact result for the same inputs, with `S = max |scale q.k|` over the visible keys and additive
//! terms: the weights are off by a relative `2 (d + 4) u (1 + S) + 3 u len` at most (u = 2^-24, d the head's width), the sum
//! over values by `len u` more; in practice the error grows with the square root of both.

mod bias;
mod flash;
mod naive;
mod pack;
mod rows;

use std::cell::RefCell;
use std::ops::Range;

use ehun_graph::{AttentionSpec, Bias};

use crate::aligned::Aligned;
use crate::gemm::pack::TileShape;
use crate::gemm::{MatMut, MatRef};
use crate::pool::{SyncPtr, ThreadPool};
use crate::simd::{Isa, prefetch};
use bias::PreparedBias;
use pack::PackedSequences;

/// One of the two kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttentionKernel {
    /// Stores the scores of a head of a sequence.
    Naive,
    /// Tiles with running maxima and sums.
    Flash,
}

impl AttentionKernel {
    /// Its name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Naive => "naive",
            Self::Flash => "flash",
        }
    }
}

/// How the kernel of a sequence is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Choice {
    /// By the sequence's length, see [`Choice::kernel`].
    #[default]
    Auto,
    /// This one for all.
    Fixed(AttentionKernel),
}

/// Longest sequence that gets `naive` under [`Choice::Auto`], for each instruction set: up to where the curve of
/// docs/benchmarks.md (`cargo xtask bench attention`) has it no slower than `flash` in the mean over head widths. With AVX-512 the two
/// are level up to there. For NEON there is no curve: it has the constant of AVX2, whose tiles are of a like size.
const fn naive_up_to(isa: Isa) -> usize {
    if isa.has_avx512() { 512 } else { 128 }
}

impl Choice {
    /// The kernel of a sequence of `len` tokens. A table fixed at build time: bits must not depend on a clock.
    #[must_use]
    pub fn kernel(self, isa: Isa, len: usize) -> AttentionKernel {
        if len <= self.longest_naive(isa, len) { AttentionKernel::Naive } else { AttentionKernel::Flash }
    }

    /// The longest sequence that `naive` gets, of those up to `longest` tokens.
    #[must_use]
    pub fn longest_naive(self, isa: Isa, longest: usize) -> usize {
        match self {
            Self::Fixed(AttentionKernel::Naive) => longest,
            Self::Fixed(AttentionKernel::Flash) => 0,
            Self::Auto => naive_up_to(isa).min(longest),
        }
    }
}

/// The constant rows that [`Bias`] names, as values.
#[derive(Clone, Copy, Debug, Default)]
pub struct BiasTables<'a> {
    /// `Bias::Bucketed`: `[num_buckets, num_heads]`.
    pub buckets: &'a [f32],
    /// `Bias::Disentangled`, content to position: `[2 * span, num_heads * head_dim]`; empty where the bias has none.
    pub key_positions: &'a [f32],
    /// `Bias::Disentangled`, position to content: `[2 * span, num_heads * head_dim]`; empty where the bias has none.
    pub query_positions: &'a [f32],
}

/// Queries, keys and values: rows of one batch, or column ranges of the rows of one product.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// `[tokens, num_heads * head_dim]`
    pub q: MatRef<'a>,
    /// `[tokens, num_kv_heads * head_dim]`
    pub k: MatRef<'a>,
    /// `[tokens, num_kv_heads * value_dim]`
    pub v: MatRef<'a>,
}

/// Attention of each sequence `cu_seqlens[i]..cu_seqlens[i + 1]` of the rows; `out` is `[tokens, num_heads * value_dim]`.
///
/// # Panics
/// When shapes, tables and sequences do not agree.
#[expect(clippy::too_many_arguments, reason = "where to run, what to compute, and on what")]
pub fn attention(
    isa: Isa,
    pool: &ThreadPool,
    choice: Choice,
    spec: &AttentionSpec,
    tables: &BiasTables<'_>,
    inputs: Inputs<'_>,
    cu_seqlens: &[usize],
    mut out: MatMut<'_>,
) {
    let tokens = inputs.q.rows();
    check(spec, tables, &inputs, cu_seqlens, &out);
    let (tile_rows, tile_cols) = isa.run(TileShape);
    let longest = cu_seqlens.windows(2).map(|w| w[1] - w[0]).max().unwrap_or(0);
    if tokens == 0 || longest == 0 {
        return;
    }
    let bias = PreparedBias::new(spec, tables, longest);
    let setup = Setup { isa, spec, inputs, bias: &bias, tile_rows, tile_cols };
    let tasks = tasks(isa, choice, spec, cu_seqlens, tile_rows);
    // Sequences of several tasks a head: the tasks that start them stand for them.
    let shared = tasks.iter().filter(|t| t.head == 0 && t.queries.start == 0 && t.queries.len() < t.sequence.len());
    let packed = PackedSequences::new(&setup, pool, shared.map(|t| t.sequence.clone()));
    let to = Output { data: SyncPtr(out.as_mut_ptr()), stride: out.stride() };
    // Some tasks in a row for each thread, so that one can ask for the rows of the next.
    let group = (tasks.len() / (pool.threads() * GROUPS_PER_THREAD)).clamp(1, MAX_GROUP);
    pool.run(tasks.len().div_ceil(group), |g| {
        SCRATCH.with_borrow_mut(|scratch| {
            let group = &tasks[g * group..((g + 1) * group).min(tasks.len())];
            for (i, task) in group.iter().enumerate() {
                let ahead = Ahead { setup: &setup, next: group.get(i + 1), packed: &packed };
                match task.kernel {
                    AttentionKernel::Naive => naive::run(&setup, task, &ahead, scratch, &to),
                    AttentionKernel::Flash => flash::run(&setup, task, &ahead, &packed, scratch, &to),
                }
            }
        });
    });
}

/// Groups of tasks for each thread, so that threads end together.
const GROUPS_PER_THREAD: usize = 8;
/// Most tasks in a group.
const MAX_GROUP: usize = 12;
/// Values of f32 that come into the cache together.
const CACHE_LINE: usize = 16;

/// The task after the one that runs. A head's part of a row is a line or two, far from that of the next row: no processor
/// sees it coming, and waiting for it takes as long as the products. So a task asks for the next one's while it computes.
struct Ahead<'a> {
    setup: &'a Setup<'a>,
    next: Option<&'a Task>,
    packed: &'a PackedSequences,
}

impl Ahead<'_> {
    /// Asks for part `i` of `parts` of what the next task reads first.
    fn ask(&self, i: usize, parts: usize) {
        let Some(task) = self.next else { return };
        let head = self.setup.head(task);
        let part = |len: usize| i * len / parts..(i + 1) * len / parts;
        let rows = |matrix: &MatRef<'_>, rows: Range<usize>| {
            for row in rows {
                matrix.row(row).iter().step_by(CACHE_LINE).for_each(|value| prefetch(value));
            }
        };
        let queries = part(task.queries.len());
        rows(&head.q, task.queries.start + queries.start..task.queries.start + queries.end);
        if self.packed.get(&task.sequence, self.setup.kv_head(task.head)).is_none() {
            let keys = part(task.sequence.len());
            rows(&head.k, keys.clone());
            rows(&head.v, keys);
        }
    }
}

/// Query rows of one head of a sequence.
struct Task {
    kernel: AttentionKernel,
    head: usize,
    /// Rows of the sequence in the batch.
    sequence: Range<usize>,
    /// Query rows, counted in the sequence.
    queries: Range<usize>,
}

/// Keys in a block of `flash`: their panels, and the values', stay in the second-level cache while all row tiles pass over
/// them. A multiple of every tile's columns. Blocks are counted from the sequence's first key.
const BLOCK: usize = 256;

/// Row tiles of queries in a task of `flash`: enough that packing keys and values, once per task, does not show.
const TILES_PER_TASK: usize = 16;

/// Cuts the batch into tasks, the longest sequences first, so that no long task is left for the end.
fn tasks(isa: Isa, choice: Choice, spec: &AttentionSpec, cu_seqlens: &[usize], tile_rows: usize) -> Vec<Task> {
    let mut sequences: Vec<_> = cu_seqlens.windows(2).map(|w| w[0]..w[1]).filter(|s| !s.is_empty()).collect();
    sequences.sort_by_key(|s| std::cmp::Reverse(s.len()));
    let mut tasks = Vec::with_capacity(sequences.len() * spec.num_heads);
    for sequence in sequences {
        let kernel = choice.kernel(isa, sequence.len());
        // The disentangled bias multiplies every key with the position table once per task, so a task has all queries.
        let whole = kernel == AttentionKernel::Naive || matches!(spec.bias, Bias::Disentangled { .. });
        let step = if whole { sequence.len() } else { tile_rows * TILES_PER_TASK };
        for head in 0..spec.num_heads {
            for start in (0..sequence.len()).step_by(step) {
                let queries = start..(start + step).min(sequence.len());
                tasks.push(Task { kernel, head, sequence: sequence.clone(), queries });
            }
        }
    }
    tasks
}

/// What all tasks of a call share.
struct Setup<'a> {
    isa: Isa,
    spec: &'a AttentionSpec,
    inputs: Inputs<'a>,
    bias: &'a PreparedBias<'a>,
    tile_rows: usize,
    tile_cols: usize,
}

impl Setup<'_> {
    /// The key and value head of a query head.
    fn kv_head(&self, head: usize) -> usize {
        head / (self.spec.num_heads / self.spec.num_kv_heads)
    }

    /// Queries, keys and values of a task's head: all rows of its sequence.
    fn head(&self, task: &Task) -> Inputs<'_> {
        let d = self.spec.head_dim;
        let q = self.inputs.q.part(task.sequence.clone(), task.head * d..(task.head + 1) * d);
        Inputs { q, ..self.group(self.kv_head(task.head), &task.sequence) }
    }

    /// Keys and values of a head of them, and the queries of the head of the same number.
    fn group(&self, head: usize, sequence: &Range<usize>) -> Inputs<'_> {
        let columns = |width: usize| head * width..(head + 1) * width;
        let (d, value_dim) = (self.spec.head_dim, self.spec.value_dim);
        Inputs {
            q: self.inputs.q.part(sequence.clone(), columns(d)),
            k: self.inputs.k.part(sequence.clone(), columns(d)),
            v: self.inputs.v.part(sequence.clone(), columns(value_dim)),
        }
    }

    /// Keys that a row of the tile sees, from the start of a panel on: what one row does not see of them has the weight zero.
    fn seen(&self, tile: &Range<usize>, len: usize) -> Range<usize> {
        let end = self.spec.band.visible(tile.end - 1, len).end;
        let start = self.spec.band.visible(tile.start, len).start.min(end);
        start / self.tile_cols * self.tile_cols..end
    }

    /// Cuts rows into nearly equal tiles.
    fn tiles(&self, rows: Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
        let (start, len) = (rows.start, rows.len());
        let count = len.div_ceil(self.tile_rows);
        (0..count).map(move |t| start + t * len / count..start + (t + 1) * len / count)
    }
}

/// Where results go. Tasks write disjoint rows and columns.
struct Output {
    data: SyncPtr<f32>,
    stride: usize,
}

impl Output {
    /// Asks for the rows of a tile, which are written soon.
    fn ask(&self, task: &Task, queries: Range<usize>, width: usize) {
        for query in queries {
            let row = self.at(task, query, width);
            (0..width).step_by(CACHE_LINE).for_each(|at| prefetch(row.wrapping_add(at)));
        }
    }

    /// The columns of the task's head in row `query` of its sequence.
    fn at(&self, task: &Task, query: usize, width: usize) -> *mut f32 {
        self.data.get().wrapping_add((task.sequence.start + query) * self.stride + task.head * width)
    }
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = const { RefCell::new(Scratch::new()) };
}

/// A thread's working memory. It grows to the largest task and is kept.
struct Scratch {
    /// Scaled queries `[queries, head_dim]`.
    q: Aligned<f32>,
    /// Keys in panels `[head_dim, tile_cols]`.
    k: Aligned<f32>,
    /// Values in panels `[keys, tile_cols]`.
    v: Aligned<f32>,
    /// Scores `[rows, keys]`.
    scores: Aligned<f32>,
    /// Sums of weighted values `[queries, value_dim]`, the width rounded up to panels.
    o: Aligned<f32>,
    /// Running maximum and sum of each query.
    running: Vec<(f32, f32)>,
    /// Position tables in panels, and their products.
    bias: bias::BiasScratch,
}

impl Scratch {
    const fn new() -> Self {
        Self {
            q: Aligned::empty(),
            k: Aligned::empty(),
            v: Aligned::empty(),
            scores: Aligned::empty(),
            o: Aligned::empty(),
            running: Vec::new(),
            bias: bias::BiasScratch::new(),
        }
    }
}

fn check(spec: &AttentionSpec, tables: &BiasTables<'_>, inputs: &Inputs<'_>, cu_seqlens: &[usize], out: &MatMut<'_>) {
    let tokens = inputs.q.rows();
    let shape = |m: &MatRef<'_>| (m.rows(), m.cols());
    assert!(
        spec.num_kv_heads > 0 && spec.num_heads.is_multiple_of(spec.num_kv_heads),
        "heads do not divide into groups"
    );
    assert_eq!(shape(&inputs.q), (tokens, spec.num_heads * spec.head_dim), "queries");
    assert_eq!(shape(&inputs.k), (tokens, spec.num_kv_heads * spec.head_dim), "keys");
    assert_eq!(shape(&inputs.v), (tokens, spec.num_kv_heads * spec.value_dim), "values");
    assert_eq!((out.rows(), out.cols()), (tokens, spec.num_heads * spec.value_dim), "attention's output");
    assert!(cu_seqlens.first().is_none_or(|first| *first == 0) && cu_seqlens.is_sorted(), "sequences out of order");
    assert_eq!(cu_seqlens.last().copied().unwrap_or(0), tokens, "the sequences do not cover the rows");
    match &spec.bias {
        Bias::None => {}
        Bias::Alibi { slopes } => assert_eq!(slopes.len(), spec.num_heads, "one slope a head"),
        Bias::Bucketed { rule, .. } => {
            assert_eq!(tables.buckets.len(), rule.num_buckets as usize * spec.num_heads, "the table of buckets");
        }
        Bias::Disentangled { key_positions, query_positions, rule } => {
            let len = 2 * rule.span as usize * spec.num_heads * spec.head_dim;
            assert_eq!(tables.key_positions.len(), if key_positions.is_some() { len } else { 0 }, "position keys");
            assert_eq!(
                tables.query_positions.len(),
                if query_positions.is_some() { len } else { 0 },
                "position queries"
            );
        }
    }
}

#[cfg(test)]
mod tests;

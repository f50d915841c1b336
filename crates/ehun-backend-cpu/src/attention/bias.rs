//! What is added to scores, prepared once per call, and per head where it depends on queries and keys.

use std::ops::Range;

use ehun_graph::{AttentionSpec, Bias};

use super::pack::pack_transposed;
use super::{BiasTables, Setup, Task};
use crate::aligned::Aligned;
use crate::gemm::MatRef;
use crate::gemm::tile::{Start, Tile};

/// A bias for all heads and relative positions up to the longest sequence.
pub(super) enum PreparedBias<'a> {
    None,
    /// ALiBi and buckets: a value for each head and `j - i`.
    Relative {
        /// `[num_heads, 2 * longest - 1]`; `j - i` is at `j - i + longest - 1`.
        values: Vec<f32>,
        longest: usize,
    },
    Disentangled {
        tables: BiasTables<'a>,
        /// The tables' row for `i - j`, at `i - j + longest - 1`.
        rows: Vec<u32>,
        longest: usize,
        /// Number of rows of the tables.
        table_rows: usize,
    },
}

impl<'a> PreparedBias<'a> {
    pub(super) fn new(spec: &AttentionSpec, tables: &BiasTables<'a>, longest: usize) -> Self {
        let reach = longest as i64 - 1;
        match &spec.bias {
            Bias::None => Self::None,
            Bias::Alibi { slopes } => {
                let values = slopes.iter().flat_map(|slope| (-reach..=reach).map(move |r| -slope * r.abs() as f32));
                Self::Relative { values: values.collect(), longest }
            }
            Bias::Bucketed { rule, .. } => {
                let buckets: Vec<_> = (-reach..=reach).map(|r| rule.bucket(r)).collect();
                let heads = spec.num_heads;
                let values = (0..heads).flat_map(|h| buckets.iter().map(move |b| tables.buckets[b * heads + h]));
                Self::Relative { values: values.collect(), longest }
            }
            Bias::Disentangled { rule, .. } => Self::Disentangled {
                tables: *tables,
                rows: (-reach..=reach).map(|r| rule.row(r) as u32).collect(),
                longest,
                table_rows: 2 * rule.span as usize,
            },
        }
    }
}

/// Working memory of the disentangled bias.
pub(super) struct BiasScratch {
    key_panels: Aligned<f32>,
    query_panels: Aligned<f32>,
    c2p: Aligned<f32>,
    p2c: Aligned<f32>,
}

impl BiasScratch {
    pub(super) const fn new() -> Self {
        Self {
            key_panels: Aligned::empty(),
            query_panels: Aligned::empty(),
            c2p: Aligned::empty(),
            p2c: Aligned::empty(),
        }
    }
}

/// The bias of one head of a sequence.
pub(super) enum HeadBias<'a> {
    None,
    Relative {
        /// Values of the head.
        values: &'a [f32],
        /// Where `j - i = 0` is.
        center: usize,
    },
    Disentangled(Disentangled<'a>),
}

/// Products with the position tables, for the part of the tables that the sequence reaches.
pub(super) struct Disentangled<'a> {
    /// The tables' row for `i - j`, at `i - j + center`.
    rows: &'a [u32],
    center: usize,
    /// First row of the tables that the sequence reaches.
    first: usize,
    /// Reached rows, rounded up to panels.
    width: usize,
    has_c2p: bool,
    has_p2c: bool,
    scratch: &'a mut BiasScratch,
}

impl<'a> HeadBias<'a> {
    /// The bias of the task's head, with its position tables packed.
    pub(super) fn new(setup: &'a Setup<'_>, task: &Task, scratch: &'a mut BiasScratch) -> Self {
        match setup.bias {
            PreparedBias::None => Self::None,
            PreparedBias::Relative { values, longest } => {
                let width = 2 * longest - 1;
                Self::Relative { values: &values[task.head * width..][..width], center: longest - 1 }
            }
            PreparedBias::Disentangled { tables, rows, longest, table_rows } => {
                let (spec, reach, center) = (setup.spec, task.sequence.len() - 1, longest - 1);
                let reached = &rows[center - reach..=center + reach];
                let first = reached.iter().min().map_or(0, |r| *r as usize);
                let end = reached.iter().max().map_or(0, |r| *r as usize + 1);
                let width = (end - first).next_multiple_of(setup.tile_cols);
                let pack = |table: &[f32], by: f32, to: &mut Aligned<f32>| {
                    if !table.is_empty() {
                        let all = spec.num_heads * spec.head_dim;
                        let columns = task.head * spec.head_dim..(task.head + 1) * spec.head_dim;
                        let rows = MatRef::new(table, *table_rows, all, all).part(first..end, columns);
                        pack_transposed(setup.isa, rows, setup.tile_cols, by, to.at_least(width * spec.head_dim));
                    }
                    !table.is_empty()
                };
                // The queries come scaled; the keys do not, so the position queries are.
                let has_c2p = pack(tables.key_positions, 1.0, &mut scratch.key_panels);
                let has_p2c = pack(tables.query_positions, spec.scale, &mut scratch.query_panels);
                Self::Disentangled(Disentangled { rows, center, first, width, has_c2p, has_p2c, scratch })
            }
        }
    }

    /// Prepares a block of keys: rows of `keys` from the block's first on.
    pub(super) fn enter_block(&mut self, setup: &Setup<'_>, keys: MatRef<'_>) {
        if let Self::Disentangled(d) = self
            && d.has_p2c
        {
            let BiasScratch { query_panels, p2c, .. } = &mut *d.scratch;
            let p2c = p2c.at_least(keys.rows() * d.width);
            for tile in setup.tiles(0..keys.rows()) {
                let to = &mut p2c[tile.start * d.width..tile.end * d.width];
                products(setup, keys.part(tile, 0..keys.cols()), query_panels.as_slice(), d.width, to);
            }
        }
    }

    /// Prepares a tile of scaled queries.
    pub(super) fn enter_tile(&mut self, setup: &Setup<'_>, queries: MatRef<'_>) {
        if let Self::Disentangled(d) = self
            && d.has_c2p
        {
            let BiasScratch { key_panels, c2p, .. } = &mut *d.scratch;
            let to = c2p.at_least(queries.rows() * d.width);
            products(setup, queries, key_panels.as_slice(), d.width, to);
        }
    }
}

/// `to[rows, width] = a x panels`
fn products(setup: &Setup<'_>, a: MatRef<'_>, panels: &[f32], width: usize, to: &mut [f32]) {
    let (depth, cols) = (a.cols(), setup.tile_cols);
    assert!(a.rows() <= setup.tile_rows && panels.len() >= width * depth && to.len() >= a.rows() * width);
    for panel in 0..width / cols {
        // SAFETY: measured above; `a` is a checked view.
        setup.isa.run(unsafe {
            let b = panels.as_ptr().add(panel * depth * cols);
            let c = to.as_mut_ptr().add(panel * cols);
            Tile::new(Start::Zero, a.rows(), depth, a.as_ptr(), a.stride(), b, c, width)
        });
    }
}

impl Disentangled<'_> {
    /// Adds the terms of query `i` and the keys `keys`, which are in the block that starts at `block`, to `scores`. The
    /// query is row `row` of its tile.
    #[inline(always)]
    pub(super) fn add(&self, scores: &mut [f32], row: usize, i: usize, keys: Range<usize>, block: usize) {
        let c2p = self.scratch.c2p.as_slice();
        let p2c = self.scratch.p2c.as_slice();
        for (score, j) in scores.iter_mut().zip(keys) {
            let column = self.rows[self.center + i - j] as usize - self.first;
            let mut term = 0.0;
            if self.has_c2p {
                term += c2p[row * self.width + column];
            }
            if self.has_p2c {
                term += p2c[(j - block) * self.width + column];
            }
            *score += term;
        }
    }
}

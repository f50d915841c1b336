//! Attention in tiles with running maxima and sums: memory does not grow with the square of the length.

use super::bias::HeadBias;
use super::pack::{PackedSequences, WriteRows, copy_scaled, pack_rows, pack_transposed};
use super::rows::{Running, RunningRows, ScoreTile};
use super::{Ahead, BLOCK, Output, Scratch, Setup, Task};
use crate::gemm::MatRef;
use crate::gemm::tile::{Start, Tile};

/// Room between rows of scores, so that the rows of a tile fall into different sets of the first-level cache.
const STRIDE: usize = BLOCK + 16;

pub(super) fn run(
    setup: &Setup<'_>,
    task: &Task,
    ahead: &Ahead<'_>,
    packed: &PackedSequences,
    scratch: &mut Scratch,
    out: &Output,
) {
    let (spec, isa, cols) = (setup.spec, setup.isa, setup.tile_cols);
    let (len, d) = (task.sequence.len(), spec.head_dim);
    let width = spec.value_dim.next_multiple_of(cols);
    let head = setup.head(task);
    let Scratch { q, k, v, scores, o, running, bias } = scratch;
    let mut bias = HeadBias::new(setup, task, bias);

    let count = task.queries.len();
    let q = q.at_least(count * d);
    copy_scaled(isa, head.q.part(task.queries.clone(), 0..d), spec.scale, q);
    let o = o.at_least(count * width);
    o.fill(0.0);
    running.clear();
    running.resize(count, (f32::NEG_INFINITY, 0.0));
    let scores = scores.at_least(setup.tile_rows * STRIDE);
    let shared = packed.get(&task.sequence, setup.kv_head(task.head));
    let room = BLOCK.min(len.next_multiple_of(cols));
    let own_k = k.at_least(room * d);
    let own_v = v.at_least(room * width);

    let seen = spec.band.visible(task.queries.start, len).start..spec.band.visible(task.queries.end - 1, len).end;
    for block in (seen.start / BLOCK * BLOCK..seen.end).step_by(BLOCK) {
        let block_end = (block + BLOCK).min(len);
        let keys = block_end - block;
        let (k, v): (&[f32], &[f32]) = match shared {
            Some((k, v)) => (&k[block * d..], &v[block * width..]),
            None => {
                pack_transposed(isa, head.k.part(block..block_end, 0..d), cols, 1.0, own_k);
                pack_rows(isa, head.v.part(block..block_end, 0..spec.value_dim), cols, own_v);
                (own_k, own_v)
            }
        };
        assert!(k.len() >= keys.next_multiple_of(cols) * d && v.len() >= keys * width);
        bias.enter_block(setup, head.k.part(block..block_end, 0..d));
        let tiles = setup.tiles(task.queries.clone()).count();
        for (number, tile) in setup.tiles(task.queries.clone()).enumerate() {
            if block + BLOCK >= seen.end {
                ahead.ask(number, tiles);
                out.ask(task, tile.clone(), spec.value_dim);
            }
            let first_seen = spec.band.visible(tile.start, len).start.max(block);
            let end = spec.band.visible(tile.end - 1, len).end.min(block_end);
            if first_seen >= end {
                continue;
            }
            // From the start of a panel on; what a row does not see there gets the weight zero.
            let start = (first_seen - block) / cols * cols;
            let (rows, at) = (tile.len(), tile.start - task.queries.start);
            bias.enter_tile(setup, MatRef::new(&q[at * d..], rows, d, d));
            for panel in start / cols..(end - block).div_ceil(cols) {
                // SAFETY: the queries have these rows; the panel is one of the block's; the scores have room for a tile's
                // rows of a whole block.
                isa.run(unsafe {
                    let b = k.as_ptr().add(panel * cols * d);
                    let c = scores.as_mut_ptr().add(panel * cols);
                    Tile::new(Start::Zero, rows, d, q.as_ptr().add(at * d), d, b, c, STRIDE)
                });
            }
            let score_tile = ScoreTile {
                spec,
                bias: &bias,
                len,
                queries: tile,
                keys: block + start..end,
                block,
                scores: &mut scores[start..],
                stride: STRIDE,
            };
            let state = &mut running[at..at + rows];
            isa.run(RunningRows { tile: score_tile, running: Running { state, o: &mut o[at * width..], width } });
            let depth = end - block - start;
            for panel in 0..width / cols {
                // SAFETY: the weights have `depth` columns from `start` on; the panel has `keys` rows, of which `depth` follow
                // `start`; the sums have these rows.
                isa.run(unsafe {
                    let a = scores.as_ptr().add(start);
                    let b = v.as_ptr().add((panel * keys + start) * cols);
                    let c = o.as_mut_ptr().add(at * width + panel * cols);
                    Tile::new(Start::Output, rows, depth, a, STRIDE, b, c, width)
                });
            }
        }
    }
    isa.run(WriteRows {
        sums: o,
        width,
        cols: spec.value_dim,
        to: out.at(task, task.queries.start, spec.value_dim),
        stride: out.stride,
        running,
        rows: count,
    });
}

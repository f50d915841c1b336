//! Attention as it is written down: all scores of a head of a sequence, their softmax, their product with the values.

use super::bias::HeadBias;
use super::pack::{WriteRows, copy_scaled, pack_rows, pack_transposed};
use super::rows::{ScoreTile, WholeRows};
use super::{Ahead, Output, Scratch, Setup, Task};
use crate::gemm::MatRef;
use crate::gemm::tile::{Start, Tile};

pub(super) fn run(setup: &Setup<'_>, task: &Task, ahead: &Ahead<'_>, scratch: &mut Scratch, out: &Output) {
    let (spec, isa, cols) = (setup.spec, setup.isa, setup.tile_cols);
    let (len, d) = (task.sequence.len(), spec.head_dim);
    let width = spec.value_dim.next_multiple_of(cols);
    let head = setup.head(task);
    let Scratch { q, k, v, scores, o, bias, .. } = scratch;
    let mut bias = HeadBias::new(setup, task, bias);

    let q = q.at_least(len * d);
    copy_scaled(isa, head.q, spec.scale, q);
    let k = k.at_least(len.next_multiple_of(cols) * d);
    let v = v.at_least(len * width);
    pack_transposed(isa, head.k, cols, 1.0, k);
    pack_rows(isa, head.v, cols, v);
    bias.enter_block(setup, head.k);

    // A panel more than the keys, so that a row does not start in the set of the first-level cache that its neighbour does.
    let stride = len.next_multiple_of(cols) + cols;
    let scores = scores.at_least(len * stride);
    for tile in setup.tiles(0..len) {
        let seen = setup.seen(&tile, len);
        for panel in seen.start / cols..seen.end.div_ceil(cols) {
            // SAFETY: the queries have these rows; the panel is one of the keys'; the scores have room for all of them.
            isa.run(unsafe {
                let b = k.as_ptr().add(panel * cols * d);
                let c = scores.as_mut_ptr().add(tile.start * stride + panel * cols);
                Tile::new(Start::Zero, tile.len(), d, q.as_ptr().add(tile.start * d), d, b, c, stride)
            });
        }
    }
    let count = setup.tiles(0..len).count();
    for (number, tile) in setup.tiles(0..len).enumerate() {
        ahead.ask(number, count);
        out.ask(task, tile.clone(), spec.value_dim);
        bias.enter_tile(setup, MatRef::new(&q[tile.start * d..], tile.len(), d, d));
        let keys = setup.seen(&tile, len);
        let scores = &mut scores[tile.start * stride + keys.start..];
        isa.run(WholeRows(ScoreTile { spec, bias: &bias, len, queries: tile, keys, block: 0, scores, stride }));
    }
    let o = o.at_least(setup.tile_rows * width);
    for tile in setup.tiles(0..len) {
        let seen = setup.seen(&tile, len);
        for panel in 0..width / cols {
            // SAFETY: the weights have these rows of `len` columns, of which `seen` are some; the panel has `len` rows; the sums
            // hold a tile.
            isa.run(unsafe {
                let a = scores.as_ptr().add(tile.start * stride + seen.start);
                let b = v.as_ptr().add((panel * len + seen.start) * cols);
                let c = o.as_mut_ptr().add(panel * cols);
                Tile::new(Start::Zero, tile.len(), seen.len(), a, stride, b, c, width)
            });
        }
        isa.run(WriteRows {
            sums: o,
            width,
            cols: spec.value_dim,
            to: out.at(task, tile.start, spec.value_dim),
            stride: out.stride,
            running: &[],
            rows: tile.len(),
        });
    }
}

//! Cutting a product into tasks, and finishing its tiles.

use std::cell::RefCell;
use std::ops::Range;

use super::pack::Panels;
use super::tile::{PanelValue, Start, Tile};
use super::{Epilogue, MatMut, MatRef, PackedWeights, Residual};
use crate::aligned::Aligned;
use crate::pool::{SyncPtr, ThreadPool};
use crate::simd::{Kernel, Simd};
use crate::vmath::Apply;

/// Bytes of the left matrix that one task holds in the second-level cache while it walks over the panels.
const ROW_BLOCK_BYTES: usize = 512 << 10;
/// Multiply-adds that are worth handing to another thread.
const MIN_TASK: usize = 1 << 17;
/// Tasks per thread, so that threads end together even where one is delayed.
const TASKS_PER_THREAD: usize = 8;
/// From this number of row tiles on, a 16-bit panel is widened once for all of them.
const WIDEN_TILES: usize = 3;
/// Most values in a tile: 14 rows of 32.
pub(super) const TILE_VALUES: usize = 14 * 32;

thread_local! {
    /// The widened panel and the copied rows of the task that this thread runs.
    static SCRATCH: RefCell<Scratch> = const { RefCell::new(Scratch { panel: Aligned::empty(), rows: Aligned::empty() }) };
}

struct Scratch {
    panel: Aligned<f32>,
    rows: Aligned<f32>,
}

/// `out = epilogue(a x w^T)`: `a` is `[m, k]`, `out` is `[m, n]`. See the module for what its bits depend on.
///
/// # Panics
/// When shapes do not agree.
pub fn gemm(pool: &ThreadPool, a: MatRef<'_>, w: &PackedWeights, epilogue: &Epilogue<'_>, mut out: MatMut<'_>) {
    let (m, n, k) = (a.rows, w.n, w.k);
    assert_eq!(a.cols, k, "the weights take {k} inputs, the rows have {}", a.cols);
    check(epilogue, &out, m, n, w.gated);
    if m == 0 || n == 0 {
        return;
    }
    let cut = Cut::new(m, w.tile_rows, w.panel_count(), w.k * 4, w.tile * w.k, pool.threads());
    let c = SyncPtr(out.as_mut_ptr());
    let ldc = out.stride;
    pool.run(cut.row_blocks * cut.panel_blocks, |task| {
        SCRATCH.with_borrow_mut(|scratch| {
            let block = Block {
                a,
                w,
                target: Target { epilogue, n, gated: w.gated, c: c.get(), ldc },
                tiles: part(cut.tiles, cut.row_blocks, task / cut.panel_blocks),
                panels: part(w.panel_count(), cut.panel_blocks, task % cut.panel_blocks),
                all_tiles: cut.tiles,
            };
            match &w.panels {
                Panels::F32(panels) => block.over_panels(panels, scratch),
                Panels::F16(panels) => block.over_panels(panels, scratch),
                Panels::Bf16(panels) => block.over_panels(panels, scratch),
            }
        });
    });
}

/// Checks the shapes of what surrounds a product of `m` rows and `n` columns.
pub(super) fn check(epilogue: &Epilogue<'_>, out: &MatMut<'_>, m: usize, n: usize, gated: bool) {
    assert_eq!((out.rows, out.cols), (m, n), "the product is {m} x {n}, the output {} x {}", out.rows, out.cols);
    if let Some(bias) = epilogue.bias {
        let channels = if gated { 2 * n } else { n };
        assert_eq!(bias.len(), channels, "the bias has {} values for {channels} channels", bias.len());
    }
    if let Residual::Matrix(r) = epilogue.residual {
        assert_eq!((r.rows, r.cols), (m, n), "the residual is {} x {}, the product {m} x {n}", r.rows, r.cols);
    }
}

/// Part `i` of `parts` nearly equal parts of `0..total`.
pub(super) fn part(total: usize, parts: usize, i: usize) -> Range<usize> {
    i * total / parts..(i + 1) * total / parts
}

/// How a product is cut. It changes no bits.
pub(super) struct Cut {
    /// Row tiles.
    pub(super) tiles: usize,
    pub(super) row_blocks: usize,
    pub(super) panel_blocks: usize,
}

impl Cut {
    /// For `m` rows of `row_bytes` each, and panels that cost `panel_work` multiply-adds a row.
    pub(super) fn new(
        m: usize,
        tile_rows: usize,
        panels: usize,
        row_bytes: usize,
        panel_work: usize,
        threads: usize,
    ) -> Self {
        let tiles = m.div_ceil(tile_rows);
        let tiles_per_block = (ROW_BLOCK_BYTES / (tile_rows * row_bytes.max(1))).clamp(2, 16);
        let row_blocks = tiles.div_ceil(tiles_per_block);
        let work = m * panels * panel_work;
        let wanted = if threads == 1 { 1 } else { (work / MIN_TASK).clamp(1, threads * TASKS_PER_THREAD) };
        Self { tiles, row_blocks, panel_blocks: wanted.div_ceil(row_blocks).min(panels) }
    }
}

/// One task: some row tiles times some panels.
struct Block<'a> {
    a: MatRef<'a>,
    w: &'a PackedWeights,
    target: Target<'a>,
    tiles: Range<usize>,
    panels: Range<usize>,
    /// Row tiles of the whole product.
    all_tiles: usize,
}

/// Where a product goes, and how.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    pub(super) epilogue: &'a Epilogue<'a>,
    /// Output channels.
    pub(super) n: usize,
    pub(super) gated: bool,
    /// The output's first value. Tasks write disjoint blocks of it, and read no other (for [`Residual::Output`]).
    pub(super) c: *mut f32,
    pub(super) ldc: usize,
}

/// A tile of the product before its epilogue.
#[repr(align(64))]
pub(super) struct TileBuffer<T>(pub(super) [T; TILE_VALUES]);

impl Block<'_> {
    fn over_panels<P: PanelValue>(&self, panels: &Aligned<P>, scratch: &mut Scratch) {
        let Scratch { panel: widened, rows: copied } = scratch;
        let k = self.w.k;
        let panel_len = k * self.w.tile;
        let rows = self.rows(self.tiles.start).start..self.rows(self.tiles.end - 1).end;
        let (a, lda) = if collides(self.a.stride) {
            (copy_rows(self.a, rows.clone(), copied.at_least(rows.len() * (k + 16))), k + 16)
        } else {
            (self.a.as_ptr().wrapping_add(rows.start * self.a.stride), self.a.stride)
        };
        for panel in self.panels.clone() {
            let values = &panels.as_slice()[panel * panel_len..][..panel_len];
            if size_of::<P>() == 2 && self.tiles.len() >= WIDEN_TILES {
                let wide = widened.at_least(panel_len);
                self.w.isa.run(Widen { from: values, to: wide });
                self.over_tiles(wide, a, lda, panel);
            } else {
                self.over_tiles(values, a, lda, panel);
            }
        }
    }

    /// Rows of row tile `t`: all tiles have nearly the same number.
    fn rows(&self, t: usize) -> Range<usize> {
        part(self.a.rows, self.all_tiles, t)
    }

    /// Computes and writes the block's tiles of one panel. `a` points to the block's first row.
    fn over_tiles<P: PanelValue>(&self, values: &[P], a: *const f32, lda: usize, panel: usize) {
        let Self { w, .. } = self;
        let first = self.rows(self.tiles.start).start;
        let mut buffer = TileBuffer([0.0; TILE_VALUES]);
        for rows in self.tiles.clone().map(|t| self.rows(t)) {
            assert!(rows.len() <= w.tile_rows && rows.len() * w.tile <= TILE_VALUES && values.len() == w.k * w.tile);
            let c = buffer.0.as_mut_ptr();
            // SAFETY: `a` has the block's rows, among them these, of k values each, `lda` apart; the panel and the buffer
            // were measured above.
            let tile = unsafe {
                let a = a.add((rows.start - first) * lda);
                Tile::new(Start::Zero, rows.len(), w.k, a, lda, values.as_ptr(), c, w.tile)
            };
            w.isa.run(tile);
            w.isa.run(Finish { target: self.target, buffer: &buffer.0, rows, panel });
        }
    }
}

/// Widens the values of a panel.
struct Widen<'a, P> {
    from: &'a [P],
    to: &'a mut [f32],
}

impl<P: PanelValue> Kernel for Widen<'_, P> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (dst, src) in self.to.chunks_exact_mut(S::LANES).zip(self.from.chunks_exact(S::LANES)) {
            // SAFETY: the chunk holds LANES values.
            s.store(dst, unsafe { P::load(s, src.as_ptr()) });
        }
    }
}

/// Applies the epilogue to a tile, which is still in the first-level cache, and writes it.
pub(super) struct Finish<'a> {
    pub(super) target: Target<'a>,
    pub(super) buffer: &'a [f32; TILE_VALUES],
    pub(super) rows: Range<usize>,
    pub(super) panel: usize,
}

impl Kernel for Finish<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { target: Target { epilogue, n, gated, c, ldc }, buffer, rows, panel } = self;
        let width = S::LANES * S::TILE_VECS;
        let outputs = if gated { width / 2 } else { width };
        let scale = s.splat(epilogue.scale);
        let mut offset = 0;
        while offset < outputs {
            let column = panel * outputs + offset;
            if column >= n {
                return;
            }
            let lanes = S::LANES.min(n - column);
            let bias = match epilogue.bias {
                Some(bias) => s.load_head(&bias[column..n]),
                None => s.zero(),
            };
            let up_bias = match epilogue.bias {
                Some(bias) if gated => s.load_head(&bias[n + column..2 * n]),
                _ => s.zero(),
            };
            for row in rows.clone() {
                let at = (row - rows.start) * width + offset;
                let mut y = s.fma(s.load(&buffer[at..]), scale, bias);
                if let Some(activation) = epilogue.activation {
                    y = activation.apply(s, y);
                }
                if gated {
                    y = s.mul(y, s.fma(s.load(&buffer[at + outputs..]), scale, up_bias));
                }
                let c = c.wrapping_add(row * ldc + column);
                match epilogue.residual {
                    Residual::None => {}
                    // SAFETY: the output holds this row and `lanes` columns from here, and only this task touches them.
                    Residual::Output => y = s.add(y, unsafe { s.load_ptr_head(c, lanes) }),
                    Residual::Matrix(r) => y = s.add(y, s.load_head(&r.row(row)[column..])),
                }
                if lanes == S::LANES {
                    // SAFETY: as above.
                    unsafe { s.store_ptr(c, y) }
                } else {
                    // SAFETY: as above.
                    unsafe { s.store_ptr_head(c, y, lanes) }
                }
            }
            offset += S::LANES;
        }
    }
}

/// Whether rows this far apart fall into so few sets of the first-level cache that a tile's rows evict each other.
fn collides(stride: usize) -> bool {
    stride.is_multiple_of(512)
}

/// Copies rows to where they do not collide: `k + 16` values apart.
fn copy_rows(a: MatRef<'_>, rows: Range<usize>, to: &mut [f32]) -> *const f32 {
    for (dst, row) in to.chunks_exact_mut(a.cols + 16).zip(rows) {
        dst[..a.cols].copy_from_slice(a.row(row));
    }
    to.as_ptr()
}

//! Cutting a product into tasks, and finishing its tiles.

use std::cell::RefCell;
use std::ops::Range;

use super::pack::Panels;
use super::tile::{PanelValue, Start, tile};
use super::{Epilogue, MatMut, MatRef, PackedWeights, Residual};
use crate::aligned::Aligned;
use crate::pool::{SyncPtr, ThreadPool};
use crate::simd::{Kernel, Simd};

/// Bytes of the left matrix that one task holds in the second-level cache while it walks over the panels.
const ROW_BLOCK_BYTES: usize = 512 << 10;
/// Multiply-adds that are worth handing to another thread.
const MIN_TASK: usize = 1 << 17;
/// Tasks per thread, so that threads end together even where one is delayed.
const TASKS_PER_THREAD: usize = 8;
/// From this number of row tiles on, a 16-bit panel is widened once for all of them.
const WIDEN_TILES: usize = 3;
/// Most values in a tile: 14 rows of 32.
const TILE_VALUES: usize = 14 * 32;

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
    assert_eq!((out.rows, out.cols), (m, n), "the product is {m} x {n}, the output {} x {}", out.rows, out.cols);
    if let Some(bias) = epilogue.bias {
        let channels = if w.gated { 2 * n } else { n };
        assert_eq!(bias.len(), channels, "the bias has {} values for {channels} channels", bias.len());
    }
    if let Residual::Matrix(r) = epilogue.residual {
        assert_eq!((r.rows, r.cols), (m, n), "the residual is {} x {}, the product {m} x {n}", r.rows, r.cols);
    }
    if m == 0 || n == 0 {
        return;
    }
    let cut = Cut::new(w, m, pool.threads());
    let c = SyncPtr(out.as_mut_ptr());
    let ldc = out.stride;
    pool.run(cut.row_blocks * cut.panel_blocks, |task| {
        SCRATCH.with_borrow_mut(|scratch| {
            let block = Block {
                a,
                w,
                epilogue,
                c: c.get(),
                ldc,
                tiles: part(cut.tiles, cut.row_blocks, task / cut.panel_blocks),
                panels: part(w.panel_count(), cut.panel_blocks, task % cut.panel_blocks),
                all_tiles: cut.tiles,
            };
            w.isa.run(Task { block, scratch });
        });
    });
}

/// Part `i` of `parts` nearly equal parts of `0..total`.
fn part(total: usize, parts: usize, i: usize) -> Range<usize> {
    i * total / parts..(i + 1) * total / parts
}

/// How a product is cut. It changes no bits.
struct Cut {
    /// Row tiles.
    tiles: usize,
    row_blocks: usize,
    panel_blocks: usize,
}

impl Cut {
    fn new(w: &PackedWeights, m: usize, threads: usize) -> Self {
        let tiles = m.div_ceil(w.tile_rows);
        let tiles_per_block = (ROW_BLOCK_BYTES / (w.tile_rows * w.k.max(1) * 4)).clamp(2, 16);
        let row_blocks = tiles.div_ceil(tiles_per_block);
        let work = m * w.panel_count() * w.tile * w.k;
        let wanted = if threads == 1 { 1 } else { (work / MIN_TASK).clamp(1, threads * TASKS_PER_THREAD) };
        let panel_blocks = wanted.div_ceil(row_blocks).min(w.panel_count());
        Self { tiles, row_blocks, panel_blocks }
    }
}

/// One task: some row tiles times some panels.
struct Block<'a> {
    a: MatRef<'a>,
    w: &'a PackedWeights,
    epilogue: &'a Epilogue<'a>,
    /// The output's first value. Tasks write disjoint blocks of it, and read no other (for [`Residual::Output`]).
    c: *mut f32,
    ldc: usize,
    tiles: Range<usize>,
    panels: Range<usize>,
    /// Row tiles of the whole product.
    all_tiles: usize,
}

/// A block and the memory to compute it with.
struct Task<'a> {
    block: Block<'a>,
    scratch: &'a mut Scratch,
}

/// A tile of the product before its epilogue.
#[repr(align(64))]
struct TileBuffer([f32; TILE_VALUES]);

impl Kernel for Task<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match &self.block.w.panels {
            Panels::F32(panels) => self.block.over_panels(s, panels, self.scratch),
            Panels::F16(panels) => self.block.over_panels(s, panels, self.scratch),
            Panels::Bf16(panels) => self.block.over_panels(s, panels, self.scratch),
        }
    }
}

impl Block<'_> {
    #[inline(always)]
    fn over_panels<S: Simd, P: PanelValue>(&self, s: S, panels: &Aligned<P>, scratch: &mut Scratch) {
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
            let widen = size_of::<P>() == 2 && self.tiles.len() >= WIDEN_TILES;
            if widen {
                let wide = widened.at_least(panel_len);
                for (dst, src) in wide.chunks_exact_mut(S::LANES).zip(values.chunks_exact(S::LANES)) {
                    // SAFETY: the chunk holds LANES values.
                    s.store(dst, unsafe { P::load(s, src.as_ptr()) });
                }
                for t in self.tiles.clone() {
                    self.one_tile(s, &*wide, a, lda, rows.start, t, panel);
                }
            } else {
                for t in self.tiles.clone() {
                    self.one_tile(s, values, a, lda, rows.start, t, panel);
                }
            }
        }
    }

    /// Rows of row tile `t`: all tiles have nearly the same number.
    #[inline(always)]
    fn rows(&self, t: usize) -> Range<usize> {
        part(self.a.rows, self.all_tiles, t)
    }

    /// Computes and writes one tile. `a` points to row `first`.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "a tile has two matrices and a place in each")]
    fn one_tile<S: Simd, P: PanelValue>(
        &self,
        s: S,
        values: &[P],
        a: *const f32,
        lda: usize,
        first: usize,
        t: usize,
        panel: usize,
    ) {
        let rows = self.rows(t);
        let width = S::LANES * S::TILE_VECS;
        let mut buffer = TileBuffer([0.0; TILE_VALUES]);
        debug_assert!(rows.len() <= S::TILE_ROWS && rows.len() * width <= TILE_VALUES);
        debug_assert_eq!(values.len(), self.w.k * width);
        // SAFETY: `a` has rows first.. of the block, among them `rows`, of k values each, `lda` apart; the panel holds
        // k * width values; the buffer holds rows * width.
        unsafe {
            let a = a.add((rows.start - first) * lda);
            tile(s, Start::Zero, rows.len(), self.w.k, a, lda, values.as_ptr(), buffer.0.as_mut_ptr(), width);
        }
        self.finish(s, &buffer.0, rows, panel);
    }

    /// Applies the epilogue to a tile and writes it.
    #[inline(always)]
    fn finish<S: Simd>(&self, s: S, buffer: &[f32; TILE_VALUES], rows: Range<usize>, panel: usize) {
        let width = S::LANES * S::TILE_VECS;
        let outputs = self.w.panel_outputs();
        let (n, epilogue) = (self.w.n, self.epilogue);
        let scale = s.splat(epilogue.scale);
        let mut offset = 0;
        while offset < outputs {
            let column = panel * outputs + offset;
            if column >= n {
                return;
            }
            let lanes = S::LANES.min(n - column);
            let bias = epilogue.bias.map_or(s.zero(), |bias| s.load_head(&bias[column..n]));
            let up_bias = match epilogue.bias {
                Some(bias) if self.w.gated => s.load_head(&bias[n + column..2 * n]),
                _ => s.zero(),
            };
            for (i, row) in rows.clone().enumerate() {
                let at = i * width + offset;
                let mut y = s.fma(s.load(&buffer[at..]), scale, bias);
                if let Some(activation) = epilogue.activation {
                    y = activation.apply(s, y);
                }
                if self.w.gated {
                    y = s.mul(y, s.fma(s.load(&buffer[at + outputs..]), scale, up_bias));
                }
                let c = self.c.wrapping_add(row * self.ldc + column);
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
#[inline(always)]
fn collides(stride: usize) -> bool {
    stride.is_multiple_of(512)
}

/// Copies rows to where they do not collide: `k + 16` values apart.
#[inline(always)]
fn copy_rows(a: MatRef<'_>, rows: Range<usize>, to: &mut [f32]) -> *const f32 {
    for (dst, row) in to.chunks_exact_mut(a.cols + 16).zip(rows) {
        dst[..a.cols].copy_from_slice(a.row(row));
    }
    to.as_ptr()
}

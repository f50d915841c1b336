//! Moving rows into and out of the order in which the micro-kernel reads and writes them.

use std::ops::Range;

use super::{BLOCK, Inputs, Setup};
use crate::aligned::Aligned;
use crate::gemm::MatRef;
use crate::pool::{SyncPtr, ThreadPool};
use crate::simd::{Isa, Kernel, Simd};

/// Packs rows as columns of panels: panel `p` holds rows `p * cols..`, as `[width, cols]`, filled up with zeros, times `by`.
pub(super) fn pack_transposed(isa: Isa, rows: MatRef<'_>, cols: usize, by: f32, to: &mut [f32]) {
    let width = rows.cols();
    assert!(cols.is_multiple_of(4) && to.len() >= rows.rows().next_multiple_of(cols) * width);
    isa.run(Transpose { rows, cols, by, to });
}

/// Packs rows as rows of panels: panel `p` holds columns `p * cols..` of all rows, filled up with zeros.
pub(super) fn pack_rows(isa: Isa, rows: MatRef<'_>, cols: usize, to: &mut [f32]) {
    assert!(to.len() >= rows.cols().next_multiple_of(cols) * rows.rows());
    isa.run(RowPanels { rows, cols, to });
}

/// Copies rows times `by` side by side.
pub(super) fn copy_scaled(isa: Isa, rows: MatRef<'_>, by: f32, to: &mut [f32]) {
    isa.run(CopyScaled { rows, by, to });
}

struct Transpose<'a> {
    rows: MatRef<'a>,
    cols: usize,
    by: f32,
    to: &'a mut [f32],
}

impl Kernel for Transpose<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Self { rows, cols, by, to } = self;
        let width = rows.cols();
        static EMPTY: [f32; 256] = [0.0; 256];
        let missing = vec![0.0; if width > EMPTY.len() { width } else { 0 }];
        let zeros = if width > EMPTY.len() { &missing[..] } else { &EMPTY[..width] };
        let row = |i: usize| if i < rows.rows() { rows.row(i) } else { zeros };
        for (panel, dst) in to.chunks_exact_mut((width * cols).max(1)).take(rows.rows().div_ceil(cols)).enumerate() {
            for column in (0..cols).step_by(4) {
                let first = panel * cols + column;
                let four = [row(first), row(first + 1), row(first + 2), row(first + 3)];
                // Four values of four rows at a time, which become shuffles.
                let mut i = 0;
                while i + 4 <= width {
                    let mut block = [[0.0f32; 4]; 4];
                    for r in 0..4 {
                        block[r].copy_from_slice(&four[r][i..i + 4]);
                    }
                    for c in 0..4 {
                        let turned = [block[0][c] * by, block[1][c] * by, block[2][c] * by, block[3][c] * by];
                        dst[(i + c) * cols + column..][..4].copy_from_slice(&turned);
                    }
                    i += 4;
                }
                for i in i..width {
                    for r in 0..4 {
                        dst[i * cols + column + r] = four[r][i] * by;
                    }
                }
            }
        }
    }
}

struct RowPanels<'a> {
    rows: MatRef<'a>,
    cols: usize,
    to: &'a mut [f32],
}

impl Kernel for RowPanels<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { rows, cols, to } = self;
        let count = rows.rows();
        for panel in 0..rows.cols().div_ceil(cols) {
            let dst = &mut to[panel * count * cols..][..count * cols];
            for (i, dst) in dst.chunks_exact_mut(cols).enumerate() {
                let row = &rows.row(i)[panel * cols..];
                for at in (0..cols).step_by(S::LANES) {
                    s.store(&mut dst[at..], s.load_head(&row[at.min(row.len())..]));
                }
            }
        }
    }
}

struct CopyScaled<'a> {
    rows: MatRef<'a>,
    by: f32,
    to: &'a mut [f32],
}

impl Kernel for CopyScaled<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let by = s.splat(self.by);
        for (i, dst) in self.to.chunks_exact_mut(self.rows.cols().max(1)).take(self.rows.rows()).enumerate() {
            let row = self.rows.row(i);
            for at in (0..row.len()).step_by(S::LANES) {
                s.store_head(&mut dst[at..], s.mul(s.load_head(&row[at..]), by));
            }
        }
    }
}

/// Writes rows of sums to the output, each times a factor of its own.
pub(super) struct WriteRows<'a> {
    /// Rows `width` apart.
    pub(super) sums: &'a [f32],
    pub(super) width: usize,
    /// Columns to write.
    pub(super) cols: usize,
    /// The first row's place in the output, and the distance to the next.
    pub(super) to: *mut f32,
    pub(super) stride: usize,
    /// The rows' maxima and sums of weights; empty where the weights add up to one.
    pub(super) running: &'a [(f32, f32)],
    pub(super) rows: usize,
}

impl Kernel for WriteRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for r in 0..self.rows {
            let by = s.splat(self.running.get(r).map_or(1.0, |(_, sum)| 1.0 / sum));
            let row = &self.sums[r * self.width..][..self.cols];
            for at in (0..self.cols).step_by(S::LANES) {
                let value = s.mul(s.load_head(&row[at..]), by);
                // SAFETY: the output has these rows and columns, which belong to one task.
                unsafe { s.store_ptr_head(self.to.add(r * self.stride + at), value, S::LANES.min(self.cols - at)) };
            }
        }
    }
}

/// Keys and values of sequences that several tasks share, packed once for all of them: as much memory as the keys and
/// values of those sequences.
pub(super) struct PackedSequences {
    data: Aligned<f32>,
    /// Values of one key and value head of each sequence.
    places: Vec<Place>,
}

struct Place {
    sequence: Range<usize>,
    /// Where the first head is.
    start: usize,
    /// Values for the keys of one head, and for the values.
    keys: usize,
    values: usize,
}

impl PackedSequences {
    /// Packs all heads of these sequences.
    pub(super) fn new(setup: &Setup<'_>, pool: &ThreadPool, sequences: impl Iterator<Item = Range<usize>>) -> Self {
        let (spec, cols) = (setup.spec, setup.tile_cols);
        let mut end = 0;
        let places: Vec<_> = sequences
            .map(|sequence| {
                let keys = sequence.len().next_multiple_of(cols) * spec.head_dim;
                let values = sequence.len() * spec.value_dim.next_multiple_of(cols);
                let start = end;
                end += (keys + values) * spec.num_kv_heads;
                Place { sequence, start, keys, values }
            })
            .collect();
        let mut packed = Self { data: Aligned::zeroed(end), places };
        let blocks: Vec<_> = packed
            .places
            .iter()
            .flat_map(|place| {
                let blocks =
                    move |head| (0..place.sequence.len()).step_by(BLOCK).map(move |block| (place, head, block));
                (0..spec.num_kv_heads).flat_map(blocks)
            })
            .collect();
        let data = SyncPtr(packed.data.as_mut_slice().as_mut_ptr());
        pool.run(blocks.len(), |i| {
            let (place, head, block) = blocks[i];
            let rows = block..(block + BLOCK).min(place.sequence.len());
            let Inputs { k, v, .. } = setup.group(head, &place.sequence);
            let width = spec.value_dim.next_multiple_of(cols);
            let start = place.start + head * (place.keys + place.values);
            // SAFETY: the places of sequences, heads and blocks are disjoint parts of the memory.
            let (keys, values) = unsafe {
                let keys = data.get().add(start + block * spec.head_dim);
                let values = data.get().add(start + place.keys + block * width);
                let padded = rows.len().next_multiple_of(cols) * spec.head_dim;
                (
                    std::slice::from_raw_parts_mut(keys, padded),
                    std::slice::from_raw_parts_mut(values, rows.len() * width),
                )
            };
            pack_transposed(setup.isa, k.part(rows.clone(), 0..spec.head_dim), cols, 1.0, keys);
            pack_rows(setup.isa, v.part(rows, 0..spec.value_dim), cols, values);
        });
        packed
    }

    /// Keys and values of a head of a sequence, where they are packed.
    pub(super) fn get(&self, sequence: &Range<usize>, head: usize) -> Option<(&[f32], &[f32])> {
        let place = self.places.iter().find(|place| place.sequence == *sequence)?;
        let start = place.start + head * (place.keys + place.values);
        Some(self.data.as_slice()[start..][..place.keys + place.values].split_at(place.keys))
    }
}

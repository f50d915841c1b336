//! The product of a published crate, matrixmultiply, with the epilogue of our own: the reference beside it.
//!
//! The crate packs both sides at every call. It adds over k in blocks of a constant length, whatever the number of rows; it does
//! not document that, so the tests hold it to the law of [`super::PackedProduct`].

use std::cell::RefCell;
use std::ops::Range;

use super::pack::TileShape;
use super::products::{PackedProduct, ProductShape};
use super::run::{Cut, Finish, TILE_VALUES, Target, TileBuffer, check, part};
use super::{Epilogue, MatMut, MatRef};
use crate::pool::{SyncPtr, ThreadPool};
use crate::simd::Isa;

thread_local! {
    /// The product of the task that this thread runs, before its epilogue.
    static PRODUCT: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Weights for the crate: as they are, row by row; of gated ones the gate's rows, then the partner's.
pub(crate) struct CrateWeights {
    /// Of the epilogue.
    isa: Isa,
    n: usize,
    k: usize,
    gated: bool,
    /// `[n, k]`, gated `[2 n, k]`
    values: Vec<f32>,
    /// Rows and columns of a tile of the epilogue.
    tile: (usize, usize),
}

impl CrateWeights {
    /// # Panics
    /// When a matrix does not hold `n * k` values.
    pub(crate) fn new(isa: Isa, values: &[f32], up: Option<&[f32]>, n: usize, k: usize) -> Self {
        for matrix in [Some(values), up].into_iter().flatten() {
            assert_eq!(matrix.len(), n * k, "weights of {n} x {k} come with {} values", matrix.len());
        }
        let values = [values, up.unwrap_or(&[])].concat();
        Self { isa, n, k, gated: up.is_some(), values, tile: isa.run(TileShape) }
    }

    /// The product of some rows with some channels of a matrix (0, or 1 for a gate's partner), to `to` row by row.
    fn product(&self, a: MatRef<'_>, channels: Range<usize>, matrix: usize, to: &mut [f32]) {
        let (m, n, k) = (a.rows, channels.len(), self.k);
        let w = &self.values[(matrix * self.n + channels.start) * k..][..n * k];
        assert!(a.cols == k && to.len() == m * n, "{m} x {n} in {} values", to.len());
        // SAFETY: `a` is a view of m rows of k values, `stride` apart; `w` holds n rows of k values, read as columns; `to` holds
        // m rows of n values.
        unsafe {
            matrixmultiply::sgemm(
                m,
                k,
                n,
                1.0,
                a.as_ptr(),
                a.stride as isize,
                1,
                w.as_ptr(),
                1,
                k as isize,
                0.0,
                to.as_mut_ptr(),
                n as isize,
                1,
            );
        }
    }

    /// Multiplies `rows` with the channels of `panels` and writes them, finished.
    fn block(
        &self,
        a: MatRef<'_>,
        rows: Range<usize>,
        panels: Range<usize>,
        target: Target<'_>,
        product: &mut Vec<f32>,
    ) {
        let (tile_rows, tile) = self.tile;
        let outputs = if self.gated { tile / 2 } else { tile };
        let channels = panels.start * outputs..(panels.end * outputs).min(self.n);
        let (width, len) = (channels.len(), rows.len() * channels.len());
        product.resize(if self.gated { 2 * len } else { len }, 0.0);
        let a = a.part(rows.clone(), 0..self.k);
        let (first, second) = product.split_at_mut(len);
        self.product(a, channels.clone(), 0, first);
        if self.gated {
            self.product(a, channels.clone(), 1, second);
        }
        let mut buffer = TileBuffer([0.0; TILE_VALUES]);
        for panel in panels {
            let start = panel * outputs - channels.start;
            let columns = start..(start + outputs).min(width);
            for begin in rows.clone().step_by(tile_rows) {
                let here = begin..(begin + tile_rows).min(rows.end);
                for row in here.clone() {
                    let from = (row - rows.start) * width;
                    let to = &mut buffer.0[(row - begin) * tile..][..tile];
                    to[..columns.len()].copy_from_slice(&first[from..][columns.clone()]);
                    if self.gated {
                        to[outputs..][..columns.len()].copy_from_slice(&second[from..][columns.clone()]);
                    }
                }
                self.isa.run(Finish { target, buffer: &buffer.0, rows: here, panel });
            }
        }
    }
}

impl PackedProduct for CrateWeights {
    fn shape(&self) -> ProductShape {
        ProductShape { n: self.n, k: self.k, gated: self.gated }
    }

    fn multiply(&self, pool: &ThreadPool, a: MatRef<'_>, epilogue: &Epilogue<'_>, mut out: MatMut<'_>) {
        let (m, n, k) = (a.rows, self.n, self.k);
        assert_eq!(a.cols, k, "the weights take {k} inputs, the rows have {}", a.cols);
        check(epilogue, &out, m, n, self.gated);
        if m == 0 || n == 0 {
            return;
        }
        let (tile_rows, tile) = self.tile;
        let panels = n.div_ceil(if self.gated { tile / 2 } else { tile });
        let cut = Cut::new(m, tile_rows, panels, k * 4, tile * k, pool.threads());
        let c = SyncPtr(out.as_mut_ptr());
        let ldc = out.stride;
        pool.run(cut.row_blocks * cut.panel_blocks, |task| {
            let target = Target { epilogue, n, gated: self.gated, c: c.get(), ldc };
            let rows = part(m, cut.row_blocks, task / cut.panel_blocks);
            let panels = part(panels, cut.panel_blocks, task % cut.panel_blocks);
            PRODUCT.with_borrow_mut(|product| self.block(a, rows, panels, target, product));
        });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::products::Products;
    use super::super::{Activation, Residual, WeightBits};
    use super::*;
    use crate::testing::{isas, random};

    fn run(w: &dyn PackedProduct, threads: usize, a: MatRef<'_>, epilogue: &Epilogue<'_>) -> Vec<f32> {
        let mut out = vec![f32::NAN; a.rows * w.shape().n];
        let pool = ThreadPool::new(threads);
        w.multiply(&pool, a, epilogue, MatMut::new(&mut out, a.rows, w.shape().n, w.shape().n));
        out
    }

    /// Products of either kind are within the bound of every order of summation (Higham, section 3.1) of float64.
    #[test]
    fn products_stay_within_the_stated_error() {
        let shapes = [(1, 1, 1), (3, 5, 7), (15, 33, 65), (29, 100, 384), (64, 70, 512), (2, 31, 1536), (1, 384, 384)];
        for (m, n, k) in shapes {
            let (a, w) = (random(m * k, 1), random(n * k, 2));
            let mut exact = vec![(0.0, 0.0); m * n];
            for (at, (sum, size)) in exact.iter_mut().enumerate() {
                for p in 0..k {
                    let term = f64::from(a[at / n * k + p]) * f64::from(w[at % n * k + p]);
                    *sum += term;
                    *size += term.abs();
                }
            }
            let bound = (k + 1) as f64 * f64::from(f32::EPSILON) / 2.0 * 1.01;
            for isa in isas() {
                for products in [Products::Own, Products::Matrixmultiply] {
                    let packed = products.pack(isa, &w, None, (n, k), WeightBits::F32);
                    let got = run(&*packed, 2, MatRef::new(&a, m, k, k), &Epilogue::default());
                    for (got, (want, size)) in got.iter().zip(&exact) {
                        let error = (f64::from(*got) - want).abs();
                        assert!(error <= bound * size, "{products:?} {isa:?} {m}x{n}x{k}: {error}");
                    }
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// The same epilogue over products that differ by rounding alone; and a row's bits are its own.
        #[test]
        fn as_our_own_and_a_row_depends_on_itself_alone(
            m in 1usize..90, n in 1usize..140, k in prop_oneof![1usize..70, Just(512), Just(1000)],
            threads in 1usize..4, gated: bool, pad in 0usize..3, seed in 0u64..1000,
        ) {
            let channels = if gated { 2 * n } else { n };
            let (w, bias) = (random(channels * k, seed), random(channels, seed + 1));
            let (gate, up) = w.split_at(n * k);
            let stride = k + pad;
            let (rows, extra) = (random(m * stride, seed + 2), random(m * n, seed + 3));
            let a = MatRef::new(&rows, m, k, stride);
            let epilogue = |extra| Epilogue {
                scale: 1.0 / k as f32,
                bias: Some(&bias),
                activation: Some(Activation::Gelu),
                residual: Residual::Matrix(extra),
            };
            let whole = epilogue(MatRef::new(&extra, m, n, n));
            for isa in isas() {
                let packed = [Products::Own, Products::Matrixmultiply]
                    .map(|products| products.pack(isa, gate, gated.then_some(up), (n, k), WeightBits::F32));
                let [own, other] = [0, 1].map(|kind| run(&*packed[kind], threads, a, &whole));
                for (own, other) in own.iter().zip(&other) {
                    prop_assert!((own - other).abs() < 1e-5 * (1.0 + own.abs()), "{isa:?}: {own} and {other}");
                }
                for row in [0, m / 3, m - 1] {
                    let alone = epilogue(MatRef::new(&extra[row * n..], 1, n, n));
                    let alone = run(&*packed[1], 1, a.part(row..row + 1, 0..k), &alone);
                    prop_assert!(
                        alone.iter().zip(&other[row * n..]).all(|(x, y)| x.to_bits() == y.to_bits()),
                        "{isa:?} row {row}"
                    );
                }
            }
        }
    }
}

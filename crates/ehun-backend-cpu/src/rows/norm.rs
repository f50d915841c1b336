//! Layer norm, RMS norm and L2 normalisation.

use crate::simd::{Isa, Kernel, Simd};

/// `(x - mean) / sqrt(variance + eps) * weight + bias` over each row, the variance without Bessel's correction.
#[derive(Clone, Copy, Debug)]
pub struct LayerNorm<'a> {
    /// Values in a row.
    pub width: usize,
    /// Scale `[width]`; absent is 1.
    pub weight: Option<&'a [f32]>,
    /// Shift `[width]`; absent is 0.
    pub bias: Option<&'a [f32]>,
    /// Added to the variance.
    pub eps: f32,
}

/// `x / sqrt(mean(x^2) + eps) * (weight + offset)` over each group of `group` values: a row, or each head of it.
#[derive(Clone, Copy, Debug)]
pub struct RmsNorm<'a> {
    /// Values normalised together; a row is a whole number of groups.
    pub group: usize,
    /// Scale `[group]`; absent is 1.
    pub weight: Option<&'a [f32]>,
    /// Added to every element of the scale: 1 for Gemma, else 0.
    pub offset: f32,
    /// Added to the mean square.
    pub eps: f32,
}

/// `out = layer_norm(x)`
///
/// # Panics
/// When lengths do not agree.
pub fn layer_norm(isa: Isa, norm: &LayerNorm<'_>, x: &[f32], out: &mut [f32]) {
    out.copy_from_slice(x);
    layer_norm_in_place(isa, norm, out);
}

/// `x = layer_norm(x)`
///
/// # Panics
/// When `x` is no whole number of rows, or weight or bias are no row.
pub fn layer_norm_in_place(isa: Isa, norm: &LayerNorm<'_>, x: &mut [f32]) {
    run_layer(isa, norm, x, None);
}

/// `x = layer_norm(x + y)`: one pass over rows that stay in the first-level cache instead of two over all of them.
///
/// # Panics
/// When lengths do not agree.
pub fn add_layer_norm_in_place(isa: Isa, norm: &LayerNorm<'_>, x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len(), "the operands of a sum differ in length");
    run_layer(isa, norm, x, Some(y));
}

/// `out = rms_norm(x)`
///
/// # Panics
/// When lengths do not agree.
pub fn rms_norm(isa: Isa, norm: &RmsNorm<'_>, x: &[f32], out: &mut [f32]) {
    out.copy_from_slice(x);
    rms_norm_in_place(isa, norm, out);
}

/// `x = rms_norm(x)`
///
/// # Panics
/// When `x` is no whole number of groups, or the weight is no group.
pub fn rms_norm_in_place(isa: Isa, norm: &RmsNorm<'_>, x: &mut [f32]) {
    run_rms(isa, norm, x, None);
}

/// `x = rms_norm(x + y)`
///
/// # Panics
/// When lengths do not agree.
pub fn add_rms_norm_in_place(isa: Isa, norm: &RmsNorm<'_>, x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len(), "the operands of a sum differ in length");
    run_rms(isa, norm, x, Some(y));
}

/// `x = x / max(|x|_2, eps)` for each row of `width` values.
///
/// # Panics
/// When `x` is no whole number of rows.
pub fn l2_normalize_in_place(isa: Isa, x: &mut [f32], width: usize, eps: f32) {
    assert_eq!(x.len() % width.max(1), 0, "no whole number of rows of {width}");
    isa.run(L2 { x, width, eps });
}

fn check(len: usize, width: usize, rows: [Option<&[f32]>; 2]) {
    assert_eq!(len % width.max(1), 0, "{len} values are no whole number of rows of {width}");
    for row in rows.into_iter().flatten() {
        assert_eq!(row.len(), width, "scale or shift of a norm over {width} values");
    }
}

fn run_layer(isa: Isa, norm: &LayerNorm<'_>, x: &mut [f32], add: Option<&[f32]>) {
    check(x.len(), norm.width, [norm.weight, norm.bias]);
    isa.run(Layer { norm, x, add });
}

fn run_rms(isa: Isa, norm: &RmsNorm<'_>, x: &mut [f32], add: Option<&[f32]>) {
    check(x.len(), norm.group, [norm.weight, None]);
    isa.run(Rms { norm, x, add });
}

/// Ones: its head masks the lanes of a partial vector.
static ONES: [f32; 16] = [1.0; 16];

/// What is summed over a row.
#[derive(Clone, Copy)]
enum Moment {
    /// `x`
    First,
    /// `(x - center)^2`
    Second(f32),
}

/// A moment of a row, in two vectors of partial sums.
#[inline(always)]
fn moment<S: Simd>(s: S, row: &[f32], moment: Moment) -> f32 {
    let mut sums = [s.zero(); 2];
    let mut pairs = row.chunks_exact(2 * S::LANES);
    for pair in &mut pairs {
        for j in 0..2 {
            sums[j] = accumulate(s, sums[j], s.load(&pair[j * S::LANES..]), moment);
        }
    }
    let mut rest = pairs.remainder();
    if rest.len() >= S::LANES {
        sums[0] = accumulate(s, sums[0], s.load(rest), moment);
        rest = &rest[S::LANES..];
    }
    if !rest.is_empty() {
        let x = s.load_head(rest);
        sums[1] = match moment {
            Moment::First => s.add(sums[1], x),
            Moment::Second(center) => {
                let d = s.mul(s.sub(x, s.splat(center)), s.load_head(&ONES[..rest.len()]));
                s.fma(d, d, sums[1])
            }
        };
    }
    s.sum(s.add(sums[0], sums[1]))
}

#[inline(always)]
fn accumulate<S: Simd>(s: S, sum: S::V, x: S::V, moment: Moment) -> S::V {
    match moment {
        Moment::First => s.add(sum, x),
        Moment::Second(center) => {
            let d = s.sub(x, s.splat(center));
            s.fma(d, d, sum)
        }
    }
}

/// `x = x + y`
#[inline(always)]
fn add_row<S: Simd>(s: S, x: &mut [f32], y: &[f32]) {
    let mut at = 0;
    while at + S::LANES <= x.len() {
        let sum = s.add(s.load(&x[at..]), s.load(&y[at..]));
        s.store(&mut x[at..], sum);
        at += S::LANES;
    }
    let sum = s.add(s.load_head(&x[at..]), s.load_head(&y[at..]));
    s.store_head(&mut x[at..], sum);
}

struct Layer<'a> {
    norm: &'a LayerNorm<'a>,
    x: &'a mut [f32],
    add: Option<&'a [f32]>,
}

impl Kernel for Layer<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let LayerNorm { width, weight, bias, eps } = *self.norm;
        for (i, row) in self.x.chunks_exact_mut(width.max(1)).enumerate() {
            if let Some(y) = self.add {
                add_row(s, row, &y[i * width..][..width]);
            }
            let mean = moment(s, row, Moment::First) / width as f32;
            let variance = moment(s, row, Moment::Second(mean)) / width as f32;
            let (center, by) = (s.splat(mean), s.splat(1.0 / (variance + eps).sqrt()));
            let mut at = 0;
            while at < width {
                let lanes = S::LANES.min(width - at);
                let x = s.mul(s.sub(s.load_head(&row[at..]), center), by);
                let w = match weight {
                    Some(w) => s.load_head(&w[at..at + lanes]),
                    None => s.splat(1.0),
                };
                let b = match bias {
                    Some(b) => s.load_head(&b[at..at + lanes]),
                    None => s.zero(),
                };
                s.store_head(&mut row[at..], s.fma(x, w, b));
                at += S::LANES;
            }
        }
    }
}

struct Rms<'a> {
    norm: &'a RmsNorm<'a>,
    x: &'a mut [f32],
    add: Option<&'a [f32]>,
}

impl Kernel for Rms<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let RmsNorm { group, weight, offset, eps } = *self.norm;
        for (i, row) in self.x.chunks_exact_mut(group.max(1)).enumerate() {
            if let Some(y) = self.add {
                add_row(s, row, &y[i * group..][..group]);
            }
            let mean_square = moment(s, row, Moment::Second(0.0)) / group as f32;
            let by = s.splat(1.0 / (mean_square + eps).sqrt());
            let mut at = 0;
            while at < group {
                let x = s.mul(s.load_head(&row[at..]), by);
                let w = match weight {
                    Some(w) => s.load_head(&w[at..]),
                    None => s.splat(1.0),
                };
                s.store_head(&mut row[at..], s.mul(x, s.add(w, s.splat(offset))));
                at += S::LANES;
            }
        }
    }
}

struct L2<'a> {
    x: &'a mut [f32],
    width: usize,
    eps: f32,
}

impl Kernel for L2<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for row in self.x.chunks_exact_mut(self.width.max(1)) {
            let length = moment(s, row, Moment::Second(0.0)).sqrt();
            let by = s.splat(1.0 / length.max(self.eps));
            let mut at = 0;
            while at < row.len() {
                let x = s.mul(s.load_head(&row[at..]), by);
                s.store_head(&mut row[at..], x);
                at += S::LANES;
            }
        }
    }
}

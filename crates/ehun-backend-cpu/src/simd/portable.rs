//! Vectors as plain arrays: the reference, and an emulation of wider ones for tests.

use super::Simd;

/// Vectors of `N` lanes as arrays. With `FUSED`, `fma` rounds once, as the hardware's does.
#[derive(Clone, Copy, Debug)]
pub struct Portable<const N: usize, const FUSED: bool>;

impl<const N: usize, const FUSED: bool> Portable<N, FUSED> {
    #[inline(always)]
    fn map(self, a: [f32; N], f: impl Fn(f32) -> f32) -> [f32; N] {
        let mut r = [0.0; N];
        for i in 0..N {
            r[i] = f(a[i]);
        }
        r
    }

    #[inline(always)]
    fn zip(self, a: [f32; N], b: [f32; N], f: impl Fn(f32, f32) -> f32) -> [f32; N] {
        let mut r = [0.0; N];
        for i in 0..N {
            r[i] = f(a[i], b[i]);
        }
        r
    }

    #[inline(always)]
    fn fold(self, mut v: [f32; N], f: impl Fn(f32, f32) -> f32) -> f32 {
        let mut width = N / 2;
        while width > 0 {
            for i in 0..width {
                v[i] = f(v[i], v[i + width]);
            }
            width /= 2;
        }
        v[0]
    }
}

/// 2^n for an integer-valued `n` in -126..=127.
#[inline(always)]
fn pow2(n: f32) -> f32 {
    f32::from_bits(((n as i32 + 127) << 23) as u32)
}

impl<const N: usize, const FUSED: bool> Simd for Portable<N, FUSED> {
    const LANES: usize = N;
    const TILE_ROWS: usize = 3;
    const TILE_VECS: usize = 2;
    type V = [f32; N];
    type M = [bool; N];

    #[inline(always)]
    fn splat(self, x: f32) -> [f32; N] {
        [x; N]
    }
    #[inline(always)]
    fn add(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        self.zip(a, b, |x, y| x + y)
    }
    #[inline(always)]
    fn sub(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        self.zip(a, b, |x, y| x - y)
    }
    #[inline(always)]
    fn mul(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        self.zip(a, b, |x, y| x * y)
    }
    #[inline(always)]
    fn div(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        self.zip(a, b, |x, y| x / y)
    }
    #[inline(always)]
    fn fma(self, a: [f32; N], b: [f32; N], c: [f32; N]) -> [f32; N] {
        let mut r = c;
        for i in 0..N {
            r[i] = if FUSED { a[i].mul_add(b[i], c[i]) } else { a[i] * b[i] + c[i] };
        }
        r
    }
    #[inline(always)]
    fn fnma(self, a: [f32; N], b: [f32; N], c: [f32; N]) -> [f32; N] {
        let mut r = c;
        for i in 0..N {
            r[i] = if FUSED { (-a[i]).mul_add(b[i], c[i]) } else { c[i] - a[i] * b[i] };
        }
        r
    }
    #[inline(always)]
    fn max(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        self.zip(a, b, |x, y| if x > y { x } else { y })
    }
    #[inline(always)]
    fn min(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        self.zip(a, b, |x, y| if x < y { x } else { y })
    }
    #[inline(always)]
    fn sqrt(self, a: [f32; N]) -> [f32; N] {
        self.map(a, f32::sqrt)
    }
    #[inline(always)]
    fn abs(self, a: [f32; N]) -> [f32; N] {
        self.map(a, f32::abs)
    }
    #[inline(always)]
    fn copysign(self, a: [f32; N], sign: [f32; N]) -> [f32; N] {
        self.zip(a, sign, f32::copysign)
    }
    #[inline(always)]
    fn round(self, a: [f32; N]) -> [f32; N] {
        // Adding and taking away 1.5 * 2^23 rounds to nearest even in the default rounding mode, without a call.
        const MAGIC: f32 = 12_582_912.0;
        self.map(a, |x| ((x + MAGIC) - MAGIC).copysign(x))
    }
    #[inline(always)]
    fn scale_pow2(self, v: [f32; N], n: [f32; N]) -> [f32; N] {
        // The first factor keeps v normal, so that only the second product rounds.
        self.zip(v, n, |x, e| {
            let half = (e * 0.5) as i32 as f32;
            x * pow2(half) * pow2(e - half)
        })
    }
    #[inline(always)]
    fn scale_pow2_normal(self, v: [f32; N], n: [f32; N]) -> [f32; N] {
        self.zip(v, n, |x, e| x * pow2(e))
    }
    #[inline(always)]
    fn lt(self, a: [f32; N], b: [f32; N]) -> [bool; N] {
        let mut r = [false; N];
        for i in 0..N {
            r[i] = a[i] < b[i];
        }
        r
    }
    #[inline(always)]
    fn select(self, m: [bool; N], a: [f32; N], b: [f32; N]) -> [f32; N] {
        let mut r = b;
        for i in 0..N {
            if m[i] {
                r[i] = a[i];
            }
        }
        r
    }
    #[inline(always)]
    fn sum(self, v: [f32; N]) -> f32 {
        self.fold(v, |x, y| x + y)
    }
    #[inline(always)]
    fn max_lane(self, v: [f32; N]) -> f32 {
        self.fold(v, |x, y| if x > y { x } else { y })
    }
    #[inline(always)]
    unsafe fn load_ptr(self, p: *const f32) -> [f32; N] {
        // SAFETY: the caller gives N readable values.
        unsafe { p.cast::<[f32; N]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store_ptr(self, p: *mut f32, v: [f32; N]) {
        // SAFETY: the caller gives N writable values.
        unsafe { p.cast::<[f32; N]>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn load_ptr_head(self, p: *const f32, n: usize) -> [f32; N] {
        let mut r = [0.0; N];
        for (i, lane) in r.iter_mut().enumerate().take(n) {
            // SAFETY: the caller gives n readable values, and i < n.
            *lane = unsafe { *p.add(i) };
        }
        r
    }
    #[inline(always)]
    unsafe fn store_ptr_head(self, p: *mut f32, v: [f32; N], n: usize) {
        for (i, lane) in v.iter().enumerate().take(n) {
            // SAFETY: the caller gives n writable values, and i < n.
            unsafe { *p.add(i) = *lane };
        }
    }
    #[inline(always)]
    unsafe fn load_f16_ptr(self, p: *const u16) -> [f32; N] {
        let mut r = [0.0; N];
        for (i, lane) in r.iter_mut().enumerate() {
            // SAFETY: the caller gives N readable values.
            *lane = half::f16::from_bits(unsafe { *p.add(i) }).to_f32();
        }
        r
    }
    #[inline(always)]
    unsafe fn load_bf16_ptr(self, p: *const u16) -> [f32; N] {
        let mut r = [0.0; N];
        for (i, lane) in r.iter_mut().enumerate() {
            // SAFETY: the caller gives N readable values.
            *lane = f32::from_bits(u32::from(unsafe { *p.add(i) }) << 16);
        }
        r
    }
}

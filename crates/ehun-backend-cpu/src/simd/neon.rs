//! NEON (4 lanes).

use std::arch::aarch64::*;

use super::{Kernel, Simd};

/// The token of NEON. Only [`run_neon`] makes one.
#[derive(Clone, Copy)]
pub(super) struct Neon(());

/// Runs a kernel with 4 lanes.
#[target_feature(enable = "neon")]
pub(super) fn run_neon<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Neon(()))
}

/// Writes methods that are one expression of intrinsics each.
macro_rules! methods {
    ($($name:ident($($arg:ident: $type:ty),*) -> $ret:ty = $body:expr;)*) => {
        $(
            #[inline(always)]
            fn $name(self, $($arg: $type),*) -> $ret {
                // SAFETY: the token is only made where the instructions exist.
                unsafe { $body }
            }
        )*
    };
}

/// 2^n for integer-valued lanes in -126..=127.
#[inline(always)]
unsafe fn pow2(n: float32x4_t) -> float32x4_t {
    // SAFETY: called from methods of a NEON token only.
    unsafe { vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)))) }
}

impl Simd for Neon {
    const LANES: usize = 4;
    const TILE_ROWS: usize = 6;
    const TILE_VECS: usize = 4;
    type V = float32x4_t;
    type M = uint32x4_t;

    methods! {
        splat(x: f32) -> float32x4_t = vdupq_n_f32(x);
        add(a: float32x4_t, b: float32x4_t) -> float32x4_t = vaddq_f32(a, b);
        sub(a: float32x4_t, b: float32x4_t) -> float32x4_t = vsubq_f32(a, b);
        mul(a: float32x4_t, b: float32x4_t) -> float32x4_t = vmulq_f32(a, b);
        div(a: float32x4_t, b: float32x4_t) -> float32x4_t = vdivq_f32(a, b);
        fma(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t = vfmaq_f32(c, a, b);
        fnma(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t = vfmsq_f32(c, a, b);
        // Compare and select: vmaxq would return NaN where the contract asks for b.
        max(a: float32x4_t, b: float32x4_t) -> float32x4_t = vbslq_f32(vcgtq_f32(a, b), a, b);
        min(a: float32x4_t, b: float32x4_t) -> float32x4_t = vbslq_f32(vcltq_f32(a, b), a, b);
        sqrt(a: float32x4_t) -> float32x4_t = vsqrtq_f32(a);
        abs(a: float32x4_t) -> float32x4_t = vabsq_f32(a);
        copysign(a: float32x4_t, sign: float32x4_t) -> float32x4_t =
            vbslq_f32(vdupq_n_u32(0x8000_0000), sign, a);
        round(a: float32x4_t) -> float32x4_t = vrndnq_f32(a);
        scale_pow2(v: float32x4_t, n: float32x4_t) -> float32x4_t = {
            // The first factor keeps v normal, so that only the second product rounds.
            let half = vrndq_f32(vmulq_n_f32(n, 0.5));
            vmulq_f32(vmulq_f32(v, pow2(half)), pow2(vsubq_f32(n, half)))
        };
        scale_pow2_normal(v: float32x4_t, n: float32x4_t) -> float32x4_t = vmulq_f32(v, pow2(n));
        lt(a: float32x4_t, b: float32x4_t) -> uint32x4_t = vcltq_f32(a, b);
        select(m: uint32x4_t, a: float32x4_t, b: float32x4_t) -> float32x4_t = vbslq_f32(m, a, b);
        sum(v: float32x4_t) -> f32 = {
            let pairs = vadd_f32(vget_low_f32(v), vget_high_f32(v));
            vget_lane_f32::<0>(pairs) + vget_lane_f32::<1>(pairs)
        };
        max_lane(v: float32x4_t) -> f32 = vmaxvq_f32(v);
    }

    #[inline(always)]
    unsafe fn load_ptr(self, p: *const f32) -> float32x4_t {
        // SAFETY: the token proves the instructions; the caller gives 4 readable values.
        unsafe { vld1q_f32(p) }
    }
    #[inline(always)]
    unsafe fn store_ptr(self, p: *mut f32, v: float32x4_t) {
        // SAFETY: the token proves the instructions; the caller gives 4 writable values.
        unsafe { vst1q_f32(p, v) }
    }
    #[inline(always)]
    unsafe fn load_ptr_head(self, p: *const f32, n: usize) -> float32x4_t {
        let mut lanes = [0.0f32; 4];
        for (i, lane) in lanes.iter_mut().enumerate().take(n) {
            // SAFETY: the caller gives n readable values, and i < n.
            *lane = unsafe { *p.add(i) };
        }
        // SAFETY: the array holds 4 values.
        unsafe { vld1q_f32(lanes.as_ptr()) }
    }
    #[inline(always)]
    unsafe fn store_ptr_head(self, p: *mut f32, v: float32x4_t, n: usize) {
        let mut lanes = [0.0f32; 4];
        // SAFETY: the array holds 4 values.
        unsafe { vst1q_f32(lanes.as_mut_ptr(), v) };
        for (i, lane) in lanes.iter().enumerate().take(n) {
            // SAFETY: the caller gives n writable values, and i < n.
            unsafe { *p.add(i) = *lane };
        }
    }
    #[inline(always)]
    unsafe fn load_f16_ptr(self, p: *const u16) -> float32x4_t {
        let mut lanes = [0.0f32; 4];
        for (i, lane) in lanes.iter_mut().enumerate() {
            // SAFETY: the caller gives 4 readable values.
            *lane = half::f16::from_bits(unsafe { *p.add(i) }).to_f32();
        }
        // SAFETY: the array holds 4 values.
        unsafe { vld1q_f32(lanes.as_ptr()) }
    }
    #[inline(always)]
    unsafe fn load_bf16_ptr(self, p: *const u16) -> float32x4_t {
        // SAFETY: the token proves the instructions; the caller gives 4 readable values.
        unsafe { vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(p))) }
    }
}

//! AVX2 with FMA (8 lanes) and AVX-512 (16 lanes).

use std::arch::x86_64::*;

use super::{Kernel, Simd};

/// The token of AVX2, FMA and F16C. Only [`run_avx2`] makes one.
#[derive(Clone, Copy)]
pub(super) struct Avx2(());

/// The token of AVX-512 F, BW, DQ and VL. Only [`run_avx512`] makes one.
#[derive(Clone, Copy)]
pub(super) struct Avx512(());

/// Runs a kernel with 8 lanes.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx2(()))
}

/// Runs a kernel with 16 lanes.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub(super) fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512(()))
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

/// Writes methods that read or write memory through intrinsics.
macro_rules! memory {
    ($($name:ident($($arg:ident: $type:ty),*) $(-> $ret:ty)? = $body:expr;)*) => {
        $(
            #[inline(always)]
            unsafe fn $name(self, $($arg: $type),*) $(-> $ret)? {
                // SAFETY: the token proves the instructions; the caller gives valid memory, and masked lanes touch none.
                unsafe { $body }
            }
        )*
    };
}

/// Eight lanes of ones and eight of zeros: a window into it masks the first n lanes of 8.
static HEAD_MASK: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

/// A mask of the first `n <= 8` lanes.
#[inline(always)]
unsafe fn head_mask(n: usize) -> __m256i {
    debug_assert!(n <= 8);
    // SAFETY: the window [8 - n, 16 - n) lies inside the table for n <= 8.
    unsafe { _mm256_loadu_si256(HEAD_MASK.as_ptr().add(8 - n).cast()) }
}

/// 2^n for integer-valued lanes in -126..=127.
#[inline(always)]
unsafe fn pow2_256(n: __m256) -> __m256 {
    // SAFETY: called from methods of an AVX2 token only.
    unsafe {
        let biased = _mm256_add_epi32(_mm256_cvttps_epi32(n), _mm256_set1_epi32(127));
        _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
    }
}

/// Sum or maximum of four lanes by halves.
macro_rules! fold_128 {
    ($v:expr, $op:ident, $op_single:ident) => {{
        let v = $v;
        let v = $op(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32($op_single(v, _mm_shuffle_ps::<1>(v, v)))
    }};
}

const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

impl Simd for Avx2 {
    const LANES: usize = 8;
    const TILE_ROWS: usize = 6;
    const TILE_VECS: usize = 2;
    type V = __m256;
    type M = __m256;

    methods! {
        splat(x: f32) -> __m256 = _mm256_set1_ps(x);
        add(a: __m256, b: __m256) -> __m256 = _mm256_add_ps(a, b);
        sub(a: __m256, b: __m256) -> __m256 = _mm256_sub_ps(a, b);
        mul(a: __m256, b: __m256) -> __m256 = _mm256_mul_ps(a, b);
        div(a: __m256, b: __m256) -> __m256 = _mm256_div_ps(a, b);
        fma(a: __m256, b: __m256, c: __m256) -> __m256 = _mm256_fmadd_ps(a, b, c);
        fnma(a: __m256, b: __m256, c: __m256) -> __m256 = _mm256_fnmadd_ps(a, b, c);
        max(a: __m256, b: __m256) -> __m256 = _mm256_max_ps(a, b);
        min(a: __m256, b: __m256) -> __m256 = _mm256_min_ps(a, b);
        sqrt(a: __m256) -> __m256 = _mm256_sqrt_ps(a);
        abs(a: __m256) -> __m256 = _mm256_andnot_ps(_mm256_set1_ps(-0.0), a);
        copysign(a: __m256, sign: __m256) -> __m256 = {
            let bit = _mm256_set1_ps(-0.0);
            _mm256_or_ps(_mm256_andnot_ps(bit, a), _mm256_and_ps(bit, sign))
        };
        round(a: __m256) -> __m256 = _mm256_round_ps::<NEAREST>(a);
        scale_pow2(v: __m256, n: __m256) -> __m256 = {
            // The first factor keeps v normal, so that only the second product rounds.
            let half = _mm256_round_ps::<{ _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC }>(_mm256_mul_ps(n, _mm256_set1_ps(0.5)));
            _mm256_mul_ps(_mm256_mul_ps(v, pow2_256(half)), pow2_256(_mm256_sub_ps(n, half)))
        };
        scale_pow2_normal(v: __m256, n: __m256) -> __m256 = _mm256_mul_ps(v, pow2_256(n));
        lt(a: __m256, b: __m256) -> __m256 = _mm256_cmp_ps::<_CMP_LT_OQ>(a, b);
        select(m: __m256, a: __m256, b: __m256) -> __m256 = _mm256_blendv_ps(b, a, m);
        sum(v: __m256) -> f32 =
            fold_128!(_mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v)), _mm_add_ps, _mm_add_ss);
        max_lane(v: __m256) -> f32 =
            fold_128!(_mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v)), _mm_max_ps, _mm_max_ss);
    }

    memory! {
        load_ptr(p: *const f32) -> __m256 = _mm256_loadu_ps(p);
        store_ptr(p: *mut f32, v: __m256) = _mm256_storeu_ps(p, v);
        load_ptr_head(p: *const f32, n: usize) -> __m256 = _mm256_maskload_ps(p, head_mask(n));
        store_ptr_head(p: *mut f32, v: __m256, n: usize) = _mm256_maskstore_ps(p, head_mask(n), v);
        load_f16_ptr(p: *const u16) -> __m256 = _mm256_cvtph_ps(_mm_loadu_si128(p.cast()));
        load_bf16_ptr(p: *const u16) -> __m256 =
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()))));
    }
}

/// The lower and upper 8 lanes of 16.
#[inline(always)]
unsafe fn halves(v: __m512) -> (__m256, __m256) {
    // SAFETY: called from methods of an AVX-512 token only.
    unsafe { (_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v)) }
}

impl Simd for Avx512 {
    const LANES: usize = 16;
    const TILE_ROWS: usize = 14;
    const TILE_VECS: usize = 2;
    type V = __m512;
    type M = __mmask16;

    methods! {
        splat(x: f32) -> __m512 = _mm512_set1_ps(x);
        add(a: __m512, b: __m512) -> __m512 = _mm512_add_ps(a, b);
        sub(a: __m512, b: __m512) -> __m512 = _mm512_sub_ps(a, b);
        mul(a: __m512, b: __m512) -> __m512 = _mm512_mul_ps(a, b);
        div(a: __m512, b: __m512) -> __m512 = _mm512_div_ps(a, b);
        fma(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fmadd_ps(a, b, c);
        fnma(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fnmadd_ps(a, b, c);
        max(a: __m512, b: __m512) -> __m512 = _mm512_max_ps(a, b);
        min(a: __m512, b: __m512) -> __m512 = _mm512_min_ps(a, b);
        sqrt(a: __m512) -> __m512 = _mm512_sqrt_ps(a);
        abs(a: __m512) -> __m512 = _mm512_andnot_ps(_mm512_set1_ps(-0.0), a);
        copysign(a: __m512, sign: __m512) -> __m512 = {
            let bit = _mm512_set1_ps(-0.0);
            _mm512_or_ps(_mm512_andnot_ps(bit, a), _mm512_and_ps(bit, sign))
        };
        round(a: __m512) -> __m512 = _mm512_roundscale_ps::<NEAREST>(a);
        scale_pow2(v: __m512, n: __m512) -> __m512 = _mm512_scalef_ps(v, n);
        scale_pow2_normal(v: __m512, n: __m512) -> __m512 = _mm512_scalef_ps(v, n);
        lt(a: __m512, b: __m512) -> __mmask16 = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b);
        select(m: __mmask16, a: __m512, b: __m512) -> __m512 = _mm512_mask_blend_ps(m, b, a);
        sum(v: __m512) -> f32 = {
            let (low, high) = halves(v);
            let v = _mm256_add_ps(low, high);
            fold_128!(_mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v)), _mm_add_ps, _mm_add_ss)
        };
        max_lane(v: __m512) -> f32 = {
            let (low, high) = halves(v);
            let v = _mm256_max_ps(low, high);
            fold_128!(_mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v)), _mm_max_ps, _mm_max_ss)
        };
    }

    memory! {
        load_ptr(p: *const f32) -> __m512 = _mm512_loadu_ps(p);
        store_ptr(p: *mut f32, v: __m512) = _mm512_storeu_ps(p, v);
        load_ptr_head(p: *const f32, n: usize) -> __m512 = _mm512_maskz_loadu_ps(((1u32 << n) - 1) as __mmask16, p);
        store_ptr_head(p: *mut f32, v: __m512, n: usize) =
            _mm512_mask_storeu_ps(p, ((1u32 << n) - 1) as __mmask16, v);
        load_f16_ptr(p: *const u16) -> __m512 = _mm512_cvtph_ps(_mm256_loadu_si256(p.cast()));
        load_bf16_ptr(p: *const u16) -> __m512 =
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()))));
    }
}

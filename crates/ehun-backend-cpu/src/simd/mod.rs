//! One vector type of N lanes of f32, and its mapping to instruction sets.
//!
//! A kernel is written once, generic over [`Simd`], and instantiated for every instruction set by [`Isa::run`]. A value
//! of a `Simd` type is a *token*: it exists only where its instructions do, so arithmetic through it is safe. Kernels
//! are `#[inline(always)]`, because the instructions are only enabled inside the one function per instruction set that
//! [`Isa::run`] calls; what is not inlined into it would call an out-of-line function per vector.
//!
//! | name | lanes | fused multiply-add | where |
//! | --- | --- | --- | --- |
//! | `generic` | 4 | no | everywhere; plain arrays, the reference |
//! | `avx2` | 8 | yes | x86-64 with AVX2, FMA and F16C |
//! | `avx512` | 16 | yes | x86-64 with AVX-512 F, BW, DQ and VL |
//! | `avx512vnni` | 16 | yes | the same, and byte dot products in the int8 kernels |
//! | `neon` | 4 | yes | aarch64 |
//!
//! Tests of this crate also have `emulated16`: plain arrays that compute what `avx512` computes, bit for bit.

pub mod int8;
mod isa;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use isa::{Isa, IsaError};
pub use portable::Portable;

/// Asks for the cache line at `p`, to be read soon; into all caches. Any address will do: it is never read here.
#[inline(always)]
pub(crate) fn prefetch<T>(p: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction is part of x86-64 and takes any address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(p.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}

/// A kernel that [`Isa::run`] instantiates for an instruction set.
pub trait Kernel {
    /// What the kernel returns.
    type Output;

    /// The kernel itself. Implementations are `#[inline(always)]`.
    fn run<S: Simd>(self, s: S) -> Self::Output;
}

/// A token of an instruction set, and its operations on vectors of `LANES` values of f32.
///
/// All sums over lanes use one tree, whatever the instruction set: the upper half is added to the lower half until one
/// lane is left.
pub trait Simd: Copy + Send + Sync + 'static {
    /// Values in a vector.
    const LANES: usize;
    /// Most rows in a tile of the matrix product's micro-kernel.
    const TILE_ROWS: usize;
    /// Vectors across a tile of the matrix product's micro-kernel, 2 or 4.
    const TILE_VECS: usize;
    /// A vector.
    type V: Copy;
    /// One truth value a lane.
    type M: Copy;

    /// All lanes `x`.
    fn splat(self, x: f32) -> Self::V;
    /// `a + b`.
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a - b`.
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b`.
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a / b`.
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once where the instruction set fuses.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `c - a * b`, rounded once where the instruction set fuses.
    fn fnma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `a > b ? a : b`: the result is `b` where either is NaN.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a < b ? a : b`: the result is `b` where either is NaN.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// Square root.
    fn sqrt(self, a: Self::V) -> Self::V;
    /// Magnitude.
    fn abs(self, a: Self::V) -> Self::V;
    /// The magnitude of `a` with the sign of `sign`.
    fn copysign(self, a: Self::V, sign: Self::V) -> Self::V;
    /// To the nearest integer, ties to even; `|a| < 2^22`.
    fn round(self, a: Self::V) -> Self::V;
    /// `v * 2^n` for an integer-valued `n` in -252..=254, rounded once for `v` in [0.5, 2].
    fn scale_pow2(self, v: Self::V, n: Self::V) -> Self::V;
    /// `v * 2^n` for an integer-valued `n` in -126..=127.
    fn scale_pow2_normal(self, v: Self::V, n: Self::V) -> Self::V;
    /// `a < b`, false where either is NaN.
    fn lt(self, a: Self::V, b: Self::V) -> Self::M;
    /// `a` where the mask holds, `b` elsewhere.
    fn select(self, m: Self::M, a: Self::V, b: Self::V) -> Self::V;
    /// The sum over lanes, by the tree of halves.
    fn sum(self, v: Self::V) -> f32;
    /// The largest lane, for lanes that are not NaN.
    fn max_lane(self, v: Self::V) -> f32;

    /// Reads `LANES` values.
    ///
    /// # Safety
    /// `p` is valid for reading `LANES` values; no alignment is needed.
    unsafe fn load_ptr(self, p: *const f32) -> Self::V;
    /// Writes `LANES` values.
    ///
    /// # Safety
    /// `p` is valid for writing `LANES` values; no alignment is needed.
    unsafe fn store_ptr(self, p: *mut f32, v: Self::V);
    /// Reads the first `n <= LANES` values, zero in the other lanes.
    ///
    /// # Safety
    /// `p` is valid for reading `n` values.
    unsafe fn load_ptr_head(self, p: *const f32, n: usize) -> Self::V;
    /// Writes the first `n <= LANES` lanes.
    ///
    /// # Safety
    /// `p` is valid for writing `n` values.
    unsafe fn store_ptr_head(self, p: *mut f32, v: Self::V, n: usize);
    /// Reads `LANES` IEEE half-precision values and widens them, exactly.
    ///
    /// # Safety
    /// `p` is valid for reading `LANES` values of 16 bits.
    unsafe fn load_f16_ptr(self, p: *const u16) -> Self::V;
    /// Reads `LANES` bfloat16 values and widens them, exactly.
    ///
    /// # Safety
    /// `p` is valid for reading `LANES` values of 16 bits.
    unsafe fn load_bf16_ptr(self, p: *const u16) -> Self::V;

    /// All lanes zero.
    #[inline(always)]
    fn zero(self) -> Self::V {
        self.splat(0.0)
    }

    /// The first `LANES` values of `src`. Panics if it is shorter.
    #[inline(always)]
    fn load(self, src: &[f32]) -> Self::V {
        assert!(src.len() >= Self::LANES);
        // SAFETY: the slice holds at least LANES values.
        unsafe { self.load_ptr(src.as_ptr()) }
    }

    /// Writes to the first `LANES` values of `dst`. Panics if it is shorter.
    #[inline(always)]
    fn store(self, dst: &mut [f32], v: Self::V) {
        assert!(dst.len() >= Self::LANES);
        // SAFETY: the slice holds at least LANES values.
        unsafe { self.store_ptr(dst.as_mut_ptr(), v) }
    }

    /// Up to `LANES` values of `src`, zero in the lanes beyond its end.
    #[inline(always)]
    fn load_head(self, src: &[f32]) -> Self::V {
        // SAFETY: the count is at most the slice's length and at most LANES.
        unsafe { self.load_ptr_head(src.as_ptr(), src.len().min(Self::LANES)) }
    }

    /// Writes up to `LANES` lanes, as many as `dst` holds.
    #[inline(always)]
    fn store_head(self, dst: &mut [f32], v: Self::V) {
        // SAFETY: the count is at most the slice's length and at most LANES.
        unsafe { self.store_ptr_head(dst.as_mut_ptr(), v, dst.len().min(Self::LANES)) }
    }
}

#[cfg(test)]
mod tests;

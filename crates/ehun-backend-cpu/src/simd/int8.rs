//! Byte dot products of the instruction sets: what the int8 product is written in.

use super::Isa;

/// A kernel over byte dot products, instantiated by [`Isa::run_int8`].
pub trait Int8Kernel {
    /// What the kernel returns.
    type Output;

    /// The kernel itself. Implementations are `#[inline(always)]`.
    fn run<D: DotInt8>(self, d: D) -> Self::Output;
}

/// A token of an instruction set, and its products of unsigned with signed bytes in vectors of `LANES` sums of i32.
///
/// The depth is cut into groups of 4 bytes on the left: `GROUP` values, of one byte each or of two, whichever the
/// multiplication takes. All sums are exact: none of the instructions used saturates.
pub trait DotInt8: Copy + Send + Sync + 'static {
    /// Sums in a vector.
    const LANES: usize;
    /// Values of the depth in a group: 4 (left operand in bytes) or 2 (in 16 bits).
    const GROUP: usize;
    /// Most rows in a tile.
    const TILE_ROWS: usize;
    /// Vectors across a tile, 2 or 4; `LANES * TILE_VECS` is the width of the f32 product's tile.
    const TILE_VECS: usize;
    /// A vector of i32.
    type V: Copy;

    /// All sums zero.
    fn zero(self) -> Self::V;
    /// All lanes the group at `a`.
    ///
    /// # Safety
    /// `a` is valid for reading 4 bytes.
    unsafe fn group(self, a: *const u8) -> Self::V;
    /// The right operands of a group: `GROUP` bytes for each lane.
    ///
    /// # Safety
    /// `b` is valid for reading `GROUP * LANES` bytes.
    unsafe fn load(self, b: *const i8) -> Self::V;
    /// `acc` plus, in each lane, the products of a group.
    fn dot(self, acc: Self::V, a: Self::V, b: Self::V) -> Self::V;
    /// Writes the sums.
    ///
    /// # Safety
    /// `c` is valid for writing `LANES` values.
    unsafe fn store(self, c: *mut i32, v: Self::V);
}

/// The sums as plain arrays: the reference. `T` is the tile's width in vectors.
#[derive(Clone, Copy)]
pub(super) struct PortableDot<const N: usize, const T: usize>;

impl<const N: usize, const T: usize> DotInt8 for PortableDot<N, T> {
    const LANES: usize = N;
    const GROUP: usize = 2;
    const TILE_ROWS: usize = 3;
    const TILE_VECS: usize = T;
    /// Both halves of a group in a lane, or a sum in the first.
    type V = [[i32; 2]; N];

    #[inline(always)]
    fn zero(self) -> Self::V {
        [[0; 2]; N]
    }
    #[inline(always)]
    unsafe fn group(self, a: *const u8) -> Self::V {
        // SAFETY: the caller gives 4 readable bytes.
        let pair = unsafe { a.cast::<[i16; 2]>().read_unaligned() };
        [[i32::from(pair[0]), i32::from(pair[1])]; N]
    }
    #[inline(always)]
    unsafe fn load(self, b: *const i8) -> Self::V {
        let mut v = [[0; 2]; N];
        for (i, lane) in v.iter_mut().enumerate() {
            // SAFETY: the caller gives 2 N readable bytes.
            *lane = unsafe { [i32::from(*b.add(2 * i)), i32::from(*b.add(2 * i + 1))] };
        }
        v
    }
    #[inline(always)]
    fn dot(self, mut acc: Self::V, a: Self::V, b: Self::V) -> Self::V {
        for i in 0..N {
            acc[i][0] += a[i][0] * b[i][0] + a[i][1] * b[i][1];
        }
        acc
    }
    #[inline(always)]
    unsafe fn store(self, c: *mut i32, v: Self::V) {
        for (i, lane) in v.iter().enumerate() {
            // SAFETY: the caller gives N writable values.
            unsafe { *c.add(i) = lane[0] };
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod x86 {
    //! AVX2 and AVX-512 multiply pairs of 16 bits, AVX-512 VNNI four bytes.

    use std::arch::x86_64::*;

    use super::{DotInt8, Int8Kernel};

    /// Writes a token, the function that enables its instructions, and its operations.
    macro_rules! dot_int8 {
        (
            $token:ident, $run:ident, $features:literal, $vector:ty, lanes $lanes:literal, group $group:literal,
            rows $rows:literal, zero $zero:ident, set $set:ident, store $store:ident,
            load |$b:ident| $load:expr, dot |$acc:ident, $x:ident, $y:ident| $dot:expr
        ) => {
            /// A token. Only the function beside it makes one.
            #[derive(Clone, Copy)]
            pub(in crate::simd) struct $token(());

            /// Runs a kernel with these instructions.
            #[target_feature(enable = $features)]
            pub(in crate::simd) fn $run<K: Int8Kernel>(kernel: K) -> K::Output {
                kernel.run($token(()))
            }

            impl DotInt8 for $token {
                const LANES: usize = $lanes;
                const GROUP: usize = $group;
                const TILE_ROWS: usize = $rows;
                const TILE_VECS: usize = 2;
                type V = $vector;

                #[inline(always)]
                fn zero(self) -> $vector {
                    // SAFETY: the token is only made where the instructions exist.
                    unsafe { $zero() }
                }
                #[inline(always)]
                unsafe fn group(self, a: *const u8) -> $vector {
                    // SAFETY: the token proves the instructions; the caller gives 4 readable bytes.
                    unsafe { $set(a.cast::<i32>().read_unaligned()) }
                }
                #[inline(always)]
                unsafe fn load(self, $b: *const i8) -> $vector {
                    // SAFETY: the token proves the instructions; the caller gives GROUP * LANES readable bytes.
                    unsafe { $load }
                }
                #[inline(always)]
                fn dot(self, $acc: $vector, $x: $vector, $y: $vector) -> $vector {
                    // SAFETY: the token is only made where the instructions exist.
                    unsafe { $dot }
                }
                #[inline(always)]
                unsafe fn store(self, c: *mut i32, v: $vector) {
                    // SAFETY: the token proves the instructions; the caller gives LANES writable values.
                    unsafe { $store(c.cast(), v) }
                }
            }
        };
    }

    dot_int8!(
        Avx2Dot, run_avx2, "avx2,fma,f16c", __m256i, lanes 8, group 2, rows 5,
        zero _mm256_setzero_si256, set _mm256_set1_epi32, store _mm256_storeu_si256,
        load |b| _mm256_cvtepi8_epi16(_mm_loadu_si128(b.cast())),
        dot |acc, x, y| _mm256_add_epi32(acc, _mm256_madd_epi16(x, y))
    );
    dot_int8!(
        Avx512Dot, run_avx512, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c", __m512i, lanes 16, group 2, rows 12,
        zero _mm512_setzero_si512, set _mm512_set1_epi32, store _mm512_storeu_si512,
        load |b| _mm512_cvtepi8_epi16(_mm256_loadu_si256(b.cast())),
        dot |acc, x, y| _mm512_add_epi32(acc, _mm512_madd_epi16(x, y))
    );
    dot_int8!(
        VnniDot, run_vnni, "avx512vnni,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c", __m512i, lanes 16, group 4,
        rows 14, zero _mm512_setzero_si512, set _mm512_set1_epi32, store _mm512_storeu_si512,
        load |b| _mm512_loadu_si512(b.cast()),
        dot |acc, x, y| _mm512_dpbusd_epi32(acc, x, y)
    );
}

impl Isa {
    /// What the int8 product multiplies with, for reports.
    #[must_use]
    pub const fn int8_name(self) -> &'static str {
        match self.name().as_bytes() {
            b"avx512vnni" => "vpdpbusd",
            b"avx2" | b"avx512" => "vpmaddwd",
            _ => "plain",
        }
    }
}

//! The vector forms of the decoder's inner loops, and the portable forms.
//!
//! Every function here gives the same bytes on every machine.
#![allow(unsafe_code, reason = "AVX2 intrinsics, behind run-time detection and checked lengths")]

use super::{color, idct};
#[cfg(target_arch = "x86_64")]
use crate::cpu::avx2;

/// The number of bytes in front of the first 0xFF, or all.
pub(super) fn find_ff(data: &[u8]) -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_set1_epi8};
        let mut at = 0;
        while at + 16 <= data.len() {
            // SAFETY: SSE2 is part of x86-64, and the 16 bytes lie inside `data`.
            let mask = unsafe {
                let v = _mm_loadu_si128(data.as_ptr().add(at).cast());
                _mm_movemask_epi8(_mm_cmpeq_epi8(v, _mm_set1_epi8(-1)))
            };
            if mask != 0 {
                return at + mask.trailing_zeros() as usize;
            }
            at += 16;
        }
        at + data[at..].iter().position(|&b| b == 0xFF).unwrap_or(data.len() - at)
    }
    #[cfg(not(target_arch = "x86_64"))]
    data.iter().position(|&b| b == 0xFF).unwrap_or(data.len())
}

/// The 8 x 8 transform of two adjacent blocks: eight rows of 16 samples.
pub(super) fn idct8_pair(c: &[i16; 128], q: &[i16; 64], out: &mut [u8], stride: usize) {
    #[cfg(target_arch = "x86_64")]
    if avx2() {
        assert!(stride >= 16 && out.len() >= 7 * stride + 16, "eight rows of 16 samples");
        // SAFETY: AVX2 is present, and the rows written lie inside `out`.
        return unsafe { x86::idct8_pair(c, q, out.as_mut_ptr(), stride) };
    }
    let (a, b) = c.split_at(64);
    for (i, half) in [a, b].into_iter().enumerate() {
        if let Ok(block) = half.try_into() {
            idct::idct8(block, q, &mut out[i * 8..], stride);
        }
    }
}

/// One row of YCbCr to RGB; `out` has three bytes per sample of `y`.
pub(super) fn ycc_row(y: &[u8], cb: &[u8], cr: &[u8], out: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if y.len() >= 16 && avx2() {
        let n = y.len();
        assert!(cb.len() >= n && cr.len() >= n && out.len() >= n * 3, "rows of equal length");
        // SAFETY: AVX2 is present, the rows have at least `n` samples and `out` three times as many.
        return unsafe { x86::ycc_row(y, cb, cr, out.as_mut_ptr()) };
    }
    color::ycc_row(y, cb, cr, out);
}

/// Runs a function of [`color`] that the compiler vectorises, with AVX2 where there is one.
macro_rules! vectorised {
    ($(#[$doc:meta])* $name:ident($($arg:ident: $ty:ty),*)) => {
        $(#[$doc])*
        pub(super) fn $name($($arg: $ty),*) {
            #[cfg(target_arch = "x86_64")]
            if avx2() {
                #[target_feature(enable = "avx2")]
                fn with_avx2($($arg: $ty),*) {
                    color::$name($($arg),*);
                }
                // SAFETY: AVX2 is present.
                return unsafe { with_avx2($($arg),*) };
            }
            color::$name($($arg),*);
        }
    };
}

vectorised! {
    /// See [`color::column_sums`].
    column_sums(near: &[u8], far: &[u8], out: &mut [u16])
}
vectorised! {
    /// See [`color::double_h2v2`].
    double_h2v2(sums: &[u16], out: &mut [u8])
}
vectorised! {
    /// See [`color::double_h2v1`].
    double_h2v1(samples: &[u8], out: &mut [u8])
}
vectorised! {
    /// See [`color::blend_v2`].
    blend_v2(near: &[u8], far: &[u8], bias: u16, out: &mut [u8])
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    /// # Safety
    /// Needs AVX2, and 16 writable bytes at `out + k * stride` for k = 0 to 7.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn idct8_pair(c: &[i16; 128], q: &[i16; 64], out: *mut u8, stride: usize) {
        let mut x = [_mm256_setzero_si256(); 8];
        for (k, x) in x.iter_mut().enumerate() {
            // SAFETY: row k of the two blocks and of the table, eight values each, lie inside the arrays.
            let (a, b, q) = unsafe {
                (
                    _mm_loadu_si128(c.as_ptr().add(k * 8).cast()),
                    _mm_loadu_si128(c.as_ptr().add(64 + k * 8).cast()),
                    _mm_loadu_si128(q.as_ptr().add(k * 8).cast()),
                )
            };
            *x = _mm256_mullo_epi16(_mm256_set_m128i(b, a), _mm256_broadcastsi128_si256(q));
        }
        let ws = transpose(pass::<11>(x));
        let rows = transpose(pass::<18>(ws));
        let offset = _mm256_set1_epi8(-128);
        for k in 0..4 {
            let two = _mm256_xor_si256(_mm256_packs_epi16(rows[2 * k], rows[2 * k + 1]), offset);
            let two = _mm256_permute4x64_epi64::<0b11_01_10_00>(two);
            // SAFETY: the caller vouches for these rows.
            unsafe {
                _mm_storeu_si128(out.add(2 * k * stride).cast(), _mm256_castsi256_si128(two));
                _mm_storeu_si128(out.add((2 * k + 1) * stride).cast(), _mm256_extracti128_si256::<1>(two));
            }
        }
    }

    /// Two constants for the two 16-bit halves that `madd` multiplies and adds.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn pair(a: i16, b: i16) -> __m256i {
        _mm256_set1_epi32(i32::from(a as u16) | (i32::from(b) << 16))
    }

    /// One direction of the transform on eight vectors, as `idct::pass8` on eight numbers.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn pass<const SHIFT: i32>(x: [__m256i; 8]) -> [__m256i; 8] {
        let zero = _mm256_setzero_si256();
        let round = _mm256_set1_epi32(1 << (SHIFT - 1));
        let (sum, diff) = (_mm256_add_epi16(x[0], x[4]), _mm256_sub_epi16(x[0], x[4]));
        let (z3, z4) = (_mm256_add_epi16(x[7], x[3]), _mm256_add_epi16(x[5], x[1]));
        let half = |lo: bool| -> [__m256i; 8] {
            let zip = |a, b| if lo { _mm256_unpacklo_epi16(a, b) } else { _mm256_unpackhi_epi16(a, b) };
            let x26 = zip(x[2], x[6]);
            let t3 = _mm256_madd_epi16(x26, pair(10703, 4433));
            let t2 = _mm256_madd_epi16(x26, pair(4433, -10704));
            let t0 = _mm256_add_epi32(_mm256_srai_epi32::<3>(zip(zero, sum)), round);
            let t1 = _mm256_add_epi32(_mm256_srai_epi32::<3>(zip(zero, diff)), round);
            let (e0, e3) = (_mm256_add_epi32(t0, t3), _mm256_sub_epi32(t0, t3));
            let (e1, e2) = (_mm256_add_epi32(t1, t2), _mm256_sub_epi32(t1, t2));
            let z = zip(z3, z4);
            let s3 = _mm256_madd_epi16(z, pair(-6436, 9633));
            let s4 = _mm256_madd_epi16(z, pair(9633, 6437));
            let (x71, x53) = (zip(x[7], x[1]), zip(x[5], x[3]));
            let o0 = _mm256_add_epi32(_mm256_madd_epi16(x71, pair(-4927, -7373)), s3);
            let o3 = _mm256_add_epi32(_mm256_madd_epi16(x71, pair(-7373, 4926)), s4);
            let o1 = _mm256_add_epi32(_mm256_madd_epi16(x53, pair(-4176, -20995)), s4);
            let o2 = _mm256_add_epi32(_mm256_madd_epi16(x53, pair(-20995, 4177)), s3);
            let done = |a, b| _mm256_srai_epi32::<SHIFT>(_mm256_add_epi32(a, b));
            let undone = |a, b| _mm256_srai_epi32::<SHIFT>(_mm256_sub_epi32(a, b));
            [
                done(e0, o3),
                done(e1, o2),
                done(e2, o1),
                done(e3, o0),
                undone(e3, o0),
                undone(e2, o1),
                undone(e1, o2),
                undone(e0, o3),
            ]
        };
        let (lo, hi) = (half(true), half(false));
        std::array::from_fn(|k| _mm256_packs_epi32(lo[k], hi[k]))
    }

    /// Transposes the 8 x 8 blocks of 16-bit numbers in the low and in the high lanes.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn transpose(r: [__m256i; 8]) -> [__m256i; 8] {
        let (t0, t1) = (_mm256_unpacklo_epi16(r[0], r[1]), _mm256_unpackhi_epi16(r[0], r[1]));
        let (t2, t3) = (_mm256_unpacklo_epi16(r[2], r[3]), _mm256_unpackhi_epi16(r[2], r[3]));
        let (t4, t5) = (_mm256_unpacklo_epi16(r[4], r[5]), _mm256_unpackhi_epi16(r[4], r[5]));
        let (t6, t7) = (_mm256_unpacklo_epi16(r[6], r[7]), _mm256_unpackhi_epi16(r[6], r[7]));
        let (u0, u1) = (_mm256_unpacklo_epi32(t0, t2), _mm256_unpackhi_epi32(t0, t2));
        let (u2, u3) = (_mm256_unpacklo_epi32(t4, t6), _mm256_unpackhi_epi32(t4, t6));
        let (u4, u5) = (_mm256_unpacklo_epi32(t1, t3), _mm256_unpackhi_epi32(t1, t3));
        let (u6, u7) = (_mm256_unpacklo_epi32(t5, t7), _mm256_unpackhi_epi32(t5, t7));
        [
            _mm256_unpacklo_epi64(u0, u2),
            _mm256_unpackhi_epi64(u0, u2),
            _mm256_unpacklo_epi64(u1, u3),
            _mm256_unpackhi_epi64(u1, u3),
            _mm256_unpacklo_epi64(u4, u6),
            _mm256_unpackhi_epi64(u4, u6),
            _mm256_unpacklo_epi64(u5, u7),
            _mm256_unpackhi_epi64(u5, u7),
        ]
    }

    /// # Safety
    /// Needs AVX2, at least 16 samples in `y`, as many in `cb` and `cr`, and three times as many bytes at
    /// `out`.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn ycc_row(y: &[u8], cb: &[u8], cr: &[u8], out: *mut u8) {
        let n = y.len();
        let mut at = 0;
        loop {
            // SAFETY: at + 16 <= n, and the caller vouches for n samples and 3 n bytes.
            unsafe {
                ycc16(y.as_ptr().add(at), cb.as_ptr().add(at), cr.as_ptr().add(at), out.add(at * 3));
            }
            if at + 16 == n {
                return;
            }
            // The last step overlaps the one before it.
            at = (at + 16).min(n - 16);
        }
    }

    /// # Safety
    /// Needs AVX2, 16 samples at each of `y`, `cb` and `cr`, and 48 writable bytes at `out`.
    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn ycc16(y: *const u8, cb: *const u8, cr: *const u8, out: *mut u8) {
        // SAFETY: the caller vouches for 16 samples each.
        let (y, cb, cr) = unsafe {
            (
                _mm256_cvtepu8_epi16(_mm_loadu_si128(y.cast())),
                _mm256_cvtepu8_epi16(_mm_loadu_si128(cb.cast())),
                _mm256_cvtepu8_epi16(_mm_loadu_si128(cr.cast())),
            )
        };
        let center = _mm256_set1_epi16(128);
        let (cb, cr) = (_mm256_sub_epi16(cb, center), _mm256_sub_epi16(cr, center));
        let one = _mm256_set1_epi16(1);
        // (k x + 2^15) >> 16 as (((2 x k) >> 16) + 1) >> 1, which is the same number.
        let scaled = |x: __m256i, k: i16| {
            let hi = _mm256_mulhi_epi16(_mm256_add_epi16(x, x), _mm256_set1_epi16(k));
            _mm256_srai_epi16::<1>(_mm256_add_epi16(hi, one))
        };
        let r = _mm256_add_epi16(_mm256_add_epi16(y, cr), scaled(cr, 26345));
        let b = _mm256_add_epi16(_mm256_add_epi16(y, _mm256_add_epi16(cb, cb)), scaled(cb, -14942));
        let k = pair(-22554, 18734);
        let half = _mm256_set1_epi32(1 << 15);
        let lo = _mm256_add_epi32(_mm256_madd_epi16(_mm256_unpacklo_epi16(cb, cr), k), half);
        let hi = _mm256_add_epi32(_mm256_madd_epi16(_mm256_unpackhi_epi16(cb, cr), k), half);
        let g = _mm256_packs_epi32(_mm256_srai_epi32::<16>(lo), _mm256_srai_epi32::<16>(hi));
        let g = _mm256_add_epi16(y, _mm256_sub_epi16(g, cr));
        // In each lane: eight reds and eight greens; eight blues twice.
        let rg = _mm256_packus_epi16(r, g);
        let bb = _mm256_packus_epi16(b, b);
        let z = -1;
        let first = _mm256_or_si256(
            _mm256_shuffle_epi8(rg, twice([0, 8, z, 1, 9, z, 2, 10, z, 3, 11, z, 4, 12, z, 5])),
            _mm256_shuffle_epi8(bb, twice([z, z, 0, z, z, 1, z, z, 2, z, z, 3, z, z, 4, z])),
        );
        let second = _mm256_or_si256(
            _mm256_shuffle_epi8(rg, twice([13, z, 6, 14, z, 7, 15, z, z, z, z, z, z, z, z, z])),
            _mm256_shuffle_epi8(bb, twice([z, 5, z, z, 6, z, z, 7, z, z, z, z, z, z, z, z])),
        );
        // SAFETY: 16 + 8 + 16 + 8 = 48 bytes, for which the caller vouches.
        unsafe {
            _mm_storeu_si128(out.cast(), _mm256_castsi256_si128(first));
            _mm_storel_epi64(out.add(16).cast(), _mm256_castsi256_si128(second));
            _mm_storeu_si128(out.add(24).cast(), _mm256_extracti128_si256::<1>(first));
            _mm_storel_epi64(out.add(40).cast(), _mm256_extracti128_si256::<1>(second));
        }
    }

    /// A shuffle that is the same in both lanes.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn twice(m: [i8; 16]) -> __m256i {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = m;
        _mm256_broadcastsi128_si256(_mm_setr_epi8(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p))
    }
}

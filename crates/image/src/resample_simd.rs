//! The two inner loops of resampling, for AVX2 and portable, with identical results.
#![allow(unsafe_code, reason = "AVX2 intrinsics, behind run-time detection and checked lengths")]

#[cfg(target_arch = "x86_64")]
use super::cpu::avx2;
use super::taps::{BITS, Taps};

const HALF: i32 = 1 << (BITS - 1);

/// Bytes behind a row of results that the vector code may overwrite.
pub(super) const ROW_PADDING: usize = 4;

/// Rows of RGB pixels resampled along their length: `rows` of them, from `src` (rows `stride` bytes apart)
/// to `out` (rows `out_stride` apart, of which at least [`ROW_PADDING`] bytes are spare).
pub(super) fn horizontal(
    src: &[u8],
    stride: usize,
    taps: &Taps,
    rows: usize,
    out: &mut [u8],
    out_stride: usize,
) {
    let mut done = 0;
    #[cfg(target_arch = "x86_64")]
    if avx2() && rows > 0 {
        let pixels = taps.start.len();
        let furthest = taps.start.iter().max().map_or(0, |&s| s as usize);
        // What four rows read at most behind the first one's beginning.
        let reach = 3 * stride + (furthest + taps.stride) * 3 + 4;
        assert!(
            out_stride >= pixels * 3 + ROW_PADDING && out.len() >= rows * out_stride,
            "room for the rows"
        );
        assert!(
            taps.weights.len() >= pixels * taps.stride && taps.stride.is_multiple_of(4),
            "weights by fours"
        );
        while done + 4 <= rows && done * stride + reach <= src.len() {
            // SAFETY: AVX2 is present; the four rows of the source end inside `src` with all that the
            // weights can reach, the rows of the result with their padding inside `out`.
            unsafe {
                let (from, to) = (src.as_ptr().add(done * stride), out.as_mut_ptr().add(done * out_stride));
                x86::horizontal4(from, stride, taps, to, out_stride);
            }
            done += 4;
        }
        // The last rows are read from a copy with room behind it.
        let row = taps.max - taps.min;
        let mut copy = Vec::new();
        while done < rows {
            let n = (rows - done).min(4);
            let room = row * 3 + taps.stride * 3 + 16;
            copy.clear();
            copy.resize(room * 4, 0);
            for i in 0..n {
                copy[i * room..][..row * 3].copy_from_slice(&src[(done + i) * stride..][..row * 3]);
            }
            let mut four = vec![0; 4 * out_stride];
            assert!(3 * room + (furthest + taps.stride) * 3 + 4 <= copy.len(), "room for the weights");
            // SAFETY: AVX2 is present, and both buffers are large enough for four rows, as asserted.
            unsafe { x86::horizontal4(copy.as_ptr(), room, taps, four.as_mut_ptr(), out_stride) };
            out[done * out_stride..][..n * out_stride].copy_from_slice(&four[..n * out_stride]);
            done += n;
        }
    }
    for y in done..rows {
        horizontal_portable(&src[y * stride..], taps, &mut out[y * out_stride..][..taps.start.len() * 3]);
    }
}

/// The weighted sum of `weights.len()` rows of `out.len()` bytes that lie `stride` bytes apart.
pub(super) fn vertical(src: &[u8], stride: usize, weights: &[i16], out: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if out.len() >= 32 && !weights.is_empty() && avx2() {
        assert!(src.len() >= (weights.len() - 1) * stride + out.len(), "all rows are there");
        // SAFETY: AVX2 is present, and all rows have as many bytes as `out`.
        return unsafe { x86::vertical(src.as_ptr(), stride, weights, out) };
    }
    vertical_portable(src, stride, weights, out);
}

pub(super) fn horizontal_portable(src: &[u8], taps: &Taps, out: &mut [u8]) {
    for (i, pixel) in out.chunks_exact_mut(3).enumerate() {
        let mut sum = [HALF; 3];
        for (p, &w) in src[taps.start[i] as usize * 3..].chunks_exact(3).zip(taps.weights_of(i)) {
            for c in 0..3 {
                sum[c] += i32::from(p[c]) * i32::from(w);
            }
        }
        for c in 0..3 {
            pixel[c] = (sum[c] >> BITS) as u8;
        }
    }
}

pub(super) fn vertical_portable(src: &[u8], stride: usize, weights: &[i16], out: &mut [u8]) {
    const BLOCK: usize = 64;
    for (b, to) in out.chunks_mut(BLOCK).enumerate() {
        let mut sum = [HALF; BLOCK];
        for (k, &w) in weights.iter().enumerate() {
            let row = &src[k * stride + b * BLOCK..][..to.len()];
            for (s, &v) in sum.iter_mut().zip(row) {
                *s += i32::from(v) * i32::from(w);
            }
        }
        for (o, s) in to.iter_mut().zip(sum) {
            *o = (s >> BITS) as u8;
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{BITS, HALF, Taps};

    /// Four rows at once, so that weights are loaded once for them.
    ///
    /// # Safety
    /// Needs AVX2. For every output pixel i, `16 + 12 * (stride of the weights / 4 - 1)` bytes must be
    /// readable at `src + row * stride + 3 * start[i]` for rows 0 to 3, and `3 * pixels + 1` bytes writable
    /// at `out + row * out_stride`.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn horizontal4(
        src: *const u8,
        stride: usize,
        taps: &Taps,
        out: *mut u8,
        out_stride: usize,
    ) {
        let z = -1;
        // Two pixels per lane as 16-bit pairs (r r g g b b . .).
        let spread = _mm256_setr_epi8(
            0, z, 3, z, 1, z, 4, z, 2, z, 5, z, z, z, z, z, 6, z, 9, z, 7, z, 10, z, 8, z, 11, z, z, z, z, z,
        );
        let lanes = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
        let half = _mm256_set1_epi32(HALF);
        for (i, (&start, weights)) in
            taps.start.iter().zip(taps.weights.chunks_exact(taps.stride)).enumerate()
        {
            let mut sum = [_mm256_setzero_si256(); 4];
            for (c, w) in weights.as_chunks::<4>().0.iter().enumerate() {
                // SAFETY: `w` has four weights; the caller vouches for the pixels.
                unsafe {
                    let w = _mm_loadl_epi64(w.as_ptr().cast());
                    let w = _mm256_permutevar8x32_epi32(_mm256_castsi128_si256(w), lanes);
                    let at = src.add((start as usize + 4 * c) * 3);
                    for (r, s) in sum.iter_mut().enumerate() {
                        let p = _mm256_broadcastsi128_si256(_mm_loadu_si128(at.add(r * stride).cast()));
                        *s = _mm256_add_epi32(*s, _mm256_madd_epi16(_mm256_shuffle_epi8(p, spread), w));
                    }
                }
            }
            // The two lanes of each row are added: row 0 low and row 1 high, then rows 2 and 3.
            let both = |a, b| {
                let s = _mm256_add_epi32(
                    _mm256_permute2x128_si256::<0x20>(a, b),
                    _mm256_permute2x128_si256::<0x31>(a, b),
                );
                _mm256_srai_epi32::<{ BITS as i32 }>(_mm256_add_epi32(s, half))
            };
            let words = _mm256_packs_epi32(both(sum[0], sum[1]), both(sum[2], sum[3]));
            let bytes = _mm256_packus_epi16(words, words);
            let (even, odd) = (_mm256_castsi256_si128(bytes), _mm256_extracti128_si256::<1>(bytes));
            // SAFETY: the caller vouches for the pixel and one byte behind it.
            unsafe {
                let to = out.add(i * 3);
                to.cast::<i32>().write_unaligned(_mm_cvtsi128_si32(even));
                to.add(out_stride).cast::<i32>().write_unaligned(_mm_cvtsi128_si32(odd));
                to.add(2 * out_stride).cast::<i32>().write_unaligned(_mm_extract_epi32::<1>(even));
                to.add(3 * out_stride).cast::<i32>().write_unaligned(_mm_extract_epi32::<1>(odd));
            }
        }
    }

    /// # Safety
    /// Needs AVX2, at least 32 bytes in `out`, and as many bytes as `out` has at `src + k * stride` for
    /// every weight k.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn vertical(src: *const u8, stride: usize, weights: &[i16], out: &mut [u8]) {
        let n = out.len();
        let zero = _mm256_setzero_si256();
        let mut at = 0;
        loop {
            let mut sum = [_mm256_set1_epi32(HALF); 4];
            let mut k = 0;
            while k < weights.len() {
                let second = weights.get(k + 1).copied().unwrap_or(0);
                let w = _mm256_set1_epi32(i32::from(weights[k] as u16) | (i32::from(second) << 16));
                // SAFETY: at + 32 <= n, and the caller vouches for n bytes of row k; row k + 1 is read only
                // if it has a weight.
                let (a, b) = unsafe {
                    let row = src.add(k * stride + at);
                    let next = if k + 1 < weights.len() { row.add(stride) } else { row };
                    (_mm256_loadu_si256(row.cast()), _mm256_loadu_si256(next.cast()))
                };
                let (lo, hi) = (_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b));
                let pairs = [
                    _mm256_unpacklo_epi8(lo, zero),
                    _mm256_unpackhi_epi8(lo, zero),
                    _mm256_unpacklo_epi8(hi, zero),
                    _mm256_unpackhi_epi8(hi, zero),
                ];
                for (s, p) in sum.iter_mut().zip(pairs) {
                    *s = _mm256_add_epi32(*s, _mm256_madd_epi16(p, w));
                }
                k += 2;
            }
            let [a, b, c, d] = sum.map(|s| _mm256_srai_epi32::<{ BITS as i32 }>(s));
            let bytes = _mm256_packus_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
            // SAFETY: at + 32 <= n = out.len().
            unsafe { _mm256_storeu_si256(out.as_mut_ptr().add(at).cast(), bytes) };
            if at + 32 == n {
                return;
            }
            // The last step overlaps the one before it.
            at = (at + 32).min(n - 32);
        }
    }
}

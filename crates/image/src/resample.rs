//! Antialiased bilinear resampling: rows first, then columns, each with weights computed once.
//!
//! The geometry is Pillow's: output pixel `i` has its centre at `origin + (i + 0.5) * scale`, and a triangle
//! filter whose half width is `max(scale, 1)`, cut off at the borders of the window and renormalised. The
//! arithmetic is ours: weights of a pixel are integers that sum to exactly 2^14, so that a flat area stays
//! what it is, sums fit 32 bits, and vector and portable code agree bit for bit. The intermediate image is
//! uint8, as Pillow's.

use super::buffers::grow;
use super::geometry::Size;
use super::resample_simd as simd;
use super::taps::{Axis, Taps};

/// Both axes and the intermediate image.
#[derive(Debug, Default)]
pub(super) struct Resampler {
    pub(super) rows: Taps,
    pub(super) cols: Taps,
    middle: Vec<u8>,
    middle_f32: Vec<f32>,
}

impl Resampler {
    /// Computes the weights; afterwards `rows` and `cols` say which source samples are needed.
    pub(super) fn prepare(&mut self, rows: &Axis, cols: &Axis) {
        self.rows.compute(rows);
        self.cols.compute(cols);
    }

    /// Rows and columns of the source that are needed: `(rows, columns)`.
    pub(super) fn needed(&self) -> (usize, usize) {
        (self.rows.max - self.rows.min, self.cols.max - self.cols.min)
    }

    /// The size of the intermediate image: a row for each that is needed, as wide as the result.
    pub(super) fn middle(&self) -> Size {
        Size { h: self.needed().0, w: self.cols.start.len() }
    }

    /// Bytes between the rows of the intermediate image.
    fn middle_stride(&self) -> usize {
        self.cols.start.len() * 3 + simd::ROW_PADDING
    }

    /// Resamples along the rows. `src` begins at the needed part's first pixel; `stride` is in bytes.
    pub(super) fn horizontal(&mut self, src: &[u8], stride: usize) {
        let (height, _) = self.needed();
        let out = self.middle_stride();
        simd::horizontal(src, stride, &self.cols, height, grow(&mut self.middle, height * out), out);
    }

    /// Output row `i` from the rows resampled before.
    pub(super) fn row(&self, i: usize, out: &mut [u8]) {
        let stride = self.middle_stride();
        simd::vertical(
            &self.middle[self.rows.start[i] as usize * stride..],
            stride,
            self.rows.weights_of(i),
            out,
        );
    }

    /// Resamples a float image: rows first, then columns.
    pub(super) fn float(&mut self, src: &[f32], stride: usize, out: &mut [f32]) {
        let (height, _) = self.needed();
        let n = self.cols.start.len() * 3;
        self.middle_f32.resize(height * n, 0.0);
        if n == 0 {
            return;
        }
        for (y, to) in self.middle_f32.chunks_exact_mut(n).enumerate() {
            for (i, pixel) in to.chunks_exact_mut(3).enumerate() {
                let at = y * stride + self.cols.start[i] as usize * 3;
                let mut sum = [0.0f32; 3];
                for (p, w) in src[at..].chunks_exact(3).zip(self.cols.real_of(i)) {
                    for c in 0..3 {
                        sum[c] += p[c] * w;
                    }
                }
                pixel.copy_from_slice(&sum);
            }
        }
        for (i, to) in out.chunks_exact_mut(n).enumerate().take(self.rows.start.len()) {
            to.fill(0.0);
            let first = self.rows.start[i] as usize * n;
            for (row, w) in self.middle_f32[first..].chunks_exact(n).zip(self.rows.real_of(i)) {
                for (o, v) in to.iter_mut().zip(row) {
                    *o += v * w;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::taps::BITS;

    fn axis(len: usize, out: usize) -> Axis {
        let (origin, length) = (0.0, len as f64);
        Axis { origin, length, lo: 0, hi: len, offset: 0, out, first: 0, count: out, reverse: false }
    }

    #[test]
    fn weights_sum_to_one_and_stay_inside() {
        for len in 1..40 {
            for out in 1..60 {
                let mut t = Taps::default();
                t.compute(&axis(len, out));
                for i in 0..out {
                    let w = t.weights_of(i);
                    assert_eq!(w.iter().map(|&x| i32::from(x)).sum::<i32>(), 1 << BITS, "{len} -> {out}");
                    assert!(w.iter().all(|&x| x >= 0));
                    assert!(t.min + t.start[i] as usize + w.len() <= len);
                }
                if len == out {
                    assert!((0..out).all(|i| t.weights_of(i)[0] == 1 << BITS));
                }
            }
        }
    }

    /// Vector and portable code agree, whatever lies around the source.
    #[test]
    fn vector_code_agrees() {
        let mut r = Resampler::default();
        for (h, w, oh, ow) in
            [(1, 1, 1, 1), (5, 7, 9, 4), (13, 40, 13, 11), (40, 13, 3, 50), (64, 64, 31, 33)]
        {
            let src: Vec<u8> = (0..h * w * 3).map(|i| (i * 7919 % 251) as u8).collect();
            r.prepare(&axis(h, oh), &axis(w, ow));
            r.horizontal(&src, w * 3);
            let mut out = vec![0; ow * 3];
            let mut middle = vec![0; h * ow * 3];
            for (from, to) in src.chunks_exact(w * 3).zip(middle.chunks_exact_mut(ow * 3)) {
                simd::horizontal_portable(from, &r.cols, to);
            }
            for y in 0..oh {
                r.row(y, &mut out);
                let mut want = vec![0; ow * 3];
                let rows = &middle[r.rows.start[y] as usize * ow * 3..];
                simd::vertical_portable(rows, ow * 3, r.rows.weights_of(y), &mut want);
                assert_eq!(out, want, "{h} x {w} to {oh} x {ow}, row {y}");
            }
        }
    }

    /// A window of the output needs what the whole output would have used there, and has equal weights.
    #[test]
    fn windows_are_parts_of_the_whole() {
        let (mut all, mut part) = (Taps::default(), Taps::default());
        all.compute(&axis(100, 37));
        part.compute(&Axis { first: 5, count: 9, ..axis(100, 37) });
        for i in 0..9 {
            assert_eq!(part.weights_of(i), all.weights_of(5 + i));
            assert_eq!(part.min + part.start[i] as usize, all.min + all.start[5 + i] as usize);
        }
        let mut back = Taps::default();
        back.compute(&Axis { first: 5, count: 9, reverse: true, ..axis(100, 37) });
        for i in 0..9 {
            assert_eq!(back.weights_of(i), part.weights_of(8 - i));
        }
    }
}

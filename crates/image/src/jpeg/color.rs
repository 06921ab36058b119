//! Chroma upsampling and colour conversion, portable; rows of samples in, rows of pixels out.
//!
//! The interpolations are libjpeg's "fancy" ones: a triangle filter whose weights are 3/4 and 1/4 per
//! direction, with the rounding alternating so that it does not drift. The conversion is its fixed-point
//! YCbCr to RGB. Both are bit-exact.

/// `3 * near + far` per column: the vertical half of [`double_h2v2`].
#[inline(always)]
pub(super) fn column_sums(near: &[u8], far: &[u8], out: &mut [u16]) {
    for ((o, &n), &f) in out.iter_mut().zip(near).zip(far) {
        *o = u16::from(n) * 3 + u16::from(f);
    }
}

/// Twice as many samples as there are inner elements of `sums`, whose first and last are neighbours.
#[inline(always)]
pub(super) fn double_h2v2(sums: &[u16], out: &mut [u8]) {
    let n = sums.len().saturating_sub(2);
    let (last, this, next) = (&sums[..n], &sums[1..][..n], &sums[2..][..n]);
    let out = &mut out[..2 * n];
    for i in 0..n {
        out[2 * i] = ((this[i] * 3 + last[i] + 8) >> 4) as u8;
        out[2 * i + 1] = ((this[i] * 3 + next[i] + 7) >> 4) as u8;
    }
}

/// Twice as many samples as there are inner elements of `samples`, whose first and last are neighbours.
#[inline(always)]
pub(super) fn double_h2v1(samples: &[u8], out: &mut [u8]) {
    let n = samples.len().saturating_sub(2);
    let (last, this, next) = (&samples[..n], &samples[1..][..n], &samples[2..][..n]);
    let out = &mut out[..2 * n];
    for i in 0..n {
        out[2 * i] = ((u16::from(this[i]) * 3 + u16::from(last[i]) + 1) >> 2) as u8;
        out[2 * i + 1] = ((u16::from(this[i]) * 3 + u16::from(next[i]) + 2) >> 2) as u8;
    }
}

/// `(3 * near + far + bias) / 4`: vertical doubling alone.
#[inline(always)]
pub(super) fn blend_v2(near: &[u8], far: &[u8], bias: u16, out: &mut [u8]) {
    for ((o, &n), &f) in out.iter_mut().zip(near).zip(far) {
        *o = ((u16::from(n) * 3 + u16::from(f) + bias) >> 2) as u8;
    }
}

/// One pixel of YCbCr to RGB.
#[inline(always)]
pub(super) fn ycc(y: u8, cb: u8, cr: u8) -> [u8; 3] {
    const HALF: i32 = 1 << 15;
    let (y, cb, cr) = (i32::from(y), i32::from(cb) - 128, i32::from(cr) - 128);
    let r = y + ((91881 * cr + HALF) >> 16);
    let g = y + ((-22554 * cb - 46802 * cr + HALF) >> 16);
    let b = y + ((116_130 * cb + HALF) >> 16);
    [r, g, b].map(|v| v.clamp(0, 255) as u8)
}

/// One row of YCbCr to RGB.
pub(super) fn ycc_row(y: &[u8], cb: &[u8], cr: &[u8], out: &mut [u8]) {
    for (((o, &y), &cb), &cr) in out.chunks_exact_mut(3).zip(y).zip(cb).zip(cr) {
        o.copy_from_slice(&ycc(y, cb, cr));
    }
}

/// One row of grey to RGB.
pub(super) fn grey_row(y: &[u8], out: &mut [u8]) {
    for (o, &y) in out.chunks_exact_mut(3).zip(y) {
        o.copy_from_slice(&[y; 3]);
    }
}

/// One row of separate red, green and blue samples.
pub(super) fn rgb_row(r: &[u8], g: &[u8], b: &[u8], out: &mut [u8]) {
    for (((o, &r), &g), &b) in out.chunks_exact_mut(3).zip(r).zip(g).zip(b) {
        o.copy_from_slice(&[r, g, b]);
    }
}

/// One row of CMYK (or YCCK) as Adobe's programs write it, inverted, to RGB as Pillow converts it.
pub(super) fn cmyk_row(rows: [&[u8]; 4], ycck: bool, out: &mut [u8]) {
    let [c, m, y, k] = rows;
    for (i, o) in out.chunks_exact_mut(3).enumerate() {
        let ink = if ycck { ycc(c[i], m[i], y[i]).map(|v| 255 - v) } else { [c[i], m[i], y[i]] };
        for (o, ink) in o.iter_mut().zip(ink) {
            // What is stored is 255 - ink and 255 - black.
            let t = u32::from(255 - ink) * u32::from(k[i]) + 128;
            *o = k[i].saturating_sub((((t >> 8) + t) >> 8) as u8);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::jpeg::simd;

    proptest! {
        #[test]
        fn vector_rows_agree(len in 0usize..70, seed in prop::collection::vec(any::<u8>(), 210)) {
            let (y, cb, cr) = (&seed[..len], &seed[70..][..len], &seed[140..][..len]);
            let (mut fast, mut slow) = (vec![0; len * 3], vec![0; len * 3]);
            simd::ycc_row(y, cb, cr, &mut fast);
            ycc_row(y, cb, cr, &mut slow);
            prop_assert_eq!(fast, slow);
        }
    }

    /// All colours: every pair of chroma values against the formula in real numbers.
    #[test]
    fn conversion_is_the_standards() {
        for cb in 0..=255u8 {
            let y: Vec<u8> = (0..=255).collect();
            for cr in (0..=255u8).step_by(5) {
                let mut out = vec![0; 768];
                simd::ycc_row(&y, &[cb; 256], &[cr; 256], &mut out);
                for (y, p) in y.iter().zip(out.chunks_exact(3)) {
                    let (y, b, r) = (f64::from(*y), f64::from(cb) - 128.0, f64::from(cr) - 128.0);
                    let want = [y + 1.402 * r, y - 0.344_14 * b - 0.714_14 * r, y + 1.772 * b];
                    for (have, want) in p.iter().zip(want) {
                        assert!((f64::from(*have) - want.clamp(0.0, 255.0)).abs() <= 0.51);
                    }
                }
            }
        }
    }
}

//! The inverse DCT in integers, portable.
//!
//! The 8 x 8 transform is the "slow but accurate" algorithm of Loeffler, Ligtenberg and Moschytz with 13-bit
//! constants, and the 4 x 4, 2 x 2 and 1 x 1 ones are its reductions, as in libjpeg's `jidctint` and
//! `jidctred`: on images that an encoder made, results equal libjpeg-turbo's bit for bit. Values that only
//! damaged data produce wrap or saturate at 16 bits in the places where vector code does, so that all
//! paths of this decoder agree on any input.

/// Fractional bits of the constants.
const CONST: u32 = 13;
/// Fractional bits of the intermediate block.
const PASS1: u32 = 2;

#[inline(always)]
fn mul(a: i16, b: i32) -> i32 {
    i32::from(a) * b
}

#[inline(always)]
fn descale(x: i32, n: u32) -> i32 {
    x.wrapping_add(1 << (n - 1)) >> n
}

#[inline(always)]
fn narrow(x: i32) -> i16 {
    x.clamp(i32::from(i16::MIN), i32::from(i16::MAX)) as i16
}

#[inline(always)]
fn sample(x: i32) -> u8 {
    (x.clamp(-128, 127) + 128) as u8
}

/// One direction of the 8-point transform; `SHIFT` bits are rounded away.
#[inline(always)]
fn pass8<const SHIFT: u32>(x: [i16; 8]) -> [i32; 8] {
    let t3 = mul(x[2], 10703) + mul(x[6], 4433);
    let t2 = mul(x[2], 4433) + mul(x[6], -10704);
    let t0 = i32::from(x[0].wrapping_add(x[4])) << CONST;
    let t1 = i32::from(x[0].wrapping_sub(x[4])) << CONST;
    let (e0, e3) = (t0.wrapping_add(t3), t0.wrapping_sub(t3));
    let (e1, e2) = (t1.wrapping_add(t2), t1.wrapping_sub(t2));
    let (z3, z4) = (x[7].wrapping_add(x[3]), x[5].wrapping_add(x[1]));
    let s3 = mul(z3, -6436) + mul(z4, 9633);
    let s4 = mul(z3, 9633) + mul(z4, 6437);
    let o0 = (mul(x[7], -4927) + mul(x[1], -7373)).wrapping_add(s3);
    let o3 = (mul(x[7], -7373) + mul(x[1], 4926)).wrapping_add(s4);
    let o1 = (mul(x[5], -4176) + mul(x[3], -20995)).wrapping_add(s4);
    let o2 = (mul(x[5], -20995) + mul(x[3], 4177)).wrapping_add(s3);
    [
        descale(e0.wrapping_add(o3), SHIFT),
        descale(e1.wrapping_add(o2), SHIFT),
        descale(e2.wrapping_add(o1), SHIFT),
        descale(e3.wrapping_add(o0), SHIFT),
        descale(e3.wrapping_sub(o0), SHIFT),
        descale(e2.wrapping_sub(o1), SHIFT),
        descale(e1.wrapping_sub(o2), SHIFT),
        descale(e0.wrapping_sub(o3), SHIFT),
    ]
}

/// 8 x 8 samples of one block, written to eight rows that lie `stride` apart.
pub(super) fn idct8(c: &[i16; 64], q: &[i16; 64], out: &mut [u8], stride: usize) {
    let mut ws = [0i16; 64];
    for x in 0..8 {
        let column = std::array::from_fn(|y| c[y * 8 + x].wrapping_mul(q[y * 8 + x]));
        for (y, v) in pass8::<{ CONST - PASS1 }>(column).into_iter().enumerate() {
            ws[y * 8 + x] = narrow(v);
        }
    }
    for (y, row) in ws.chunks_exact(8).enumerate() {
        let row = std::array::from_fn(|x| row[x]);
        let to = &mut out[y * stride..][..8];
        for (o, v) in to.iter_mut().zip(pass8::<{ CONST + PASS1 + 3 }>(row)) {
            *o = sample(i32::from(narrow(v)));
        }
    }
}

/// A block that has only its first coefficient: one value for all of its samples.
pub(super) fn flat8(c0: i16, q0: i16) -> u8 {
    let ws = narrow(i32::from(c0.wrapping_mul(q0)) << PASS1);
    sample(descale(i32::from(ws), PASS1 + 3))
}

#[inline(always)]
fn sum(terms: &[(i32, i32)]) -> i32 {
    terms.iter().fold(0i32, |s, &(a, b)| s.wrapping_add(a.wrapping_mul(b)))
}

/// One direction of the reduction to four points; `x[4]` plays no part.
#[inline(always)]
fn pass4<const SHIFT: u32>(x: [i32; 8]) -> [i32; 4] {
    let t0 = x[0].wrapping_shl(CONST + 1);
    let t2 = sum(&[(x[2], 15137), (x[6], -6270)]);
    let (e0, e2) = (t0.wrapping_add(t2), t0.wrapping_sub(t2));
    let o0 = sum(&[(x[7], -1730), (x[5], 11893), (x[3], -17799), (x[1], 8697)]);
    let o2 = sum(&[(x[7], -4176), (x[5], -4926), (x[3], 7373), (x[1], 20995)]);
    [
        descale(e0.wrapping_add(o2), SHIFT),
        descale(e2.wrapping_add(o0), SHIFT),
        descale(e2.wrapping_sub(o0), SHIFT),
        descale(e0.wrapping_sub(o2), SHIFT),
    ]
}

/// One direction of the reduction to two points, from the first and the odd coefficients.
#[inline(always)]
fn pass2<const SHIFT: u32>(x: [i32; 8]) -> [i32; 2] {
    let e = x[0].wrapping_shl(CONST + 2);
    let o = sum(&[(x[7], -5906), (x[5], 6967), (x[3], -10426), (x[1], 29692)]);
    [descale(e.wrapping_add(o), SHIFT), descale(e.wrapping_sub(o), SHIFT)]
}

#[inline(always)]
fn column(c: &[i16; 64], q: &[i16; 64], x: usize) -> [i32; 8] {
    std::array::from_fn(|y| i32::from(c[y * 8 + x]).wrapping_mul(i32::from(q[y * 8 + x])))
}

/// 4 x 4 samples of one block.
pub(super) fn idct4(c: &[i16; 64], q: &[i16; 64], out: &mut [u8], stride: usize) {
    let mut ws = [[0i32; 8]; 4];
    for x in [0, 1, 2, 3, 5, 6, 7] {
        for (w, v) in ws.iter_mut().zip(pass4::<{ CONST - PASS1 + 1 }>(column(c, q, x))) {
            w[x] = v;
        }
    }
    for (y, w) in ws.into_iter().enumerate() {
        let to = &mut out[y * stride..][..4];
        for (o, v) in to.iter_mut().zip(pass4::<{ CONST + PASS1 + 3 + 1 }>(w)) {
            *o = sample(v);
        }
    }
}

/// 2 x 2 samples of one block.
pub(super) fn idct2(c: &[i16; 64], q: &[i16; 64], out: &mut [u8], stride: usize) {
    let mut ws = [[0i32; 8]; 2];
    for x in [0, 1, 3, 5, 7] {
        for (w, v) in ws.iter_mut().zip(pass2::<{ CONST - PASS1 + 2 }>(column(c, q, x))) {
            w[x] = v;
        }
    }
    for (y, w) in ws.into_iter().enumerate() {
        let to = &mut out[y * stride..][..2];
        for (o, v) in to.iter_mut().zip(pass2::<{ CONST + PASS1 + 3 + 2 }>(w)) {
            *o = sample(v);
        }
    }
}

/// The one sample of a block at 1/8.
pub(super) fn idct1(c0: i16, q0: i16) -> u8 {
    sample(descale(i32::from(c0).wrapping_mul(i32::from(q0)), 3))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::jpeg::simd;

    /// The transform in real numbers: the integers must stay within one level of it.
    fn reference(c: &[i16; 64], n: usize) -> Vec<f64> {
        let mut out = vec![0.0; n * n];
        for y in 0..n {
            for x in 0..n {
                let mut s = 0.0;
                for v in 0..n {
                    for u in 0..n {
                        let f = |k: usize| if k == 0 { std::f64::consts::FRAC_1_SQRT_2 } else { 1.0 };
                        let cos = |p: usize, k: usize| {
                            ((2 * p + 1) as f64 * k as f64 * std::f64::consts::PI / (2 * n) as f64).cos()
                        };
                        s += f(u) * f(v) * f64::from(c[v * 8 + u]) * cos(x, u) * cos(y, v);
                    }
                }
                out[y * n + x] = (s / 4.0 + 128.0).clamp(0.0, 255.0);
            }
        }
        out
    }

    proptest! {
        #[test]
        fn close_to_the_real_transform(seed in prop::collection::vec((0usize..64, -400i16..400), 0..12)) {
            let mut c = [0i16; 64];
            for (i, v) in seed {
                c[i] = v;
            }
            let mut out = [0u8; 64];
            idct8(&c, &[1; 64], &mut out, 8);
            for (a, b) in out.iter().zip(reference(&c, 8)) {
                prop_assert!((f64::from(*a) - b).abs() <= 1.01, "{} {}", a, b);
            }
        }

        /// Vector and portable code agree on every input, sensible or not.
        #[test]
        fn vector_code_agrees(c in prop::collection::vec(any::<i16>(), 128), q in prop::collection::vec(any::<i16>(), 64), small: bool) {
            let c: [i16; 128] = std::array::from_fn(|i| if small { c[i] >> 6 } else { c[i] });
            let q: [i16; 64] = std::array::from_fn(|i| if small { q[i] & 15 } else { q[i] });
            let (mut fast, mut slow) = (vec![0u8; 8 * 20], vec![0u8; 8 * 20]);
            simd::idct8_pair(&c, &q, &mut fast, 20);
            for b in 0..2 {
                idct8(&std::array::from_fn(|i| c[b * 64 + i]), &q, &mut slow[b * 8..], 20);
            }
            prop_assert_eq!(fast, slow);
        }

        #[test]
        fn flat_blocks_equal_the_whole_transform(v: i16, q0 in 1i16..256) {
            let mut c = [0i16; 64];
            c[0] = v;
            let mut q = [1; 64];
            q[0] = q0;
            let mut out = [0u8; 64];
            idct8(&c, &q, &mut out, 8);
            prop_assert_eq!(out, [flat8(v, q0); 64]);
        }
    }
}

//! Gaussian blur as torchvision's: a separable kernel, borders reflected without repeating the edge.

use caju_types::{Error, Result};

use super::geometry::Size;
use caju_types::rng;

/// The normalised weights of a kernel.
pub(super) fn weights(kernel: usize, sigma: f64) -> Vec<f32> {
    let half = (kernel as f64 - 1.0) * 0.5;
    let pdf: Vec<f64> = (0..kernel)
        .map(|i| {
            let x = (i as f64 - half) / sigma;
            rng::exp(-0.5 * x * x)
        })
        .collect();
    let sum: f64 = pdf.iter().sum();
    pdf.iter().map(|p| (p / sum) as f32).collect()
}

/// The steps of [`gaussian`], of about a nanosecond each: eight products take one.
pub(super) fn steps(size: Size, kernel: usize) -> u64 {
    let products = [size.h, size.w, 3, 2, kernel].iter().fold(1u64, |a, n| a.saturating_mul(*n as u64));
    products / 8
}

/// Index `i` of a line of `n` samples continued by reflection at both ends.
fn reflect(i: isize, n: usize) -> usize {
    let last = n as isize - 1;
    let i = i.abs();
    (if i > last { 2 * last - i } else { i }) as usize
}

/// Blurs RGB pixels in place.
///
/// # Errors
/// `InvalidArgument` if the image is too small to be reflected over half a kernel.
pub(super) fn gaussian(
    pixels: &mut [u8],
    size: Size,
    kernel: usize,
    sigma: f64,
    scratch: &mut Vec<f32>,
) -> Result<()> {
    let half = kernel / 2;
    if size.h <= half || size.w <= half {
        return Err(Error::invalid(format!(
            "gaussian_blur with a kernel of {kernel} needs an image larger than {half} pixels in both \
             directions; this one is {} x {} (height x width)",
            size.h, size.w
        )));
    }
    let taps = weights(kernel, sigma);
    let stride = size.w * 3;
    scratch.clear();
    scratch.resize(size.h * stride, 0.0);
    for (row, to) in pixels.chunks_exact(stride).zip(scratch.chunks_exact_mut(stride)) {
        for (k, w) in taps.iter().enumerate() {
            let shift = k as isize - half as isize;
            let (lo, hi) = (half.min(size.w), size.w.saturating_sub(half).max(half));
            for x in (0..lo).chain(hi..size.w) {
                let from = reflect(x as isize + shift, size.w) * 3;
                for c in 0..3 {
                    to[x * 3 + c] += f32::from(row[from + c]) * w;
                }
            }
            if lo < hi {
                let inner = &row[((lo as isize + shift) * 3) as usize..];
                for (o, &v) in to[lo * 3..hi * 3].iter_mut().zip(inner) {
                    *o += f32::from(v) * w;
                }
            }
        }
    }
    let mut sum = vec![0.0f32; stride];
    for (y, out) in pixels.chunks_exact_mut(stride).enumerate() {
        sum.fill(0.0);
        for (k, w) in taps.iter().enumerate() {
            let from = reflect(y as isize + k as isize - half as isize, size.h) * stride;
            for (s, v) in sum.iter_mut().zip(&scratch[from..from + stride]) {
                *s += v * w;
            }
        }
        for (o, s) in out.iter_mut().zip(&sum) {
            *o = s.round_ties_even() as u8;
        }
    }
    Ok(())
}

//! Operations on the colours of single pixels.

use super::ImageOp;
use caju_types::rng::RowRng;

/// A step from uint8 to float32, or from float32 to float32.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Pointwise {
    /// `x / 255`.
    Unit,
    /// `x * scale + bias` per channel: `(x / 255 - mean) / std` of uint8.
    Affine { scale: [f32; 3], bias: [f32; 3] },
    /// `(x - mean) / std` of float32.
    Standardise { mean: [f32; 3], std: [f32; 3] },
}

impl Pointwise {
    /// `Normalize` of uint8 samples as one multiplication and one addition.
    pub(super) fn normalize_u8(mean: [f32; 3], std: [f32; 3]) -> Self {
        let scale = std.map(|s| (1.0 / (255.0 * f64::from(s))) as f32);
        let bias = [0, 1, 2].map(|c| (-f64::from(mean[c]) / f64::from(std[c])) as f32);
        Self::Affine { scale, bias }
    }

    /// Uint8 pixels to floats; `reverse` exchanges left and right within the row.
    pub(super) fn row(&self, src: &[u8], reverse: bool, out: &mut [f32]) {
        #[cfg(target_arch = "x86_64")]
        if crate::cpu::avx2() {
            /// The portable operations, compiled for AVX2 registers.
            #[target_feature(enable = "avx2")]
            fn with_avx2(p: &Pointwise, src: &[u8], reverse: bool, out: &mut [f32]) {
                p.row_here(src, reverse, out);
            }
            #[allow(unsafe_code, reason = "the feature was detected")]
            // SAFETY: AVX2 is present.
            return unsafe { with_avx2(self, src, reverse, out) };
        }
        self.row_here(src, reverse, out);
    }

    #[inline(always)]
    fn row_here(&self, src: &[u8], reverse: bool, out: &mut [f32]) {
        match *self {
            Self::Affine { scale, bias } => {
                map_row(src, reverse, out, |c, v| f32::from(v) * scale[c] + bias[c])
            }
            Self::Unit => map_row(src, reverse, out, |_, v| f32::from(v) / 255.0),
            Self::Standardise { mean, std } => {
                map_row(src, reverse, out, |c, v| (f32::from(v) - mean[c]) / std[c]);
            }
        }
    }

    /// The step on pixels that are floats already.
    pub(super) fn in_place(&self, pixels: &mut [f32]) {
        if let Self::Standardise { mean, std } = *self {
            for p in pixels.chunks_exact_mut(3) {
                for c in 0..3 {
                    p[c] = (p[c] - mean[c]) / std[c];
                }
            }
        }
    }
}

#[inline(always)]
fn map_row(src: &[u8], reverse: bool, out: &mut [f32], f: impl Fn(usize, u8) -> f32) {
    if reverse {
        for (o, p) in out.chunks_exact_mut(3).zip(src.chunks_exact(3).rev()) {
            for c in 0..3 {
                o[c] = f(c, p[c]);
            }
        }
        return;
    }
    // Blocks of eight pixels: the channel pattern repeats after 24 values, which vectorises.
    let ((blocks, rest), (from, tail)) = (out.as_chunks_mut::<24>(), src.as_chunks::<24>());
    for (o, s) in blocks.iter_mut().zip(from) {
        for i in 0..24 {
            o[i] = f(i % 3, s[i]);
        }
    }
    for (i, (o, &v)) in rest.iter_mut().zip(tail).enumerate() {
        *o = f(i % 3, v);
    }
}

/// Exchanges left and right of RGB rows of `width` pixels.
pub(super) fn flip_rows(pixels: &mut [u8], width: usize) {
    if width == 0 {
        return;
    }
    for row in pixels.chunks_exact_mut(width * 3) {
        let (mut a, mut b) = (0, (width - 1) * 3);
        while a < b {
            for c in 0..3 {
                row.swap(a + c, b + c);
            }
            a += 3;
            b -= 3;
        }
    }
}

/// The luma of ITU-R 601 as Pillow computes it for mode `L`.
#[inline]
pub(super) fn luma(r: u8, g: u8, b: u8) -> u8 {
    ((u32::from(r) * 19595 + u32::from(g) * 38470 + u32::from(b) * 7471 + 0x8000) >> 16) as u8
}

pub(super) fn grayscale(pixels: &mut [u8]) {
    for p in pixels.chunks_exact_mut(3) {
        let l = luma(p[0], p[1], p[2]);
        p.copy_from_slice(&[l; 3]);
    }
}

/// The factors of one row's colour jitter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Jitter {
    pub(super) brightness: f32,
    pub(super) contrast: f32,
    pub(super) saturation: f32,
    pub(super) hue: f32,
}

impl Jitter {
    /// Draws the factors: always four draws, so that one argument does not move the others' values.
    pub(super) fn draw(op: &ImageOp, rng: &mut RowRng) -> Option<Self> {
        let ImageOp::ColorJitter { brightness, contrast, saturation, hue } = *op else {
            return None;
        };
        let mut factor = |x: f32| {
            let x = f64::from(x);
            rng.uniform_in((1.0 - x).max(0.0), 1.0 + x) as f32
        };
        let (brightness, contrast, saturation) = (factor(brightness), factor(contrast), factor(saturation));
        let hue = rng.uniform_in(-f64::from(hue), f64::from(hue)) as f32;
        Some(Self { brightness, contrast, saturation, hue })
    }

    /// Applies brightness, contrast, saturation and hue, in this order.
    pub(super) fn apply(&self, pixels: &mut [u8]) {
        if self.brightness != 1.0 {
            look_up(pixels, &table(|v| blend(0.0, v, self.brightness)));
        }
        if self.contrast != 1.0 && !pixels.is_empty() {
            let sum: u64 = pixels.chunks_exact(3).map(|p| u64::from(luma(p[0], p[1], p[2]))).sum();
            let mean = (sum as f64 / (pixels.len() / 3) as f64 + 0.5).floor() as f32;
            look_up(pixels, &table(|v| blend(mean, v, self.contrast)));
        }
        if self.saturation != 1.0 {
            for p in pixels.chunks_exact_mut(3) {
                let grey = f32::from(luma(p[0], p[1], p[2]));
                for v in p {
                    *v = blend(grey, f32::from(*v), self.saturation);
                }
            }
        }
        if self.hue != 0.0 {
            shift_hue(pixels, self.hue);
        }
    }
}

fn table(f: impl Fn(f32) -> u8) -> [u8; 256] {
    let mut t = [0; 256];
    for (i, t) in t.iter_mut().enumerate() {
        *t = f(i as f32);
    }
    t
}

fn look_up(pixels: &mut [u8], table: &[u8; 256]) {
    for v in pixels {
        *v = table[usize::from(*v)];
    }
}

/// `from + (to - from) * factor`, clipped and cut to an integer, as Pillow's `blend`.
#[inline]
fn blend(from: f32, to: f32, factor: f32) -> u8 {
    // A float becomes an integer by cutting and saturating, which is the clipping that is wanted.
    (from + factor * (to - from)) as u8
}

/// Turns the hue by `shift` of the full circle, through HSV in floats as torchvision's tensors do.
fn shift_hue(pixels: &mut [u8], shift: f32) {
    for p in pixels.chunks_exact_mut(3) {
        let [r, g, b] = [p[0], p[1], p[2]].map(|v| f32::from(v) / 255.0);
        let (max, min) = (r.max(g).max(b), r.min(g).min(b));
        let range = max - min;
        if range == 0.0 {
            continue;
        }
        let s = range / max;
        let [rc, gc, bc] = [r, g, b].map(|v| (max - v) / range);
        let h = if max == r {
            bc - gc
        } else if max == g {
            2.0 + rc - bc
        } else {
            4.0 + gc - rc
        };
        let h = h / 6.0 + 1.0 + shift;
        let h6 = (h - h.floor()) * 6.0;
        let sector = h6.floor();
        let f = h6 - sector;
        let q = |x: f32| (max * x).clamp(0.0, 1.0);
        let (lo, down, up) = (q(1.0 - s), q(1.0 - s * f), q(1.0 - s * (1.0 - f)));
        let rgb = match sector as i32 % 6 {
            0 => [max, up, lo],
            1 => [down, max, lo],
            2 => [lo, max, up],
            3 => [lo, down, max],
            4 => [up, lo, max],
            _ => [max, lo, down],
        };
        // torchvision multiplies by a hair less than 256 and cuts, so that 1.0 becomes 255.
        for (v, x) in p.iter_mut().zip(rgb) {
            *v = (x * 255.999) as u8;
        }
    }
}

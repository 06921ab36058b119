//! Where crops lie and how large resizes are: numbers only, no pixels.

use caju_types::{Error, Result};

use caju_types::rng::{self, RowRng};

/// Height and width in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) h: usize,
    pub(super) w: usize,
}

/// A window: its top left corner and its size, in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rect {
    pub(super) y: usize,
    pub(super) x: usize,
    pub(super) h: usize,
    pub(super) w: usize,
}

impl Rect {
    pub(super) fn whole(s: Size) -> Self {
        Self { y: 0, x: 0, h: s.h, w: s.w }
    }

    pub(super) fn size(self) -> Size {
        Size { h: self.h, w: self.w }
    }

    /// The window `inner` of this window, in the coordinates that this window has.
    pub(super) fn window(self, inner: Rect) -> Self {
        Self { y: self.y + inner.y, x: self.x + inner.x, h: inner.h, w: inner.w }
    }
}

/// The size after `resize_shorter`: `floor(size * long / short)` for the longer side.
pub(super) fn shorter(s: Size, size: u32) -> Size {
    let n = size as usize;
    if s.h == 0 || s.w == 0 {
        return s;
    }
    if s.w <= s.h { Size { h: n * s.h / s.w, w: n } } else { Size { h: n, w: n * s.w / s.h } }
}

fn fits(s: Size, crop: Size, op: &str) -> Result<()> {
    if crop.h <= s.h && crop.w <= s.w {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{op}({}, {}) asks for more than the image has: it is {} x {} (height x width); resize it first, \
         for example with resize_shorter(image, {})",
        crop.h,
        crop.w,
        s.h,
        s.w,
        crop.h.max(crop.w)
    )))
}

/// `round(d / 2)`, halves to the even number, as Python rounds.
fn half_even(d: usize) -> usize {
    let q = d / 2;
    q + (d & 1 & (q & 1))
}

pub(super) fn center_crop(s: Size, crop: Size) -> Result<Rect> {
    fits(s, crop, "center_crop")?;
    Ok(Rect { y: half_even(s.h - crop.h), x: half_even(s.w - crop.w), h: crop.h, w: crop.w })
}

pub(super) fn random_crop(s: Size, crop: Size, rng: &mut RowRng) -> Result<Rect> {
    fits(s, crop, "random_crop")?;
    let y = rng.below((s.h - crop.h + 1) as u64) as usize;
    let x = rng.below((s.w - crop.w + 1) as u64) as usize;
    Ok(Rect { y, x, h: crop.h, w: crop.w })
}

/// The window of torchvision's `RandomResizedCrop`; `log_ratio` holds the logarithms of the ratio's bounds.
pub(super) fn random_resized_crop(s: Size, scale: (f64, f64), ratio: (f64, f64), rng: &mut RowRng) -> Rect {
    let (height, width) = (s.h as f64, s.w as f64);
    let log_ratio = (rng::ln(ratio.0), rng::ln(ratio.1));
    for _ in 0..10 {
        let area = height * width * rng.uniform_in(scale.0, scale.1);
        let aspect = rng::exp(rng.uniform_in(log_ratio.0, log_ratio.1));
        let w = (area * aspect).sqrt().round_ties_even();
        let h = (area / aspect).sqrt().round_ties_even();
        if w > 0.0 && w <= width && h > 0.0 && h <= height {
            let (h, w) = (h as usize, w as usize);
            let y = rng.below((s.h - h + 1) as u64) as usize;
            let x = rng.below((s.w - w + 1) as u64) as usize;
            return Rect { y, x, h, w };
        }
    }
    let in_ratio = width / height;
    let (mut h, mut w) = (s.h, s.w);
    if in_ratio < ratio.0 {
        h = (width / ratio.0).round_ties_even() as usize;
    } else if in_ratio > ratio.1 {
        w = (height * ratio.1).round_ties_even() as usize;
    }
    let (h, w) = (h.clamp(1, s.h.max(1)), w.clamp(1, s.w.max(1)));
    Rect { y: (s.h - h) / 2, x: (s.w - w) / 2, h, w }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_torchvisions() {
        // int(256 * 500 / 375) = 341.
        assert_eq!(shorter(Size { h: 375, w: 500 }, 256), Size { h: 256, w: 341 });
        assert_eq!(shorter(Size { h: 500, w: 375 }, 256), Size { h: 341, w: 256 });
        assert_eq!(shorter(Size { h: 7, w: 7 }, 3), Size { h: 3, w: 3 });
    }

    #[test]
    fn centres_round_halves_to_even() {
        let at = |h| center_crop(Size { h, w: 4 }, Size { h: 4, w: 4 }).unwrap().y;
        // Python: round(0.5) = 0, round(1.5) = 2, round(2.5) = 2, round(3.5) = 4.
        assert_eq!([at(4), at(5), at(6), at(7), at(9), at(11)], [0, 0, 1, 2, 2, 4]);
    }

    #[test]
    fn too_small_images_are_named() {
        let e = center_crop(Size { h: 100, w: 300 }, Size { h: 224, w: 224 }).unwrap_err();
        assert_eq!(
            e.to_string(),
            "center_crop(224, 224) asks for more than the image has: it is 100 x 300 (height x width); \
             resize it first, for example with resize_shorter(image, 224)"
        );
    }

    #[test]
    fn random_windows_stay_inside() {
        for key in 0..2000 {
            let s = Size { h: 1 + key % 97, w: 1 + key % 61 };
            let mut rng = RowRng::new(key as u64, 1);
            let r = random_resized_crop(s, (0.08, 1.0), (0.75, 4.0 / 3.0), &mut rng);
            assert!(r.h > 0 && r.w > 0 && r.y + r.h <= s.h && r.x + r.w <= s.w, "{s:?} {r:?}");
        }
    }

    /// The fallback: an image 100 times as wide as high has no window of the allowed ratios and areas.
    #[test]
    fn extreme_shapes_take_the_central_crop() {
        let mut rng = RowRng::new(1, 1);
        let r = random_resized_crop(Size { h: 10, w: 1000 }, (0.5, 1.0), (0.75, 4.0 / 3.0), &mut rng);
        assert_eq!(r, Rect { y: 0, x: 493, h: 10, w: 13 });
    }
}

//! What is measured: the decodes of whole images, windows and scales, and the two pipelines of images.

use caju_image::jpeg::Region;
use caju_types::rng::{RowRng, exp, ln};

use crate::decoders::Job;

/// Side of the images that a model gets.
pub const OUT: usize = 224;

/// What happens to the pixels after the decode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// Nothing.
    Nothing,
    /// Resampled to [`OUT`] x [`OUT`], uint8.
    Resize,
    /// The same, normalised to float32.
    Normalize,
}

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Task {
    /// The row's title.
    pub name: &'static str,
    /// The window of image `i`, of the given (height, width); none for the whole image.
    pub window: fn(usize, usize, usize) -> Option<Region>,
    /// 1, 2 or 4; 0 for the largest at which the window still has [`OUT`] pixels a side.
    pub scale: usize,
    /// What follows.
    pub then: Then,
}

/// All tasks.
pub const TASKS: &[Task] = &[
    Task { name: "whole", window: |_, _, _| None, scale: 1, then: Then::Nothing },
    Task { name: "whole, 1/2", window: |_, _, _| None, scale: 2, then: Then::Nothing },
    Task { name: "whole, 1/4", window: |_, _, _| None, scale: 4, then: Then::Nothing },
    Task { name: "window of random_resized_crop", window: crop, scale: 1, then: Then::Nothing },
    Task { name: "the same window, 1/2", window: crop, scale: 2, then: Then::Nothing },
    Task { name: "P1 u8: window, resize 224", window: crop, scale: 1, then: Then::Resize },
    Task { name: "P1 u8 with scaled decode allowed", window: crop, scale: 0, then: Then::Resize },
    Task { name: "P2: centre, resize 224, normalize", window: centre, scale: 1, then: Then::Normalize },
];

impl Task {
    /// The job for image `i`.
    pub fn job(&self, i: usize, height: usize, width: usize) -> Job {
        let window = (self.window)(i, height, width);
        let scale = match (self.scale, window) {
            (0, Some(r)) => [8, 4, 2].into_iter().find(|s| r.h >= s * OUT && r.w >= s * OUT).unwrap_or(1),
            (0, None) => 1,
            (s, _) => s,
        };
        let scaled = |r: Region| {
            let (y, x) = (r.y / scale, r.x / scale);
            Region { y, x, h: (r.y + r.h).div_ceil(scale) - y, w: (r.x + r.w).div_ceil(scale) - x }
        };
        Job { height, width, window: window.map(scaled), scale }
    }
}

/// The window that `random_resized_crop` draws: 8 to 100 % of the area, ratios 3/4 to 4/3.
fn crop(i: usize, height: usize, width: usize) -> Option<Region> {
    let mut rng = RowRng::new(i as u64, 1);
    let (h, w) = (height as f64, width as f64);
    for _ in 0..10 {
        let area = h * w * rng.uniform_in(0.08, 1.0);
        let ratio = exp(rng.uniform_in(ln(0.75), ln(4.0 / 3.0)));
        let (cw, ch) = ((area * ratio).sqrt().round(), (area / ratio).sqrt().round());
        if cw <= w && ch <= h {
            let (ch, cw) = (ch as usize, cw as usize);
            let y = rng.below((height - ch + 1) as u64) as usize;
            let x = rng.below((width - cw + 1) as u64) as usize;
            return Some(Region { y, x, h: ch, w: cw });
        }
    }
    None
}

/// What `center_crop(resize_shorter(image, 256), 224, 224)` reads.
fn centre(_: usize, height: usize, width: usize) -> Option<Region> {
    let scale = height.min(width) as f64 / 256.0;
    let axis = |len: usize| {
        let first = (len as f64 / scale - OUT as f64) / 2.0;
        let from = ((first - 1.0) * scale).max(0.0) as usize;
        let to = (((first + OUT as f64 + 1.0) * scale).ceil() as usize).min(len);
        (from, to - from)
    };
    let ((y, h), (x, w)) = (axis(height), axis(width));
    Some(Region { y, x, h, w })
}

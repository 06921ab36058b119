//! The image kernels, one row at a time.
//!
//! An image is RGB, height x width x channel; sizes are `(height, width)`. A chain of [`ImageOp`]s runs
//! fused: geometry (crops, resizes, flips) is collected as numbers and carried out once, at the end or
//! before the first operation that must see pixels. So `random_flip(random_resized_crop(decode_image(x),
//! 224, 224))` decodes only the part of the JPEG that the crop reads, resamples it once, and writes the
//! flipped result straight into the output column.
//!
//! Whether a chain runs fused or operation by operation never changes a byte of its result, with one
//! exception that the caller asks for: [`ImageChain::allow_scaled`].
//!
//! Damage is found where it is read: a crop that leaves out the lower part of a JPEG does not see damage
//! there. A file that was cut off is refused in any case.
//!
//! Every result is a pure function of the input bytes, the arguments, and for random operations of
//! `(row key, call site)`; it does not depend on the CPU, because the vector paths compute the same
//! integers (or the same IEEE operations in the same order) as the portable ones.
//!
//! ```
//! use caju_image::{ImageChain, ImageOp, InputKind, RowInput, Scratch};
//! let chain = ImageChain::new(
//!     vec![(ImageOp::RandomCrop { height: 2, width: 2 }, Some(1)), (ImageOp::RandomFlip { p: 0.5 }, Some(2))],
//!     InputKind::U8,
//! )?;
//! let pixels = [7u8; 4 * 4 * 3];
//! let mut out = [0u8; 2 * 2 * 3];
//! let input = RowInput::Pixels { data: &pixels, height: 4, width: 4 };
//! chain.run_fixed_u8(input, 42, &mut Scratch::default(), &mut out)?;
//! assert_eq!(out, [7u8; 12]);
//! # Ok::<(), caju_types::Error>(())
//! ```
#![allow(
    clippy::cast_possible_truncation,
    reason = "pixel arithmetic: the ranges are bounded by the formats and checked where they enter"
)]

mod blur;
mod buffers;
mod chain;
mod codecs;
mod color;
mod cpu;
mod exec;
mod geometry;
mod orientation;
mod resample;
mod resample_simd;
mod run;
mod source;
mod state;
mod taps;

pub mod jpeg;

#[cfg(test)]
mod tests;

pub use chain::{Dtype, ImageChain, InputKind, OutputKind, RowInput};
pub use source::image_size;
pub use state::Scratch;

/// The number of pixels that `decode_image` accepts by default.
pub const DEFAULT_MAX_PIXELS: u64 = 100_000_000;

/// The means of ImageNet, for inputs in `[0, 1]`.
pub const IMAGENET_MEAN: [f32; 3] = [0.485, 0.456, 0.406];

/// The standard deviations of ImageNet, for inputs in `[0, 1]`.
pub const IMAGENET_STD: [f32; 3] = [0.229, 0.224, 0.225];

/// The version of each kernel: it changes when, and only when, the kernel's output may change.
pub const VERSIONS: &[(&str, u32)] = &[
    ("decode_image", 1),
    ("resize", 1),
    ("resize_shorter", 1),
    ("center_crop", 1),
    ("random_crop", 1),
    ("random_resized_crop", 1),
    ("random_flip", 1),
    ("color_jitter", 1),
    ("grayscale", 1),
    ("gaussian_blur", 1),
    ("normalize", 1),
    ("to_float", 1),
];

/// One operation of an image chain, with its arguments resolved to constants.
///
/// Operations marked *random* need a call site as well in [`ImageChain::new`]. Operations marked
/// *uint8* refuse float images.
#[derive(Debug, Clone, PartialEq)]
pub enum ImageOp {
    /// JPEG, PNG or WebP bytes to RGB uint8, the EXIF orientation applied. Grey becomes three equal
    /// channels, CMYK and YCCK become RGB, 16-bit samples keep their high byte, an alpha channel is
    /// dropped (not blended), and of an animation the first frame is taken. Images with more pixels than
    /// `max_pixels` are refused from their header.
    Decode {
        /// The most pixels accepted; see [`DEFAULT_MAX_PIXELS`].
        max_pixels: u64,
    },
    /// To exactly this size, bilinear with antialiasing (Pillow's `BILINEAR`: the filter's support grows
    /// with the downscale), each side by its own factor.
    Resize {
        /// Rows of the result.
        height: u32,
        /// Columns of the result.
        width: u32,
    },
    /// The shorter side to `size`, the other one to `floor(size * long / short)`, as torchvision does.
    ResizeShorter {
        /// Pixels of the shorter side.
        size: u32,
    },
    /// The middle, at torchvision's offset: `(size - crop) / 2`, halves to the even number. An image
    /// smaller than the crop is an error.
    CenterCrop {
        /// Rows of the result.
        height: u32,
        /// Columns of the result.
        width: u32,
    },
    /// A window at a uniformly drawn offset (*random*: row, then column). An image smaller than the crop
    /// is an error.
    RandomCrop {
        /// Rows of the result.
        height: u32,
        /// Columns of the result.
        width: u32,
    },
    /// A window of random area and aspect ratio, resized (*random*), as torchvision's
    /// `RandomResizedCrop`: ten tries of area, log-uniform ratio and offset, else the central crop of the
    /// nearest allowed ratio.
    RandomResizedCrop {
        /// Rows of the result.
        height: u32,
        /// Columns of the result.
        width: u32,
        /// Lower and upper bound of the area, as parts of the image's.
        scale: (f32, f32),
        /// Lower and upper bound of width / height.
        ratio: (f32, f32),
    },
    /// Left and right exchanged with probability `p` (*random*, one draw).
    RandomFlip {
        /// The probability.
        p: f32,
    },
    /// Random brightness, contrast, saturation and hue, applied in this order (*random*, *uint8*; four
    /// draws whatever the arguments). The first three factors are uniform in `[max(0, 1 - x), 1 + x]` and
    /// act as Pillow's `ImageEnhance`; the hue is shifted by a uniform part in `[-hue, hue]` of the circle
    /// as torchvision does on tensors.
    ColorJitter {
        /// Strength of brightness, 0 for none.
        brightness: f32,
        /// Strength of contrast, 0 for none.
        contrast: f32,
        /// Strength of saturation, 0 for none.
        saturation: f32,
        /// Strength of hue, 0 for none, at most 0.5.
        hue: f32,
    },
    /// Luma of ITU-R 601 as Pillow's mode `L`, in three equal channels (*uint8*).
    Grayscale,
    /// Gaussian blur with reflected borders as torchvision's (*uint8*; *random* if the two bounds of
    /// `sigma` differ: one uniform draw).
    GaussianBlur {
        /// Taps of the kernel in each direction, odd.
        kernel: u32,
        /// Bounds of the standard deviation, in pixels.
        sigma: (f32, f32),
    },
    /// To float32: `(x / 255 - mean) / std` per channel from uint8 images, `(x - mean) / std` from float
    /// ones. See [`IMAGENET_MEAN`] and [`IMAGENET_STD`].
    Normalize {
        /// Means per channel, for values in `[0, 1]`.
        mean: [f32; 3],
        /// Standard deviations per channel.
        std: [f32; 3],
    },
    /// To float32 in `[0, 1]`: `x / 255`; float images are not changed.
    ToFloat,
}

impl ImageOp {
    /// `Decode` with the default limit.
    pub const DECODE: Self = Self::Decode { max_pixels: DEFAULT_MAX_PIXELS };

    /// `Normalize` with the means of ImageNet.
    pub const NORMALIZE: Self = Self::Normalize { mean: IMAGENET_MEAN, std: IMAGENET_STD };

    /// The name of the kernel in expressions and in [`VERSIONS`].
    pub fn name(&self) -> &'static str {
        match self {
            Self::Decode { .. } => "decode_image",
            Self::Resize { .. } => "resize",
            Self::ResizeShorter { .. } => "resize_shorter",
            Self::CenterCrop { .. } => "center_crop",
            Self::RandomCrop { .. } => "random_crop",
            Self::RandomResizedCrop { .. } => "random_resized_crop",
            Self::RandomFlip { .. } => "random_flip",
            Self::ColorJitter { .. } => "color_jitter",
            Self::Grayscale => "grayscale",
            Self::GaussianBlur { .. } => "gaussian_blur",
            Self::Normalize { .. } => "normalize",
            Self::ToFloat => "to_float",
        }
    }

    /// Whether the operation draws random numbers, and so needs a call site.
    pub fn is_random(&self) -> bool {
        match self {
            Self::RandomCrop { .. }
            | Self::RandomResizedCrop { .. }
            | Self::RandomFlip { .. }
            | Self::ColorJitter { .. } => true,
            Self::GaussianBlur { sigma, .. } => sigma.0 != sigma.1,
            _ => false,
        }
    }
}

//! Functions of images.

use caju_image::ImageOp;
use caju_types::Result;

use super::function::{Built, Function, kernel};
use crate::call::Call;
use crate::constant::Const;
use crate::signature::{Arg, Kind, Signature, arg, opt};
use crate::udf;

const IMAGE: Arg = arg("image", Kind::Value, "an image");
const HEIGHT: Arg = arg("height", Kind::Int, "rows of the result");
const WIDTH: Arg = arg("width", Kind::Int, "columns of the result");
const FIXED_SIZE: &str = "image of fixed size";
const SAME_KIND: &str = "image of the input's kind";
const CODECS: &[&str] = &["image-webp", "png"];

const fn image_op(
    name: &'static str,
    args: &'static [Arg],
    returns: &'static str,
    doc: &'static str,
    random: bool,
    build: fn(&Call<'_>) -> Result<Built>,
) -> Function {
    let signature =
        Signature { name, version: None, group: "Images", args, returns, doc, random, engines: &[] };
    Function { signature, build }
}

/// A function that reads image files, whose value depends on the codecs.
const fn codec_op(
    name: &'static str,
    version: Option<u32>,
    args: &'static [Arg],
    returns: &'static str,
    doc: &'static str,
    build: fn(&Call<'_>) -> Result<Built>,
) -> Function {
    let mut function = image_op(name, args, returns, doc, false, build);
    function.signature.version = version;
    function.signature.engines = CODECS;
    function
}

fn plain(op: ImageOp) -> Result<Built> {
    Ok(Built::Image { op, scaled: false })
}

pub(super) static FUNCTIONS: &[Function] = &[
    codec_op(
        "decode_image",
        None,
        &[
            arg("bytes", Kind::Value, "a JPEG, PNG or WebP file"),
            opt(
                "max_pixels",
                Kind::Int,
                "null",
                "larger images are refused from their header; null is the limit of the process (--max-pixels, \
                     100,000,000 by default), which bounds what is given here too",
            ),
            opt(
                "scaled",
                Kind::Bool,
                "false",
                "decode a JPEG at 1/2, 1/4 or 1/8 where the resize around this call shrinks it at least \
                     that much: faster, and slightly different pixels",
            ),
        ],
        "image of variable size",
        "RGB uint8; the EXIF orientation is applied, grey and CMYK become RGB, alpha is dropped. A JPEG is sequential \
             or progressive, Huffman-coded, of 8 bits; other kinds are errors. Code without AVX2, which Arm runs, \
             takes about 2.5 times as long to decode and resize (measured on x86-64, not on Arm).",
        |c| {
            let max_pixels = match c.literal("max_pixels") {
                Const::Null => c.limits.max_pixels,
                _ => c.u64("max_pixels")?.min(c.limits.max_pixels),
            };
            Ok(Built::Image { op: ImageOp::Decode { max_pixels }, scaled: c.bool("scaled")? })
        },
    ),
    image_op(
        "resize",
        &[IMAGE, HEIGHT, WIDTH],
        FIXED_SIZE,
        "Bilinear with antialiasing, each side by its own factor.",
        false,
        |c| plain(ImageOp::Resize { height: c.u32("height")?, width: c.u32("width")? }),
    ),
    image_op(
        "resize_shorter",
        &[IMAGE, arg("size", Kind::Int, "pixels of the shorter side")],
        "image of variable size",
        "The shorter side becomes `size`, the other one follows; bilinear with antialiasing.",
        false,
        |c| plain(ImageOp::ResizeShorter { size: c.u32("size")? }),
    ),
    image_op(
        "center_crop",
        &[IMAGE, HEIGHT, WIDTH],
        FIXED_SIZE,
        "The middle of the image; an image smaller than that is an error.",
        false,
        |c| plain(ImageOp::CenterCrop { height: c.u32("height")?, width: c.u32("width")? }),
    ),
    image_op(
        "random_crop",
        &[IMAGE, HEIGHT, WIDTH],
        FIXED_SIZE,
        "A window at a random place; an image smaller than that is an error.",
        true,
        |c| plain(ImageOp::RandomCrop { height: c.u32("height")?, width: c.u32("width")? }),
    ),
    image_op(
        "random_resized_crop",
        &[
            IMAGE,
            HEIGHT,
            WIDTH,
            opt("scale_min", Kind::Float, "0.08", "smallest part of the image's area"),
            opt("scale_max", Kind::Float, "1.0", "largest part of the image's area"),
            opt("ratio_min", Kind::Float, "0.75", "smallest width / height"),
            opt("ratio_max", Kind::Float, "1.3333333333333333", "largest width / height"),
        ],
        FIXED_SIZE,
        "A window of random area and aspect ratio, resized.",
        true,
        |c| {
            plain(ImageOp::RandomResizedCrop {
                height: c.u32("height")?,
                width: c.u32("width")?,
                scale: (c.f32("scale_min")?, c.f32("scale_max")?),
                ratio: (c.f32("ratio_min")?, c.f32("ratio_max")?),
            })
        },
    ),
    image_op(
        "random_flip",
        &[IMAGE, opt("p", Kind::Float, "0.5", "the probability")],
        SAME_KIND,
        "Left and right exchanged with probability `p`.",
        true,
        |c| plain(ImageOp::RandomFlip { p: c.f32("p")? }),
    ),
    image_op(
        "color_jitter",
        &[
            IMAGE,
            opt("brightness", Kind::Float, "0", "strength; the factor is drawn from 1 - x to 1 + x"),
            opt("contrast", Kind::Float, "0", "strength, likewise"),
            opt("saturation", Kind::Float, "0", "strength, likewise"),
            opt("hue", Kind::Float, "0", "largest shift as part of the colour circle, at most 0.5"),
        ],
        SAME_KIND,
        "Random brightness, contrast, saturation and hue, in this order; uint8 images.",
        true,
        |c| {
            plain(ImageOp::ColorJitter {
                brightness: c.f32("brightness")?,
                contrast: c.f32("contrast")?,
                saturation: c.f32("saturation")?,
                hue: c.f32("hue")?,
            })
        },
    ),
    image_op("grayscale", &[IMAGE], SAME_KIND, "Luma in three equal channels; uint8 images.", false, |_| {
        plain(ImageOp::Grayscale)
    }),
    image_op(
        "gaussian_blur",
        &[
            IMAGE,
            arg("kernel", Kind::Int, "taps in each direction, odd"),
            opt("sigma_min", Kind::Float, "0.1", "smallest standard deviation in pixels"),
            opt("sigma_max", Kind::Float, "2.0", "largest; equal to the smallest: nothing is random"),
        ],
        SAME_KIND,
        "Gaussian blur with reflected borders, the standard deviation drawn at random; uint8 images.",
        true,
        |c| {
            plain(ImageOp::GaussianBlur {
                kernel: c.u32("kernel")?,
                sigma: (c.f32("sigma_min")?, c.f32("sigma_max")?),
            })
        },
    ),
    image_op(
        "normalize",
        &[
            IMAGE,
            opt("mean", Kind::Floats3, "[0.485, 0.456, 0.406]", "per channel, for values from 0 to 1"),
            opt("std", Kind::Floats3, "[0.229, 0.224, 0.225]", "per channel, for values from 0 to 1"),
        ],
        "float32 image of the input's size",
        "`(x / 255 - mean) / std` of uint8 images, `(x - mean) / std` of float ones.",
        false,
        |c| plain(ImageOp::Normalize { mean: c.floats3("mean")?, std: c.floats3("std")? }),
    ),
    image_op(
        "to_float",
        &[IMAGE],
        "float32 image of the input's size",
        "`x / 255`; float images are not changed.",
        false,
        |_| plain(ImageOp::ToFloat),
    ),
    codec_op(
        "image_width",
        Some(1),
        &[arg("image", Kind::Value, "an image, or a JPEG, PNG or WebP file")],
        "int32",
        "Columns of the image; of a file, from its header alone, the EXIF orientation applied.",
        |_| kernel(udf::ImageSide { width: true }),
    ),
    codec_op(
        "image_height",
        Some(1),
        &[arg("image", Kind::Value, "an image, or a JPEG, PNG or WebP file")],
        "int32",
        "Rows of the image; of a file, from its header alone, the EXIF orientation applied.",
        |_| kernel(udf::ImageSide { width: false }),
    ),
];

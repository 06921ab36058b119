//! The functions of caju: one table from which calls are checked, errors and documents are written, and
//! kernels are built.

use caju_types::{Error, Result};

use crate::sql::{Call, Const};
use crate::udf::{self, Kernel};
use caju_image::ImageOp;

/// What an argument may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Any expression: one value per row.
    Value,
    /// An integer known when the expression is bound.
    Int,
    /// A number known when the expression is bound.
    Float,
    /// Text known when the expression is bound.
    Text,
    /// True or false, known when the expression is bound.
    Bool,
    /// Three numbers known when the expression is bound.
    Floats3,
    /// Any literal.
    Literal,
}

impl Kind {
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Kind::Value => "a value per row",
            Kind::Int => "a constant integer",
            Kind::Float => "a constant number",
            Kind::Text => "constant text",
            Kind::Bool => "a constant true or false",
            Kind::Floats3 => "three constant numbers, such as [0.5, 0.5, 0.5]",
            Kind::Literal => "a constant",
        }
    }
}

/// One argument of a function.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arg {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// The SQL text of the default; an argument without one must be given.
    pub(crate) default: Option<&'static str>,
    pub(crate) doc: &'static str,
}

/// What a call becomes.
pub(crate) enum Built {
    /// An operation on images, fused with its neighbours.
    Image { op: ImageOp, scaled: bool },
    /// Anything else.
    Kernel(Box<dyn Kernel>),
}

/// One function.
pub(crate) struct Function {
    pub(crate) name: &'static str,
    /// Absent for image operations, which have theirs in [`caju_image::VERSIONS`].
    pub(crate) version: Option<u32>,
    pub(crate) group: &'static str,
    pub(crate) args: &'static [Arg],
    pub(crate) returns: &'static str,
    pub(crate) doc: &'static str,
    /// Whether calls take a call site and `key`.
    pub(crate) random: bool,
    /// The libraries beyond Arrow whose code the value depends on.
    pub(crate) engines: &'static [&'static str],
    pub(crate) build: fn(&Call<'_>) -> Result<Built>,
}

const fn arg(name: &'static str, kind: Kind, doc: &'static str) -> Arg {
    Arg { name, kind, default: None, doc }
}

const fn opt(name: &'static str, kind: Kind, default: &'static str, doc: &'static str) -> Arg {
    Arg { name, kind, default: Some(default), doc }
}

const IMAGE: Arg = arg("image", Kind::Value, "an image");
const HEIGHT: Arg = arg("height", Kind::Int, "rows of the result");
const WIDTH: Arg = arg("width", Kind::Int, "columns of the result");
const FIXED: &str = "image of fixed size";
const SAME: &str = "image of the input's kind";
const CODECS: &[&str] = &["image-webp", "png"];

/// The argument that every random function has besides its own.
pub(crate) const KEY: Arg = opt(
    "key",
    Kind::Text,
    "null",
    "calls with the same key draw the same numbers for a row, whatever expression they stand in",
);

const fn image_op(
    name: &'static str,
    args: &'static [Arg],
    returns: &'static str,
    doc: &'static str,
    random: bool,
    build: fn(&Call<'_>) -> Result<Built>,
) -> Function {
    Function { name, version: None, group: "Images", args, returns, doc, random, engines: &[], build }
}

fn plain(op: ImageOp) -> Result<Built> {
    Ok(Built::Image { op, scaled: false })
}

fn kernel(k: impl Kernel + 'static) -> Result<Built> {
    Ok(Built::Kernel(Box::new(k)))
}

/// All functions, in the order of the documentation.
pub(crate) static FUNCTIONS: &[Function] = &[
    Function {
        engines: CODECS,
        ..image_op(
            "decode_image",
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
             or progressive, Huffman-coded, of 8 bits; other kinds are errors. Processors without AVX2, Arm among them, \
             take about 2.5 times as long to decode and resize.",
            false,
            |c| {
                let max_pixels = match c.literal("max_pixels") {
                    Const::Null => c.limits.max_pixels,
                    _ => c.u64("max_pixels")?.min(c.limits.max_pixels),
                };
                Ok(Built::Image { op: ImageOp::Decode { max_pixels }, scaled: c.bool("scaled")? })
            },
        )
    },
    image_op(
        "resize",
        &[IMAGE, HEIGHT, WIDTH],
        FIXED,
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
        FIXED,
        "The middle of the image; an image smaller than that is an error.",
        false,
        |c| plain(ImageOp::CenterCrop { height: c.u32("height")?, width: c.u32("width")? }),
    ),
    image_op(
        "random_crop",
        &[IMAGE, HEIGHT, WIDTH],
        FIXED,
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
        FIXED,
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
        SAME,
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
        SAME,
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
    image_op("grayscale", &[IMAGE], SAME, "Luma in three equal channels; uint8 images.", false, |_| {
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
        SAME,
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
        "`x / 255`; float images stay as they are.",
        false,
        |_| plain(ImageOp::ToFloat),
    ),
    Function {
        version: Some(1),
        engines: CODECS,
        ..image_op(
            "image_width",
            &[arg("image", Kind::Value, "an image, or a JPEG, PNG or WebP file")],
            "int32",
            "Columns of the image; of a file, from its header alone, the EXIF orientation applied.",
            false,
            |_| kernel(udf::ImageSide { width: true }),
        )
    },
    Function {
        version: Some(1),
        engines: CODECS,
        ..image_op(
            "image_height",
            &[arg("image", Kind::Value, "an image, or a JPEG, PNG or WebP file")],
            "int32",
            "Rows of the image; of a file, from its header alone, the EXIF orientation applied.",
            false,
            |_| kernel(udf::ImageSide { width: false }),
        )
    },
    Function {
        name: "hash_bucket",
        version: Some(1),
        group: "Tables and text",
        args: &[
            arg("value", Kind::Value, "a string, bytes or an integer"),
            arg("n", Kind::Int, "the number of buckets"),
            opt(
                "null_as",
                Kind::Literal,
                "null",
                "the value that stands for null; without it null stays null",
            ),
        ],
        returns: "int64 from 0 to n - 1",
        doc: "`floor(h * n / 2^64)`, where `h` is the xxh3-64 (seed 0) of the value's bytes: UTF-8 of a string, \
              eight bytes, little-endian, of an integer. The same in every version and on every machine.",
        random: false,
        engines: &["xxhash-rust"],
        build: |c| kernel(udf::HashBucket::new(c.u64("n")?, c.literal("null_as"))?),
    },
    Function {
        name: "tokenize",
        version: Some(1),
        group: "Tables and text",
        args: &[arg("text", Kind::Value, "a string"), arg("regex", Kind::Text, "what a token is")],
        returns: "list of string",
        doc: "All matches of the regular expression, from left to right, without overlap.",
        random: false,
        engines: &["regex"],
        build: |c| kernel(udf::Tokenize::new(&c.text("regex")?)?),
    },
    Function {
        name: "pad",
        version: Some(1),
        group: "Tables and text",
        args: &[
            arg("list", Kind::Value, "a list"),
            arg("n", Kind::Int, "the length of the result"),
            opt("value", Kind::Literal, "null", "what is appended; null is 0, false or the empty string"),
        ],
        returns: "fixed-size list (of numbers: tensor)",
        doc: "The list, filled up to `n` values at its end. A longer list is an error: `truncate` it first.",
        random: false,
        engines: &[],
        build: |c| kernel(udf::Pad::new(c.u32("n")?, c.literal("value"))?),
    },
    Function {
        name: "truncate",
        version: Some(1),
        group: "Tables and text",
        args: &[
            arg("value", Kind::Value, "a list, a string or bytes"),
            arg("n", Kind::Int, "the largest length of the result"),
        ],
        returns: "the input's type",
        doc: "The first `n` values of a list, characters of a string, or bytes.",
        random: false,
        engines: &[],
        build: |c| kernel(udf::Truncate { n: c.u32("n")? }),
    },
    Function {
        name: "one_hot",
        version: Some(1),
        group: "Tables and text",
        args: &[
            arg("value", Kind::Value, "an integer"),
            arg("n", Kind::Int, "the number of classes"),
            opt("dtype", Kind::Text, "'float32'", "`float32` or `uint8`"),
        ],
        returns: "tensor of shape [n]",
        doc: "1 at the place of the value, 0 elsewhere. A value outside 0 to n - 1 is an error.",
        random: false,
        engines: &[],
        build: |c| kernel(udf::OneHot::new(c.u32("n")?, &c.text("dtype")?)?),
    },
    Function {
        name: "uniform",
        version: Some(1),
        group: "Random numbers",
        args: &[
            opt("low", Kind::Value, "0", "the lower bound"),
            opt("high", Kind::Value, "1", "the upper bound, excluded"),
        ],
        returns: "float64",
        doc: "A number drawn uniformly.",
        random: true,
        engines: &[],
        build: |c| kernel(udf::Draw::uniform(c.site)),
    },
    Function {
        name: "normal",
        version: Some(1),
        group: "Random numbers",
        args: &[
            opt("mean", Kind::Value, "0", "the mean"),
            opt("std", Kind::Value, "1", "the standard deviation"),
        ],
        returns: "float64",
        doc: "A number from the normal distribution.",
        random: true,
        engines: &[],
        build: |c| kernel(udf::Draw::normal(c.site)),
    },
    Function {
        name: "random_int",
        version: Some(1),
        group: "Random numbers",
        args: &[
            arg("low", Kind::Value, "the smallest value"),
            arg("high", Kind::Value, "one past the largest value"),
        ],
        returns: "int64",
        doc: "An integer drawn uniformly. An empty range is an error.",
        random: true,
        engines: &[],
        build: |c| kernel(udf::Draw::int(c.site)),
    },
];

/// The function of this (lower-case) name.
pub(crate) fn find(name: &str) -> Option<&'static Function> {
    FUNCTIONS.iter().find(|f| f.name == name)
}

impl Function {
    /// The version; see invariant I10.
    pub(crate) fn version(&self) -> u32 {
        self.version
            .or_else(|| caju_image::VERSIONS.iter().find(|(n, _)| *n == self.name).map(|(_, v)| *v))
            .unwrap_or(0)
    }

    /// All arguments, `key` included.
    pub(crate) fn all_args(&self) -> impl Iterator<Item = &'static Arg> + use<> {
        let key: &'static [Arg] = if self.random { &[KEY] } else { &[] };
        self.args.iter().chain(key)
    }

    /// How a call is written: `resize(image, height, width)`.
    pub(crate) fn signature(&self) -> String {
        let args: Vec<String> = self
            .all_args()
            .map(|a| match a.default {
                None => a.name.to_owned(),
                Some(d) => format!("{} => {d}", a.name),
            })
            .collect();
        format!("{}({})", self.name, args.join(", "))
    }

    /// An error about a call of this function, with its signature.
    pub(crate) fn misuse(&self, what: impl std::fmt::Display) -> Error {
        Error::invalid(format!("{what}; write {}", self.signature()))
    }
}

/// The reference of all functions in Markdown: what `docs/functions.md` holds.
pub fn reference_markdown() -> String {
    let mut out = String::from(REFERENCE_HEAD);
    let mut group = "";
    for f in FUNCTIONS {
        if f.group != group {
            group = f.group;
            out.push_str(&format!("\n## {group}\n"));
        }
        let random = if f.random { " Random." } else { "" };
        out.push_str(&format!(
            "\n### `{}`\n\n{}{random} Gives: {}. Version {}.\n\n",
            f.signature(),
            f.doc,
            f.returns,
            f.version()
        ));
        out.push_str("| argument | what | default |\n|---|---|---|\n");
        for a in f.all_args() {
            let default = a.default.map_or("(required)".to_owned(), |d| format!("`{d}`"));
            out.push_str(&format!("| `{}` | {}: {} | {default} |\n", a.name, a.kind.describe(), a.doc));
        }
    }
    out
}

const REFERENCE_HEAD: &str = "\
# Functions in expressions

<!-- Written from the table in crates/kernels/src/catalog.rs; a test compares. To write it anew:
     cargo test -p caju-kernels write_reference -- --ignored -->

Expressions are SQL scalar expressions: `normalize(random_flip(random_resized_crop(decode_image(image), 224, 224)))`,
`ln(x + 1)`, `coalesce(a, 0)`, `label < 100`, `\"image/encoded\"`. Names of columns are case-sensitive, and quoted with
`\"` if they hold anything but letters, digits and `_`. All immutable scalar functions and operators of DataFusion may be
called (`ln`, `coalesce`, `lower`, `array_length`, `regexp_replace`, `case`, `cast`, ...) and the functions below.
An integer that `+`, `-` or `*` makes too large for its type is an error that names the row. A value that alone needs more
memory than `--chunk-memory` is one too.
Aggregates, window functions, subqueries, and functions that give another value each time (`random`, `now`, `uuid`) are
refused: a row must be a function of the data, the seed and the epoch.

Arguments are given by position or by name, as in `random_resized_crop(image, 224, 224, scale_min => 0.25)`. Null in,
null out.

**Images** are tensors of shape height x width x 3, RGB. Images of one size are `arrow.fixed_shape_tensor`, others are
`arrow.variable_shape_tensor`; uint8 until `normalize` or `to_float` make float32. Nested calls run as one chain per row,
without images in between.

**Random functions** draw from a generator keyed by the job's seed, the epoch, the row, and the call: its place in the
expression and the name of the column that the expression computes. Every call draws for itself, unless calls share a
`key`: `random_crop(image, 224, 224, key => 'crop')` and `random_crop(mask, 224, 224, key => 'crop')` cut the same window.
";

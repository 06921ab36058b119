//! The chain: what it accepts and what it gives.

use caju_types::{Error, Result};

use super::ImageOp;

/// What a chain's rows are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InputKind {
    /// Bytes of JPEG, PNG or WebP files. The chain begins with [`ImageOp::Decode`].
    Encoded,
    /// RGB uint8 pixels.
    U8,
    /// RGB float32 pixels.
    F32,
}

/// The type of the samples of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// 0 to 255.
    U8,
    /// Normalised or in `[0, 1]`.
    F32,
}

/// What a chain gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OutputKind {
    /// All results have this size.
    Fixed {
        /// Rows.
        height: u32,
        /// Columns.
        width: u32,
        /// Type of the samples.
        dtype: Dtype,
    },
    /// The size depends on the row.
    Variable {
        /// Type of the samples.
        dtype: Dtype,
    },
}

/// One row's input.
#[derive(Debug, Clone, Copy)]
pub enum RowInput<'a> {
    /// An image file.
    Encoded(&'a [u8]),
    /// `height * width * 3` bytes, RGB, row by row.
    Pixels {
        /// The samples.
        data: &'a [u8],
        /// Rows.
        height: u32,
        /// Columns.
        width: u32,
    },
    /// `height * width * 3` floats, RGB, row by row.
    FloatPixels {
        /// The samples.
        data: &'a [f32],
        /// Rows.
        height: u32,
        /// Columns.
        width: u32,
    },
}

/// A validated chain of operations. Immutable and shared by all threads; see [`Scratch`](super::Scratch) for what is not.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageChain {
    pub(super) steps: Vec<(ImageOp, u64)>,
    pub(super) input: InputKind,
    pub(super) scaled: bool,
    pub(super) output: OutputKind,
}

impl ImageChain {
    /// A chain of operations in the order of their application; random ones with their call site.
    ///
    /// # Errors
    /// `InvalidArgument` that names the operation and the argument: a size of 0, a probability outside
    /// `[0, 1]`, a missing call site, an operation on the wrong kind of image.
    pub fn new(ops: Vec<(ImageOp, Option<u64>)>, input: InputKind) -> Result<Self> {
        let mut dtype = if input == InputKind::F32 { Dtype::F32 } else { Dtype::U8 };
        let mut size = None;
        let mut steps = Vec::with_capacity(ops.len());
        for (i, (op, site)) in ops.into_iter().enumerate() {
            let name = op.name();
            check_arguments(&op).map_err(|e| e.context(name))?;
            if (input == InputKind::Encoded && i == 0) != matches!(op, ImageOp::Decode { .. }) {
                return Err(Error::invalid(if i == 0 && input == InputKind::Encoded {
                    format!(
                        "{name} needs an image, and its input is encoded bytes: write {name}(decode_image(...))"
                    )
                } else {
                    format!("{name} needs encoded bytes, and its input is an image already")
                }));
            }
            let uint8 =
                matches!(op, ImageOp::ColorJitter { .. } | ImageOp::Grayscale | ImageOp::GaussianBlur { .. });
            if uint8 && dtype == Dtype::F32 {
                return Err(Error::invalid(format!(
                    "{name} works on uint8 images; put it before normalize or to_float"
                )));
            }
            if op.is_random() && site.is_none() {
                return Err(Error::internal(format!("{name} is random and has no call site")));
            }
            match op {
                ImageOp::Resize { height, width }
                | ImageOp::CenterCrop { height, width }
                | ImageOp::RandomCrop { height, width }
                | ImageOp::RandomResizedCrop { height, width, .. } => size = Some((height, width)),
                ImageOp::Decode { .. } | ImageOp::ResizeShorter { .. } => size = None,
                ImageOp::Normalize { .. } | ImageOp::ToFloat => dtype = Dtype::F32,
                _ => {}
            }
            steps.push((op, site.unwrap_or(0)));
        }
        if steps.is_empty() && input == InputKind::Encoded {
            return Err(Error::internal("an image chain over encoded bytes has no decode_image"));
        }
        let output = match size {
            Some((height, width)) => OutputKind::Fixed { height, width, dtype },
            None => OutputKind::Variable { dtype },
        };
        Ok(Self { steps, input, scaled: false, output })
    }

    /// Allows a JPEG to be decoded at 1/2, 1/4 or 1/8 if the next resize shrinks its window at least that
    /// much in both directions. Faster and slightly different, so the result is no longer that of the
    /// operations one by one: set it only where decoding and resizing are in one expression, and make it
    /// part of the expression's fingerprint.
    #[must_use]
    pub fn allow_scaled(mut self, yes: bool) -> Self {
        self.scaled = yes;
        self
    }

    /// Type and, if it does not depend on the row, size of the results.
    pub fn output(&self) -> OutputKind {
        self.output
    }

    /// Type of the results' samples.
    pub fn dtype(&self) -> Dtype {
        match self.output {
            OutputKind::Fixed { dtype, .. } | OutputKind::Variable { dtype } => dtype,
        }
    }
}

/// Sides beyond this are refused: they are mistakes, and sizes must not overflow.
const MAX_SIDE: u32 = 65_535;

fn check_arguments(op: &ImageOp) -> Result<()> {
    let side = |what: &str, n: u32| {
        if (1..=MAX_SIDE).contains(&n) {
            return Ok(());
        }
        Err(Error::invalid(format!("{what} is {n}; it must be from 1 to {MAX_SIDE}")))
    };
    let check = |ok: bool, text: String| if ok { Ok(()) } else { Err(Error::invalid(text)) };
    match *op {
        ImageOp::Resize { height, width }
        | ImageOp::CenterCrop { height, width }
        | ImageOp::RandomCrop { height, width } => side("height", height).and(side("width", width)),
        ImageOp::RandomResizedCrop { height, width, scale, ratio } => {
            side("height", height).and(side("width", width))?;
            let ok = scale.0 > 0.0 && scale.0 <= scale.1 && scale.1 <= 1.0;
            check(ok, format!("scale is ({}, {}); it must satisfy 0 < low <= high <= 1", scale.0, scale.1))?;
            let ok = ratio.0 >= 0.01 && ratio.0 <= ratio.1 && ratio.1 <= 100.0;
            check(
                ok,
                format!("ratio is ({}, {}); it must satisfy 0.01 <= low <= high <= 100", ratio.0, ratio.1),
            )
        }
        ImageOp::ResizeShorter { size } => side("size", size),
        ImageOp::RandomFlip { p } => {
            check((0.0..=1.0).contains(&p), format!("p is {p}; it must be from 0 to 1"))
        }
        ImageOp::ColorJitter { brightness, contrast, saturation, hue } => {
            for (what, x) in [("brightness", brightness), ("contrast", contrast), ("saturation", saturation)]
            {
                check((0.0..=1e6).contains(&x), format!("{what} is {x}; it must not be negative"))?;
            }
            check((0.0..=0.5).contains(&hue), format!("hue is {hue}; it must be from 0 to 0.5"))
        }
        ImageOp::GaussianBlur { kernel, sigma } => {
            let ok = kernel % 2 == 1 && kernel <= 999;
            check(ok, format!("kernel is {kernel}; it must be an odd number from 1 to 999"))?;
            let ok = sigma.0 > 0.0 && sigma.0 <= sigma.1 && sigma.1.is_finite();
            check(ok, format!("sigma is ({}, {}); it must satisfy 0 < low <= high", sigma.0, sigma.1))
        }
        ImageOp::Normalize { mean, std } => {
            let ok = mean.iter().all(|m| m.is_finite()) && std.iter().all(|s| s.is_finite() && *s > 0.0);
            check(ok, "means must be finite and standard deviations positive".into())
        }
        ImageOp::Decode { .. } | ImageOp::Grayscale | ImageOp::ToFloat => Ok(()),
    }
}

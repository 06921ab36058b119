//! The decoders that are compared, behind one interface.

use caju_image::jpeg::{self, Region};
use libjpeg_turbo_rs as ltrs;
use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;

use crate::{Outcome, turbo};

/// What is to be decoded of an image.
#[derive(Debug, Clone, Copy)]
pub struct Job {
    /// Size of the image.
    pub height: usize,
    /// Size of the image.
    pub width: usize,
    /// The window, in pixels of the decoded scale; none for the whole image.
    pub window: Option<Region>,
    /// 1, 2 or 4: sides are divided by it.
    pub scale: usize,
}

impl Job {
    /// The window, or the whole image.
    pub fn region(&self) -> Region {
        let (h, w) = (self.height.div_ceil(self.scale), self.width.div_ceil(self.scale));
        self.window.unwrap_or(Region { y: 0, x: 0, h, w })
    }
}

/// A decoder to RGB.
pub trait Decoder {
    /// The column's title.
    fn name(&self) -> &'static str;

    /// Whether it can decode at 1/2 and 1/4.
    fn scales(&self) -> bool {
        true
    }

    /// Decodes at least the job's region. Gives the part that `out` begins with.
    fn decode(&mut self, bytes: &[u8], job: &Job, out: &mut Vec<u8>) -> Outcome<Region>;
}

/// All of them, ours first.
pub fn all() -> Outcome<Vec<Box<dyn Decoder>>> {
    Ok(vec![
        Box::<Ours>::default(),
        Box::new(Turbo(turbo::Decompressor::new()?)),
        Box::new(TurboRs),
        Box::new(Zune),
    ])
}

fn grow(out: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if out.len() < len {
        out.resize(len, 0);
    }
    &mut out[..len]
}

#[derive(Default)]
struct Ours(jpeg::Scratch);

impl Decoder for Ours {
    fn name(&self) -> &'static str {
        if cfg!(feature = "portable") { "ours, portable" } else { "ours" }
    }

    fn decode(&mut self, bytes: &[u8], job: &Job, out: &mut Vec<u8>) -> Outcome<Region> {
        let r = job.region();
        jpeg::decode(bytes, r, job.scale, &mut self.0, grow(out, r.h * r.w * 3))?;
        Ok(r)
    }
}

struct Turbo(turbo::Decompressor);

impl Decoder for Turbo {
    fn name(&self) -> &'static str {
        "libjpeg-turbo"
    }

    fn decode(&mut self, bytes: &[u8], job: &Job, out: &mut Vec<u8>) -> Outcome<Region> {
        self.0.decode(bytes, job.window, job.scale, out)
    }
}

struct TurboRs;

impl Decoder for TurboRs {
    fn name(&self) -> &'static str {
        "libjpeg-turbo-rs"
    }

    fn decode(&mut self, bytes: &[u8], job: &Job, out: &mut Vec<u8>) -> Outcome<Region> {
        let mut d = ltrs::Decoder::new(bytes)?;
        d.set_output_format(ltrs::PixelFormat::Rgb);
        d.set_scale(ltrs::ScalingFactor::try_new(1, u32::try_from(job.scale)?)?);
        if let Some(r) = job.window {
            d.set_crop_region(r.x, r.y, r.w, r.h);
        }
        let info = d.decode_image_into(grow(out, d.output_buffer_size()?))?;
        let r = job.region();
        // The part begins at a multiple of the width of an MCU and ends with the window.
        Ok(Region { y: r.y, x: r.x + r.w - info.width, h: info.height, w: info.width })
    }
}

struct Zune;

impl Decoder for Zune {
    fn name(&self) -> &'static str {
        "zune-jpeg"
    }

    fn scales(&self) -> bool {
        false
    }

    fn decode(&mut self, bytes: &[u8], job: &Job, out: &mut Vec<u8>) -> Outcome<Region> {
        let options = DecoderOptions::default().jpeg_set_out_colorspace(ColorSpace::RGB);
        let mut d = zune_jpeg::JpegDecoder::new_with_options(ZCursor::new(bytes), options);
        d.decode_into(grow(out, job.height * job.width * 3)).map_err(|e| format!("zune-jpeg: {e:?}"))?;
        Ok(Region { y: 0, x: 0, h: job.height, w: job.width })
    }
}

//! Encoded images: what format, how large, and the pixels of a window.

use caju_types::budget::{self, Reservation};
use caju_types::{Error, Result};

use super::buffers::grow;
use super::codecs::{self, Samples};
use super::geometry::{Rect, Size};
use super::jpeg;
use super::orientation::{self, Orientation};

/// The formats that `decode_image` reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Jpeg,
    Png,
    WebP,
}

/// An encoded image whose header was read and accepted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Encoded<'a> {
    bytes: &'a [u8],
    format: Format,
    raw: Size,
    orientation: Orientation,
}

/// Buffers for decoding.
#[derive(Debug, Default)]
pub(super) struct DecodeScratch {
    /// The whole raw image, for codecs that cannot decode a window.
    full: Vec<u8>,
    /// Samples as a codec delivers them, before they become RGB uint8.
    samples: Vec<u8>,
    /// A raw window, before it is turned upright.
    raw: Vec<u8>,
    pub(super) jpeg: jpeg::Scratch,
}

impl DecodeScratch {
    /// Frees buffers of more than `keep` bytes.
    pub(super) fn trim(&mut self, keep: usize) {
        for v in [&mut self.full, &mut self.samples, &mut self.raw] {
            super::buffers::trim(v, keep);
        }
        self.jpeg.trim(keep);
    }
}

/// Height and width of the decoded image (its EXIF orientation applied), from its header alone.
///
/// # Errors
/// `DataLoss` if the bytes are not a JPEG, PNG or WebP header.
pub fn image_size(bytes: &[u8]) -> Result<(u32, u32)> {
    let e = Encoded::open(bytes, u64::MAX)?;
    let s = e.size();
    Ok((s.h as u32, s.w as u32))
}

impl<'a> Encoded<'a> {
    /// Reads the header; refuses what is no image or has more than `max_pixels` pixels.
    pub(super) fn open(bytes: &'a [u8], max_pixels: u64) -> Result<Self> {
        let format = sniff(bytes)?;
        let (raw, orientation) = match format {
            Format::Jpeg => {
                let (h, w, exif) = jpeg::header::parse_size(bytes)?;
                let tag = exif.and_then(orientation::from_tiff).unwrap_or(1);
                (Size { h, w }, Orientation::from_exif(tag))
            }
            Format::Png => codecs::png_size(bytes)?,
            Format::WebP => codecs::webp_size(bytes)?,
        };
        let pixels = raw.h as u64 * raw.w as u64;
        if pixels > max_pixels {
            return Err(Error::invalid(format!(
                "the image is {} x {} (height x width), {} pixels: more than the limit of {}; set \
                 `max_pixels` of decode_image higher if such images are meant to be here, and --max-pixels of the \
                 worker, which bounds it",
                raw.h,
                raw.w,
                caju_types::format_count(pixels),
                caju_types::format_count(max_pixels),
            )));
        }
        Ok(Self { bytes, format, raw, orientation })
    }

    /// Refuses a file that is too short to hold its pixels, however well they compress: before memory is asked for.
    pub(super) fn check_length(&self) -> Result<()> {
        match self.format {
            Format::Png => codecs::check_png_length(self.bytes, self.raw),
            Format::Jpeg => {
                // Each block of the component with the most samples has a bit; it has a quarter of the pixels at least.
                let blocks = budget::product(&[self.raw.h.div_ceil(8), self.raw.w.div_ceil(8)]) / 4;
                if blocks / 8 > self.bytes.len() && jpeg::is_supported(self.bytes) {
                    return Err(jpeg::cut_off(self.bytes.len()));
                }
                Ok(())
            }
            Format::WebP => Ok(()),
        }
    }

    /// The size of the upright image.
    pub(super) fn size(&self) -> Size {
        self.orientation.apply(self.raw)
    }

    /// Whether the codec can decode at 1/2, 1/4 and 1/8.
    pub(super) fn can_scale(&self) -> bool {
        self.format == Format::Jpeg
    }

    /// The size of the upright image decoded at 1/`scale`.
    pub(super) fn scaled_size(&self, scale: usize) -> Size {
        let s = self.size();
        Size { h: s.h.div_ceil(scale), w: s.w.div_ceil(scale) }
    }

    /// Where the upright image's origin lies on the pixel grid of the image decoded at 1/`scale`: an axis
    /// that runs backwards begins with the part of a pixel that the rounding up of the size added.
    pub(super) fn scaled_origin(&self, scale: usize) -> (f64, f64) {
        let (s, scaled) = (self.size(), self.scaled_size(scale));
        let (y, x) = self.orientation.mirrored();
        let rest = |on: bool, n: usize, m: usize| if on { m as f64 - n as f64 / scale as f64 } else { 0.0 };
        (rest(y, s.h, scaled.h), rest(x, s.w, scaled.w))
    }

    /// Decodes a window of the upright image at 1/`scale` (1, 2, 4 or 8; more than 1 only if
    /// [`Self::can_scale`]) into `out`, which holds exactly its pixels.
    pub(super) fn decode(
        &self,
        window: Rect,
        scale: usize,
        scratch: &mut DecodeScratch,
        out: &mut [u8],
    ) -> Result<()> {
        if self.orientation.is_upright() {
            return self.decode_raw(window, scale, scratch, out);
        }
        let raw = self.orientation.apply(self.scaled_size(scale));
        let r = self.orientation.raw_rect(window, raw);
        let _held = self.hold(budget::product(&[r.h, r.w, 3]))?;
        let mut buffer = std::mem::take(&mut scratch.raw);
        let done = self.decode_raw(r, scale, scratch, grow(&mut buffer, r.h * r.w * 3));
        if done.is_ok() {
            self.orientation.turn(&buffer, r.size(), out);
        }
        scratch.raw = buffer;
        done
    }

    /// Charges a buffer that decoding needs to the chunk's budget.
    fn hold(&self, bytes: usize) -> Result<Reservation> {
        let (h, w) = (self.raw.h, self.raw.w);
        budget::hold(bytes as u64, format_args!("decoding an image of {h} x {w} (height x width)"))
    }

    fn decode_raw(&self, r: Rect, scale: usize, scratch: &mut DecodeScratch, out: &mut [u8]) -> Result<()> {
        if self.format == Format::Jpeg {
            let region = jpeg::Region { y: r.y, x: r.x, h: r.h, w: r.w };
            return jpeg::decode(self.bytes, region, scale, &mut scratch.jpeg, out);
        }
        let pixels = budget::product(&[self.raw.h, self.raw.w]);
        let _held = self.hold(pixels.saturating_mul(3))?;
        if self.format == Format::Png {
            let (kind, mut png) = codecs::open_png(self.bytes, self.raw)?;
            scratch.full.resize(pixels * 3, 0);
            self.read(kind, &mut scratch.samples, &mut scratch.full, |to| png.read(to))?;
        } else {
            let (kind, mut webp) = codecs::open_webp(self.bytes, self.raw)?;
            // The codec has an image of its own, with alpha.
            let _codec = self.hold(pixels.saturating_mul(4))?;
            scratch.full.resize(pixels * 3, 0);
            self.read(kind, &mut scratch.samples, &mut scratch.full, |to| webp.read(to))?;
        }
        copy_window(&scratch.full, self.raw, r, out);
        Ok(())
    }

    /// Lets a codec decode everything, and brings its samples to RGB uint8.
    fn read(
        &self,
        kind: Samples,
        samples: &mut Vec<u8>,
        out: &mut [u8],
        decode: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<()> {
        if kind == Samples::RGB {
            return decode(out);
        }
        let bytes = budget::product(&[self.raw.h, self.raw.w, kind.bytes_per_pixel()]);
        let _held = self.hold(bytes)?;
        samples.resize(bytes, 0);
        decode(samples)?;
        kind.to_rgb(samples, out);
        Ok(())
    }
}

/// Copies a window of an RGB image.
pub(super) fn copy_window(src: &[u8], size: Size, r: Rect, out: &mut [u8]) {
    if r.w == 0 {
        return;
    }
    for (y, row) in out.chunks_exact_mut(r.w * 3).enumerate().take(r.h) {
        let at = ((r.y + y) * size.w + r.x) * 3;
        row.copy_from_slice(&src[at..at + r.w * 3]);
    }
}

fn sniff(bytes: &[u8]) -> Result<Format> {
    if bytes.starts_with(&[0xFF, 0xD8]) {
        return Ok(Format::Jpeg);
    }
    if bytes.starts_with(b"\x89PNG\r\n\x1a\n") {
        return Ok(Format::Png);
    }
    if bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP") {
        return Ok(Format::WebP);
    }
    if bytes.is_empty() {
        return Err(Error::data_loss("not an image: the value is empty"));
    }
    let known = match bytes {
        [b'G', b'I', b'F', b'8', ..] => " (a GIF)",
        [b'B', b'M', _, _, _, _, 0, 0, 0, 0, ..] => " (a BMP)",
        [b'I', b'I', 42, 0, ..] | [b'M', b'M', 0, 42, ..] => " (a TIFF)",
        [_, _, _, _, b'f', b't', b'y', b'p', ..] => " (an AVIF, HEIC or MP4 file)",
        _ => "",
    };
    Err(Error::data_loss(format!(
        "not an image: the {} bytes start with `{}`{known}, not JPEG, PNG or WebP",
        bytes.len(),
        first_bytes(bytes)
    )))
}

/// The first bytes as a person reads them: text if they are text, else hexadecimal.
fn first_bytes(bytes: &[u8]) -> String {
    let text = bytes.trim_ascii_start();
    let head = &text[..text.len().min(24)];
    let line = head.split(|&b| b == b'\n' || b == b'\r').next().unwrap_or_default();
    if !line.is_empty() && line.iter().all(|b| (0x20..0x7F).contains(b)) {
        // Up to the end of the first tag or word, so that `<html lang="en">` reads `<html`.
        let end = line.iter().skip(1).position(|&b| b == b' ' || b == b'>').map_or(line.len(), |i| i + 1);
        return String::from_utf8_lossy(&line[..end]).into_owned();
    }
    let hex: Vec<String> = bytes.iter().take(8).map(|b| format!("{b:02x}")).collect();
    hex.join(" ")
}

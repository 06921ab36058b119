//! PNG and WebP: the headers, and the pixels as the codecs give them.

use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind};

use caju_types::{Error, Result, budget, panic_text};

use super::geometry::Size;
use super::orientation::{self, Orientation};

/// The samples of a pixel as a codec gives them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Samples {
    /// 1 grey, 2 grey and alpha, 3 RGB, 4 RGB and alpha.
    channels: usize,
    /// Bytes of a sample; of two the high one comes first.
    bytes: usize,
}

impl Samples {
    /// What the result has.
    pub(super) const RGB: Self = Self { channels: 3, bytes: 1 };

    pub(super) fn bytes_per_pixel(self) -> usize {
        self.channels * self.bytes
    }

    /// Keeps the high byte of each sample, repeats grey, and drops alpha.
    pub(super) fn to_rgb(self, samples: &[u8], out: &mut [u8]) {
        let (green, blue) = if self.channels < 3 { (0, 0) } else { (self.bytes, 2 * self.bytes) };
        for (to, from) in out.chunks_exact_mut(3).zip(samples.chunks_exact(self.bytes_per_pixel())) {
            to.copy_from_slice(&[from[0], from[green], from[blue]]);
        }
    }
}

/// A PNG whose header was read.
pub(super) struct Png<'a> {
    bytes: &'a [u8],
    reader: png::Reader<Cursor<&'a [u8]>>,
}

impl Png<'_> {
    /// Decodes all samples.
    pub(super) fn read(&mut self, out: &mut [u8]) -> Result<()> {
        let read = guarded("PNG", || self.reader.next_frame(out))?;
        read.map(drop).map_err(|e| png_error(self.bytes, &e))
    }
}

/// Reads the part before the pixels of a PNG of this size.
pub(super) fn open_png(bytes: &[u8], size: Size) -> Result<(Samples, Png<'_>)> {
    check_palette(bytes)?;
    // Every chunk lies in memory already, and those that inflate are ignored.
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(bytes), png::Limits { bytes: usize::MAX });
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    decoder.set_transformations(png::Transformations::EXPAND);
    let reader = guarded("PNG", || decoder.read_info())?.map_err(|e| png_error(bytes, &e))?;
    check_size("PNG", size, reader.info().size())?;
    let (color, depth) = reader.output_color_type();
    let kind = match (color, depth) {
        (_, png::BitDepth::Eight) => Samples { channels: color.samples(), bytes: 1 },
        (_, png::BitDepth::Sixteen) => Samples { channels: color.samples(), bytes: 2 },
        // The transformation leaves no other depths.
        _ => return Err(Error::data_loss(format!("PNG image with samples of type {color:?} {depth:?}"))),
    };
    Ok((kind, Png { bytes, reader }))
}

/// The most bytes of a palette: a sample has 8 bits at most, and a colour 3 bytes.
const MAX_PALETTE_BYTES: usize = 3 << 8;
/// Where the header of a PNG has its colour type: behind the signature, the chunk's length and name, two sizes and the depth.
const PNG_COLOR_TYPE: usize = 25;
/// The colour type of images whose samples are positions in a palette.
const INDEXED: u8 = 3;

/// Refuses a palette whose colours are not whole, or more than a sample can name. The decoder panics at them. Images whose
/// samples name no colours may have any palette: it is a suggestion.
fn check_palette(bytes: &[u8]) -> Result<()> {
    let names_colours = bytes.get(PNG_COLOR_TYPE) == Some(&INDEXED);
    match png_chunk(bytes, *b"PLTE").map(<[u8]>::len).filter(|_| names_colours) {
        Some(n) if n == 0 || n > MAX_PALETTE_BYTES || !n.is_multiple_of(3) => Err(Error::data_loss(format!(
            "PNG image with a palette of {n} bytes, not 3 for each of 1 to 256 colours"
        ))),
        _ => Ok(()),
    }
}

/// A WebP whose header was read.
pub(super) struct WebP<'a> {
    bytes: &'a [u8],
    decoder: image_webp::WebPDecoder<Cursor<&'a [u8]>>,
}

impl<'a> WebP<'a> {
    fn open(bytes: &'a [u8]) -> Result<Self> {
        check_riff_length(bytes)?;
        let decoder = guarded("WebP", || image_webp::WebPDecoder::new(Cursor::new(bytes)))?;
        let decoder = decoder.map_err(|e| webp_error(bytes, &e))?;
        Ok(Self { bytes, decoder })
    }

    /// Decodes all samples, of an animation those of the first frame.
    pub(super) fn read(&mut self, out: &mut [u8]) -> Result<()> {
        guarded("WebP", || self.decoder.read_image(out))?.map_err(|e| webp_error(self.bytes, &e))
    }
}

/// Refuses a file that is shorter than its header says. The decoder takes the end of the data of a lossy image for zeros.
fn check_riff_length(bytes: &[u8]) -> Result<()> {
    // `RIFF`, the length of what follows, `WEBP`. The decoder reports other signatures.
    let Some(&[a, b, c, d]) = bytes.get(4..8) else { return Ok(()) };
    let says = 8 + u64::from(u32::from_le_bytes([a, b, c, d]));
    if says <= bytes.len() as u64 {
        return Ok(());
    }
    Err(Error::data_loss(format!("truncated WebP: it has {} bytes, and its header says {says}", bytes.len())))
}

/// Size and orientation of a WebP.
pub(super) fn webp_size(bytes: &[u8]) -> Result<(Size, Orientation)> {
    let mut webp = WebP::open(bytes)?;
    let (w, h) = webp.decoder.dimensions();
    let exif = webp.decoder.exif_metadata().ok().flatten();
    let tag = exif.and_then(|tiff| orientation::from_tiff(&tiff)).unwrap_or(1);
    Ok((Size { h: h as usize, w: w as usize }, Orientation::from_exif(tag)))
}

/// Reads the part before the pixels of a WebP of this size.
pub(super) fn open_webp(bytes: &[u8], size: Size) -> Result<(Samples, WebP<'_>)> {
    let webp = WebP::open(bytes)?;
    check_size("WebP", size, webp.decoder.dimensions())?;
    let channels = if webp.decoder.has_alpha() { 4 } else { 3 };
    Ok((Samples { channels, bytes: 1 }, webp))
}

fn check_size(name: &str, size: Size, (w, h): (u32, u32)) -> Result<()> {
    if (h as usize, w as usize) == (size.h, size.w) {
        return Ok(());
    }
    Err(Error::data_loss(format!("damaged {name}: two headers disagree about its size")))
}

/// From IHDR alone, so that a bomb is refused before the codec sees it.
pub(super) fn png_size(bytes: &[u8]) -> Result<(Size, Orientation)> {
    let word = |at: usize| -> Option<usize> {
        let b = bytes.get(at..at + 4)?;
        Some(u32::from_be_bytes([b[0], b[1], b[2], b[3]]) as usize)
    };
    let (Some(w), Some(h), true) = (word(16), word(20), bytes.get(12..16) == Some(b"IHDR")) else {
        return Err(Error::data_loss(format!(
            "PNG data ends early: {} bytes end inside its header; the file was cut off",
            bytes.len()
        )));
    };
    if w == 0 || h == 0 {
        return Err(Error::data_loss(format!("damaged PNG: its header says {h} x {w} pixels")));
    }
    Ok((Size { h, w }, Orientation::from_exif(png_orientation(bytes).unwrap_or(1))))
}

/// Deflate makes at most this many bytes of one.
const DEFLATE_RATIO: usize = 1032;

/// A file that is too short to hold its pixels, however well they compress, is refused before memory is asked for.
pub(super) fn check_png_length(bytes: &[u8], size: Size) -> Result<()> {
    let (depth, channels) = match bytes.get(24..26) {
        Some([depth, color]) => {
            (usize::from(*depth), [1, 1, 3, 1, 2, 1, 4].get(usize::from(*color)).copied().unwrap_or(1))
        }
        _ => (1, 1),
    };
    let row = budget::product(&[size.w, depth, channels]).div_ceil(8);
    if budget::product(&[row, size.h]) / DEFLATE_RATIO > bytes.len() {
        return Err(Error::data_loss(format!(
            "PNG data ends early: {} bytes cannot hold {} x {} pixels; the file was cut off",
            bytes.len(),
            size.h,
            size.w
        )));
    }
    Ok(())
}

/// The orientation of an eXIf chunk before the pixels.
fn png_orientation(bytes: &[u8]) -> Option<u16> {
    orientation::from_tiff(png_chunk(bytes, *b"eXIf")?)
}

/// The content of the first chunk of this kind before the pixels.
fn png_chunk(bytes: &[u8], kind: [u8; 4]) -> Option<&[u8]> {
    let mut at = 8usize;
    loop {
        let head = bytes.get(at..at.checked_add(8)?)?;
        let length = u32::from_be_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let found = &head[4..8];
        if found == kind {
            return bytes.get(at + 8..(at + 8).checked_add(length)?);
        }
        if found == b"IDAT" {
            return None;
        }
        at = at.checked_add(12)?.checked_add(length)?;
    }
}

/// Runs a decoder of a library. Its panic is the error of one image, so that the image is named, and may be skipped.
fn guarded<T>(format: &str, decode: impl FnOnce() -> T) -> Result<T> {
    catch_unwind(AssertUnwindSafe(decode)).map_err(|panic| {
        Error::data_loss(format!("damaged {format} image: its decoder panicked: {}", panic_text(&*panic)))
    })
}

fn png_error(bytes: &[u8], e: &png::DecodingError) -> Error {
    codec_error("PNG", bytes, matches!(e, png::DecodingError::IoError(_)), &e.to_string())
}

fn webp_error(bytes: &[u8], e: &image_webp::DecodingError) -> Error {
    codec_error("WebP", bytes, matches!(e, image_webp::DecodingError::IoError(_)), &e.to_string())
}

/// Reading memory fails only at its end.
fn codec_error(name: &str, bytes: &[u8], io: bool, text: &str) -> Error {
    if io || text.to_ascii_lowercase().contains("unexpected e") {
        return Error::data_loss(format!(
            "{name} data ends early: {} bytes; the file was cut off",
            bytes.len()
        ));
    }
    Error::data_loss(format!("damaged {name}: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_a_decoder_is_an_error_of_the_image() {
        let at = 7;
        let e = guarded("PNG", || [0; 3][at]).unwrap_err();
        assert!(e.is_data_error(), "{e}");
        assert!(
            e.message().starts_with("damaged PNG image: its decoder panicked: index out of bounds"),
            "{e}"
        );
        assert_eq!(guarded("PNG", || 5).unwrap(), 5);
    }
}

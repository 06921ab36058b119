//! JPEG: windows and reduced scales of an image.

pub mod header;

use caju_types::{Error, Result};
use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;

/// A window of an image, in pixels of the decoded scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// First row.
    pub y: usize,
    /// First column.
    pub x: usize,
    /// Rows.
    pub h: usize,
    /// Columns.
    pub w: usize,
}

/// Reusable buffers of the decoder.
#[derive(Debug, Default)]
pub struct Scratch {
    full: Vec<u8>,
}

impl Scratch {
    /// Frees buffers of more than `keep` bytes.
    pub fn trim(&mut self, keep: usize) {
        super::state::trim(&mut self.full, keep);
    }
}

/// Whether [`decode`] can decode these bytes at 1/2, 1/4 and 1/8.
pub fn can_scale(_bytes: &[u8]) -> bool {
    false
}

/// Decodes a window into `out`, `region.h * region.w * 3` bytes of RGB.
///
/// # Errors
/// `DataLoss` for damaged data, `Internal` if the window does not lie inside the image.
pub fn decode(bytes: &[u8], region: Region, scale: usize, scratch: &mut Scratch, out: &mut [u8]) -> Result<()> {
    if scale != 1 {
        return Err(Error::internal("this decoder has no reduced scales"));
    }
    let h = header::parse(bytes)?;
    check_end(bytes, h.scan.data)?;
    let options = DecoderOptions::default()
        .set_strict_mode(true)
        .set_max_height(65_536)
        .set_max_width(65_536)
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut d = zune_jpeg::JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    let bad = |e: &dyn std::fmt::Debug| Error::data_loss(format!("damaged JPEG: {e:?}"));
    d.decode_headers().map_err(|e| bad(&e))?;
    scratch.full.resize(d.output_buffer_size().unwrap_or(0), 0);
    d.decode_into(&mut scratch.full).map_err(|e| bad(&e))?;
    let size = super::geometry::Size { h: h.frame.height, w: h.frame.width };
    if scratch.full.len() != size.h * size.w * 3 || region.y + region.h > size.h || region.x + region.w > size.w {
        return Err(Error::internal("a window outside the image"));
    }
    let r = super::geometry::Rect { y: region.y, x: region.x, h: region.h, w: region.w };
    super::source::copy_window(&scratch.full, size, r, out);
    Ok(())
}

/// Looks for the end-of-image marker behind the scans.
fn check_end(bytes: &[u8], from: usize) -> Result<()> {
    let mut at = from;
    while let Some(b) = bytes.get(at) {
        at += 1;
        if *b == 0xFF && bytes.get(at) == Some(&0xD9) {
            return Ok(());
        }
    }
    Err(Error::data_loss(format!(
        "JPEG data ends early: {} bytes without the end-of-image marker; the file was cut off",
        bytes.len()
    )))
}

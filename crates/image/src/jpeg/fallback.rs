//! JPEG files with fractional sampling, through `zune-jpeg`: always the whole image. Of other kinds it gives an error.

use caju_types::budget;
use caju_types::{Error, Result};
use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;

use super::Region;
use super::decoder::cut_off;
use super::header::Header;
use crate::geometry::{Rect, Size};
use crate::source::copy_window;

pub(super) fn decode(
    bytes: &[u8],
    h: &Header<'_>,
    region: Region,
    full: &mut Vec<u8>,
    out: &mut [u8],
) -> Result<()> {
    // Without this check the codec would paint what is missing grey.
    if !bytes[h.scan.data.min(bytes.len())..].windows(2).any(|w| w == [0xFF, 0xD9]) {
        return Err(cut_off(bytes.len()));
    }
    let options = DecoderOptions::default()
        .set_strict_mode(true)
        .set_max_height(65_536)
        .set_max_width(65_536)
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut d = zune_jpeg::JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    let bad = |e: &dyn std::fmt::Debug| Error::data_loss(format!("damaged or unusual JPEG: {e:?}"));
    d.decode_headers().map_err(|e| bad(&e))?;
    let bytes = d.output_buffer_size().unwrap_or(0);
    // The codec keeps the coefficients of progressive images: two bytes each.
    let _held = budget::hold((bytes as u64).saturating_mul(3), "decoding a JPEG of a rare kind")?;
    full.resize(bytes, 0);
    d.decode_into(full).map_err(|e| bad(&e))?;
    let size = Size { h: h.frame.height, w: h.frame.width };
    if full.len() != size.h * size.w * 3 {
        return Err(Error::data_loss("damaged JPEG: two headers disagree about its size"));
    }
    if region.y + region.h > size.h || region.x + region.w > size.w || out.len() != region.h * region.w * 3 {
        return Err(Error::internal("a window outside of a JPEG"));
    }
    copy_window(full, size, Rect { y: region.y, x: region.x, h: region.h, w: region.w }, out);
    Ok(())
}

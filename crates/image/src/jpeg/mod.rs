//! JPEG: windows and reduced scales of an image, decoded without the remaining pixels.
//!
//! The decoder reads sequential and progressive Huffman-coded images of 8 bits with one, three or four components. Its
//! pixels are those of libjpeg-turbo with default settings (accurate integer transform, smooth chroma upsampling), to
//! the bit, so that a data set means the same to caju as to everyone else. Other kinds (arithmetic coding, lossless,
//! 12 bits, fractional sampling) are errors that name the kind.
//!
//! `benches/image` compares the decoder with libjpeg-turbo: equality of random images, and speed. The decoder exists
//! for that speed: libjpeg-turbo takes 1.7 to 2 times as long for the windows of sequential photos. The vector paths
//! are for x86-64 with AVX2; see `benches/image/RESULTS.md` for what other processors get.
//!
//! A window decoded at full scale is the same bytes as that window of the whole image.

mod color;
mod decoder;
pub mod header;
mod huffman;
mod idct;
mod output;
mod plan;
mod scan;
mod scans;
mod simd;

use caju_types::{Error, Result};

pub(super) use decoder::cut_off;

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

/// Reusable buffers and tables of the decoder.
#[derive(Debug, Default)]
pub struct Scratch {
    buffers: decoder::Buffers,
}

impl Scratch {
    /// Frees buffers of more than `keep` bytes.
    pub fn trim(&mut self, keep: usize) {
        super::buffers::trim(&mut self.buffers.scan.bytes, keep);
        super::buffers::trim(&mut self.buffers.all, keep / 128);
        self.buffers.output.trim(keep);
    }
}

/// Whether the header names a kind of JPEG that [`decode`] decodes.
pub(crate) fn is_supported(bytes: &[u8]) -> bool {
    header::parse(bytes).is_ok_and(|h| plan::check_supported(&h).is_ok())
}

/// Decodes a window into `out`, `region.h * region.w * 3` bytes of RGB. `scale` is 1, 2, 4 or 8; the region
/// is given in pixels of the image of `ceil(size / scale)`.
///
/// # Errors
/// `DataLoss` for damaged data, as far as they lie in front of the window's end, and for kinds of JPEG that are not
/// decoded; `Internal` if the window does not lie inside the image.
pub fn decode(
    bytes: &[u8],
    region: Region,
    scale: usize,
    scratch: &mut Scratch,
    out: &mut [u8],
) -> Result<()> {
    let h = header::parse(bytes)?;
    plan::check_supported(&h)?;
    if out.len() != region.h * region.w * 3 {
        return Err(Error::internal("a window of a JPEG was to go into a buffer of another size"));
    }
    let one_scan = h.scan.components.len() == h.frame.components.len();
    if h.frame.process == header::Process::Progressive || !one_scan {
        return scans::decode(bytes, h, region, scale, &mut scratch.buffers, out);
    }
    let plan = plan::Plan::new(&h, region, scale)?;
    decoder::decode(bytes, &h, &plan, &mut scratch.buffers, out)
}

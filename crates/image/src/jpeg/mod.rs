//! JPEG: windows and reduced scales of an image, decoded without touching the rest.
//!
//! Sequential and progressive Huffman-coded images of 8 bits with one, three or four components are decoded
//! here, bit for bit as libjpeg-turbo does with its default settings (accurate integer transform, smooth
//! chroma upsampling), so that a data set means the same to caju as to everyone else. Files with fractional sampling
//! go to `zune-jpeg`. Arithmetic coding, 12 bits per sample, lossless and hierarchical files are refused.
//!
//! A window decoded at full scale is the same bytes as that window of the whole image.

mod color;
mod decoder;
mod fallback;
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
    full: Vec<u8>,
}

impl Scratch {
    /// Frees buffers of more than `keep` bytes.
    pub fn trim(&mut self, keep: usize) {
        super::state::trim(&mut self.full, keep);
        super::state::trim(&mut self.buffers.scan.bytes, keep);
        super::state::trim(&mut self.buffers.all, keep / 128);
        self.buffers.output.trim(keep);
    }
}

/// Whether [`decode`] can decode these bytes at 1/2, 1/4 and 1/8.
pub fn can_scale(bytes: &[u8]) -> bool {
    header::parse(bytes).is_ok_and(|h| plan::supported(&h))
}

/// Decodes a window into `out`, `region.h * region.w * 3` bytes of RGB. `scale` is 1, 2, 4 or 8; the region
/// is given in pixels of the image of `ceil(size / scale)`.
///
/// # Errors
/// `DataLoss` for damaged data, as far as they lie in front of the window's end; `Internal` if the window
/// does not lie inside the image.
pub fn decode(
    bytes: &[u8],
    region: Region,
    scale: usize,
    scratch: &mut Scratch,
    out: &mut [u8],
) -> Result<()> {
    let h = header::parse(bytes)?;
    if !plan::supported(&h) {
        if scale != 1 {
            return Err(Error::internal("this kind of JPEG has no reduced scales"));
        }
        return fallback::decode(bytes, &h, region, &mut scratch.full, out);
    }
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

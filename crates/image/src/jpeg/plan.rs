//! The work of a decode: which blocks of which component, and how their samples become pixels.

use caju_types::{Error, Result};

use super::Region;
use super::header::{ColorSpace, Header, Process};
use super::huffman::ZIGZAG;

/// Blocks that the standard allows in an MCU.
const MAX_MCU_BLOCKS: usize = 10;

/// How a component's samples are brought to the size of the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Up {
    /// They have it.
    Full,
    /// Twice the width, interpolated.
    H2V1,
    /// Twice the height, interpolated.
    H1V2,
    /// Twice both, interpolated.
    H2V2,
    /// Repeated.
    Repeat,
}

/// One component.
#[derive(Debug, Clone)]
pub(super) struct Comp {
    /// Sampling factors: blocks of an MCU across and down.
    pub(super) h: usize,
    pub(super) v: usize,
    /// Samples of a block in each direction: 8, or less at reduced scale.
    pub(super) size: usize,
    /// The quantisation table in natural order.
    pub(super) quant: [i16; 64],
    /// Pixels per sample, across and down, and how they are filled.
    pub(super) factor: (usize, usize),
    pub(super) up: Up,
    /// Samples that exist: (height, width).
    pub(super) extent: (usize, usize),
    /// Columns and rows of blocks that are needed: `x.0..x.1`, `y.0..y.1`.
    pub(super) x: (usize, usize),
    pub(super) y: (usize, usize),
    /// The capacity of a row of blocks, in blocks: the needed ones, rounded up to an even number.
    pub(super) columns: usize,
    /// Where the component's strip of coefficients begins, in blocks.
    pub(super) strip: usize,
    /// Where its ring of sample rows begins, the length of a row, and the number of rows.
    pub(super) ring: usize,
    pub(super) stride: usize,
    pub(super) ring_rows: usize,
}

/// A decode of a region at a scale.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) region: Region,
    pub(super) color: ColorSpace,
    pub(super) comps: Vec<Comp>,
    /// MCUs in a row and rows of MCUs.
    pub(super) mcus: (usize, usize),
    /// The MCUs that hold a needed block: columns `x.0..x.1`, rows `y.0..y.1`.
    pub(super) x: (usize, usize),
    pub(super) y: (usize, usize),
    /// Blocks in all strips, samples in all rings.
    pub(super) strip_blocks: usize,
    pub(super) ring_samples: usize,
}

/// Refuses the kinds of JPEG that are not decoded.
///
/// # Errors
/// `DataLoss`, naming the kind.
pub(super) fn check_supported(h: &Header<'_>) -> Result<()> {
    let f = &h.frame;
    let refuse = |kind: String| {
        Err(Error::data_loss(format!(
            "a JPEG {kind} is not decoded: only Huffman-coded sequential and progressive ones of 8 bits are; convert it"
        )))
    };
    if let Process::Other(marker) = f.process {
        return refuse(match marker {
            0xC3 => "with lossless coding".to_owned(),
            0xC9..=0xCB | 0xCD..=0xCF => "with arithmetic coding".to_owned(),
            other => format!("with coding process {other:#04x}"),
        });
    }
    if f.precision != 8 {
        return refuse(format!("of {} bits", f.precision));
    }
    let n = f.components.len();
    if !matches!(n, 1 | 3 | 4) {
        return refuse(format!("of {n} components"));
    }
    let (hmax, vmax) = maxima(h);
    let whole = f.components.iter().all(|c| hmax % usize::from(c.h) == 0 && vmax % usize::from(c.v) == 0);
    let blocks: usize = f.components.iter().map(|c| usize::from(c.h) * usize::from(c.v)).sum();
    if n > 1 && !(whole && blocks <= MAX_MCU_BLOCKS) {
        let factors: Vec<String> = f.components.iter().map(|c| format!("{}x{}", c.h, c.v)).collect();
        return refuse(format!("with sampling factors {}", factors.join(", ")));
    }
    Ok(())
}

/// The largest sampling factors: (horizontal, vertical).
pub(super) fn maxima(h: &Header<'_>) -> (usize, usize) {
    let c = &h.frame.components;
    if c.len() == 1 {
        return (1, 1);
    }
    (
        usize::from(c.iter().map(|c| c.h).max().unwrap_or(1)),
        usize::from(c.iter().map(|c| c.v).max().unwrap_or(1)),
    )
}

impl Plan {
    /// Plans the decode of a region of the image at 1/`scale`.
    pub(super) fn new(h: &Header<'_>, region: Region, scale: usize) -> Result<Self> {
        let f = &h.frame;
        let inside =
            |at: usize, len: usize, of: usize| at.checked_add(len).is_some_and(|end| len > 0 && end <= of);
        let (height, width) = (f.height.div_ceil(scale), f.width.div_ceil(scale));
        if !inside(region.y, region.h, height) || !inside(region.x, region.w, width) {
            return Err(Error::internal(format!("{region:?} is no part of a JPEG of {height} x {width}")));
        }
        let (hmax, vmax) = maxima(h);
        let mut plan = Self {
            region,
            color: h.color_space(),
            comps: Vec::with_capacity(f.components.len()),
            mcus: (f.width.div_ceil(8 * hmax), f.height.div_ceil(8 * vmax)),
            x: (usize::MAX, 0),
            y: (usize::MAX, 0),
            strip_blocks: 0,
            ring_samples: 0,
        };
        for i in 0..f.components.len() {
            let c = plan.component(h, i, scale, (hmax, vmax))?;
            plan.x = (plan.x.0.min(c.x.0 / c.h), plan.x.1.max(c.x.1.div_ceil(c.h)));
            plan.y = (plan.y.0.min(c.y.0 / c.v), plan.y.1.max(c.y.1.div_ceil(c.v)));
            plan.strip_blocks += c.columns * c.v;
            plan.ring_samples += c.stride * c.ring_rows;
            plan.comps.push(c);
        }
        Ok(plan)
    }

    fn component(
        &self,
        h: &Header<'_>,
        i: usize,
        scale: usize,
        (hmax, vmax): (usize, usize),
    ) -> Result<Comp> {
        let f = &h.frame;
        let c = f.components[i];
        let (ch, cv) = if f.components.len() == 1 { (1, 1) } else { (usize::from(c.h), usize::from(c.v)) };
        // libjpeg's rule: a subsampled component is shrunk less, as long as it does not outgrow the others.
        let smallest = 8 / scale;
        let mut size = smallest;
        while size < 8
            && (hmax * smallest).is_multiple_of(ch * size * 2)
            && (vmax * smallest).is_multiple_of(cv * size * 2)
        {
            size *= 2;
        }
        let factor = (hmax * smallest / (ch * size), vmax * smallest / (cv * size));
        let extent = ((f.height * cv * size).div_ceil(vmax * 8), (f.width * ch * size).div_ceil(hmax * 8));
        let fancy = smallest > 1;
        let up = match factor {
            (1, 1) => Up::Full,
            (2, 1) if fancy && extent.1 > 2 => Up::H2V1,
            (1, 2) if fancy => Up::H1V2,
            (2, 2) if fancy && extent.1 > 2 => Up::H2V2,
            _ => Up::Repeat,
        };
        let of_read = h.tables.quant_of_read.get(i).and_then(Option::as_ref);
        let table = of_read.or(h.tables.quant[usize::from(c.tq)].as_ref()).ok_or_else(|| {
            Error::data_loss(format!("damaged JPEG: quantisation table {} is not there", c.tq))
        })?;
        let mut quant = [0i16; 64];
        for (k, &q) in table.iter().enumerate() {
            quant[usize::from(ZIGZAG[k])] = q as i16;
        }
        let r = &self.region;
        let x = needed((r.x, r.w), factor.0, matches!(up, Up::H2V1 | Up::H2V2), extent.1);
        let y = needed((r.y, r.h), factor.1, matches!(up, Up::H1V2 | Up::H2V2), extent.0);
        let x = (x.0 / size, x.1.div_ceil(size));
        let y = (y.0 / size, y.1.div_ceil(size));
        let columns = (x.1 - x.0).next_multiple_of(2);
        Ok(Comp {
            h: ch,
            v: cv,
            size,
            quant,
            factor,
            up,
            extent,
            x,
            y,
            columns,
            strip: self.strip_blocks,
            ring: self.ring_samples,
            stride: (columns * size).next_multiple_of(16),
            ring_rows: 2 * cv * size,
        })
    }
}

/// The samples that a range of pixels needs: with one neighbour on each side if they are interpolated.
fn needed((at, len): (usize, usize), factor: usize, neighbours: bool, extent: usize) -> (usize, usize) {
    let n = usize::from(neighbours);
    let from = (at / factor).saturating_sub(n);
    let to = (at + len - 1) / factor + 1 + n;
    (from, to.min(extent))
}

//! Images that come in several scans: progressive ones, and sequential ones with a scan per component.
//!
//! All coefficients are collected first; then only the blocks that the region needs are transformed.

use caju_types::budget;
use caju_types::{Error, Result};

use super::Region;
use super::decoder::{Buffers, cut_off, read_scan, transform_row};
use super::header::{Header, Process};
use super::huffman::{AcTable, Bits, DcTable, ZIGZAG, ac_block, dc_difference};
use super::plan::{Plan, maxima};

/// Encoders write about ten scans, and one per coefficient at most. Each costs a visit of every block, whatever few bytes
/// it has.
const MAX_SCANS: usize = 100;

/// The blocks of one component in the collection.
#[derive(Debug, Clone, Copy)]
struct Grid {
    /// Where they begin.
    at: usize,
    /// Blocks in a row, with those that fill up the last MCU.
    width: usize,
    /// Sampling factors.
    h: usize,
    v: usize,
    /// Columns and rows of blocks that hold samples of the image: what a scan of this component codes.
    real: (usize, usize),
}

/// What one block of a scan needs.
struct Coding<'t> {
    sequential: bool,
    spectral: (usize, usize),
    /// Successive approximation: whether this scan refines, and the bit's place.
    refine: bool,
    low: u32,
    dc: Option<&'t DcTable>,
    ac: Option<&'t AcTable>,
}

/// Decodes all scans and then the region.
pub(super) fn decode<'a>(
    bytes: &'a [u8],
    mut h: Header<'a>,
    region: Region,
    scale: usize,
    b: &mut Buffers,
    out: &mut [u8],
) -> Result<()> {
    let (hmax, vmax) = maxima(&h);
    let mcus = (h.frame.width.div_ceil(8 * hmax), h.frame.height.div_ceil(8 * vmax));
    let mut grids = Vec::with_capacity(4);
    let mut blocks = 0;
    for c in &h.frame.components {
        let single = h.frame.components.len() == 1;
        let (ch, cv) = if single { (1, 1) } else { (usize::from(c.h), usize::from(c.v)) };
        let real = ((h.frame.width * ch).div_ceil(hmax * 8), (h.frame.height * cv).div_ceil(vmax * 8));
        grids.push(Grid { at: blocks, width: mcus.0 * ch, h: ch, v: cv, real });
        blocks += mcus.0 * ch * mcus.1 * cv;
    }
    // Every block has a symbol, of a bit at least, in the first scan of its component.
    let coded = grids.iter().fold(0usize, |a, g| a.saturating_add(budget::product(&[g.real.0, g.real.1])));
    if coded / 8 > bytes.len() {
        return Err(cut_off(bytes.len()));
    }
    let _held = budget::hold(
        budget::bytes_of::<[i16; 64]>(blocks),
        format_args!("a progressive JPEG of {} x {} (height x width)", h.frame.height, h.frame.width),
    )?;
    let mut all = std::mem::take(&mut b.all);
    all.clear();
    all.resize(blocks, [0; 64]);
    let mut seen = [false; 4];
    let mut scans = 0;
    let done = loop {
        let behind = match scan(bytes, &h, &grids, mcus, b, &mut all) {
            Ok(at) => at,
            Err(e) => break Err(e),
        };
        for &(i, _, _) in &h.scan.components {
            let tq = h.frame.components.get(i).map_or(0, |c| usize::from(c.tq & 3));
            if !seen[i & 3] {
                h.tables.quant_of_read[i & 3] = h.tables.quant[tq];
            }
            seen[i & 3] = true;
        }
        scans += 1;
        if scans > MAX_SCANS {
            break Err(Error::data_loss(format!("damaged JPEG: it has more than {MAX_SCANS} scans")));
        }
        match h.next_scan(bytes, behind) {
            Ok(true) => {}
            Ok(false) => break Ok(()),
            Err(e) => break Err(e),
        }
    };
    let done = done.and_then(|()| {
        if !seen[..grids.len()].iter().all(|&s| s) {
            return Err(Error::data_loss("damaged JPEG: a colour component has no scan"));
        }
        let plan = Plan::new(&h, region, scale)?;
        transform(&plan, &grids, &all, b, out);
        Ok(())
    });
    b.all = all;
    done
}

/// Transforms what the plan needs.
fn transform(plan: &Plan, grids: &[Grid], all: &[[i16; 64]], b: &mut Buffers, out: &mut [u8]) {
    b.output.prepare(plan);
    let mut row = Vec::new();
    for my in plan.y.0..plan.y.1 {
        for (c, g) in plan.comps.iter().zip(grids) {
            for by in (my * c.v..(my + 1) * c.v).filter(|by| (c.y.0..c.y.1).contains(by)) {
                let from = g.at + by * g.width;
                row.clear();
                row.extend_from_slice(&all[from + c.x.0..from + c.x.1]);
                row.resize(c.columns, [0; 64]);
                let at = c.ring + by * c.size % c.ring_rows * c.stride;
                let samples = &mut b.output.rings[at..at + c.size * c.stride];
                // 64: nothing is known about where a block's coefficients end.
                transform_row(c, &row, &[64; 2].repeat(c.columns / 2), samples);
            }
        }
        b.output.emit(plan, my, out);
    }
}

/// Decodes one scan into the collection; gives the position of the marker behind it.
fn scan(
    bytes: &[u8],
    h: &Header<'_>,
    grids: &[Grid],
    mcus: (usize, usize),
    b: &mut Buffers,
    all: &mut [[i16; 64]],
) -> Result<usize> {
    let sequential = h.frame.process == Process::Sequential;
    let (start, end, high, low) = h.scan.spectral;
    let (start, end) = if sequential { (0, 63) } else { (usize::from(start), usize::from(end)) };
    let sound = start <= end && end < 64 && low < 14 && (start > 0 || end == 0);
    if !sequential && (!sound || (start > 0 && h.scan.components.len() > 1)) {
        return Err(Error::data_loss(format!(
            "damaged JPEG: a progressive scan codes {start} to {end}, bit {low}"
        )));
    }
    let after = read_scan(bytes, h, &mut b.scan)?;
    b.tidy();
    let (needs_dc, needs_ac) = (start == 0 && (sequential || high == 0), sequential || start > 0);
    let mut tables = Vec::with_capacity(4);
    for &(comp, dc, ac) in &h.scan.components {
        let dc = if needs_dc { Some(b.dc_table(h, dc)?) } else { None };
        let ac = if needs_ac { Some(b.ac_table(h, ac)?) } else { None };
        tables.push((comp, dc, ac));
    }
    let mut codings = Vec::with_capacity(4);
    for (comp, dc, ac) in tables {
        let dc = dc.map(|i| b.dc.get(i)).transpose()?;
        let ac = ac.map(|i| b.ac.get(i)).transpose()?;
        let refine = !sequential && high > 0;
        let low = if sequential { 0 } else { u32::from(low) };
        codings.push((comp, Coding { sequential, spectral: (start, end), refine, low, dc, ac }));
    }
    // A scan of one component codes its real blocks one by one; others go by MCUs.
    let single = h.scan.components.len() == 1;
    let units = if single { grids[h.scan.components[0].0].real } else { mcus };
    let total = units.0 * units.1;
    let interval = if h.tables.restart_interval == 0 { total } else { h.tables.restart_interval };
    let (mut predictions, mut run) = ([0i32; 4], 0u32);
    let mut r = Bits::new(&[], 0);
    let mut limit = 0;
    for unit in 0..total {
        if unit % interval == 0 {
            let (from, to) = b.scan.interval(unit / interval).ok_or_else(|| cut_off(bytes.len()))?;
            (r, limit, predictions, run) = (Bits::new(&b.scan.bytes, from), to * 8, [0; 4], 0);
        }
        let (uy, ux) = (unit / units.0, unit % units.0);
        for (comp, coding) in &codings {
            let g = grids[*comp];
            let (gh, gv) = if single { (1, 1) } else { (g.h, g.v) };
            for dy in 0..gv {
                for dx in 0..gh {
                    let at = g.at + (uy * gv + dy) * g.width + ux * gh + dx;
                    coding.block(&mut r, &mut all[at], &mut predictions[comp & 3], &mut run)?;
                }
            }
        }
        if r.position() > limit {
            return Err(cut_off(bytes.len()));
        }
    }
    Ok(after)
}

impl Coding<'_> {
    fn block(
        &self,
        r: &mut Bits<'_>,
        block: &mut [i16; 64],
        prediction: &mut i32,
        run: &mut u32,
    ) -> Result<()> {
        if self.spectral.0 == 0 {
            if self.refine {
                block[0] |= (r.take(1) << self.low) as i16;
            } else if let Some(dc) = self.dc {
                *prediction = prediction.wrapping_add(dc_difference(r, dc)?);
                block[0] = (*prediction << self.low) as i16;
            }
            if let (true, Some(ac)) = (self.sequential, self.ac) {
                ac_block::<true>(r, ac, block)?;
            }
            return Ok(());
        }
        match self.ac {
            Some(ac) if self.refine => self.refine_ac(r, ac, block, run),
            Some(ac) => self.first_ac(r, ac, block, run),
            None => Ok(()),
        }
    }

    fn first_ac(&self, r: &mut Bits<'_>, ac: &AcTable, block: &mut [i16; 64], run: &mut u32) -> Result<()> {
        if *run > 0 {
            *run -= 1;
            return Ok(());
        }
        let (mut k, end) = self.spectral;
        while k <= end {
            let symbol = ac.symbol(r)?;
            let (zeros, size) = (u32::from(symbol >> 4), u32::from(symbol & 15));
            if size == 0 {
                if zeros < 15 {
                    *run = (1 << zeros) - 1 + r.take(zeros);
                    break;
                }
                k += 16;
            } else {
                k += zeros as usize;
                if k > end {
                    return Err(overrun());
                }
                block[usize::from(ZIGZAG[k] & 63)] = (r.signed(size) << self.low) as i16;
                k += 1;
            }
        }
        Ok(())
    }

    fn refine_ac(&self, r: &mut Bits<'_>, ac: &AcTable, block: &mut [i16; 64], run: &mut u32) -> Result<()> {
        let (mut k, end) = self.spectral;
        let one = 1i16 << self.low;
        if *run == 0 {
            while k <= end {
                let symbol = ac.symbol(r)?;
                let (mut zeros, size) = (u32::from(symbol >> 4), symbol & 15);
                let mut value = 0;
                if size == 0 {
                    if zeros < 15 {
                        *run = (1 << zeros) + r.take(zeros);
                        break;
                    }
                } else {
                    value = if r.take(1) == 1 { one } else { -one };
                }
                // Over the coefficients that are known already, each with a correction bit, and over `zeros`
                // others.
                while k <= end {
                    let c = &mut block[usize::from(ZIGZAG[k] & 63)];
                    if *c != 0 {
                        correct(c, r, one);
                    } else if zeros == 0 {
                        *c = value;
                        break;
                    } else {
                        zeros -= 1;
                    }
                    k += 1;
                }
                k += 1;
            }
        }
        if *run > 0 {
            while k <= end {
                let c = &mut block[usize::from(ZIGZAG[k] & 63)];
                if *c != 0 {
                    correct(c, r, one);
                }
                k += 1;
            }
            *run -= 1;
        }
        Ok(())
    }
}

/// One correction bit of a coefficient that is not zero.
fn correct(c: &mut i16, r: &mut Bits<'_>, one: i16) {
    if r.take(1) == 1 && *c & one == 0 {
        *c = if *c >= 0 { c.wrapping_add(one) } else { c.wrapping_sub(one) };
    }
}

fn overrun() -> Error {
    Error::data_loss("damaged JPEG: a block has more coefficients than its scan")
}

//! The sequential decoder: reads the entropy-coded data and turns the needed blocks into pixels.
//!
//! Blocks outside the region are decoded without being stored, and nothing behind the last needed MCU is
//! read; with restart markers, whole intervals are skipped. The needed blocks of one row of MCUs are
//! collected in strips, transformed in pairs into rings of sample rows, and a pixel row is emitted as soon
//! as its neighbours are decoded.

use caju_types::{Error, Result};

use super::header::Header;
use super::huffman::{AcTable, Bits, Cache, DcTable, ac_block, dc_difference};
use super::output::Output;
use super::plan::{Comp, Plan};
use super::scan::{After, ScanData};
use super::{idct, simd};

/// Buffers and tables of the sequential decoder.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    pub(super) scan: ScanData,
    pub(super) dc: Cache<DcTable>,
    pub(super) ac: Cache<AcTable>,
    pub(super) strips: Strips,
    pub(super) output: Output,
    /// All coefficients of an image that comes in several scans.
    pub(super) all: Vec<[i16; 64]>,
}

impl Buffers {
    /// Forgets old tables. Indices given before are void.
    pub(super) fn tidy(&mut self) {
        self.dc.tidy();
        self.ac.tidy();
    }

    /// The index of the DC table that a scan calls `id`.
    pub(super) fn dc_table(&mut self, h: &Header<'_>, id: u8) -> Result<usize> {
        let spec = h.tables.huffman[0][usize::from(id & 3)].ok_or_else(no_table)?;
        self.dc.index(&spec, || DcTable::new(&spec))
    }

    /// The index of the AC table that a scan calls `id`.
    pub(super) fn ac_table(&mut self, h: &Header<'_>, id: u8) -> Result<usize> {
        let spec = h.tables.huffman[1][usize::from(id & 3)].ok_or_else(no_table)?;
        self.ac.index(&spec, || AcTable::new(&spec))
    }
}

fn no_table() -> Error {
    Error::data_loss("damaged JPEG: its scan uses a Huffman table that is not there")
}

/// Reads the entropy-coded data of the header's scan; gives the position of the marker behind them.
pub(super) fn read_scan(bytes: &[u8], h: &Header<'_>, scan: &mut ScanData) -> Result<usize> {
    match scan.read(bytes, h.scan.data) {
        After::Marker(_, at) => Ok(at),
        After::Nothing => Err(cut_off(bytes.len())),
        After::Disorder => Err(Error::data_loss("damaged JPEG: a restart interval is missing")),
    }
}

/// Coefficients of one row of MCUs, zeros between uses, and the position behind each block's last one.
#[derive(Debug, Default)]
pub(super) struct Strips {
    coefs: Vec<[i16; 64]>,
    ends: Vec<u8>,
}

impl Strips {
    fn prepare(&mut self, plan: &Plan) {
        self.coefs.clear();
        self.coefs.resize(plan.strip_blocks, [0; 64]);
        self.ends.clear();
        self.ends.resize(plan.strip_blocks, 0);
    }
}

/// The error for entropy-coded data that end before the image does.
pub(crate) fn cut_off(bytes: usize) -> Error {
    Error::data_loss(format!(
        "JPEG data ends early: {bytes} bytes do not hold the whole image; the file was cut off"
    ))
}

/// One block of an MCU: component, place within the MCU, tables.
struct Step<'t> {
    comp: usize,
    dx: usize,
    dy: usize,
    dc: &'t DcTable,
    ac: &'t AcTable,
}

/// Decodes a single interleaved sequential scan.
pub(super) fn decode(
    bytes: &[u8],
    h: &Header<'_>,
    plan: &Plan,
    b: &mut Buffers,
    out: &mut [u8],
) -> Result<()> {
    read_scan(bytes, h, &mut b.scan)?;
    b.tidy();
    let mut tables = Vec::with_capacity(4);
    for &(comp, dc, ac) in &h.scan.components {
        tables.push((comp, b.dc_table(h, dc)?, b.ac_table(h, ac)?));
    }
    let mut steps = Vec::with_capacity(10);
    for (comp, dc, ac) in tables {
        let c = &plan.comps[comp];
        for dy in 0..c.v {
            for dx in 0..c.h {
                steps.push(Step { comp, dx, dy, dc: b.dc.get(dc)?, ac: b.ac.get(ac)? });
            }
        }
    }
    b.strips.prepare(plan);
    b.output.prepare(plan);
    let mut decoder =
        ScanDecoder { plan, strips: &mut b.strips, output: &mut b.output, row: None, file: bytes.len() };
    decoder.run(&steps, &b.scan, h.tables.restart_interval, out)
}

struct ScanDecoder<'a> {
    plan: &'a Plan,
    strips: &'a mut Strips,
    output: &'a mut Output,
    /// The row of MCUs whose coefficients are in the strips.
    row: Option<usize>,
    file: usize,
}

impl ScanDecoder<'_> {
    /// Decodes the restart intervals that have a needed MCU.
    fn run(&mut self, steps: &[Step<'_>], scan: &ScanData, interval: usize, out: &mut [u8]) -> Result<()> {
        let p = self.plan;
        let total = p.mcus.0 * p.mcus.1;
        let interval = if interval == 0 { total } else { interval };
        let last = (p.y.1 - 1) * p.mcus.0 + p.x.1 - 1;
        let mut first = p.y.0 * p.mcus.0 / interval * interval;
        while first <= last {
            let end = (first + interval).min(last + 1);
            if let Some(stop) = self.last_needed(first, end) {
                let (from, to) = scan.interval(first / interval).ok_or_else(|| cut_off(self.file))?;
                self.interval(steps, Bits::new(&scan.bytes, from), to * 8, first..stop + 1, out)?;
            }
            first += interval;
        }
        self.flush(out);
        Ok(())
    }

    /// The last MCU of `first..end` that holds a needed block.
    fn last_needed(&self, first: usize, end: usize) -> Option<usize> {
        let p = self.plan;
        let (row, col) = ((end - 1) / p.mcus.0, (end - 1) % p.mcus.0);
        let in_rows = |row: usize| (p.y.0..p.y.1).contains(&row);
        let here = (in_rows(row) && col >= p.x.0).then(|| row * p.mcus.0 + col.min(p.x.1 - 1));
        let above = || row.checked_sub(1).filter(|&r| in_rows(r)).map(|r| r * p.mcus.0 + p.x.1 - 1);
        here.or_else(above).filter(|&m| m >= first)
    }

    fn interval(
        &mut self,
        steps: &[Step<'_>],
        bits: Bits<'_>,
        limit: usize,
        mcus: std::ops::Range<usize>,
        out: &mut [u8],
    ) -> Result<()> {
        #[cfg(target_arch = "x86_64")]
        if crate::cpu::bmi2() {
            /// The portable code, compiled for BMI2: a shift by a register is one operation there.
            #[target_feature(enable = "bmi1,bmi2")]
            fn with_bmi2(
                decoder: &mut ScanDecoder<'_>,
                steps: &[Step<'_>],
                bits: Bits<'_>,
                limit: usize,
                mcus: std::ops::Range<usize>,
                out: &mut [u8],
            ) -> Result<()> {
                decoder.interval_here(steps, bits, limit, mcus, out)
            }
            #[allow(unsafe_code, reason = "the features were detected")]
            // SAFETY: BMI1 and BMI2 are present.
            return unsafe { with_bmi2(self, steps, bits, limit, mcus, out) };
        }
        self.interval_here(steps, bits, limit, mcus, out)
    }

    #[inline(always)]
    fn interval_here(
        &mut self,
        steps: &[Step<'_>],
        mut bits: Bits<'_>,
        limit: usize,
        mcus: std::ops::Range<usize>,
        out: &mut [u8],
    ) -> Result<()> {
        let p = self.plan;
        let mut predictions = [0i32; 4];
        let (mut my, mut mx) = (mcus.start / p.mcus.0, mcus.start % p.mcus.0);
        for _ in mcus {
            let wanted = (p.y.0..p.y.1).contains(&my) && (p.x.0..p.x.1).contains(&mx);
            if wanted {
                if self.row != Some(my) {
                    self.flush(out);
                    self.row = Some(my);
                }
                store_mcu(p, self.strips, steps, &mut bits, &mut predictions, (my, mx))?;
            } else {
                skip_mcu(steps, &mut bits, &mut predictions)?;
            }
            if bits.position() > limit {
                return Err(cut_off(self.file));
            }
            mx += 1;
            if mx == p.mcus.0 {
                (my, mx) = (my + 1, 0);
            }
        }
        Ok(())
    }

    /// Transforms the row of MCUs in the strips and lets go of the pixel rows that are complete.
    fn flush(&mut self, out: &mut [u8]) {
        let Some(my) = self.row.take() else { return };
        for c in &self.plan.comps {
            for dy in 0..c.v {
                let by = my * c.v + dy;
                if (c.y.0..c.y.1).contains(&by) {
                    transform(c, self.strips, dy, &mut self.output.rings, by);
                }
            }
        }
        self.output.emit(self.plan, my, out);
    }
}

/// Decodes one MCU and stores its needed blocks.
#[inline(always)]
fn store_mcu(
    p: &Plan,
    strips: &mut Strips,
    steps: &[Step<'_>],
    bits: &mut Bits<'_>,
    predictions: &mut [i32; 4],
    (my, mx): (usize, usize),
) -> Result<()> {
    for s in steps {
        let c = &p.comps[s.comp];
        let prediction = &mut predictions[s.comp & 3];
        *prediction = prediction.wrapping_add(dc_difference(bits, s.dc)?);
        let (bx, by) = (mx * c.h + s.dx, my * c.v + s.dy);
        if (c.x.0..c.x.1).contains(&bx) && (c.y.0..c.y.1).contains(&by) {
            let at = c.strip + s.dy * c.columns + (bx - c.x.0);
            let block = &mut strips.coefs[at];
            block[0] = *prediction as i16;
            strips.ends[at] = ac_block::<true>(bits, s.ac, block)? as u8;
        } else {
            ac_block::<false>(bits, s.ac, &mut [0; 64])?;
        }
    }
    Ok(())
}

/// Walks over one MCU.
#[inline(always)]
fn skip_mcu(steps: &[Step<'_>], bits: &mut Bits<'_>, predictions: &mut [i32; 4]) -> Result<()> {
    for s in steps {
        let prediction = &mut predictions[s.comp & 3];
        *prediction = prediction.wrapping_add(dc_difference(bits, s.dc)?);
        ac_block::<false>(bits, s.ac, &mut [0; 64])?;
    }
    Ok(())
}

/// Transforms row `dy` of a component's strip into its ring, and leaves zeros behind.
fn transform(c: &Comp, strips: &mut Strips, dy: usize, rings: &mut [u8], by: usize) {
    let from = c.strip + dy * c.columns;
    let blocks = &mut strips.coefs[from..from + c.columns];
    let ends = &strips.ends[from..from + c.columns];
    let at = c.ring + by * c.size % c.ring_rows * c.stride;
    let rows = &mut rings[at..at + c.size * c.stride];
    transform_row(c, blocks, ends, rows);
    blocks.fill([0; 64]);
}

/// Transforms one row of blocks, an even number of them, into `c.size` rows of samples.
pub(super) fn transform_row(c: &Comp, blocks: &[[i16; 64]], ends: &[u8], rows: &mut [u8]) {
    if c.size < 8 {
        for (i, b) in blocks.iter().enumerate() {
            match c.size {
                4 => idct::idct4(b, &c.quant, &mut rows[i * 4..], c.stride),
                2 => idct::idct2(b, &c.quant, &mut rows[i * 2..], c.stride),
                _ => rows[i] = idct::idct1(b[0], c.quant[0]),
            }
        }
        return;
    }
    for (i, (pair, ends)) in blocks.as_chunks::<2>().0.iter().zip(ends.as_chunks::<2>().0).enumerate() {
        let rows = &mut rows[i * 16..];
        if ends[0] <= 1 && ends[1] <= 1 {
            let (a, b) = (idct::flat8(pair[0][0], c.quant[0]), idct::flat8(pair[1][0], c.quant[0]));
            for row in rows.chunks_mut(c.stride).take(8) {
                row[..8].fill(a);
                row[8..16].fill(b);
            }
        } else if let Ok(both) = pair.as_flattened().try_into() {
            simd::idct8_pair(both, &c.quant, rows, c.stride);
        }
    }
}

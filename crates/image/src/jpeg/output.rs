//! From sample rows to pixel rows.

use super::header::ColorSpace;
use super::plan::{Comp, Plan, Up};
use super::{color, simd};

/// Rings of sample rows, and the rows on their way to pixels.
#[derive(Debug, Default)]
pub(super) struct Output {
    pub(super) rings: Vec<u8>,
    /// Pixel rows written so far.
    done: usize,
    /// One upsampled row per component, with room in front.
    rows: [Vec<u8>; 4],
    sums: Vec<u16>,
    line: Vec<u8>,
}

impl Output {
    pub(super) fn prepare(&mut self, plan: &Plan) {
        self.rings.resize(plan.ring_samples, 0);
        self.done = 0;
        let widest = plan.comps.iter().map(|c| c.stride).max().unwrap_or(0) + 16;
        let pixels = plan.comps.iter().map(|c| c.stride * c.factor.0).max().unwrap_or(0) + 16;
        for row in &mut self.rows[..plan.comps.len()] {
            row.resize(pixels.max(row.len()), 0);
        }
        self.sums.resize(widest.max(self.sums.len()), 0);
        self.line.resize(widest.max(self.line.len()), 0);
    }

    /// Frees buffers of more than `keep` bytes.
    pub(super) fn trim(&mut self, keep: usize) {
        crate::buffers::trim(&mut self.rings, keep);
    }

    /// Writes the pixel rows that are complete after row `my` of the MCUs.
    pub(super) fn emit(&mut self, plan: &Plan, my: usize, out: &mut [u8]) {
        let r = plan.region;
        let last = my + 1 >= plan.y.1;
        while self.done < r.h {
            let y = r.y + self.done;
            let ready = |c: &Comp| {
                let below = usize::from(matches!(c.up, Up::H1V2 | Up::H2V2) && y & 1 == 1);
                y / c.factor.1 + below < (my + 1) * c.v * c.size
            };
            if !last && !plan.comps.iter().all(ready) {
                return;
            }
            let to = &mut out[self.done * r.w * 3..][..r.w * 3];
            self.row(plan, y, to);
            self.done += 1;
        }
    }

    fn row(&mut self, plan: &Plan, y: usize, out: &mut [u8]) {
        let (x, w) = (plan.region.x, plan.region.w);
        let mut starts = [None; 4];
        for (i, c) in plan.comps.iter().enumerate() {
            starts[i] = match c.up {
                Up::Full => Some(row_at(c, y) + x - c.x.0 * c.size),
                _ => {
                    let skip =
                        upsample(c, &self.rings, y, x, w, &mut self.rows[i], &mut self.sums, &mut self.line);
                    self.rows[i].copy_within(skip..skip + w, 0);
                    None
                }
            };
        }
        let row = |i: usize| match starts[i] {
            Some(at) => &self.rings[at..at + w],
            None => &self.rows[i][..w],
        };
        match plan.color {
            ColorSpace::Grey => color::grey_row(row(0), out),
            ColorSpace::YCbCr => simd::ycc_row(row(0), row(1), row(2), out),
            ColorSpace::Rgb => color::rgb_row(row(0), row(1), row(2), out),
            ColorSpace::Cmyk => color::cmyk_row([row(0), row(1), row(2), row(3)], false, out),
            ColorSpace::Ycck => color::cmyk_row([row(0), row(1), row(2), row(3)], true, out),
        }
    }
}

/// Where sample row `y` of a component begins in the rings; the row is held to those that exist.
fn row_at(c: &Comp, y: usize) -> usize {
    c.ring + y.min(c.extent.0 - 1) % c.ring_rows * c.stride
}

/// Upsamples what the pixels `x..x + w` of row `y` need into `out`; gives where in it pixel `x` is.
#[allow(clippy::too_many_arguments, reason = "three of them are buffers of one owner")]
fn upsample(
    c: &Comp,
    rings: &[u8],
    y: usize,
    x: usize,
    w: usize,
    out: &mut [u8],
    sums: &mut [u16],
    line: &mut [u8],
) -> usize {
    let (fx, fy) = c.factor;
    // Samples lo..hi are under the pixels. In a ring's row, sample 0 would be `base` before its start.
    let (lo, hi) = (x / fx, (x + w - 1) / fx + 1);
    let (n, base) = (hi - lo, c.x.0 * c.size);
    let near_at = row_at(c, y / fy);
    let far_at = match (c.up, y & 1) {
        (Up::H1V2 | Up::H2V2, 0) => row_at(c, (y / 2).saturating_sub(1)),
        (Up::H1V2 | Up::H2V2, _) => row_at(c, y / 2 + 1),
        _ => near_at,
    };
    let (left, right) = (lo.saturating_sub(1), (hi + 1).min(c.extent.1));
    let samples = |at: usize, from: usize, to: usize| &rings[at + from - base..at + to - base];
    match c.up {
        Up::H2V2 => {
            let pad = usize::from(lo == 0);
            let inner = right - left;
            simd::column_sums(
                samples(near_at, left, right),
                samples(far_at, left, right),
                &mut sums[pad..pad + inner],
            );
            // The image's first and last sample are repeated beyond its border.
            if pad == 1 {
                sums[0] = sums[1];
            }
            if right == hi {
                sums[pad + inner] = sums[pad + inner - 1];
            }
            simd::double_h2v2(&sums[..n + 2], out);
        }
        Up::H2V1 => {
            let pad = usize::from(lo == 0);
            let inner = right - left;
            line[pad..pad + inner].copy_from_slice(samples(near_at, left, right));
            if pad == 1 {
                line[0] = line[1];
            }
            if right == hi {
                line[pad + inner] = line[pad + inner - 1];
            }
            simd::double_h2v1(&line[..n + 2], out);
        }
        Up::H1V2 => {
            let bias = if y & 1 == 0 { 1 } else { 2 };
            simd::blend_v2(samples(near_at, lo, hi), samples(far_at, lo, hi), bias, &mut out[..n]);
        }
        Up::Full | Up::Repeat => {
            for (o, &s) in out.chunks_exact_mut(fx).zip(samples(near_at, lo, hi)) {
                o.fill(s);
            }
        }
    }
    x - lo * fx
}

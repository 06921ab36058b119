//! Value noise, one image row at a time, for the textures of scenes.

#![allow(clippy::cast_possible_truncation, reason = "lattice coordinates are small by construction")]

use caju_types::mix64;

/// Texture columns beyond the image's width. They bound the offset at which a shape may read the texture.
pub(crate) const PAD: usize = 160;

/// One octave: random values on a square lattice, smoothly interpolated.
#[derive(Debug)]
struct Octave {
    cell: usize,
    seed: u64,
    amplitude: f32,
    /// Lattice rows above and below the current image row.
    above: Vec<f32>,
    below: Vec<f32>,
    lattice_y: usize,
    mixed: Vec<f32>,
    /// Weight of the right neighbour for each pixel of a cell.
    weights: Vec<f32>,
}

impl Octave {
    fn new(cell: usize, amplitude: f32, seed: u64, width: usize) -> Self {
        let n = width / cell + 2;
        let weights = (0..cell).map(|i| smooth(i as f32 / cell as f32)).collect();
        let mut octave = Self {
            cell,
            seed,
            amplitude,
            above: vec![0.0; n],
            below: vec![0.0; n],
            lattice_y: 0,
            mixed: vec![0.0; n],
            weights,
        };
        octave.fill(0);
        octave
    }

    fn fill(&mut self, lattice_y: usize) {
        lattice(self.seed, lattice_y, self.amplitude, &mut self.above);
        lattice(self.seed, lattice_y + 1, self.amplitude, &mut self.below);
        self.lattice_y = lattice_y;
    }

    /// Adds row `y` to `out`.
    fn add(&mut self, y: usize, out: &mut [f32]) {
        let lattice_y = y / self.cell;
        if lattice_y == self.lattice_y + 1 {
            std::mem::swap(&mut self.above, &mut self.below);
            lattice(self.seed, lattice_y + 1, self.amplitude, &mut self.below);
            self.lattice_y = lattice_y;
        } else if lattice_y != self.lattice_y {
            self.fill(lattice_y);
        }
        let t = self.weights[y % self.cell];
        for ((m, a), b) in self.mixed.iter_mut().zip(&self.above).zip(&self.below) {
            *m = a + (b - a) * t;
        }
        if self.cell == 1 {
            for (o, m) in out.iter_mut().zip(&self.mixed) {
                *o += m;
            }
            return;
        }
        // Short cells take most of the time. A constant cell length lets the compiler unroll the loop.
        match self.cell {
            2 => spread::<2>(&self.mixed, &self.weights, out),
            4 => spread::<4>(&self.mixed, &self.weights, out),
            6 => spread::<6>(&self.mixed, &self.weights, out),
            12 => spread::<12>(&self.mixed, &self.weights, out),
            cell => {
                for (i, pixels) in out.chunks_mut(cell).enumerate() {
                    blend(self.mixed[i], self.mixed[i + 1], &self.weights, pixels);
                }
            }
        }
    }
}

/// Adds a lattice row to an image row, `N` pixels a cell.
fn spread<const N: usize>(lattice: &[f32], weights: &[f32], out: &mut [f32]) {
    let (cells, remainder) = out.as_chunks_mut::<N>();
    let Ok(weights) = <&[f32; N]>::try_from(weights) else { return };
    for (pixels, ends) in cells.iter_mut().zip(lattice.windows(2)) {
        blend(ends[0], ends[1], weights, pixels);
    }
    if let [left, right, ..] = lattice[cells.len()..] {
        blend(left, right, weights, remainder);
    }
}

#[inline]
fn blend(left: f32, right: f32, weights: &[f32], pixels: &mut [f32]) {
    let step = right - left;
    for (o, w) in pixels.iter_mut().zip(weights) {
        *o += left + step * w;
    }
}

fn smooth(t: f32) -> f32 {
    t * t * (3.0 - 2.0 * t)
}

/// One row of lattice values in `-amplitude..amplitude`: four from each hash.
fn lattice(seed: u64, y: usize, amplitude: f32, out: &mut [f32]) {
    let key = mix64(seed, y as u64);
    for (i, four) in out.chunks_mut(4).enumerate() {
        let mut bits = mix64(key, i as u64);
        for v in four {
            *v = ((bits & 0xFFFF) as f32 / 32767.5 - 1.0) * amplitude;
            bits >>= 16;
        }
    }
}

/// Three bands of noise for a row: large shapes, texture, and the finest detail; each about -1..1.
#[derive(Debug)]
pub(crate) struct Texture {
    bands: [Vec<Octave>; 3],
    /// The current row of each band.
    pub(crate) rows: [Vec<f32>; 3],
}

/// Cell sizes and amplitudes of the octaves of each band.
const BANDS: [&[(usize, f32)]; 3] = [
    &[(128, 0.62), (64, 0.34), (32, 0.18), (16, 0.09)],
    &[(24, 0.45), (12, 0.40), (6, 0.35)],
    &[(4, 0.55), (2, 0.60)],
];

impl Texture {
    /// The texture of an image of `width` columns.
    pub(crate) fn new(seed: u64, width: usize) -> Self {
        let width = width + PAD;
        let bands = BANDS.map(|octaves| {
            octaves
                .iter()
                .map(|&(cell, amplitude)| Octave::new(cell, amplitude, mix64(seed, cell as u64), width))
                .collect()
        });
        Self { bands, rows: std::array::from_fn(|_| vec![0.0; width]) }
    }

    /// Computes row `y` of every band. Rows in order cost least.
    pub(crate) fn seek(&mut self, y: usize) {
        for (octaves, row) in self.bands.iter_mut().zip(&mut self.rows) {
            row.fill(0.0);
            for octave in octaves {
                octave.add(y, row);
            }
        }
    }
}

/// A jagged line: for each column a height in about `-1..1`, rougher with a larger `roughness`.
pub(crate) fn ridge(seed: u64, width: usize, coarsest: usize, roughness: f32) -> Vec<f32> {
    let mut out = vec![0.0; width];
    let (mut cell, mut amplitude) = (coarsest.max(4), 1.0);
    while cell >= 3 {
        Octave::new(cell, amplitude, mix64(seed, cell as u64), width).add(0, &mut out);
        cell /= 2;
        amplitude *= roughness;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_do_not_depend_on_the_order_of_reading() {
        let mut a = Texture::new(5, 100);
        let mut b = Texture::new(5, 100);
        for y in 0..70 {
            a.seek(y);
        }
        b.seek(69);
        assert_eq!(a.rows, b.rows);
        assert!(a.rows.iter().flatten().all(|v| v.abs() <= 1.5));
        assert!(a.rows[2].windows(2).any(|w| (w[0] - w[1]).abs() > 0.01));
    }
}

//! Pictures of real sizes from integers alone, so that they are the same on every machine: smooth areas, edges,
//! texture and grain. `benches/image` includes this file, too.

use jpeg_encoder::{ColorType, Encoder, SamplingFactor};

/// How a picture is painted and compressed.
#[derive(Debug, Clone, Copy)]
pub struct Picture {
    /// Columns.
    pub width: u16,
    /// Rows.
    pub height: u16,
    /// Chroma subsampling.
    pub sampling: SamplingFactor,
    /// 1 to 100.
    pub quality: u8,
    /// Progressive instead of sequential.
    pub progressive: bool,
    /// MCUs between restart markers; 0 for none.
    pub restart: u16,
}

/// The pictures whose decoded pixels are fixed by hashes, with the names of their samplings.
pub const PICTURES: [(&str, Picture); 6] = {
    const fn picture(width: u16, height: u16, sampling: SamplingFactor, quality: u8) -> Picture {
        Picture { width, height, sampling, quality, progressive: false, restart: 0 }
    }
    [
        ("photo-420", picture(500, 375, SamplingFactor::R_4_2_0, 95)),
        ("photo-422", picture(375, 500, SamplingFactor::R_4_2_2, 90)),
        ("photo-444", picture(499, 373, SamplingFactor::R_4_4_4, 85)),
        ("progressive-420", Picture { progressive: true, ..picture(501, 377, SamplingFactor::R_4_2_0, 95) }),
        ("restart-420", Picture { restart: 17, ..picture(1023, 769, SamplingFactor::R_4_2_0, 80) }),
        ("large-420", picture(2000, 1500, SamplingFactor::R_4_2_0, 90)),
    ]
};

impl Picture {
    /// The picture as a JPEG.
    ///
    /// # Errors
    /// Those of the encoder.
    pub fn encode(&self) -> Result<Vec<u8>, jpeg_encoder::EncodingError> {
        let mut bytes = Vec::new();
        let mut encoder = Encoder::new(&mut bytes, self.quality);
        encoder.set_sampling_factor(self.sampling);
        encoder.set_progressive(self.progressive);
        if self.restart > 0 {
            encoder.set_restart_interval(self.restart);
        }
        encoder.encode(&paint(self.width, self.height), self.width, self.height, ColorType::Rgb)?;
        Ok(bytes)
    }
}

/// RGB pixels.
pub fn paint(width: u16, height: u16) -> Vec<u8> {
    let mut pixels = Vec::with_capacity(usize::from(width) * usize::from(height) * 3);
    for y in 0..i64::from(height) {
        for x in 0..i64::from(width) {
            let grain = hash(x, y, 7) % 9 - 4;
            let texture = if (x / 97 + y / 71) % 3 == 0 { hash(x / 2, y, 3) % 41 - 20 } else { 0 };
            for c in 0..3 {
                let smooth = noise(x, y, 128, c) + noise(x, y, 32, c + 10) / 2 + noise(x, y, 8, 20) / 4;
                let edge =
                    if (x - 200) * (x - 200) + (y - 150) * (y - 150) < 90 * 90 { 50 - 40 * c } else { 0 };
                let v = (smooth + texture + edge + grain).clamp(0, 255);
                pixels.push(u8::try_from(v).unwrap_or(0));
            }
        }
    }
    pixels
}

/// 0 to 255, a value of each point of the grid.
fn hash(x: i64, y: i64, salt: i64) -> i64 {
    let mut z = x.wrapping_mul(0x1F1F_1F1F_1F1F_1F1F) ^ y.wrapping_mul(0x2E8B_A2E8_BA2E_8BA3) ^ salt << 17;
    z = (z ^ (z >> 29 & 0x7_FFFF_FFFF)).wrapping_mul(0x3C6E_F372_FE94_F82B);
    z >> 40 & 255
}

/// 0 to about 145: the values of a grid with this spacing, interpolated.
fn noise(x: i64, y: i64, spacing: i64, salt: i64) -> i64 {
    let (gx, gy, fx, fy) = (x / spacing, y / spacing, x % spacing, y % spacing);
    let at = |dx: i64, dy: i64| hash(gx + dx, gy + dy, salt);
    let across = |dy: i64| at(0, dy) * (spacing - fx) + at(1, dy) * fx;
    (across(0) * (spacing - fy) + across(1) * fy) / (spacing * spacing) * 145 / 255
}

//! Synthetic photos: smooth skies and walls, edges at every scale, textures, and a little sensor noise.
//!
//! They replace real photos of about 500x375 pixels and 110 KB: a decoder, a resizer or a compressor does the same
//! amount of work on them. A photo is painted row by row in floating point with additions and multiplications only, so
//! its bytes are the same on every machine.

mod noise;
mod objects;
mod scene;
mod shape;

use caju_types::{Error, Result};
use jpeg_encoder::{ColorType, Encoder, SamplingFactor};

use self::noise::Texture;
use self::scene::Scene;
use self::shape::Row;
use crate::rng::Rng;

/// Number of classes. A label decides the kind of scene and its colours.
pub(crate) const CLASSES: u64 = 100;

/// Separates the random numbers of photos from those of the other kinds: "imag".
const DOMAIN: u64 = 0x696D_6167;

/// One JPEG photo.
#[derive(Debug, Clone)]
pub struct Photo {
    /// The bytes of the JPEG file.
    pub jpeg: Vec<u8>,
    /// Pixels per row.
    pub width: u16,
    /// Rows of pixels.
    pub height: u16,
    /// The class, from 0 to 99.
    pub label: u16,
}

/// Photo `index` of the data set `seed`: about 500x375 pixels and 110 KB, one in four upright.
///
/// # Errors
/// `Internal` if the encoder refuses the pixels.
pub fn photo(seed: u64, index: u64) -> Result<Photo> {
    let rng = Rng::new(seed, DOMAIN, index);
    let label = rng.below(CLASSES);
    let size = size(&rng);
    paint(&rng, label, size, index)
}

/// Photo `index` of the data set `seed`, with a given width and height in pixels. Each must be at least 1.
///
/// # Errors
/// `Internal` if the encoder refuses the pixels.
pub fn photo_of_size(seed: u64, index: u64, width: u16, height: u16) -> Result<Photo> {
    let rng = Rng::new(seed, DOMAIN, index);
    let label = rng.below(CLASSES);
    paint(&rng, label, (width, height), index)
}

fn paint(rng: &Rng, label: u64, (width, height): (u16, u16), index: u64) -> Result<Photo> {
    let scene = Scene::compose(rng, label, width.into(), height.into());
    let exposure = Exposure::new(rng);
    let pixels = develop(&scene, &exposure, width.into(), height.into(), rng);
    let mut jpeg = Vec::with_capacity(160 << 10);
    let mut encoder = Encoder::new(&mut jpeg, exposure.quality);
    encoder.set_sampling_factor(SamplingFactor::R_4_2_0);
    encoder
        .encode(&pixels, width, height, ColorType::Rgb)
        .map_err(|e| Error::internal(format!("JPEG encoder, image {index}: {e}")))?;
    Ok(Photo { jpeg, width, height, label: u16::try_from(label).unwrap_or(0) })
}

/// About 500x375, one in four upright.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped to a few hundred pixels"
)]
fn size(rng: &Rng) -> (u16, u16) {
    let long = (500.0 + 24.0 * rng.normal()).clamp(320.0, 640.0) as u16;
    let short = (375.0 + 24.0 * rng.normal()).clamp(240.0, 480.0) as u16;
    if rng.chance(0.25) { (short, long) } else { (long, short) }
}

/// The settings of the imaginary camera.
#[derive(Debug)]
struct Exposure {
    gain: f32,
    contrast: f32,
    vignette: f32,
    noise: f32,
    quality: u8,
}

impl Exposure {
    fn new(rng: &Rng) -> Self {
        let quality = [95, 95, 96, 97, 97, 97][usize::try_from(rng.below(6)).unwrap_or(0)];
        Self {
            gain: rng.range(0.86, 1.12),
            contrast: rng.range(0.9, 1.15),
            vignette: rng.range(0.0, 0.3),
            noise: rng.range(1.8, 7.0),
            quality,
        }
    }
}

/// Paints the scene into interleaved RGB.
fn develop(scene: &Scene, exposure: &Exposure, width: usize, height: usize, rng: &Rng) -> Vec<u8> {
    let mut pixels = vec![0u8; width * height * 3];
    let mut texture = Texture::new(rng.bits(), width);
    let mut row = Row::new(width);
    let mut gain = vec![0f32; width];
    let (cx, cy) = (width as f32 / 2.0, height as f32 / 2.0);
    let reach = 1.0 / (cx * cx + cy * cy);
    for (y, out) in pixels.chunks_exact_mut(width * 3).enumerate() {
        texture.seek(y);
        scene.paint(&mut row, &texture, y);
        let dy = y as f32 - cy;
        for (x, g) in gain.iter_mut().enumerate() {
            let dx = x as f32 - cx;
            *g = exposure.gain * exposure.contrast * (1.0 - exposure.vignette * (dx * dx + dy * dy) * reach);
        }
        expose(&row, &gain, exposure, out, rng);
    }
    pixels
}

/// One row through exposure and sensor to bytes. The noise is the sum of two uniform bytes per pixel.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float to u8 saturates")]
fn expose(row: &Row, gain: &[f32], exposure: &Exposure, out: &mut [u8], rng: &Rng) {
    let lift = 128.0 * (1.0 - exposure.contrast) + 0.5;
    let scale = exposure.noise / 104.0;
    let [r, g, b] = &row.planes;
    let mut bits = 0u64;
    for (x, pixel) in out.chunks_exact_mut(3).enumerate() {
        if x % 4 == 0 {
            bits = rng.bits();
        }
        let grain = ((bits & 0xFF) + ((bits >> 8) & 0xFF)) as f32 - 255.0;
        bits >>= 16;
        let add = lift + grain * scale;
        pixel[0] = (r[x] * gain[x] + add) as u8;
        pixel[1] = (g[x] * gain[x] + add) as u8;
        pixel[2] = (b[x] * gain[x] + add) as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn photos_are_deterministic_and_of_the_right_size() {
        let n = 24;
        let photos: Vec<Photo> = (0..n as u64).map(|i| photo(7, i).unwrap()).collect();
        assert_eq!(photo(7, 3).unwrap().jpeg, photos[3].jpeg);
        assert_ne!(photo(8, 3).unwrap().jpeg, photos[3].jpeg);
        let mean = photos.iter().map(|p| p.jpeg.len()).sum::<usize>() / n;
        assert!((85_000..135_000).contains(&mean), "mean {mean}");
        assert!(photos.iter().any(|p| p.height > p.width));
        for p in &photos {
            let mut decoder = zune_jpeg::JpegDecoder::new(zune_core::bytestream::ZCursor::new(&p.jpeg));
            let pixels = decoder.decode().unwrap();
            assert_eq!(pixels.len(), usize::from(p.width) * usize::from(p.height) * 3);
        }
    }

    #[test]
    fn a_given_size_is_kept() {
        let p = photo_of_size(7, 3, 901, 600).unwrap();
        let mut decoder = zune_jpeg::JpegDecoder::new(zune_core::bytestream::ZCursor::new(&p.jpeg));
        assert_eq!(decoder.decode().unwrap().len(), 901 * 600 * 3);
    }
}

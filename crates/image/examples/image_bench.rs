//! Microseconds per image and core of the image kernels, beside `zune-jpeg`'s decoder.
//!
//! `cargo run --release -p caju-image --example image_bench -- [FOLDER]` takes up to 200 JPEG files of a
//! folder and its subfolders; without one it encodes a synthetic photo of 500 x 375. One thread, its CPU
//! time (where the system tells it; else wall time), the best of several rounds.

use std::path::Path;
use std::time::Instant;

use caju_image::{ImageChain, ImageOp, InputKind, RowInput, Scratch, jpeg};
use zune_core::bytestream::ZCursor;

const FILES: usize = 200;
const ROUNDS: usize = 7;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn collect(folder: &Path, files: &mut Vec<Vec<u8>>) -> std::io::Result<()> {
    let mut entries: Vec<_> = std::fs::read_dir(folder)?.collect::<Result<_, _>>()?;
    entries.sort_by_key(|e| e.path());
    for e in entries {
        let path = e.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if files.len() < FILES
            && path.extension().is_some_and(|x| x == "jpg" || x == "jpeg" || x == "JPEG")
        {
            files.push(std::fs::read(path)?);
        }
    }
    Ok(())
}

fn synthetic() -> Outcome<Vec<u8>> {
    let (w, h) = (500u16, 375u16);
    let mut noise = 1u32;
    let mut pixels = Vec::new();
    for y in 0..h {
        for x in 0..w {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let grain = (noise >> 28) as f32;
            let (x, y) = (f32::from(x), f32::from(y));
            for phase in [0.0, 1.0, 2.0f32] {
                let v = 120.0 + 70.0 * (x / 37.0 + phase).sin() * (y / 53.0).cos() + grain;
                #[expect(
                    clippy::cast_possible_truncation,
                    reason = "0 to 255, and casts of floats saturate"
                )]
                pixels.push(v as u8);
            }
        }
    }
    let mut bytes = Vec::new();
    let mut encoder = jpeg_encoder::Encoder::new(&mut bytes, 97);
    encoder.set_sampling_factor(jpeg_encoder::SamplingFactor::F_2_2);
    encoder.encode(&pixels, w, h, jpeg_encoder::ColorType::Rgb)?;
    Ok(bytes)
}

/// Seconds that this thread has run.
fn cpu_s(since: Instant) -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ns = stat.split(' ').next().and_then(|n| n.parse::<u64>().ok());
    ns.map_or_else(|| since.elapsed().as_secs_f64(), |ns| ns as f64 * 1e-9)
}

fn measure(name: &str, files: &[Vec<u8>], mut f: impl FnMut(u64, &[u8]) -> Outcome<()>) -> Outcome<()> {
    let (mut best, begin) = (f64::INFINITY, Instant::now());
    for _ in 0..ROUNDS {
        let start = cpu_s(begin);
        for (i, bytes) in files.iter().enumerate() {
            f(i as u64, bytes)?;
        }
        best = best.min((cpu_s(begin) - start) * 1e6 / files.len() as f64);
    }
    println!("{name:48} {best:8.1} us/image");
    Ok(())
}

fn main() -> Outcome<()> {
    let mut files = Vec::new();
    match std::env::args().nth(1) {
        Some(folder) => collect(Path::new(&folder), &mut files)?,
        None => files.resize(20, synthetic()?),
    }
    if files.is_empty() {
        return Err("no .jpg files there".into());
    }
    let mean = files.iter().map(Vec::len).sum::<usize>() / files.len();
    println!("{} files, {mean} bytes on average", files.len());

    let chain = |ops: &[ImageOp]| {
        let ops = ops.iter().cloned().zip((1..).map(Some)).collect();
        ImageChain::new(ops, InputKind::Encoded)
    };
    let crop =
        ImageOp::RandomResizedCrop { height: 224, width: 224, scale: (0.08, 1.0), ratio: (0.75, 4.0 / 3.0) };
    let flip = ImageOp::RandomFlip { p: 0.5 };
    let mut s = Scratch::default();
    let (mut small, mut floats, mut full) = (vec![0u8; 224 * 224 * 3], vec![0f32; 224 * 224 * 3], Vec::new());

    measure("zune-jpeg, whole image", &files, |_, b| {
        let mut d = zune_jpeg::JpegDecoder::new(ZCursor::new(b));
        d.decode().map_err(|e| format!("{e:?}"))?;
        Ok(())
    })?;
    let c = chain(&[ImageOp::DECODE])?;
    measure("decode, whole image", &files, |_, b| {
        full.clear();
        c.run_variable_u8(RowInput::Encoded(b), 0, &mut s, &mut full)?;
        Ok(())
    })?;
    let c = chain(&[ImageOp::DECODE, crop.clone(), flip.clone()])?;
    measure("decode + random_resized_crop + flip, uint8", &files, |i, b| {
        Ok(c.run_fixed_u8(RowInput::Encoded(b), i, &mut s, &mut small)?)
    })?;
    let c = chain(&[ImageOp::DECODE, crop, flip, ImageOp::NORMALIZE])?;
    measure("... + normalize, float32", &files, |i, b| {
        Ok(c.run_fixed_f32(RowInput::Encoded(b), i, &mut s, &mut floats)?)
    })?;
    let c = chain(&[
        ImageOp::DECODE,
        ImageOp::ResizeShorter { size: 256 },
        ImageOp::CenterCrop { height: 224, width: 224 },
        ImageOp::NORMALIZE,
    ])?;
    measure("decode + resize_shorter + center_crop + normalize", &files, |i, b| {
        Ok(c.run_fixed_f32(RowInput::Encoded(b), i, &mut s, &mut floats)?)
    })?;
    let mut pixel = [0u8; 3];
    let mut scratch = jpeg::Scratch::default();
    measure("walking over the entropy-coded data", &files, |_, b| {
        let (h, w, _) = jpeg::header::parse_size(b)?;
        Ok(jpeg::decode(b, jpeg::Region { y: h - 1, x: w - 1, h: 1, w: 1 }, 1, &mut scratch, &mut pixel)?)
    })
}

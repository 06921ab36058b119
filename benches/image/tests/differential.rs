//! Our decoder gives what libjpeg-turbo gives, to the bit: random sizes up to 2000 pixels, all samplings, qualities,
//! progressive or not, restart markers, whole and at reduced scales. And a window is a part of the whole.
//!
//! `IMAGE_BENCH_CASES=N` sets the number of images. A failure names its case, which is the seed.

use caju_image::jpeg::{self, Region};
use caju_types::rng::RowRng;
use image_bench::painted::paint;
use image_bench::turbo::{Compressor, Decompressor, Settings};

const DEFAULT_CASES: u64 = 200;
/// From 4:4:4 to 4:4:1, grey among them, as `TJSAMP` numbers them.
const SAMPLINGS: u64 = 7;
const WINDOWS: usize = 4;

fn cases() -> u64 {
    std::env::var("IMAGE_BENCH_CASES").ok().map_or(DEFAULT_CASES, |n| n.parse().unwrap())
}

/// A painted picture, or noise of a random strength over a flat colour.
fn pixels(rng: &mut RowRng, width: usize, height: usize) -> Vec<u8> {
    if rng.below(3) > 0 {
        return paint(width as u16, height as u16);
    }
    let (base, strength) = (rng.below(256) as i64, 1 + rng.below(200));
    let noisy = |_| (base + rng.below(strength) as i64 - strength as i64 / 2).clamp(0, 255) as u8;
    (0..width * height * 3).map(noisy).collect()
}

fn side(rng: &mut RowRng) -> usize {
    let (from, to) = [(1, 40), (1, 40), (300, 700), (300, 700), (1000, 2000)][rng.below(5) as usize];
    (from + rng.below(to - from + 1)) as usize
}

#[test]
fn pixels_equal_those_of_libjpeg_turbo() {
    let (mut compressor, mut decompressor) = (Compressor::new().unwrap(), Decompressor::new().unwrap());
    let (mut scratch, mut theirs) = (jpeg::Scratch::default(), Vec::new());
    let mut compared = 0usize;
    for case in 0..cases() {
        let mut rng = RowRng::new(case, 1);
        let (width, height) = (side(&mut rng), side(&mut rng));
        let settings = Settings {
            subsampling: rng.below(SAMPLINGS) as i32,
            quality: 1 + rng.below(100) as i32,
            progressive: rng.below(3) == 0,
            restart_rows: [0, 0, 1, 3][rng.below(4) as usize],
            optimize: rng.below(2) == 0,
        };
        let what = format!("case {case}: {width} x {height}, {settings:?}");
        let picture = pixels(&mut rng, width, height);
        let bytes = compressor.encode(&picture, width, height, settings).unwrap();
        for scale in [1, 2, 4, 8] {
            let whole = decompressor.decode(&bytes, None, scale, &mut theirs).unwrap();
            let mut ours = vec![0; whole.h * whole.w * 3];
            jpeg::decode(&bytes, whole, scale, &mut scratch, &mut ours)
                .unwrap_or_else(|e| panic!("{what}: {e}"));
            let first = ours.iter().zip(&theirs).position(|(a, b)| a != b);
            assert_eq!(first, None, "{what}, at 1/{scale}: the first sample that differs");
            compared += ours.len();
            for _ in 0..WINDOWS {
                let (y, x) = (rng.below(whole.h as u64) as usize, rng.below(whole.w as u64) as usize);
                let h = 1 + rng.below((whole.h - y) as u64) as usize;
                let w = 1 + rng.below((whole.w - x) as u64) as usize;
                let mut part = vec![0; h * w * 3];
                jpeg::decode(&bytes, Region { y, x, h, w }, scale, &mut scratch, &mut part).unwrap();
                for (i, row) in part.chunks_exact(w * 3).enumerate() {
                    let at = ((y + i) * whole.w + x) * 3;
                    assert!(
                        row == &ours[at..at + w * 3],
                        "{what}, at 1/{scale}: row {i} of {h} x {w} at {y}, {x}"
                    );
                }
            }
        }
    }
    assert!(compared > 0, "nothing was compared");
}

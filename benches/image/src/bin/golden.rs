//! Prints the hashes of what libjpeg-turbo makes of the painted pictures: `crates/image/fixtures/real_sizes.txt`.
//!
//! One line for each picture and scale: its name, the hash of the JPEG, the scale, height, width, the hash of the RGB
//! pixels.

use caju_types::hash128;
use image_bench::{Outcome, painted, turbo};

fn main() -> Outcome<()> {
    let mut decompressor = turbo::Decompressor::new()?;
    let mut out = Vec::new();
    for (name, picture) in painted::PICTURES {
        let bytes = picture.encode()?;
        for scale in [1, 2, 4, 8] {
            let r = decompressor.decode(&bytes, None, scale, &mut out)?;
            let pixels = hash128(&out[..r.h * r.w * 3]);
            println!("{name} {:032x} {scale} {} {} {pixels:032x}", hash128(&bytes), r.h, r.w);
        }
    }
    Ok(())
}

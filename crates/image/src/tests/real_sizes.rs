//! Pictures of real sizes decode to what libjpeg-turbo makes of them, without libjpeg-turbo: by hashes.

use std::collections::BTreeMap;

use caju_types::hash128;

use super::painted::PICTURES;
use super::*;

const AGAIN: &str = "write fixtures/real_sizes.txt again: cargo run --release --manifest-path \
                     benches/image/Cargo.toml --bin golden";

/// `benches/image` compares random images with libjpeg-turbo itself; these are fixed ones.
#[test]
fn real_sizes_decode_as_libjpeg_turbo_does() {
    let text = String::from_utf8(fixture("real_sizes.txt")).unwrap();
    let pictures: BTreeMap<&str, Vec<u8>> =
        PICTURES.iter().map(|(name, p)| (*name, p.encode().unwrap())).collect();
    let mut scratch = jpeg::Scratch::default();
    for line in text.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let [name, encoded, scale, h, w, pixels] = fields[..] else { panic!("{line}") };
        let bytes = &pictures[name];
        assert_eq!(format!("{:032x}", hash128(bytes)), encoded, "{name}: the encoder changed; {AGAIN}");
        let number = |s: &str| s.parse::<usize>().unwrap();
        let (scale, h, w) = (number(scale), number(h), number(w));
        let mut whole = vec![0; h * w * 3];
        jpeg::decode(bytes, jpeg::Region { y: 0, x: 0, h, w }, scale, &mut scratch, &mut whole).unwrap();
        assert_eq!(format!("{:032x}", hash128(&whole)), pixels, "{name} at 1/{scale} is not libjpeg-turbo's");
        // A window that begins and ends inside of MCUs.
        let r = jpeg::Region { y: h / 3 + 1, x: w / 5 + 3, h: h / 2, w: w / 2 };
        let mut part = vec![0; r.h * r.w * 3];
        jpeg::decode(bytes, r, scale, &mut scratch, &mut part).unwrap();
        let want: Vec<u8> =
            (r.y..r.y + r.h).flat_map(|y| whole[(y * w + r.x) * 3..][..r.w * 3].iter().copied()).collect();
        assert!(part == want, "{name} at 1/{scale}: a window is not a part of the whole");
    }
    assert_eq!(text.lines().count(), 4 * PICTURES.len(), "every picture at every scale; {AGAIN}");
}

//! Damaged, foreign and hostile bytes: always one clear error or an image, never a panic or a hang.

use caju_types::ErrorKind;
use proptest::prelude::*;

use super::*;

fn message(bytes: &[u8]) -> String {
    let e = decode(bytes).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::DataLoss, "{e}");
    e.to_string()
}

#[test]
fn foreign_bytes_are_shown() {
    assert_eq!(message(b""), "not an image: the value is empty");
    assert_eq!(
        message(b"<html lang=\"en\">\n<head>404"),
        "not an image: the 26 bytes start with `<html`, not JPEG, PNG or WebP"
    );
    assert!(message(b"GIF89a\x01\0\x01\0").contains("(a GIF), not JPEG, PNG or WebP"));
    assert!(message(&[0, 1, 2, 0xFE]).contains("start with `00 01 02 fe`, not JPEG"));
    assert!(image_size(b"nothing").is_err());
}

/// A cut-off JPEG is an error wherever it is cut, not an image with a grey end.
#[test]
fn cut_off_files_are_errors() {
    for name in ["420.jpg", "progressive.jpg", "restart.jpg", "cmyk.jpg", "grey.jpg"] {
        let bytes = fixture(name);
        for n in 2..bytes.len() - 1 {
            let text = message(&bytes[..n]);
            assert!(text.contains("JPEG data ends early"), "{name} cut at {n}: {text}");
        }
    }
    for name in ["rgb.png", "grey.png", "lossless.webp"] {
        let bytes = fixture(name);
        for n in [20, 30, 60, bytes.len() / 2, bytes.len() * 9 / 10] {
            assert!(decode(&bytes[..n]).is_err(), "{name} cut at {n}");
        }
    }
    // The last bytes of a WebP hardly change its pixels, and the decoder does without them.
    for name in ["lossless.webp", "alpha.webp"] {
        let bytes = fixture(name);
        for n in 12..bytes.len() {
            let text = message(&bytes[..n]);
            assert!(text.contains(&format!("truncated WebP: it has {n} bytes")), "{name} cut at {n}: {text}");
        }
    }
}

/// A region is refused for a cut-off file too, although its own part may be there.
#[test]
fn cut_off_files_are_errors_for_regions() {
    let bytes = fixture("420.jpg");
    let c = chain(vec![ImageOp::DECODE, ImageOp::CenterCrop { height: 4, width: 4 }], InputKind::Encoded);
    assert!(run(&c, RowInput::Encoded(&bytes), 0).is_ok());
    let e = run(&c, RowInput::Encoded(&bytes[..bytes.len() - 40]), 0).unwrap_err();
    assert!(e.to_string().contains("ends early"), "{e}");
}

/// Data that end early but carry the end-of-image marker.
#[test]
fn short_scans_are_errors() {
    let bytes = fixture("420.jpg");
    let mut cut = bytes[..bytes.len() * 3 / 4].to_vec();
    cut.extend([0xFF, 0xD9]);
    let e = decode(&cut).unwrap_err().to_string();
    assert!(e.contains("ends early"), "{e}");
}

/// What is not decoded is an error that says what it is.
#[test]
fn other_kinds_of_jpeg_are_named() {
    let good = fixture("420.jpg");
    let frame = good.windows(2).position(|w| w == [0xFF, 0xC0]).unwrap();
    // The marker, then length, precision, height, width, and per component its id, factors and table.
    for (changes, kind) in [
        (vec![(1, 0xC9)], "with arithmetic coding"),
        (vec![(1, 0xC3)], "with lossless coding"),
        (vec![(1, 0xC5)], "with coding process 0xc5"),
        (vec![(4, 12)], "of 12 bits"),
        (vec![(11, 0x31), (14, 0x21)], "with sampling factors 3x1, 2x1, 1x1"),
        (vec![(11, 0x44)], "with sampling factors 4x4, 1x1, 1x1"),
    ] {
        let mut bytes = good.clone();
        for (at, byte) in changes {
            bytes[frame + at] = byte;
        }
        let e = decode(&bytes).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::DataLoss, "{e}");
        assert!(e.to_string().starts_with(&format!("a JPEG {kind} is not decoded: ")), "{e}");
        assert_eq!(image_size(&bytes).unwrap(), image_size(&good).unwrap(), "its size is known");
    }
}

/// Bombs are refused from their headers, before anything is allocated.
#[test]
fn bombs_are_refused() {
    let mut jpeg = fixture("420.jpg");
    let sof = jpeg.windows(2).position(|w| w == [0xFF, 0xC0]).unwrap();
    jpeg[sof + 5..sof + 9].copy_from_slice(&[0x75, 0x30, 0x75, 0x30]);
    let mut png = fixture("rgb.png");
    png[16..24].copy_from_slice(&[0, 0, 0x75, 0x30, 0, 0, 0x75, 0x30]);
    for bytes in [jpeg, png] {
        let e = decode(&bytes).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidArgument);
        assert!(e.is_data_error());
        assert_eq!(
            e.to_string(),
            "the image is 30000 x 30000 (height x width), 900,000,000 pixels: more than the limit of \
             100,000,000; set `max_pixels` of decode_image higher if such images are meant to be here, and \
             --max-pixels of the worker, which bounds it"
        );
        assert_eq!(image_size(&bytes).unwrap(), (30_000, 30_000));
    }
    let small = chain(vec![ImageOp::Decode { max_pixels: 100 }], InputKind::Encoded);
    let e = run(&small, RowInput::Encoded(&fixture("rgb.png")), 0).unwrap_err();
    assert!(e.to_string().contains("more than the limit of 100;"), "{e}");
}

#[test]
fn pixel_inputs_are_checked() {
    let c = chain(vec![ImageOp::Grayscale], InputKind::U8);
    let e = run(&c, RowInput::Pixels { data: &[0; 10], height: 2, width: 2 }, 0).unwrap_err();
    assert_eq!(e.to_string(), "an image of 2 x 2 x 3 has 10 samples");
    let blur = chain(vec![ImageOp::GaussianBlur { kernel: 9, sigma: (1.0, 1.0) }], InputKind::U8);
    let e = run(&blur, RowInput::Pixels { data: &[0; 12], height: 2, width: 2 }, 0).unwrap_err();
    assert!(e.to_string().contains("needs an image larger than 4 pixels in both directions"), "{e}");
}

const FILES: [&str; 14] = [
    "420.jpg",
    "422.jpg",
    "440.jpg",
    "411.jpg",
    "high.jpg",
    "low.jpg",
    "restart.jpg",
    "progressive.jpg",
    "progressive444.jpg",
    "grey_progressive.jpg",
    "cmyk.jpg",
    "exif6.jpg",
    "rgb.png",
    "lossless.webp",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// Flipped, inserted, removed and cut bytes. What is checked is that it ends, without a panic; a scratch
    /// that saw damage afterwards decodes a sound file as ever.
    #[test]
    fn mutations_never_panic(
        file in 0..FILES.len(),
        edits in prop::collection::vec((any::<u16>(), any::<u8>(), 0u8..4), 1..12),
        cut in prop::option::of(any::<u16>()),
        key: u64,
    ) {
        let mut bytes = fixture(FILES[file]);
        for (at, value, kind) in edits {
            let at = usize::from(at) % bytes.len().max(1);
            match kind {
                0 => bytes[at] = value,
                1 => bytes[at] ^= 1 << (value & 7),
                2 => bytes.insert(at, value),
                _ => drop(bytes.remove(at)),
            }
        }
        if let Some(cut) = cut {
            bytes.truncate(usize::from(cut) % bytes.len().max(1));
        }
        let mut s = Scratch::default();
        let mut out = Vec::new();
        let limit = ImageOp::Decode { max_pixels: 200_000 };
        let crop = ImageOp::RandomResizedCrop { height: 9, width: 8, scale: (0.1, 1.0), ratio: (0.5, 2.0) };
        for (ops, scaled) in [(vec![limit.clone()], false), (vec![limit.clone(), crop.clone()], false), (vec![limit, crop], true)] {
            let c = chain(ops, InputKind::Encoded).allow_scaled(scaled);
            if let Err(e) = c.run_variable_u8(RowInput::Encoded(&bytes), key, &mut s, &mut out) {
                prop_assert!(e.is_data_error(), "{}", e);
            }
        }
        let sound = chain(vec![ImageOp::DECODE], InputKind::Encoded);
        let name = FILES[file];
        out.clear();
        sound.run_variable_u8(RowInput::Encoded(&fixture(name)), key, &mut s, &mut out).unwrap();
        prop_assert_eq!(out, decode(&fixture(name)).unwrap().data);
    }

    #[test]
    fn noise_never_panics(mut bytes in prop::collection::vec(any::<u8>(), 0..300), jpeg: bool) {
        if jpeg {
            bytes.splice(0..0, [0xFF, 0xD8, 0xFF]);
        }
        prop_assert!(decode(&bytes).is_err());
    }
}

/// A progressive JPEG of 125 bytes that claims 9999 x 9999 pixels: its blocks would need a bit each.
fn tiny_progressive(side: u16) -> Vec<u8> {
    let mut out = vec![0xFF, 0xD8, 0xFF, 0xDB, 0, 67, 0];
    out.extend([1; 64]);
    let [h, l] = side.to_be_bytes();
    out.extend([0xFF, 0xC2, 0, 11, 8, h, l, h, l, 1, 1, 0x11, 0]);
    // One code of one bit for the DC difference 0.
    out.extend([0xFF, 0xC4, 0, 20, 0, 1]);
    out.extend([0; 15]);
    out.push(0);
    out.extend([0xFF, 0xDA, 0, 8, 1, 1, 0, 0, 0, 0, 0, 0xFF, 0xD9]);
    out
}

/// What an image would take is compared with what there is to decode, and with the chunk's budget, before it is taken.
#[test]
fn images_are_bounded_before_memory_is_asked_for() {
    let bytes = tiny_progressive(9999);
    assert!(bytes.len() <= 125, "{}", bytes.len());
    let before = caju_runtime::peak_rss_bytes();
    let message = message(&bytes);
    assert!(message.contains("JPEG data ends early"), "{message}");
    // A PNG of the same size in its header alone, 16-bit RGBA.
    let mut png = fixture("rgb.png");
    png[16..26].copy_from_slice(&[0, 0, 0x27, 0x0F, 0, 0, 0x27, 0x0F, 16, 6]);
    let text = decode(&png).unwrap_err().to_string();
    assert!(text.contains("PNG data ends early"), "{text}");
    assert!(
        caju_runtime::peak_rss_bytes() - before < 100 << 20,
        "{}",
        caju_runtime::peak_rss_bytes() - before
    );
    // Enough bytes for the claim, and too little of a budget.
    for (name, bytes) in [("progressive.jpg", fixture("progressive.jpg")), ("rgb.png", fixture("rgb.png"))] {
        let e = caju_types::budget::scope(1000, || decode(&bytes)).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::ResourceExhausted, "{name}: {e}");
        caju_types::budget::scope(1 << 30, || decode(&bytes)).unwrap();
    }
    // A column of pixels that becomes a row: the intermediate image is as large as both together.
    let c = chain(vec![ImageOp::Resize { height: 1, width: 65_535 }], InputKind::U8);
    let pixels = vec![0; 65_535 * 3];
    let e = run(&c, RowInput::Pixels { data: &pixels, height: 65_535, width: 1 }, 0).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::ResourceExhausted, "{e}");
}

/// The library that decodes PNG panics at such a palette. Found by fuzzing.
#[test]
fn a_palette_whose_colours_are_not_whole_is_an_error() {
    let png_with = |palette: usize| {
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, 4, 4);
        encoder.set_color(png::ColorType::Indexed);
        encoder.set_depth(png::BitDepth::Eight);
        encoder.set_palette(vec![7; palette]);
        encoder.write_header().unwrap().write_image_data(&[0; 16]).unwrap();
        bytes
    };
    for good in [3, 48, 768] {
        assert_eq!(decode(&png_with(good)).unwrap().data, [7; 48]);
    }
    // A palette of an image in true colour is a suggestion.
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, 4, 4);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_palette(vec![7; 4]);
    encoder.write_header().unwrap().write_image_data(&[5; 48]).unwrap();
    assert!(bytes.windows(4).any(|chunk| chunk == b"PLTE"));
    assert_eq!(decode(&bytes).unwrap().data, [5; 48]);
    for bad in [1, 2, 49, 767, 769, 771, 3000] {
        let e = decode(&png_with(bad)).unwrap_err();
        assert!(e.is_data_error(), "{e}");
        assert!(e.message().contains(&format!("a palette of {bad} bytes, not 3 for each")), "{e}");
    }
}

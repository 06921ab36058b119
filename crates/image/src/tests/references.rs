//! Outputs of Pillow and torchvision, and golden hashes of our own.

use caju_types::hash128;

use super::super::color::Jitter;
use super::*;

/// Every file decodes to exactly what Pillow makes of it: baseline and progressive, all samplings, grey,
/// CMYK, YCCK, RGB, restart markers, tiny sizes, EXIF orientations, PNG and WebP.
#[test]
fn decoding_equals_pillow() {
    let all = decoded_fixtures();
    assert!(all.len() > 30);
    for (name, h, w, crc) in all {
        let bytes = fixture(&name);
        let p = decode(&bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!((p.h, p.w), (h, w), "{name}");
        assert_eq!(image_size(&bytes).unwrap(), (h, w), "{name}");
        assert_eq!(crc32(&p.data), crc, "{name} differs from Pillow");
    }
}

/// What earlier images left in a scratch (tables, samples, sizes) has no influence.
#[test]
fn a_used_scratch_changes_nothing() {
    let mut s = Scratch::default();
    let c = chain(vec![ImageOp::DECODE], InputKind::Encoded);
    let mut all = decoded_fixtures();
    for _ in 0..3 {
        for (name, _, _, crc) in &all {
            let mut out = Vec::new();
            c.run_variable_u8(RowInput::Encoded(&fixture(name)), 0, &mut s, &mut out).unwrap();
            assert_eq!(crc32(&out), *crc, "{name}");
        }
        all.rotate_left(7);
        all.reverse();
    }
}

/// Reduced scales are libjpeg-turbo's to the bit.
#[test]
fn scaled_decoding_equals_libjpeg_turbo() {
    let text = String::from_utf8(fixture("scaled.txt")).unwrap();
    for line in text.lines() {
        let f: Vec<&str> = line.split(' ').collect();
        let number = |i: usize| f[i].parse::<usize>().unwrap();
        let (scale, h, w) = (number(1), number(2), number(3));
        let mut out = vec![0; h * w * 3];
        let whole = jpeg::Region { y: 0, x: 0, h, w };
        jpeg::decode(&fixture(f[0]), whole, scale, &mut jpeg::Scratch::default(), &mut out).unwrap();
        assert_eq!(format!("{:08x}", crc32(&out)), f[4], "{line}");
    }
    assert!(text.lines().count() > 40);
}

#[track_caller]
fn close(have: &[u8], want: &Pixels, tolerance: u8, mean: f64, what: &str) {
    assert_eq!(have.len(), want.data.len(), "{what}");
    let diff: Vec<u8> = have.iter().zip(&want.data).map(|(a, b)| a.abs_diff(*b)).collect();
    let worst = *diff.iter().max().unwrap();
    let average = diff.iter().map(|&d| f64::from(d)).sum::<f64>() / diff.len() as f64;
    assert!(worst <= tolerance && average <= mean, "{what}: worst {worst}, mean {average:.4}");
}

fn reference(name: &str) -> Pixels {
    decode(&fixture(name)).unwrap()
}

/// Resampling: within one level of Pillow, and equal almost everywhere (their weights have 22 bits, ours 14).
#[test]
fn resizing_is_pillows() {
    for (h, w) in [(20, 27), (45, 30), (7, 61), (90, 80), (11, 9)] {
        let c = chain(vec![ImageOp::Resize { height: h, width: w }], InputKind::U8);
        let out = run(&c, base().input(), 0).unwrap();
        close(&out.data, &reference(&format!("resize_{h}x{w}.png")), 1, 0.03, &format!("resize({h}, {w})"));
    }
    let c = chain(vec![ImageOp::ResizeShorter { size: 32 }], InputKind::U8);
    let out = run(&c, base().input(), 0).unwrap();
    let want = reference("resize_shorter_32.png");
    assert_eq!((out.h, out.w), (want.h, want.w));
    close(&out.data, &want, 1, 0.03, "resize_shorter(32)");
}

#[test]
fn crops_are_torchvisions() {
    let c = chain(vec![ImageOp::CenterCrop { height: 20, width: 33 }], InputKind::U8);
    assert_eq!(run(&c, base().input(), 0).unwrap(), reference("center_crop_20x33.png"));
    // torchvision's resized_crop at a given window: a crop, then a resize.
    let window = Pixels { h: 31, w: 40, data: base().crop(5, 9, 31, 40) };
    let c = chain(vec![ImageOp::Resize { height: 24, width: 24 }], InputKind::U8);
    close(&run(&c, window.input(), 0).unwrap().data, &reference("resized_crop.png"), 1, 0.03, "resized_crop");
}

/// Brightness, contrast and saturation equal Pillow's `ImageEnhance`; hue is within one level of torchvision.
#[test]
fn colours_are_theirs() {
    let none = Jitter { brightness: 1.0, contrast: 1.0, saturation: 1.0, hue: 0.0 };
    for (name, jitter, tolerance) in [
        ("brightness", Jitter { brightness: 1.37, ..none }, 0),
        ("contrast", Jitter { contrast: 0.6, ..none }, 0),
        ("saturation", Jitter { saturation: 1.8, ..none }, 0),
        ("hue", Jitter { hue: 0.21, ..none }, 1),
    ] {
        let mut p = base();
        jitter.apply(&mut p.data);
        close(&p.data, &reference(&format!("{name}.png")), tolerance, 0.01, name);
    }
    let grey = run(&chain(vec![ImageOp::Grayscale], InputKind::U8), base().input(), 0).unwrap();
    assert_eq!(grey, reference("grayscale.png"));
}

/// Blur: within one level of torchvision, which sums in another order.
#[test]
fn blur_is_torchvisions() {
    for (kernel, sigma) in [(5, 1.3), (9, 3.0)] {
        let c = chain(vec![ImageOp::GaussianBlur { kernel, sigma: (sigma, sigma) }], InputKind::U8);
        let out = run(&c, base().input(), 0).unwrap();
        close(&out.data, &reference(&format!("blur_{kernel}.png")), 1, 0.001, &format!("blur({kernel})"));
    }
}

#[test]
fn floats_are_torchvisions() {
    let small = Pixels { h: 6, w: 8, data: base().crop(0, 0, 6, 8) };
    for (name, ops) in [
        ("to_float", vec![ImageOp::ToFloat]),
        ("normalize", vec![ImageOp::NORMALIZE]),
        ("normalize", vec![ImageOp::ToFloat, ImageOp::NORMALIZE]),
    ] {
        let mut out = Vec::new();
        let c = chain(ops, InputKind::U8);
        c.run_variable_f32(small.input(), 0, &mut Scratch::default(), &mut out).unwrap();
        let want = fixture(&format!("{name}.f32"));
        assert_eq!(out.len() * 4, want.len());
        for (a, b) in out.iter().zip(want.as_chunks::<4>().0) {
            assert!((a - f32::from_le_bytes(*b)).abs() <= 1e-6, "{name}: {a} {}", f32::from_le_bytes(*b));
        }
    }
}

/// The output of each kernel on fixed inputs, by its version. If this fails and the change is meant,
/// raise the kernel's version in `VERSIONS` and put the new hash here.
#[test]
fn outputs_are_pinned_to_versions() {
    let golden: &[(&str, u32, u64)] = &GOLDEN;
    let of = |ops: Vec<ImageOp>| -> u64 {
        let float = ops.iter().any(|op| matches!(op, ImageOp::Normalize { .. } | ImageOp::ToFloat));
        let c = chain(ops, InputKind::U8);
        let mut bytes = Vec::new();
        for key in 0..4 {
            if float {
                let mut out = Vec::new();
                c.run_variable_f32(base().input(), key, &mut Scratch::default(), &mut out).unwrap();
                bytes.extend(out.iter().flat_map(|v| v.to_le_bytes()));
            } else {
                bytes.extend(run(&c, base().input(), key).unwrap().data);
            }
        }
        hash128(&bytes) as u64
    };
    let mut have = Vec::new();
    for &(name, version) in VERSIONS {
        let hash = match name {
            "decode_image" => {
                let mut bytes = Vec::new();
                for (file, h, w, _) in decoded_fixtures() {
                    bytes.extend(decode(&fixture(&file)).unwrap().data);
                    // The reduced scales, which equal libjpeg-turbo's too.
                    if file.ends_with(".jpg") && !file.starts_with("exif") {
                        for scale in [2, 4, 8] {
                            let (h, w) = ((h as usize).div_ceil(scale), (w as usize).div_ceil(scale));
                            let mut out = vec![0; h * w * 3];
                            let whole = jpeg::Region { y: 0, x: 0, h, w };
                            let mut s = jpeg::Scratch::default();
                            jpeg::decode(&fixture(&file), whole, scale, &mut s, &mut out).unwrap();
                            bytes.extend(out);
                        }
                    }
                }
                hash128(&bytes) as u64
            }
            "resize" => of(vec![ImageOp::Resize { height: 31, width: 29 }]),
            "resize_shorter" => of(vec![ImageOp::ResizeShorter { size: 23 }]),
            "center_crop" => of(vec![ImageOp::CenterCrop { height: 30, width: 30 }]),
            "random_crop" => of(vec![ImageOp::RandomCrop { height: 30, width: 30 }]),
            "random_resized_crop" => of(vec![rrc(24, 24)]),
            "random_flip" => of(vec![ImageOp::RandomFlip { p: 0.5 }]),
            "color_jitter" => {
                of(vec![ImageOp::ColorJitter { brightness: 0.4, contrast: 0.3, saturation: 0.2, hue: 0.1 }])
            }
            "grayscale" => of(vec![ImageOp::Grayscale]),
            "gaussian_blur" => of(vec![ImageOp::GaussianBlur { kernel: 5, sigma: (0.1, 2.0) }]),
            "normalize" => of(vec![ImageOp::NORMALIZE]),
            "to_float" => of(vec![ImageOp::ToFloat]),
            other => panic!("no golden output for {other}"),
        };
        have.push((name, version, hash));
    }
    let list: Vec<String> = have.iter().map(|(n, v, h)| format!("    (\"{n}\", {v}, {h:#018x}),")).collect();
    assert_eq!(
        have,
        golden,
        "outputs changed: raise the versions of those kernels; then\n{}",
        list.join("\n")
    );
}

fn rrc(height: u32, width: u32) -> ImageOp {
    ImageOp::RandomResizedCrop { height, width, scale: (0.08, 1.0), ratio: (0.75, 4.0 / 3.0) }
}

const GOLDEN: [(&str, u32, u64); 12] = [
    ("decode_image", 1, 0xf5a4ac3a33a69ebf),
    ("resize", 1, 0xb3f181b8ebf55b94),
    ("resize_shorter", 1, 0x2034c41b4e3fbb3f),
    ("center_crop", 1, 0x917549e9cca351ec),
    ("random_crop", 1, 0x3e62941b6617224d),
    ("random_resized_crop", 1, 0x7f2bf6e08ef8842a),
    ("random_flip", 1, 0xb990a897e1a8fccd),
    ("color_jitter", 1, 0x402a00fb0b22af1e),
    ("grayscale", 1, 0x96a2da045fe1496a),
    ("gaussian_blur", 1, 0x8b36d49c645bd703),
    ("normalize", 1, 0x61ea94d7dcd0200e),
    ("to_float", 1, 0x6b14019cd1570ef6),
];

/// A JPEG of 8 x 8 pixels with a scan for each component, each of one block that has a mean alone. `tables` are the numbers of the
/// components' tables; table `n` is written before scan `i` with this step if `steps[i]` is `(n, step)`.
fn jpeg_of_scans(tables: [u8; 3], steps: [(u8, u8); 3]) -> Vec<u8> {
    fn segment(out: &mut Vec<u8>, marker: u8, body: &[u8]) {
        out.extend([0xff, marker, 0, u8::try_from(body.len() + 2).unwrap()]);
        out.extend(body);
    }
    let mut out = vec![0xff, 0xd8];
    let [y, cb, cr] = tables;
    segment(&mut out, 0xc0, &[8, 0, 8, 0, 8, 3, 1, 0x11, y, 2, 0x11, cb, 3, 0x11, cr]);
    // One code of one bit each: a difference of four bits, and the end of a block.
    for (class, symbol) in [(0x00, 4), (0x10, 0)] {
        let mut table = vec![class, 1];
        table.extend([0; 15]);
        table.push(symbol);
        segment(&mut out, 0xc4, &table);
    }
    // The code, four bits, the end, and ones.
    for ((component, bits), (number, step)) in
        [(1, 0b1010u8), (2, 0b1100), (3, 0b0110)].into_iter().zip(steps)
    {
        let mut table = vec![number];
        table.extend([step; 64]);
        segment(&mut out, 0xdb, &table);
        segment(&mut out, 0xda, &[1, component, 0, 0, 63, 0]);
        out.push((bits << 3) | 0b11);
    }
    out.extend([0xff, 0xd9]);
    out
}

/// libjpeg keeps the table that a component has in its first scan.
#[test]
fn a_table_that_is_written_again_between_scans_is_for_the_components_behind_it() {
    let again = decode(&jpeg_of_scans([0, 0, 0], [(0, 3), (0, 20), (0, 40)])).unwrap();
    let apart = decode(&jpeg_of_scans([0, 1, 2], [(0, 3), (1, 20), (2, 40)])).unwrap();
    let last = decode(&jpeg_of_scans([0, 0, 0], [(0, 40), (0, 40), (0, 40)])).unwrap();
    assert_eq!(again.data, apart.data);
    assert_ne!(again.data, last.data);
}

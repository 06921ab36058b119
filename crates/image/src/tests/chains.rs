//! Fused runs equal operations one by one; windows equal parts of the whole.

use proptest::prelude::*;

use super::*;

const FILES: [&str; 12] = [
    "420.jpg",
    "422.jpg",
    "440.jpg",
    "444.jpg",
    "411.jpg",
    "restart.jpg",
    "progressive.jpg",
    "grey.jpg",
    "cmyk.jpg",
    "exif6.jpg",
    "exif7.jpg",
    "rgb.png",
];

/// A row's value between two steps.
#[derive(Debug, Clone)]
enum Value {
    Encoded(Vec<u8>),
    U8(Pixels),
    F32(Vec<f32>, u32, u32),
}

fn step(c: &ImageChain, v: &Value, key: u64) -> caju_types::Result<Value> {
    let input = match v {
        Value::Encoded(b) => RowInput::Encoded(b),
        Value::U8(p) => p.input(),
        Value::F32(d, h, w) => RowInput::FloatPixels { data: d, height: *h, width: *w },
    };
    if c.dtype() == Dtype::U8 {
        return run(c, input, key).map(Value::U8);
    }
    let mut out = Vec::new();
    let (h, w) = c.run_variable_f32(input, key, &mut Scratch::default(), &mut out)?;
    Ok(Value::F32(out, h, w))
}

fn any_op() -> impl Strategy<Value = ImageOp> {
    let side = 1u32..50;
    prop_oneof![
        (side.clone(), side.clone()).prop_map(|(height, width)| ImageOp::Resize { height, width }),
        (1u32..40).prop_map(|size| ImageOp::ResizeShorter { size }),
        (1u32..20, 1u32..20).prop_map(|(height, width)| ImageOp::CenterCrop { height, width }),
        (1u32..20, 1u32..20).prop_map(|(height, width)| ImageOp::RandomCrop { height, width }),
        (side.clone(), side).prop_map(|(height, width)| ImageOp::RandomResizedCrop {
            height,
            width,
            scale: (0.08, 1.0),
            ratio: (0.75, 4.0 / 3.0)
        }),
        Just(ImageOp::RandomFlip { p: 0.5 }),
        Just(ImageOp::RandomFlip { p: 1.0 }),
        Just(ImageOp::ColorJitter { brightness: 0.4, contrast: 0.4, saturation: 0.4, hue: 0.1 }),
        Just(ImageOp::Grayscale),
        Just(ImageOp::GaussianBlur { kernel: 3, sigma: (0.1, 2.0) }),
        Just(ImageOp::NORMALIZE),
        Just(ImageOp::ToFloat),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Wherever a chain is cut in two by a hint, the result is the same, to the bit, errors included.
    #[test]
    fn fused_equals_one_by_one(file in 0..FILES.len(), mut ops in prop::collection::vec(any_op(), 1..6), key: u64) {
        let bytes = fixture(FILES[file]);
        // Once the pixels are floats, operations on uint8 are left out: the chain would refuse them.
        let mut float = false;
        ops.retain(|op| {
            let uint8 = matches!(op, ImageOp::ColorJitter { .. } | ImageOp::Grayscale | ImageOp::GaussianBlur { .. });
            float |= matches!(op, ImageOp::Normalize { .. } | ImageOp::ToFloat);
            !(float && uint8)
        });
        ops.insert(0, ImageOp::DECODE);
        let fused = step(&chain(ops.clone(), InputKind::Encoded), &Value::Encoded(bytes.clone()), key);
        let mut single = Ok(Value::Encoded(bytes));
        for (i, op) in ops.into_iter().enumerate() {
            single = single.and_then(|v| {
                let kind = match v {
                    Value::Encoded(_) => InputKind::Encoded,
                    Value::U8(_) => InputKind::U8,
                    Value::F32(..) => InputKind::F32,
                };
                step(&ImageChain::new(vec![(op, Some(i as u64 + 1))], kind)?, &v, key)
            });
        }
        match (fused, single) {
            (Ok(Value::U8(a)), Ok(Value::U8(b))) => prop_assert_eq!(a, b),
            (Ok(Value::F32(a, ah, aw)), Ok(Value::F32(b, bh, bw))) => {
                prop_assert_eq!((ah, aw), (bh, bw));
                prop_assert!(a.iter().zip(&b).all(|(a, b)| a.to_bits() == b.to_bits()));
            }
            (Err(a), Err(b)) => prop_assert_eq!(a.to_string(), b.to_string()),
            (a, b) => prop_assert!(false, "fused {:?}, one by one {:?}", a.map(|_| ()), b.map(|_| ())),
        }
    }

    /// A window of a JPEG is that window of the whole image, at every scale.
    #[test]
    fn windows_are_parts(file in 0..FILES.len() - 1, scale in 0u32..4, at: [u16; 4]) {
        let bytes = fixture(FILES[file]);
        let scale = 1usize << scale;
        let (h, w, _) = jpeg::header::parse_size(&bytes).unwrap();
        let (h, w) = (h.div_ceil(scale), w.div_ceil(scale));
        let mut s = jpeg::Scratch::default();
        let mut whole = vec![0; h * w * 3];
        jpeg::decode(&bytes, jpeg::Region { y: 0, x: 0, h, w }, scale, &mut s, &mut whole).unwrap();
        let whole = Pixels { h: h as u32, w: w as u32, data: whole };
        let (y, x) = (usize::from(at[0]) % h, usize::from(at[1]) % w);
        let (h, w) = (1 + usize::from(at[2]) % (h - y), 1 + usize::from(at[3]) % (w - x));
        let mut part = vec![0; h * w * 3];
        jpeg::decode(&bytes, jpeg::Region { y, x, h, w }, scale, &mut s, &mut part).unwrap();
        prop_assert_eq!(part, whole.crop(y, x, h, w));
    }
}

/// A scaled decode is close to the exact one, for every orientation.
#[test]
fn scaled_chains_are_close() {
    // A smooth picture, so that the two filters agree; large enough for 1/4.
    let (h, w) = (203usize, 307usize);
    let pixels: Vec<u8> = (0..h * w)
        .flat_map(|i| {
            let (y, x) = ((i / w) as f32, (i % w) as f32);
            [
                (128.0 + 100.0 * (x / 40.0).sin()) as u8,
                (128.0 + 100.0 * (y / 30.0).cos()) as u8,
                (x * 0.8) as u8,
            ]
        })
        .collect();
    let mut bytes = Vec::new();
    jpeg_encoder::Encoder::new(&mut bytes, 95)
        .encode(&pixels, w as u16, h as u16, jpeg_encoder::ColorType::Rgb)
        .unwrap();
    for orientation in 1..=8u8 {
        let mut turned = bytes[..2].to_vec();
        turned.extend([0xFF, 0xE1, 0, 34]);
        turned.extend(b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0");
        turned.extend([orientation, 0, 0, 0, 0, 0, 0]);
        turned.extend(&bytes[2..]);
        for window in [(0.05, 1.0), (0.9, 1.0)] {
            let ops = vec![
                ImageOp::DECODE,
                ImageOp::RandomResizedCrop { height: 24, width: 31, scale: window, ratio: (0.6, 1.6) },
            ];
            let exact = chain(ops, InputKind::Encoded);
            let scaled = exact.clone().allow_scaled(true);
            for key in 0..20 {
                let a = run(&exact, RowInput::Encoded(&turned), key).unwrap();
                let b = run(&scaled, RowInput::Encoded(&turned), key).unwrap();
                let worst = a.data.iter().zip(&b.data).map(|(a, b)| a.abs_diff(*b)).max().unwrap();
                assert!(worst <= 6, "orientation {orientation}, key {key}: {worst}");
            }
        }
    }
}

/// The draws: alike for one key and site, different for others; a key shared by two calls shares the draw.
#[test]
fn draws_depend_on_key_and_site_only() {
    let crop = |site| {
        ImageChain::new(vec![(ImageOp::RandomCrop { height: 9, width: 9 }, Some(site))], InputKind::U8)
            .unwrap()
    };
    let of = |site, key| run(&crop(site), base().input(), key).unwrap();
    assert_eq!(of(1, 5), of(1, 5));
    assert_ne!(of(1, 5), of(1, 6));
    assert_ne!(of(1, 5), of(2, 5));
}

#[test]
fn outputs_know_their_size() {
    let kind = |ops| chain(ops, InputKind::Encoded).output();
    let d = ImageOp::DECODE;
    assert_eq!(kind(vec![d.clone()]), OutputKind::Variable { dtype: Dtype::U8 });
    assert_eq!(
        kind(vec![
            d.clone(),
            ImageOp::ResizeShorter { size: 256 },
            ImageOp::CenterCrop { height: 224, width: 200 },
            ImageOp::NORMALIZE
        ]),
        OutputKind::Fixed { height: 224, width: 200, dtype: Dtype::F32 }
    );
    assert_eq!(
        kind(vec![d, ImageOp::Resize { height: 4, width: 4 }, ImageOp::ResizeShorter { size: 2 }]),
        OutputKind::Variable { dtype: Dtype::U8 }
    );
}

#[test]
fn wrong_chains_are_refused_in_words() {
    let err = |ops: Vec<ImageOp>, input| {
        let ops = ops.into_iter().map(|op| (op, Some(1))).collect();
        ImageChain::new(ops, input).unwrap_err().to_string()
    };
    for (ops, input, text) in [
        (
            vec![ImageOp::Resize { height: 0, width: 3 }],
            InputKind::U8,
            "resize: height is 0; it must be from 1",
        ),
        (
            vec![ImageOp::RandomFlip { p: 1.5 }],
            InputKind::U8,
            "random_flip: p is 1.5; it must be from 0 to 1",
        ),
        (
            vec![ImageOp::GaussianBlur { kernel: 4, sigma: (1.0, 1.0) }],
            InputKind::U8,
            "kernel is 4; it must be an odd",
        ),
        (vec![ImageOp::NORMALIZE, ImageOp::Grayscale], InputKind::U8, "put it before normalize or to_float"),
        (vec![ImageOp::Grayscale], InputKind::Encoded, "write grayscale(decode_image(...))"),
        (vec![ImageOp::DECODE], InputKind::U8, "decode_image needs encoded bytes"),
        (
            vec![ImageOp::Normalize { mean: [0.5; 3], std: [0.0; 3] }],
            InputKind::U8,
            "standard deviations positive",
        ),
    ] {
        let e = err(ops, input);
        assert!(e.contains(text), "{e}");
    }
}

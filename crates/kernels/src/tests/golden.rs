//! A function whose output changes has a new version. The golden file has the version of each function and a
//! hash of its output here. A changed hash under an old version is a failure.

use std::fmt::Write as _;
use std::sync::Arc;

use arrow::array::*;
use arrow::datatypes::*;
use xxhash_rust::xxh3::xxh3_128;

use super::*;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/golden.txt");

/// A call of every function.
const CASES: &[(&str, &str)] = &[
    ("decode_image", "decode_image(image)"),
    ("resize", "resize(decode_image(image), 17, 29)"),
    ("resize_shorter", "resize_shorter(decode_image(image), 21)"),
    ("center_crop", "center_crop(decode_image(image), 20, 15)"),
    ("random_crop", "random_crop(decode_image(image), 20, 15)"),
    ("random_resized_crop", "random_resized_crop(decode_image(image), 20, 15, scale_min => 0.2)"),
    ("random_flip", "random_flip(decode_image(image))"),
    ("color_jitter", "color_jitter(decode_image(image), 0.4, 0.3, 0.2, 0.1)"),
    ("grayscale", "grayscale(decode_image(image))"),
    ("gaussian_blur", "gaussian_blur(decode_image(image), 5)"),
    ("normalize", "normalize(resize(decode_image(image), 9, 9), mean => [0.5, 0.4, 0.3])"),
    ("to_float", "to_float(resize(decode_image(image), 9, 9))"),
    ("image_width", "image_width(image)"),
    ("image_height", "image_height(image)"),
    ("hash_bucket", "hash_bucket(text, 1000003, null_as => '')"),
    ("tokenize", r"tokenize(text, '[[:alpha:]]+|\d')"),
    ("pad", r"pad(truncate(tokenize(text, '\w'), 7), 7, 'x')"),
    ("truncate", "truncate(text, 3)"),
    ("one_hot", "one_hot(class, 5)"),
    ("uniform", "uniform(-1, 3)"),
    ("normal", "normal(1, 2)"),
    ("random_int", "random_int(-100, 100)"),
];

fn input() -> RecordBatch {
    let images = pictures(12);
    let text = (0..12).map(|i| (i != 3).then(|| format!("w{i} Ürgh-{} {}", i * 7919 % 100, "ab ".repeat(i))));
    let class: Int32Array = (0..12).map(|i| (i != 7).then_some(i % 5)).collect();
    batch([
        ("image", Arc::clone(images.column(0))),
        ("text", Arc::new(text.collect::<StringArray>())),
        ("class", Arc::new(class)),
    ])
}

/// The bytes of an array without the values under its nulls.
fn bytes(a: &dyn Array, out: &mut Vec<u8>) {
    for i in 0..a.len() {
        out.push(u8::from(a.is_valid(i)));
        if a.is_null(i) {
            continue;
        }
        match a.data_type() {
            DataType::Struct(_) => a.as_struct().columns().iter().for_each(|c| bytes(&c.slice(i, 1), out)),
            DataType::List(_) => bytes(&a.as_list::<i32>().value(i), out),
            DataType::FixedSizeList(..) => bytes(&a.as_fixed_size_list().value(i), out),
            DataType::Utf8 => out.extend(a.as_string::<i32>().value(i).bytes().chain([0])),
            DataType::UInt8 => out.push(a.as_primitive::<UInt8Type>().value(i)),
            DataType::Int32 => out.extend(a.as_primitive::<Int32Type>().value(i).to_le_bytes()),
            DataType::Int64 => out.extend(a.as_primitive::<Int64Type>().value(i).to_le_bytes()),
            DataType::Float32 => out.extend(a.as_primitive::<Float32Type>().value(i).to_le_bytes()),
            DataType::Float64 => out.extend(a.as_primitive::<Float64Type>().value(i).to_le_bytes()),
            other => panic!("no bytes of {other}"),
        }
    }
}

fn now() -> String {
    let input = input();
    let mut text = String::new();
    for (name, sql) in CASES {
        let mut out = Vec::new();
        bytes(&eval(&input, sql), &mut out);
        let version = crate::catalog::find(name).unwrap().signature.version();
        writeln!(text, "{name} {version} {:032x}", xxh3_128(&out)).unwrap();
    }
    text
}

#[test]
fn outputs_are_tied_to_versions() {
    let file = std::fs::read_to_string(FILE).unwrap();
    for (was, is) in file.lines().zip(now().lines()) {
        assert_eq!(
            was, is,
            "the output of a function changed: give it a new version and write the file again with \
             `cargo test -p caju-kernels write_golden -- --ignored`"
        );
    }
    assert_eq!(file.lines().count(), CASES.len());
}

#[test]
fn every_function_is_covered() {
    let covered: Vec<_> = CASES.iter().map(|(n, _)| *n).collect();
    let all: Vec<_> = crate::catalog::functions().map(|f| f.signature.name).collect();
    assert_eq!(covered, all);
}

#[test]
#[ignore = "writes fixtures/golden.txt"]
fn write_golden() {
    std::fs::write(FILE, now()).unwrap();
}

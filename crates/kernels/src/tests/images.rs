use std::sync::Arc;

use arrow::array::*;
use arrow::datatypes::*;
use proptest::prelude::*;

use super::*;

const CALLS: [&str; 11] = [
    "resize($, 31, 23)",
    "resize_shorter($, 33)",
    "center_crop($, 12, 9)",
    "random_crop($, 16, 14)",
    "random_resized_crop($, 24, 20, scale_min => 0.3)",
    "random_flip($)",
    "random_flip($, p => 0.7, key => 'flip')",
    "grayscale($)",
    "gaussian_blur($, 3)",
    "color_jitter($, 0.4, contrast => 0.3, hue => 0.1)",
    "normalize($)",
];

fn evaluate(
    registry: &Registry,
    sql: &str,
    batch: &RecordBatch,
    keys: &UInt64Array,
) -> Result<ArrayRef, RowError> {
    let bound = registry.bind("s", &[("y".into(), sql.into())], &batch.schema())?;
    Ok(bound.evaluate(batch, Some(keys))?.remove(0))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Whether a chain runs fused or call by call, and in which batches, changes nothing. An error is the same error of
    /// the same row.
    #[test]
    fn fused_chains_equal_single_calls(
        chain in prop::collection::vec(0..CALLS.len(), 0..5),
        seed in any::<u64>(),
        cut in 1usize..12,
    ) {
        let sql = chain.iter().fold("decode_image(image)".to_owned(), |inner, i| CALLS[*i].replace('$', &inner));
        let images = pictures(12);
        let keys: UInt64Array = (0..12).map(|i| caju_types::mix64(seed, i)).collect();
        let single = Registry::without_fusion(Limits::default());
        let fused = evaluate(&registry(), &sql, &images, &keys);
        let one_by_one = evaluate(&single, &sql, &images, &keys);
        match (fused, one_by_one) {
            (Ok(fused), Ok(one_by_one)) => {
                prop_assert_eq!(&fused, &one_by_one, "{}", sql);
                let mut parts = Vec::new();
                for start in (0..12).step_by(cut) {
                    let n = cut.min(12 - start);
                    parts.push(evaluate(&registry(), &sql, &images.slice(start, n), &keys.slice(start, n)).unwrap());
                }
                let parts: Vec<&dyn Array> = parts.iter().map(AsRef::as_ref).collect();
                prop_assert_eq!(&arrow::compute::concat(&parts).unwrap(), &fused, "{}", sql);
            }
            (Err(a), Err(b)) => prop_assert_eq!(a.row, b.row, "{}: {} / {}", sql, a, b),
            (a, b) => prop_assert!(false, "{}: {:?} but {:?}", sql, a.err(), b.err()),
        }
    }
}

#[test]
fn types_are_tensors() {
    let images = pictures(6);
    let bound = bind(&images, "normalize(resize(decode_image(image), 4, 6))").unwrap();
    let field = &bound.fields()[0];
    let metadata: Vec<_> =
        ["ARROW:extension:name", "ARROW:extension:metadata"].map(|k| field.metadata()[k].as_str()).into();
    assert_eq!(metadata, ["arrow.fixed_shape_tensor", r#"{"shape":[4,6,3]}"#]);
    assert_eq!(crate::fixed_shape(field), Some(vec![4, 6, 3]));
    assert!(
        matches!(field.data_type(), DataType::FixedSizeList(f, 72) if f.data_type() == &DataType::Float32)
    );
    let bound = bind(&images, "random_flip(decode_image(image))").unwrap();
    let field = &bound.fields()[0];
    assert_eq!(field.metadata()["ARROW:extension:name"], "arrow.variable_shape_tensor");
    assert_eq!(field.metadata()["ARROW:extension:metadata"], r#"{"uniform_shape":[null,null,3]}"#);
    assert!(bound.is_random());
}

/// Images pass from stage to stage as columns, and operations that keep the size keep the fixed type.
#[test]
fn stages_pass_images_on() {
    let images = pictures(9);
    let step = |batch: &RecordBatch, sql: &str| {
        let bound = registry().bind("s", &[("image".into(), sql.into())], &batch.schema()).unwrap();
        let out = bound.evaluate(batch, Some(&keys(9))).unwrap();
        RecordBatch::try_new(Arc::new(Schema::new(bound.fields().clone())), out).unwrap()
    };
    let decoded = step(&images, "decode_image(image)");
    let small = step(&decoded, "resize(image, 8, 10)");
    let flipped = step(&small, "random_flip(image, key => 'f')");
    let last = step(&flipped, "normalize(image)");
    assert_eq!(crate::fixed_shape(last.schema().field(0)), Some(vec![8, 10, 3]));
    let at_once = step(&images, "normalize(random_flip(resize(decode_image(image), 8, 10), key => 'f'))");
    assert_eq!(last, at_once);
    // From the middle of a batch, too.
    let tail =
        bind(&flipped, "to_float(image)").unwrap().evaluate(&flipped.slice(3, 4), Some(&keys(4))).unwrap();
    assert_eq!(tail[0].as_ref(), eval(&flipped, "to_float(image)").slice(3, 4).as_ref());
}

#[test]
fn sizes_without_and_with_pixels() {
    let images = pictures(8);
    let ints = |sql: &str| eval(&images, sql).as_primitive::<Int32Type>().iter().collect::<Vec<_>>();
    let want: Vec<_> = (0..8).map(|i| (i % 7 != 5).then(|| 50 + i * 29 % 41)).collect();
    assert_eq!(ints("image_width(image)"), want);
    assert_eq!(ints("image_width(decode_image(image))"), want);
    let want: Vec<_> = (0..8).map(|i| (i % 7 != 5).then(|| 40 + i * 13 % 37)).collect();
    assert_eq!(ints("image_height(image)"), want);
    assert_eq!(ints("image_height(decode_image(image))"), want);
    assert_eq!(
        ints("image_height(resize(decode_image(image), 5, 6))"),
        want.iter().map(|w| w.map(|_| 5)).collect::<Vec<_>>()
    );
}

/// An image and its mask with one key get the same window.
#[test]
fn one_key_one_window() {
    let images = pictures(12);
    let exprs = [
        ("a".to_owned(), "random_crop(decode_image(image), 9, 9, key => 'crop')".to_owned()),
        ("b".to_owned(), "random_crop(decode_image(image), 9, 9, key => 'crop')".to_owned()),
        ("c".to_owned(), "random_crop(decode_image(image), 9, 9)".to_owned()),
        ("d".to_owned(), "random_crop(decode_image(image), 9, 9)".to_owned()),
    ];
    let bound = registry().bind("s", &exprs, &images.schema()).unwrap();
    let y = bound.evaluate(&images, Some(&keys(12))).unwrap();
    assert_eq!(&y[0], &y[1]);
    assert_ne!(&y[1], &y[2]);
    assert_ne!(&y[2], &y[3]);
    let again = bound.evaluate(&images, Some(&keys(12))).unwrap();
    assert_eq!(y, again);
    let other: UInt64Array = (0..12).map(|i| caju_types::mix64(10, i)).collect();
    assert_ne!(&y[2], &bound.evaluate(&images, Some(&other)).unwrap()[2]);
}

#[test]
fn damaged_rows_are_named() {
    let mut rows: Vec<Vec<u8>> = (0..6).map(|i| jpeg(40, 40, i)).collect();
    rows[4] = b"<html>not found</html>".to_vec();
    let b = batch([("image", Arc::new(BinaryArray::from_iter_values(&rows)) as ArrayRef)]);
    let e = try_eval(&b, "resize(decode_image(image), 4, 4)").unwrap_err();
    assert_eq!(e.row, Some(4));
    assert!(e.error.is_data_error());
    assert!(e.error.to_string().starts_with("column `y`: decode_image: "), "{e}");
    let e = try_eval(&b, "image_width(image)").unwrap_err();
    assert_eq!(e.row, Some(4));
    rows[4] = jpeg(10, 40, 4);
    let b = batch([("image", Arc::new(BinaryArray::from_iter_values(&rows)) as ArrayRef)]);
    let e = try_eval(&b, "random_crop(decode_image(image), 20, 20)").unwrap_err();
    assert_eq!(e.row, Some(4));
    assert!(e.error.to_string().contains("it is 10 x 40"), "{e}");
    let tight = Registry::new(Limits { max_pixels: 100, ..Limits::default() });
    let e = evaluate(&tight, "decode_image(image)", &b, &keys(6)).unwrap_err();
    assert_eq!(e.row, Some(0));
    assert!(e.error.to_string().contains("more than the limit of 100"), "{e}");
    let loose = Registry::new(Limits { max_pixels: 1600, ..Limits::default() });
    evaluate(&loose, "decode_image(image)", &b, &keys(6)).unwrap();
    let e = evaluate(&loose, "decode_image(image, max_pixels => 100)", &b, &keys(6)).unwrap_err();
    assert!(e.error.to_string().contains("more than the limit of 100"), "{e}");
}

/// A list without the extension type is no image.
#[test]
fn shapes_must_be_known() {
    let list = FixedSizeListArray::from_iter_primitive::<UInt8Type, _, _>([Some([Some(1u8); 12])], 12);
    let b = batch([("x", Arc::new(list) as ArrayRef)]);
    assert!(bind_error(&b, "random_flip(x)").contains("does not say its shape"));
}

/// PNG has a CRC per chunk: one changed byte is an error, or the same picture.
#[test]
fn the_checksums_of_pngs_are_checked() {
    for name in ["palette.png", "alpha.png"] {
        let path = format!("{}/../image/fixtures/{name}", env!("CARGO_MANIFEST_DIR"));
        let good = std::fs::read(path).unwrap();
        let decode = |bytes: &[u8]| {
            let images: BinaryArray = [Some(bytes)].into_iter().collect();
            try_eval(&batch([("image", Arc::new(images) as ArrayRef)]), "decode_image(image)")
        };
        let want = decode(&good).unwrap();
        let (mut found, step) = (0, (good.len() / 300).max(1));
        for at in (0..good.len()).step_by(step) {
            let mut bad = good.clone();
            bad[at] ^= 4;
            match decode(&bad) {
                Ok(pixels) => assert_eq!(&pixels, &want, "{name} byte {at}: another picture"),
                Err(_) => found += 1,
            }
        }
        assert!(found > 100, "{name}: {found} of the changed files were found out");
    }
}

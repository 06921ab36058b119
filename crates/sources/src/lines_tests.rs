//! CSV and JSON lines: every line once however the file is cut, and what is said about bad ones.

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Float64Type, Int64Type};
use arrow_array::{Array, RecordBatch};
use arrow_schema::DataType;
use caju_pipeline::{ColumnType, FileFormat};
use caju_types::ErrorKind;
use proptest::prelude::*;

use super::*;
use crate::test_util::*;

fn csv(schema: Option<&[(&str, ColumnType)]>) -> FileFormat {
    let schema = schema.map(|s| s.iter().map(|(n, t)| (n.to_string(), *t)).collect());
    FileFormat::Csv { header: true, delimiter: ',', schema, compression: Compression::Auto }
}

fn json() -> FileFormat {
    FileFormat::Json { schema: None, compression: Compression::Auto }
}

const TWO: [(&str, ColumnType); 2] = [("n", ColumnType::Int64), ("s", ColumnType::String)];

fn two_of(batch: Option<RecordBatch>) -> Vec<(Option<i64>, Option<String>)> {
    let Some(b) = batch else { return Vec::new() };
    let (n, s) = (b.column(0).as_primitive::<Int64Type>(), b.column(1).as_string::<i32>());
    (0..b.num_rows())
        .map(|r| (n.is_valid(r).then(|| n.value(r)), s.is_valid(r).then(|| s.value(r).to_string())))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(50))]
    #[test]
    fn splits_partition_the_lines(
        rows in prop::collection::vec((prop::option::of(any::<i64>()), "[a-z ,;é]{1,20}"), 1..60),
        split_bytes in 1u64..600, crlf in any::<bool>(), last_end in any::<bool>(), batch in 1usize..20,
    ) {
        run(async {
            let ctx = context();
            let folder = fresh();
            let end = if crlf { "\r\n" } else { "\n" };
            let mut text = format!("n,s{end}");
            let mut lines = String::new();
            for (n, s) in &rows {
                text += &format!("{},\"{s}\"{end}", n.map_or(String::new(), |n| n.to_string()));
                lines += &format!("{{\"s\": \"{s}\", \"n\": {}, \"z\": [1]}}{end}", n.map_or("null".into(), |n| n.to_string()));
            }
            if !last_end {
                text.truncate(text.len() - end.len());
                lines.truncate(lines.len() - end.len());
            }
            put(&ctx, &format!("{folder}/a.csv"), text).await;
            put(&ctx, &format!("{folder}/a.jsonl"), lines).await;
            let want: Vec<_> = rows.iter().map(|(n, s)| (*n, Some(s.clone()))).collect();
            let json = FileFormat::Json {
                schema: Some(TWO.iter().map(|(n, t)| (n.to_string(), *t)).collect()),
                compression: Compression::Auto,
            };
            for (name, format) in [("a.csv", csv(Some(&TWO))), ("a.jsonl", json)] {
                let mut def = def(format, &format!("{folder}/{name}"));
                def.split_bytes = split_bytes;
                let got = two_of(all_rows(&ctx, &def, &small(batch, 200)).await.unwrap());
                assert_eq!(&got, &want, "{name}");
            }
        });
    }
}

async fn read(
    text: &str,
    format: FileFormat,
    options: &ReadOptions,
    split_bytes: u64,
) -> (String, Result<Option<RecordBatch>>) {
    let ctx = context();
    let url = format!("{}/x.txt", fresh());
    put(&ctx, &url, text.as_bytes().to_vec()).await;
    let mut def = def(format, &url);
    def.split_bytes = split_bytes;
    (url.clone(), all_rows(&ctx, &def, options).await)
}

#[tokio::test]
async fn schemas_are_found() {
    let text = "\u{feff}a,b,c,d\n1,2.5,x,2020-01-01\n,3,,\n";
    let (_, all) = read(text, csv(None), &ReadOptions::default(), 1 << 20).await;
    let all = all.unwrap().unwrap();
    let types: Vec<_> =
        all.schema().fields().iter().map(|f| (f.name().clone(), f.data_type().clone())).collect();
    let want =
        [("a", DataType::Int64), ("b", DataType::Float64), ("c", DataType::Utf8), ("d", DataType::Utf8)];
    assert_eq!(types, want.map(|(n, t)| (n.to_string(), t)));
    assert!(all.column(0).is_null(1) && all.column(2).is_null(1));
    let text = "{\"a\": 1, \"b\": [1.5], \"c\": null}\n\n{\"a\": null, \"b\": [], \"c\": \"x\"}";
    let (_, all) = read(text, json(), &ReadOptions::default(), 1 << 20).await;
    let all = all.unwrap().unwrap();
    assert_eq!((all.num_rows(), all.num_columns()), (2, 3));
    assert_eq!(all.column(1).as_list::<i32>().value(0).as_primitive::<Float64Type>().value(0), 1.5);
}

#[tokio::test]
async fn a_first_line_that_is_too_long_is_reported() {
    let text = format!("{{\"a\": \"{}\"}}\n{{\"a\": \"x\"}}\n", "x".repeat(2 << 20));
    let ctx = context();
    let url = format!("{}/long.json", fresh());
    put(&ctx, &url, text.clone()).await;
    let e = open(&ctx, &def(json(), &url)).await.map(drop).unwrap_err();
    assert!(e.message().contains("the first one is longer than the 1.00 MiB"), "{e}");
}

#[tokio::test]
async fn a_line_above_the_largest_record_names_the_option() {
    let long = "x".repeat(3000);
    let quoted = format!("n,s\n1,\"{}\"\n", "x\n".repeat(1000));
    let ctx = context_of_records(1024);
    for (text, format, what) in [
        (format!("n,s\n1,{long}\n"), csv(Some(&TWO)), "the line at byte 4 has over 1024 bytes"),
        (format!("{{\"a\": \"{long}\"}}\n"), json(), "the line at byte 0 has over 1024 bytes"),
        (
            quoted,
            csv(Some(&TWO)),
            "line 2: a quoted value does not end within 1024 bytes, or a quote is missing",
        ),
    ] {
        let url = format!("{}/x.txt", fresh());
        put(&ctx, &url, text).await;
        let e = all_rows(&ctx, &def(format, &url), &ReadOptions::default()).await.unwrap_err();
        assert_names_max_record(&e, &url, what);
    }
}

#[tokio::test]
async fn columns_can_be_picked() {
    let text = "n,s\n1,x\n2,y\n";
    for projection in [vec![], vec![1], vec![0, 1]] {
        let options = ReadOptions { projection: Some(projection.clone()), ..ReadOptions::default() };
        let (_, all) = read(text, csv(None), &options, 1 << 20).await;
        let all = all.unwrap().unwrap();
        assert_eq!((all.num_rows(), all.num_columns()), (2, projection.len()));
        let (_, all) = read("{\"n\":1,\"s\":\"x\"}\n{\"n\":2}\n", json(), &options, 1 << 20).await;
        let all = all.unwrap().unwrap();
        assert_eq!((all.num_rows(), all.num_columns()), (2, projection.len()));
    }
}

#[tokio::test]
async fn bad_values_are_named() {
    let many = format!("n,s\n{}x1,boom\n", "17,some text\n".repeat(100));
    let cases: [(&str, FileFormat, u64, &str); 8] = [
        ("n,s\n1,a\nabc,b\n", csv(Some(&TWO)), 1000, "line 3: column `n`: `abc` is not of type int64"),
        (&many, csv(Some(&TWO)), 100, "line 102: column `n`: `x1` is not of type int64"),
        ("n,s\n1,a\n2\n", csv(Some(&TWO)), 1000, "line 3: it has 1 values, but there are 2 columns: `2`"),
        (
            "n,t\n1,a\n",
            csv(Some(&TWO)),
            1000,
            "line 1: the header names the columns n, t, but the source has n, s",
        ),
        (
            "n,s\n1,\"a\nb\"\n2,c\n3,d\n",
            csv(Some(&TWO)),
            8,
            "line 2: a quoted value goes on in the next line, or a quote is missing; a file with line ends in quoted \
             values cannot be cut: set `split` of the source above the file's size",
        ),
        (
            "n,s\n1,\"a\nb\n",
            csv(Some(&TWO)),
            1000,
            "line 2: a quoted value does not end; a quote is missing or the file is truncated",
        ),
        ("{\"n\": 1}\n{\"n\": \"x\"}\n", json(), 9, "line 2: column `n`: `\"x\"` is not of type int64"),
        ("{\"n\": 1}\n{\"n\": 2\n", json(), 9, "line 2: it is not a JSON object: "),
    ];
    for (text, format, split_bytes, want) in cases {
        // The schema of JSON is found in the first line only here.
        let format = match format {
            FileFormat::Json { compression, .. } => {
                FileFormat::Json { schema: Some(vec![("n".into(), ColumnType::Int64)]), compression }
            }
            f => f,
        };
        let (url, result) = read(text, format, &ReadOptions::default(), split_bytes).await;
        let e = result.unwrap_err();
        assert!(matches!(e.kind(), ErrorKind::DataLoss | ErrorKind::InvalidArgument));
        assert!(e.message().starts_with(&format!("{url}: {want}")), "{e}\n{want}");
    }
}

#[tokio::test]
async fn columns_of_one_name_are_refused() {
    let (url, all) = read("a,b,a,\"b\"\n1,2,3,4\n", csv(None), &ReadOptions::default(), 1000).await;
    let e = all.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument);
    assert!(
        e.message().starts_with(&format!("{url}: line 1: the header names `a`, `b` more than once")),
        "{e}"
    );
}

#[tokio::test]
async fn quotes_in_a_header_are_read() {
    let text = "\"a \"\"b\"\"\",\"c,d\"\n1,x\n";
    let (_, all) = read(text, csv(None), &ReadOptions::default(), 1000).await;
    let all = all.unwrap().unwrap();
    assert_eq!(
        (all.schema().field(0).name().as_str(), all.schema().field(1).name().as_str()),
        ("a \"b\"", "c,d")
    );
    assert_eq!(all.num_rows(), 1);
}

#[tokio::test]
async fn files_of_another_kind_are_named_with_the_way_out() {
    let json_with = |schema| FileFormat::Json { schema, compression: Compression::Auto };
    let n = || Some(vec![("n".to_string(), ColumnType::Int64)]);
    for (head, format, want) in [
        (&b"\x1f\x8b\x08\0\0\0\0\0\0"[..], csv(None), "gzip; set `compression: gzip`"),
        (b"\x1f\x8b\x08\0\0\0\0\0\0", csv(Some(&TWO)), "gzip; set `compression: gzip`"),
        (b"BZh91AY&SY....\n", csv(None), "compressed by bzip2, which is not supported"),
        (b"PAR1\x15\x04\x15\0\n", json(), "use the source `parquet`"),
        (b"\n [{\"n\": 1},\n{\"n\": 2}]\n", json(), "it is one JSON array"),
        (b"[{\"n\": 1},\n{\"n\": 2}]\n", json_with(n()), "it is one JSON array"),
    ] {
        let ctx = context();
        let url = format!("{}/x.txt", fresh());
        put(&ctx, &url, head.to_vec()).await;
        let e = all_rows(&ctx, &def(format, &url), &ReadOptions::default()).await.unwrap_err();
        assert!(e.message().starts_with(&format!("{url}: it is")) && e.message().contains(want), "{e}");
        assert!(!e.message().contains("`schema`"), "{e}");
    }
}

#[tokio::test]
async fn quoted_line_ends_work_in_whole_files() {
    let text = "n,s\n1,\"a\nb\n\nc\"\n2,\"x\"\"y\"\n";
    for rows in [1, 10] {
        let (_, all) = read(text, csv(Some(&TWO)), &small(rows, 1000), 1000).await;
        let want = [(Some(1), Some("a\nb\n\nc".to_string())), (Some(2), Some("x\"y".to_string()))];
        assert_eq!(two_of(all.unwrap()), want);
    }
}

/// A quote opens a value only as its first byte. Rows between two inch marks were lost.
#[tokio::test]
async fn a_quote_within_a_value_is_a_character() {
    let mut text = String::from("n,s\n");
    let mut want = Vec::new();
    for n in 0..1000 {
        let value = if n % 50 == 7 { "5\" pipe" } else { "bolt" };
        text += &format!("{n},{value}\n");
        want.push((Some(n), Some(value.to_string())));
    }
    for (rows, split_bytes) in [(1, 1 << 20), (64, 1 << 20), (1000, 1 << 20), (64, 500)] {
        let (_, all) = read(&text, csv(Some(&TWO)), &small(rows, 1 << 20), split_bytes).await;
        assert!(two_of(all.unwrap()) == want, "{rows} rows, splits of {split_bytes} bytes");
    }
}

/// The parser ends rows at carriage returns, too. Lines of several such rows lost all but the first ones.
#[tokio::test]
async fn carriage_returns_end_rows() {
    let mut text = String::from("n,s\n");
    for n in 0..300 {
        let end = if n % 3 == 2 { "\n" } else { "\r" };
        text += &format!("{n},\"a\rb\"{end}");
    }
    for (rows, split_bytes) in [(1, 1 << 20), (7, 1 << 20), (1000, 1 << 20), (7, 100)] {
        let (_, all) = read(&text, csv(Some(&TWO)), &small(rows, 1 << 20), split_bytes).await;
        let all = two_of(all.unwrap());
        assert!(all.iter().map(|r| r.0).eq((0..300).map(Some)), "{} of 300 rows", all.len());
        assert!(all.iter().all(|r| r.1.as_deref() == Some("a\rb")));
    }
    let one = [("n", ColumnType::Int64)];
    let (_, all) = read("n\n1\r\r2\n\n3\r\n\r\n", csv(Some(&one)), &ReadOptions::default(), 1000).await;
    let all = all.unwrap().unwrap();
    let values: Vec<_> = all.column(0).as_primitive::<Int64Type>().iter().collect();
    assert_eq!(values, [Some(1), None, Some(2), None, Some(3), None]);
}

#[tokio::test]
async fn a_carriage_return_ends_a_header() {
    let rows = |n: i64| (0..n).map(|i| format!("{i},a{i}\r")).collect::<String>();
    for (text, count) in [
        (format!("n,s\r{}", rows(50)), 50),
        (format!("n,s\r{}\n{}", rows(3).trim_end(), rows(20)), 23),
        (format!("\"n\",\"s\"\r{}\n", rows(3)), 3),
        ("n,s\r".to_owned(), 0),
    ] {
        for schema in [None, Some(&TWO[..])] {
            for (batch, split_bytes) in [(1, 1 << 20), (7, 1 << 20), (7, 2), (7, 40)] {
                if count == 0 && schema.is_none() {
                    continue;
                }
                let (_, all) = read(&text, csv(schema), &small(batch, 1 << 20), split_bytes).await;
                let all = all.unwrap().map_or(0, |b| b.num_rows());
                assert_eq!(all, count, "{text:?} in splits of {split_bytes} bytes");
            }
        }
    }
}

/// The parser takes a mark off whatever it is given first, and each split and batch has a parser of its own.
#[tokio::test]
async fn a_byte_order_mark_below_the_first_line_belongs_to_its_value() {
    let columns = [("s", ColumnType::String), ("n", ColumnType::Int64)];
    let text = "\u{feff}s,n\n".to_string() + &"\u{feff}a,1\n".repeat(100);
    for (rows, split_bytes) in [(1, 1 << 20), (7, 1 << 20), (7, 100)] {
        let (_, all) = read(&text, csv(Some(&columns)), &small(rows, 1 << 20), split_bytes).await;
        let all = all.unwrap().unwrap();
        assert_eq!(all.num_rows(), 100);
        assert!(all.column(0).as_string::<i32>().iter().all(|s| s == Some("\u{feff}a")));
    }
}

/// A bad row takes the others of its line with it, and all of them count.
#[tokio::test]
async fn rows_that_carriage_returns_divide_are_counted_when_they_are_skipped() {
    let (skip, errors) = skips();
    let options = ReadOptions { skip: Some(skip), ..ReadOptions::default() };
    let text = "n,s\n1,a\nx,b\r2,c\n3,d\n";
    let (url, all) = read(text, csv(Some(&TWO)), &options, 1000).await;
    assert_eq!(two_of(all.unwrap()).iter().map(|r| r.0.unwrap()).collect::<Vec<_>>(), [1, 3]);
    let errors = errors.lock();
    assert_eq!(errors.len(), 2);
    let want = format!("{url}: line 3: a carriage return within it ends a row, put the value in quotes: ");
    assert!(errors.iter().all(|e| e.to_string().contains(&want)), "{errors:?}");
}

#[tokio::test]
async fn bad_lines_can_be_passed_over() {
    let (skip, errors) = skips();
    let options = ReadOptions { skip: Some(skip), ..ReadOptions::default() };
    let (_, all) = read("n,s\n1,a\nx,b\n3,c\n4\n5,d\n", csv(Some(&TWO)), &options, 10).await;
    assert_eq!(two_of(all.unwrap()).iter().map(|r| r.0.unwrap()).collect::<Vec<_>>(), [1, 3, 5]);
    assert_eq!(errors.lock().len(), 2);
}

#[tokio::test]
async fn a_broken_gzip_is_named() {
    use std::io::Write;
    let ctx = context();
    let url = format!("{}/x.csv.gz", fresh());
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(format!("n,s\n{}", "1,a\n".repeat(10_000)).as_bytes()).unwrap();
    let data = gz.finish().unwrap();
    put(&ctx, &url, data.clone()).await;
    assert_eq!(
        two_of(all_rows(&ctx, &def(csv(None), &url), &ReadOptions::default()).await.unwrap()).len(),
        10_000
    );
    let want = format!(
        "{url}: the compressed data end in the middle, or their checksum does not match: the file is truncated, damaged or \
         still being written"
    );
    let mut other_checksum = data.clone();
    // The last 8 bytes of a member are its checksum and its length.
    other_checksum[data.len() - 8] ^= 1;
    for damaged in [data[..data.len() / 2].to_vec(), other_checksum] {
        put(&ctx, &url, damaged).await;
        let e = all_rows(&ctx, &def(csv(Some(&TWO)), &url), &ReadOptions::default()).await.unwrap_err();
        assert_eq!((e.kind(), e.message()), (ErrorKind::DataLoss, want.as_str()));
    }
    put(&ctx, &url, "n,s\n1,a\n").await;
    let e = all_rows(&ctx, &def(csv(Some(&TWO)), &url), &ReadOptions::default()).await.unwrap_err();
    assert!(e.message().contains("cannot be decompressed") && e.message().contains("`compression`"), "{e}");
}

/// They were read as the least integer of 64 bits.
#[tokio::test]
async fn json_integers_below_int64_are_errors() {
    let given = FileFormat::Json {
        schema: Some(vec![("a".into(), ColumnType::Int64)]),
        compression: Compression::Auto,
    };
    let least = i64::MIN;
    for format in [json(), given] {
        let text = format!("{{\"a\":1}}\n{{\"a\":{least}}}\n");
        let (_, all) = read(&text, format.clone(), &ReadOptions::default(), 1000).await;
        let all = all.unwrap().unwrap();
        assert_eq!(all.column(0).as_primitive::<Int64Type>().values(), &[1, least]);
        for below in ["-9223372036854775809", "-9223372036854776832"] {
            let text = format!("{{\"a\":1}}\n{{\"a\":{below}}}\n");
            let (_, all) = read(&text, format.clone(), &ReadOptions::default(), 1000).await;
            let e = all.unwrap_err();
            assert!(e.message().contains(&format!("line 2: the integer `{below}` ")), "{e}");
        }
    }
}

#[tokio::test]
async fn json_keys_that_an_object_has_twice_are_errors_of_their_line() {
    let given = FileFormat::Json {
        schema: Some(vec![("b".into(), ColumnType::Int64)]),
        compression: Compression::Auto,
    };
    for (text, format) in
        [("{\"a\":1}\n{\"a\":1,\"a\":2}\n", json()), ("{\"b\":1}\n{\"b\":1,\"a\":2,\"a\":3}\n", given)]
    {
        let ctx = context();
        let url = format!("{}/x.jsonl", fresh());
        put(&ctx, &url, text).await;
        let e = all_rows(&ctx, &def(format, &url), &ReadOptions::default()).await.unwrap_err();
        let want = format!("{url}: line 2: an object has the key `a` twice");
        assert_eq!((e.kind(), e.message()), (ErrorKind::DataLoss, want.as_str()));
    }
}

#[tokio::test]
async fn json_integers_are_never_rounded_unless_floats_were_asked_for() {
    let text = "{\"a\":9007199254740993}\n{\"a\":18446744073709551615}\n";
    let ctx = context();
    let url = format!("{}/x.jsonl", fresh());
    put(&ctx, &url, text).await;
    let read = async |schema: Option<ColumnType>| {
        let schema = schema.map(|t| vec![("a".to_owned(), t)]);
        let format = FileFormat::Json { schema, compression: Compression::Auto };
        all_rows(&ctx, &def(format, &url), &ReadOptions::default()).await
    };
    let e = read(None).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::DataLoss);
    assert!(
        e.message().starts_with(&format!("{url}: line 1: the integer `9007199254740993` is not exact")),
        "{e}"
    );
    assert!(e.message().contains("set `schema`"), "{e}");
    let e = read(Some(ColumnType::Int64)).await.unwrap_err();
    assert!(e.message().contains("line 2: column `a`: `18446744073709551615` is not of type int64"), "{e}");
    let rounded = read(Some(ColumnType::Float64)).await.unwrap().unwrap();
    assert_eq!(rounded.column(0).as_primitive::<Float64Type>().value(0), 9_007_199_254_740_992.0);
}

/// Arrow would cut the fraction off.
#[tokio::test]
async fn a_fraction_in_a_column_of_integers_is_an_error_of_its_line() {
    let ctx = context();
    let url = format!("{}/x.jsonl", fresh());
    let integers: String = (0..1500).map(|n| format!("{{\"n\":{n}}}\n")).collect();
    put(&ctx, &url, format!("{integers}{{\"n\":1500.75}}\n")).await;
    for schema in [None, Some(vec![("n".to_owned(), ColumnType::Int64)])] {
        let format = FileFormat::Json { schema, compression: Compression::Auto };
        let e = all_rows(&ctx, &def(format, &url), &ReadOptions::default()).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::DataLoss);
        let want = format!("{url}: line 1501: the number `1500.75` is no integer that is read exactly");
        assert!(e.message().starts_with(&want), "{e}");
    }
}

/// Arrow would read such a number as infinite. Infinite values that are written as such are read.
#[tokio::test]
async fn numbers_that_do_not_fit_a_column_of_floats_are_errors_of_their_line() {
    let columns = |t| Some(vec![("s".to_owned(), ColumnType::String), ("a".to_owned(), t)]);
    let csv =
        |schema| FileFormat::Csv { header: true, delimiter: ',', schema, compression: Compression::Auto };
    let json = |schema| FileFormat::Json { schema, compression: Compression::Auto };
    let (f32, f64) = (ColumnType::Float32, ColumnType::Float64);
    let digits = "9".repeat(39);
    // Behind the first rows, in which the columns are found.
    let nested = format!("{}{{\"l\":[{{\"a\":-1e399}}]}}\n", "{\"l\":[{\"a\":1.5}]}\n".repeat(1100));
    let cases = [
        (
            "s,a\nx,inf\nx,1e39\n",
            csv(columns(f32)),
            "line 3: column `a`: the number `1e39` does not fit float32",
        ),
        (
            "s,a\nx,1e38\nx,-1e399\n",
            csv(columns(f64)),
            "line 3: column `a`: the number `-1e399` does not fit float64",
        ),
        (
            "s,a\n1e39,1.5\nx,1e309\n",
            csv(None),
            "line 3: column `a`: the number `1e309` does not fit float64",
        ),
        (
            "{\"a\":1e38}\n{\"a\":1e39}\n",
            json(columns(f32)),
            "line 2: the number `1e39` does not fit float32",
        ),
        (&format!("{{\"a\":1}}\n{{\"a\":{digits}}}\n"), json(columns(f32)), "line 2: the number `99"),
        ("{\"a\":\"inf\"}\n{\"a\":\"1E39\"}\n", json(columns(f32)), "line 2: the number `1E39` does not"),
        (&nested, json(None), "line 1101: the number `-1e399` does not fit float64"),
    ];
    for (text, format, want) in cases {
        let (url, result) = read(text, format.clone(), &ReadOptions::default(), 1 << 20).await;
        let e = result.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::DataLoss, "{e}");
        assert!(e.message().starts_with(&format!("{url}: {want}")), "{e}\n{want}");
        let (skip, errors) = skips();
        let options = ReadOptions { skip: Some(skip), ..ReadOptions::default() };
        let rows = read(text, format, &options, 1 << 20).await.1.unwrap().map_or(0, |b| b.num_rows());
        let lines = text.lines().count() - usize::from(text.starts_with("s,a"));
        assert_eq!((rows, errors.lock().len()), (lines - 1, 1), "{text:.60}");
    }
    let text = "s,a\nx,inf\n1e39,-Infinity\n1e39,NaN\n";
    let all = read(text, csv(columns(f32)), &ReadOptions::default(), 1 << 20).await.1.unwrap().unwrap();
    let floats = all.column(1).as_primitive::<Float32Type>().values().to_vec();
    assert_eq!(floats[..2], [f32::INFINITY, f32::NEG_INFINITY]);
    assert!(floats[2].is_nan());
}

/// Lists that nest deeper than a schema can are found in the first rows.
#[tokio::test]
async fn a_json_column_that_is_nested_too_deep_is_refused() {
    let levels = |n: usize| format!("{{\"a\":{}1{}}}\n", "[".repeat(n), "]".repeat(n));
    let (_, deepest) = read(&levels(32), json(), &ReadOptions::default(), 1 << 20).await;
    assert_eq!(deepest.unwrap().unwrap().num_rows(), 1);
    for n in [33, 100] {
        let ctx = context();
        let url = format!("{}/x.jsonl", fresh());
        put(&ctx, &url, levels(n)).await;
        let e = open(&ctx, &def(json(), &url)).await.map(drop).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidArgument);
        let want = format!("{url}: the column `a` is nested deeper than 32 levels");
        assert!(e.message().starts_with(&want), "{e}");
    }
}

/// The names of internal columns would be confused with them.
#[tokio::test]
async fn columns_with_reserved_names_are_refused() {
    for name in ["caju.split", "caju.row", "__caju_common_1"] {
        let ctx = context();
        let url = format!("{}/x.csv", fresh());
        put(&ctx, &url, format!("{name},b\n1,2\n")).await;
        let e = open(&ctx, &def(csv(None), &url)).await.map(drop).unwrap_err();
        let want = format!("{url}: the column `{name}`: names that begin with `");
        assert!(e.message().starts_with(&want) && e.message().contains("reserved"), "{e}");
    }
}

/// A schema would not help.
#[tokio::test]
async fn a_short_line_in_the_head_of_a_file_is_named() {
    for (text, want) in [
        ("n,s\n1,a\n2\n", "line 3: it has 1 values, but there are 2 columns: `2`"),
        ("n,s\n1,a,b\n", "line 2: it has 3 values, but there are 2 columns: `1,a,b`"),
    ] {
        let ctx = context();
        let url = format!("{}/x.csv", fresh());
        put(&ctx, &url, text).await;
        let e = all_rows(&ctx, &def(csv(None), &url), &ReadOptions::default()).await.unwrap_err();
        assert_eq!(e.message(), format!("{url}: {want}"));
    }
}

#[tokio::test]
async fn json_keys_behind_the_rows_that_the_columns_were_found_in_are_errors_of_their_line() {
    let mut text = "{\"a\":1}\n".repeat(1000);
    text += "{\"a\":2,\"late\":3}\n";
    let ctx = context();
    let url = format!("{}/x.jsonl", fresh());
    put(&ctx, &url, text).await;
    let e = all_rows(&ctx, &def(json(), &url), &ReadOptions::default()).await.unwrap_err();
    let want = format!("{url}: line 1001: the key `late` is not in the first rows");
    assert_eq!(e.kind(), ErrorKind::DataLoss);
    assert!(e.message().starts_with(&want) && e.message().contains("`schema`"), "{e}");
    // Where not all columns are read, and where a definition gives them, other keys do not matter.
    let none = ReadOptions { projection: Some(vec![]), ..ReadOptions::default() };
    assert_eq!(all_rows(&ctx, &def(json(), &url), &none).await.unwrap().unwrap().num_rows(), 1001);
    let given = FileFormat::Json {
        schema: Some(vec![("a".into(), ColumnType::Int64)]),
        compression: Compression::Auto,
    };
    let all = all_rows(&ctx, &def(given, &url), &ReadOptions::default()).await.unwrap().unwrap();
    assert_eq!((all.num_rows(), all.num_columns()), (1001, 1));
}

#[test]
fn a_column_that_may_be_misspelt_is_named() {
    let names = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
    let says =
        |given: &[&str]| misspelt("a.jsonl", "schema", &names(given), &names(&["label", "size", "x1"]));
    let want = "a.jsonl: no row at its beginning has `lable`, which `schema` names; did you mean `label`? It has: label, size, x1";
    assert_eq!(says(&["lable", "size"]).as_deref(), Some(want));
    // Both are named, nothing is like it, or the names are too short to compare: a column that comes later.
    for given in [&["lable", "label"][..], &["weight", "label"], &["x2"]] {
        assert_eq!(says(given), None, "{given:?}");
    }
}

#[tokio::test]
async fn a_column_of_a_json_schema_may_come_after_the_first_rows() {
    let schema = [("text2", ColumnType::String)].map(|(n, t)| (n.to_owned(), t)).to_vec();
    let format = FileFormat::Json { schema: Some(schema), compression: Compression::Auto };
    let ctx = context();
    let url = format!("{}/x.jsonl", fresh());
    put(&ctx, &url, "{\"text1\":\"a\"}\n{\"text1\":\"a\",\"text2\":\"b\"}\n".repeat(1000)).await;
    let rows = all_rows(&ctx, &def(format, &url), &ReadOptions::default()).await.unwrap().unwrap();
    assert_eq!((rows.num_rows(), rows.column(0).null_count()), (2000, 1000));
}

/// `pyarrow.csv.write_csv` writes a null of the only column as a line without a character.
#[tokio::test]
async fn rows_of_one_column_without_a_value_are_null() {
    let ctx = context();
    for (text, want) in [
        ("a\n1\n\n3\n", vec![Some(1), None, Some(3)]),
        ("a\r\n1\r\n\r\n3", vec![Some(1), None, Some(3)]),
        ("a\n\n\n7\n\n", vec![None, None, Some(7), None]),
    ] {
        for split in [1 << 20, 3] {
            let url = format!("{}/x.csv", fresh());
            put(&ctx, &url, text).await;
            let mut def = def(csv(None), &url);
            def.split_bytes = split;
            let rows = all_rows(&ctx, &def, &ReadOptions::default()).await.unwrap().unwrap();
            let got: Vec<_> = rows.column(0).as_primitive::<Int64Type>().iter().collect();
            assert_eq!(got, want, "{text:?} in splits of {split} bytes");
        }
    }
    // A line end within quotes is part of the value.
    let url = format!("{}/x.csv", fresh());
    put(&ctx, &url, "a\n\"x\n\ny\"\nz\n").await;
    let rows = all_rows(&ctx, &def(csv(None), &url), &ReadOptions::default()).await.unwrap().unwrap();
    let got: Vec<_> = rows.column(0).as_string::<i32>().iter().flatten().collect();
    assert_eq!(got, ["x\n\ny", "z"]);
}

#[tokio::test]
async fn a_csv_of_no_bytes_is_an_error_also_behind_others() {
    let ctx = context();
    let folder = fresh();
    put(&ctx, &format!("{folder}/a.csv"), "n\n1\n").await;
    put(&ctx, &format!("{folder}/b.csv"), "").await;
    let e = all_rows(&ctx, &def(csv(None), &format!("{folder}/*.csv")), &ReadOptions::default())
        .await
        .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::DataLoss);
    assert!(e.message().contains("b.csv: the file has 0 bytes, and so no header"), "{e}");
}

//! Sample data, read back by readers that share no code with the writers.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use common::{fails, ok};

/// Every file below a folder, with its bytes.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut out = BTreeMap::new();
    let mut folders = vec![dir.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let bytes = std::fs::read(&path).unwrap();
                out.insert(path.strip_prefix(dir).unwrap().to_path_buf(), bytes);
            }
        }
    }
    out
}

/// CRC-32C bit by bit, masked as TFRecord does.
fn masked_crc(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for b in bytes {
        crc ^= u32::from(*b);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82F6_3B78 } else { crc >> 1 };
        }
    }
    (!crc).rotate_right(15).wrapping_add(0xA282_EAD8)
}

fn records(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut out = Vec::new();
    while !bytes.is_empty() {
        let n = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let check = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!(check(8), masked_crc(&bytes[..8]));
        let record = &bytes[12..12 + n];
        assert_eq!(check(12 + n), masked_crc(record));
        out.push(record);
        bytes = &bytes[16 + n..];
    }
    out
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let (mut value, mut shift) = (0, 0);
    loop {
        let b = bytes[0];
        *bytes = &bytes[1..];
        value |= u64::from(b & 0x7F) << shift;
        shift += 7;
        if b < 0x80 {
            return value;
        }
    }
}

/// The length-delimited fields of a protobuf message.
fn fields(mut bytes: &[u8]) -> Vec<(u64, &[u8])> {
    let mut out = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        assert_eq!(tag & 7, 2);
        let n = varint(&mut bytes) as usize;
        out.push((tag >> 3, &bytes[..n]));
        bytes = &bytes[n..];
    }
    out
}

#[derive(Debug, PartialEq)]
enum Feature {
    Bytes(Vec<u8>),
    Int(i64),
}

/// A tf.train.Example whose features have one value each.
fn example(record: &[u8]) -> BTreeMap<String, Feature> {
    let [(1, features)] = fields(record)[..] else { panic!("Example") };
    fields(features)
        .into_iter()
        .map(|(number, entry)| {
            assert_eq!(number, 1);
            let [(1, name), (2, feature)] = fields(entry)[..] else { panic!("map entry") };
            let [(kind, list)] = fields(feature)[..] else { panic!("Feature") };
            let [(1, mut value)] = fields(list)[..] else { panic!("list of one") };
            let value = match kind {
                1 => Feature::Bytes(value.to_vec()),
                3 => Feature::Int(varint(&mut value).cast_signed()),
                other => panic!("feature kind {other}"),
            };
            (String::from_utf8(name.to_vec()).unwrap(), value)
        })
        .collect()
}

fn decode(jpeg: &[u8]) -> (usize, usize) {
    let mut decoder = zune_jpeg::JpegDecoder::new(zune_core::bytestream::ZCursor::new(jpeg));
    let pixels = decoder.decode().unwrap();
    let (w, h) = decoder.dimensions().unwrap();
    assert_eq!(pixels.len(), w * h * 3);
    (w, h)
}

#[test]
fn images_are_the_same_for_any_number_of_threads_and_in_every_format() {
    let dir = tempfile::tempdir().unwrap();
    let gen_with = |out: &str, threads: &str| {
        ok(
            dir.path(),
            &[
                "gen",
                "images",
                "--out",
                out,
                "--count",
                "12",
                "--seed",
                "3",
                "--shards",
                "2",
                "--cpu-threads",
                threads,
                "--format",
                "tfrecord,parquet,webdataset,files,arrow",
            ],
        );
        files(&dir.path().join(out))
    };
    let one = gen_with("one", "1");
    assert_eq!(one, gen_with("three", "3"));

    let mut images = BTreeMap::new();
    for (path, bytes) in one.iter().filter(|(p, _)| p.starts_with("tfrecord")) {
        for record in records(bytes) {
            let mut row = example(record);
            let (Some(Feature::Int(id)), Some(Feature::Int(label)), Some(Feature::Bytes(jpeg))) =
                (row.remove("id"), row.remove("image/class/label"), row.remove("image/encoded"))
            else {
                panic!("{path:?}: {row:?}")
            };
            let (w, h) = decode(&jpeg);
            assert_eq!(row.remove("image/width"), Some(Feature::Int(w as i64)));
            assert_eq!(row.remove("image/height"), Some(Feature::Int(h as i64)));
            assert!(row.is_empty(), "{row:?}");
            images.insert(id, (label, jpeg));
        }
    }
    assert_eq!(images.keys().copied().collect::<Vec<_>>(), (0..12).collect::<Vec<i64>>());
    let mean = images.values().map(|(_, j)| j.len()).sum::<usize>() / 12;
    assert!((80_000..140_000).contains(&mean), "mean {mean}");

    for (id, (label, jpeg)) in &images {
        let name = PathBuf::from(format!("files/c{label:03}/{id:06}.jpg"));
        assert!(one.get(&name) == Some(jpeg), "{name:?}");
    }
    let tars: Vec<_> = one.iter().filter(|(p, _)| p.extension().is_some_and(|e| e == "tar")).collect();
    assert_eq!(tars.len(), 2);
    assert_eq!(tars.iter().map(|(_, b)| tar(b, &images)).sum::<usize>(), 12);
}

/// Checks the members of a tar file against the images; gives the number of samples.
fn tar(mut bytes: &[u8], images: &BTreeMap<i64, (i64, Vec<u8>)>) -> usize {
    let mut samples = 0;
    while bytes[0] != 0 {
        let text = |from: usize, to: usize| {
            std::str::from_utf8(&bytes[from..to]).unwrap().trim_end_matches(['\0', ' '])
        };
        let (name, size) = (text(0, 100), usize::from_str_radix(text(124, 136), 8).unwrap());
        let sum: u32 = bytes[..512]
            .iter()
            .enumerate()
            .map(|(i, b)| if (148..156).contains(&i) { 32 } else { u32::from(*b) })
            .sum();
        assert_eq!(u32::from_str_radix(text(148, 156), 8).unwrap(), sum);
        let content = &bytes[512..512 + size];
        let (stem, extension) = name.split_once('.').unwrap();
        let (label, jpeg) = &images[&stem.parse::<i64>().unwrap()];
        match extension {
            "jpg" => {
                assert!(content == jpeg);
                samples += 1;
            }
            "cls" => assert_eq!(content, label.to_string().as_bytes()),
            other => panic!("{other}"),
        }
        bytes = &bytes[512 + size.next_multiple_of(512)..];
    }
    samples
}

#[test]
fn tables_are_the_same_however_they_are_cut_and_written() {
    let dir = tempfile::tempdir().unwrap();
    let formats = ["--format", "csv,json,tfrecord"];
    ok(
        dir.path(),
        &[&["gen", "table", "--out", "a", "--count", "200", "--shards", "1"], &formats[..]].concat(),
    );
    ok(
        dir.path(),
        &[&["gen", "table", "--out", "b", "--count", "200", "--shards", "3"], &formats[..]].concat(),
    );
    let lines = |out: &str| -> Vec<String> {
        let parts = files(&dir.path().join(out).join("csv"));
        parts
            .values()
            .flat_map(|b| {
                std::str::from_utf8(b).unwrap().lines().skip(1).map(String::from).collect::<Vec<_>>()
            })
            .collect()
    };
    let rows = lines("a");
    assert_eq!(rows.len(), 200);
    assert_eq!(rows, lines("b"));
    let json = files(&dir.path().join("a/json"));
    let json: Vec<serde_json::Value> = std::str::from_utf8(json.values().next().unwrap())
        .unwrap()
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    let tf = files(&dir.path().join("a/tfrecord"));
    for ((csv, json), record) in rows.iter().zip(&json).zip(records(tf.values().next().unwrap())) {
        let cells: Vec<&str> = csv.split(',').collect();
        assert_eq!(cells.len(), 40);
        let row = example(record);
        for i in 1..=26 {
            let name = format!("C{i}");
            let text = json[&name].as_str().unwrap_or_default();
            assert_eq!(cells[13 + i], text);
            match row.get(&name) {
                Some(Feature::Bytes(b)) => assert_eq!(b, text.as_bytes()),
                None => assert!(json[&name].is_null()),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn folders_with_something_in_them_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let text = |out: &str, count: &str, more: &[&str]| {
        [&["gen", "text", "--out", out, "--count", count, "--format", "json"], more]
            .concat()
            .iter()
            .map(|s| s.to_string())
            .collect::<Vec<_>>()
    };
    let run = |args: Vec<String>| ok(dir.path(), &args.iter().map(String::as_str).collect::<Vec<_>>());
    run(text("x", "30", &["--shards", "3"]));
    std::fs::write(dir.path().join("x/mine.txt"), "keep").unwrap();
    let again = text("x", "20", &[]);
    let message = fails(dir.path(), &again.iter().map(String::as_str).collect::<Vec<_>>(), 2);
    assert!(message.contains("not empty") && message.contains("--overwrite"), "{message}");
    run(text("x", "20", &["--overwrite"]));
    let names: Vec<_> = files(&dir.path().join("x")).into_keys().map(|p| p.display().to_string()).collect();
    assert_eq!(names, ["_caju_gen.json", "mine.txt", "part-00000-of-00001.jsonl"]);
}

#[test]
fn formats_that_do_not_fit_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let message = fails(dir.path(), &["gen", "images", "--out", "x", "--count", "1", "--format", "csv"], 2);
    assert!(message.contains("images cannot be written as csv") && message.contains("tfrecord"), "{message}");
    let message =
        fails(dir.path(), &["gen", "text", "--out", "x", "--count", "1", "--format", "json,json"], 2);
    assert!(message.contains("twice"), "{message}");
    assert!(!dir.path().join("x").exists());
}

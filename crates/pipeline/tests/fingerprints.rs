//! Fingerprints: what they cover, what they do not cover, and that they never change by accident.
#![allow(clippy::unwrap_used, reason = "tests may unwrap; clippy exempts only test functions by itself")]

mod common;

use std::path::Path;

use caju_pipeline::*;
use common::FakeFunctions;

fn read(text: &str) -> DatasetDef {
    DatasetDef::from_yaml(text, Some(Path::new("/base"))).unwrap()
}

fn imagenet() -> String {
    include_str!("imagenet.yaml").to_owned()
}

fn of(text: &str) -> Vec<String> {
    let f = FakeFunctions::default();
    let def = read(text);
    let mut out: Vec<_> =
        prefix_fingerprints(&def, &f).unwrap().into_iter().map(|p| p.fingerprint.to_string()).collect();
    out.push(fingerprint(&def, &f).unwrap().to_string());
    out
}

/// If these change, no stored snapshot is found any more: either raise the version of `SCHEMA` on purpose, or find the
/// defect.
#[test]
fn golden() {
    let f = FakeFunctions::default();
    let def = read(&imagenet());
    assert_eq!(canonical_text(&def, 5, &f).unwrap(), GOLDEN_TEXT);
    let prefixes = prefix_fingerprints(&def, &f).unwrap();
    assert_eq!(
        prefixes.iter().map(|p| (p.hint.as_str(), p.stage_index, p.random)).collect::<Vec<_>>(),
        [("source", 2, false), ("resized", 5, false)]
    );
    assert_eq!(of(&imagenet()), GOLDEN);
    assert_eq!(identity(&def, &f).unwrap().to_string(), GOLDEN_IDENTITY);
    assert_eq!(of(EVERYTHING), GOLDEN_EVERYTHING);
}

const GOLDEN_TEXT: &str = concat!(
    r#"{"engines":{"arrow":"59.3.0","datafusion":"55.0.0","zune-jpeg":"0.5.0"},"functions":{"decode_ima"#,
    r#"ge":1,"resize_shorter":1},"schema":"caju.fingerprint/v1","source":{"arguments":{"compression":"a"#,
    r#"uto"},"kind":"tfrecord","version":1},"stages":[{"arguments":{"column":"record","features":{"imag"#,
    r#"e/class/label":"int64","image/encoded":"bytes"}},"op":"parse_example","version":2},{"arguments":"#,
    r#"{"image":"\"image/encoded\"","label":"\"image/class/label\""},"op":"map","version":1},{"argument"#,
    r#"s":{"image":"resize_shorter(decode_image(image),256)"},"op":"with_columns","version":1},{"argume"#,
    r#"nts":"label>=0","op":"filter","version":1}]}"#,
);
const GOLDEN: [&str; 3] = [
    "f4fbcac55a358f32a44f5909c2bfa407",
    "cf186cc3aeabac36ded6b8df408d7bbc",
    "c1cf8262cf88ae41c672ee237790d774",
];
const GOLDEN_IDENTITY: &str = "cef84ff2992270f4580dd3afc81b88df";
const GOLDEN_EVERYTHING: [&str; 3] = [
    "833b79e25b5857b7f47463da675a17c6",
    "55479404645e30877b64c43bcd61cb29",
    "326eeac0d80f0e92fafa29226f1c53a2",
];

/// Every kind of stage, and a source of sources.
const EVERYTHING: &str = r#"
source:
  sample:
    weights: [1, 2.5]
    datasets:
      - source: { concatenate: [ { source: { parquet: { path: /a, columns: [x, n] } } },
                                 { source: { csv: { path: /b, header: false, schema: { x: int64, n: float32 } } } },
                                 { source: { json: { path: /c, compression: zstd } } } ] }
        steps: [ filter: "x > 1" ]
      - source: { zip: [ { source: { range: { start: 5, end: 0, step: -1 } } }, { source: { memory: Zm9v } },
                         { source: { arrow: /d } }, { source: { webdataset: /e } }, { source: { images: /f } } ] }
steps:
  - map: { x: "random_flip(x)", y: "upper(y)" }
  - select: [x, y]
  - unnest: y
  - flat_map: { name: z, expr: "tokenize(y)" }
  - sleep: { per_row: 8us }
  - burn: { per_batch: 2ms }
  - inflate: { column: y, factor: 2.5 }
  - autocache: rows
  - shuffle: { buffer: 10 }
  - take: 100
  - skip: 3
  - batch: { size: 4, drop_remainder: true }
  - unbatch
  - padded_batch: { size: 4, lengths: { z: 9 }, values: { z: "-", w: 0.5 } }
  - unbatch
  - bucket_by_length: { length: "length(z)", boundaries: [4, 8], batch_sizes: [3, 2, 1] }
  - prefetch: 2
  - autocache: batches
  - repeat: 2
seed: 18446744073709551615
on_error: { skip: { limit: 5 } }
deterministic: true
"#;

#[test]
fn what_does_not_matter() {
    let base = imagenet();
    let rearranged = r#"
deterministic: true
on_error: fail
seed: 99
steps:
  - parse_example: { features: { "image/class/label": { shape: scalar, dtype: int64 }, "image/encoded": bytes }, column: record }
  - map:
      label: '"image/class/label"'   # a comment
      image: '"image/encoded"'
  - with_columns: { image: "resize_shorter( decode_image(image),256 )" }
  - autocache: between
  - filter: "label>=0"
  - autocache
  - autocache: twice
  - batch: 7
source: { tfrecord: { split: 1MiB, path: ["/elsewhere/a", "s3://b/c"], version: content } }
name: other
"#;
    let (a, b) = (of(&base), of(rearranged));
    assert_eq!(a[1], b[1]);
    assert_eq!(a[1], b[2]);
    assert_ne!(a[0], b[0]);
    assert_ne!(a.last(), b.last());
}

#[test]
fn what_matters() {
    let base = imagenet();
    let first = of(&base);
    for (from, to, changed) in [
        ("{ path: ", "{ compression: gzip, path: ", 3),
        ("bytes,", "'bytes[]',", 3),
        ("'\"image/encoded\"'", "'\"image/class/label\"'", 3),
        ("name: imagenet-train", "on_error: skip", 3),
        ("256)\" }", "255)\" }", 2),
        ("label >= 0", "label > 0", 2),
        ("- filter: \"label >= 0\"", "- select: [image, label]", 2),
        ("224, 224", "224, 225", 1),
        ("buffer: 2000", "buffer: 2001", 1),
        ("seed: 7 }", "seed: 8 }", 1),
        ("size: 256", "size: 255", 1),
        ("name: imagenet-train", "seed: 8", 1),
        ("name: imagenet-train", "deterministic: true", 1),
        ("seed: 7 }", "seed: 7, max_bytes: 1MiB }", 0),
        ("name: imagenet-train", "seed: 0", 0),
        ("name: imagenet-train", "reorder: true", 0),
    ] {
        assert!(base.contains(from), "{from}");
        let now = of(&base.replace(from, to));
        let differ = first.iter().zip(&now).filter(|(a, b)| a != b).count();
        assert_eq!(differ, changed, "{from} -> {to}");
        assert!(first.iter().zip(&now).skip(3 - changed).all(|(a, b)| a != b), "{from} -> {to}");
    }
    // Skipping is covered, and its limit is not.
    let skip = |limit: u32| {
        of(&base.replace("name: imagenet-train", &format!("on_error: {{ skip: {{ limit: {limit} }} }}")))
    };
    assert_eq!(skip(1), skip(2));
}

/// What is stored for pipelines that fail at bad rows stays valid when other rows become bad.
#[test]
fn the_version_of_bad_rows_is_covered_where_they_are_skipped() {
    let f = FakeFunctions::default();
    let text = |text: &str| canonical_text(&read(text), 0, &f).unwrap();
    let fails = text("source: { range: 1 }\non_error: fail");
    let skips = text("source: { range: 1 }\non_error: skip");
    assert!(!fails.contains("bad_rows"), "{fails}");
    assert!(skips.contains(r#""bad_rows":2,"#) && skips.contains(r#""on_error":"skip""#), "{skips}");
}

#[test]
fn versions_of_what_is_used() {
    let def = read(&imagenet());
    let f = FakeFunctions::default();
    let prints = |f: &FakeFunctions| -> Vec<_> {
        prefix_fingerprints(&def, f).unwrap().into_iter().map(|p| p.fingerprint).collect()
    };
    let base = prints(&f);
    let with = |engine: &str| {
        let mut f = f.clone();
        f.engines.insert(engine.into(), "next".into());
        let now = prints(&f);
        (now[0] != base[0], now[1] != base[1])
    };
    assert_eq!(with("datafusion"), (true, true));
    assert_eq!(with("zune-jpeg"), (false, true));
    assert_eq!(with("parquet"), (false, false));
    assert_eq!(with("unheard-of"), (false, false));
    let newer = prints(&FakeFunctions { version: 2, ..f.clone() });
    // The first prefix calls no function.
    assert_eq!((newer[0] != base[0], newer[1] != base[1]), (false, true));
}

#[test]
fn the_seed_counts_where_something_draws_from_it() {
    let f = FakeFunctions::default();
    for (steps, random, seeded) in [
        ("map: { x: id }", false, false),
        ("map: { x: 'random_flip(id)' }", true, true),
        ("shuffle: 10", true, true),
        ("shuffle: { buffer: 10, seed: 1 }", true, false),
        ("take: 10", false, false),
    ] {
        let text = format!("source: {{ range: 10 }}\nsteps: [ {steps}, autocache ]");
        let def = read(&text);
        let p = &prefix_fingerprints(&def, &f).unwrap()[0];
        assert_eq!(p.random, random, "{steps}");
        assert_eq!(def.is_random(&f).unwrap(), random, "{steps}");
        let other = &prefix_fingerprints(&def.clone().with_seed(5), &f).unwrap()[0];
        assert_eq!(other.fingerprint != p.fingerprint, seeded, "{steps}");
    }
    let sample = |seed: &str| {
        read(&format!(
            "source: {{ sample: {{ datasets: [ {{ source: {{ range: 1 }} }} ], weights: [1]{seed} }} }}"
        ))
    };
    for (seed, seeded) in [("", true), (", seed: 3", false)] {
        let def = sample(seed);
        assert!(def.is_random(&f).unwrap());
        assert_eq!(
            fingerprint(&def, &f).unwrap() != fingerprint(&def.clone().with_seed(5), &f).unwrap(),
            seeded
        );
    }
}

#[test]
fn the_identity_sees_paths_hints_and_the_order_of_columns() {
    let f = FakeFunctions::default();
    let base = imagenet();
    let id = |text: &str| identity(&read(text), &f).unwrap();
    for (from, to, same) in [
        ("name: imagenet-train", "name: another", true),
        ("label >= 0", "label  >=  0", true),
        ("data/tfrecord", "data/other", false),
        ("autocache: source", "autocache: sauce", false),
        ("name: imagenet-train", "seed: 0", false),
        (
            r#"image: '"image/encoded"', label: '"image/class/label"'"#,
            r#"label: '"image/class/label"', image: '"image/encoded"'"#,
            false,
        ),
    ] {
        assert!(base.contains(from), "{from}");
        assert_eq!(id(&base) == id(&base.replace(from, to)), same, "{from} -> {to}");
    }
}

#[test]
fn functions_of_the_users_own_are_named_by_their_code_alone() {
    let f = FakeFunctions::default();
    let id = |code: &str, name: &str, payload: &str| {
        let step = format!("python: {{ kind: filter, code: '{code}', name: {name}, payload: '{payload}' }}");
        identity(&read(&format!("source: {{ range: 3 }}\nsteps: [ {step} ]")), &f).unwrap()
    };
    assert_eq!(
        id("0a", "one", "AA=="),
        id("0a", "two", "AQ=="),
        "the form that runs differs between processes"
    );
    assert_ne!(id("0a", "one", "AA=="), id("0b", "one", "AA=="));
}

/// Where clients may send functions, the fingerprint covers the functions as they were sent: a function cannot pass for
/// another user's by giving the same digest.
#[test]
fn rows_of_functions_that_others_sent_are_named_by_the_functions() {
    let names = |believes: bool, payload: &str| {
        let f = FakeFunctions { trusts_code: believes, ..FakeFunctions::default() };
        let step = format!("python: {{ kind: filter, code: '0a', name: f, payload: '{payload}' }}");
        let def = read(&format!("source: {{ range: 3 }}\nsteps: [ {step}, autocache: h ]"));
        (prefix_fingerprints(&def, &f).unwrap()[0].fingerprint, fingerprint(&def, &f).unwrap())
    };
    let (honest, forged) = ("AA==", "AQ==");
    assert_eq!(names(true, honest), names(true, forged), "who runs its own functions knows what they are");
    assert_ne!(names(false, honest).0, names(false, forged).0);
    assert_eq!(names(false, honest), names(false, honest));
    assert_eq!(names(false, honest).1, names(true, forged).1, "jobs are shared by what definitions say");
}

#[test]
fn errors_of_expressions_carry_their_place() {
    let f = FakeFunctions::default();
    let def = read("source: { zip: [ { source: { range: 1 }, steps: [ map: { a: 'nope(id)' } ] } ] }");
    let e = fingerprint(&def, &f).unwrap_err();
    assert_eq!(e.message(), "source.zip[0].steps[0].map.a: unknown function `nope`");
}

#[test]
fn the_readable_prefix() {
    let def = read(&imagenet());
    let json = prefix_json(&def, "resized").unwrap();
    let prefix = DatasetDef::from_json(&json).unwrap();
    let names: Vec<_> = prefix.stages.iter().map(|s| s.op.name()).collect();
    assert_eq!(names, ["parse_example", "map", "with_columns", "filter"]);
    assert!(
        prefix_json(&def, "nothing").unwrap_err().message().contains("its hints are `source`, `resized`")
    );
}

#[test]
fn another_seed_is_what_the_definition_with_it_says() {
    let f = FakeFunctions::default();
    let drawn = "source: { range: 9 }\nsteps: [ { shuffle: 3 }, { autocache: h } ]\n";
    let canonical = |text: &str, stages: usize| -> serde_json::Value {
        serde_json::from_str(&canonical_text(&read(text), stages, &f).unwrap()).unwrap()
    };
    let of_prefix = |text: &str| prefix_fingerprints(&read(text), &f).unwrap()[0].fingerprint;
    let (same, zero) = reseeded(&canonical(drawn, 1), 0).unwrap();
    assert_eq!((same, zero), (canonical(drawn, 1), of_prefix(drawn)));
    let seeded = format!("{drawn}seed: 7\n");
    assert_eq!(reseeded(&canonical(drawn, 1), 7).unwrap(), (canonical(&seeded, 1), of_prefix(&seeded)));
    // Nothing draws random numbers: there is only one fingerprint.
    assert_eq!(reseeded(&canonical(&imagenet(), 5), 7), None);
}

#[test]
fn rows_that_a_process_holds_are_named_as_those_in_the_definition() {
    let f = FakeFunctions::default();
    let inline = DatasetDef { source: SourceDef::Memory { ipc: "some rows".into() }, ..read(&imagenet()) };
    let held = |sha256: String| DatasetDef { source: SourceDef::InlineTable { sha256 }, ..inline.clone() };
    let same = held(content_name(b"some rows"));
    assert_eq!(fingerprint(&same, &f).unwrap(), fingerprint(&inline, &f).unwrap());
    let other = held(content_name(b"other rows"));
    assert_ne!(fingerprint(&other, &f).unwrap(), fingerprint(&inline, &f).unwrap());
    // They are sent by name.
    assert_eq!(DatasetDef::from_json(&same.to_json()).unwrap(), same);
    let e = DatasetDef::from_json_str(r#"{"source": {"memory": {"sha256": "abc"}}}"#).unwrap_err();
    assert!(e.message().starts_with("source.memory.sha256: expected 64 hexadecimal digits"), "{e}");
}

//! `caju gen`.

use std::collections::BTreeMap;
use std::path::Path;

use caju_tests::binary::{IMAGES, SHARDS, sample_images};
use caju_tests::{Pipeline, Process, caju, caju_in};
use serde_json::json;
use tempfile::tempdir;

/// Every file below a folder, by its relative path.
fn tree(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut out = BTreeMap::new();
    let mut todo = vec![folder.to_path_buf()];
    while let Some(at) = todo.pop() {
        for entry in std::fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                todo.push(path);
            } else {
                let name = path.strip_prefix(folder).unwrap().to_str().unwrap().to_string();
                out.insert(name, std::fs::read(&path).unwrap());
            }
        }
    }
    out
}

fn generate(kind: &str, out: &Path, args: &[&str]) -> caju_tests::Ended {
    let mut all = vec!["gen", kind, "--out", out.to_str().unwrap()];
    all.extend(args);
    caju(&all)
}

#[test]
fn the_same_seed_gives_the_same_bytes_whatever_the_threads() {
    let folder = tempdir().unwrap();
    for kind in ["images", "table", "text"] {
        let make = |name: &str, seed: &str, threads: &str| {
            let out = folder.path().join(format!("{kind}-{name}"));
            let args =
                ["--count", "40", "--seed", seed, "--cpu-threads", threads, "--format", "parquet,tfrecord"];
            generate(kind, &out, &args).expect_code(0);
            tree(&out)
        };
        let one = make("one", "5", "1");
        assert_eq!(one, make("again", "5", "3"), "{kind}");
        assert_ne!(one, make("other", "6", "1"), "{kind}");
    }
}

#[test]
fn formats_and_shards_lie_where_they_should() {
    let files = tree(&sample_images());
    let count = |folder: &str, ending: &str| {
        files.keys().filter(|f| f.starts_with(folder) && f.ends_with(ending)).count() as u64
    };
    assert_eq!(count("tfrecord/", ".tfrecord"), SHARDS);
    assert_eq!(count("parquet/", ".parquet"), SHARDS);
    assert_eq!(count("webdataset/", ".tar"), SHARDS);
    assert_eq!(count("files/", ".jpg"), IMAGES);
}

#[test]
fn photos_have_the_size_of_photos() {
    let files = tree(&sample_images());
    let sizes: Vec<_> =
        files.iter().filter(|(f, _)| f.ends_with(".jpg")).map(|(_, b)| b.len() as u64).collect();
    let mean = sizes.iter().sum::<u64>() / IMAGES;
    assert!((80_000..140_000).contains(&mean), "the mean is {mean} bytes");
}

#[test]
fn sto_16_what_is_there_is_not_overwritten_unasked() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("t");
    generate("table", &out, &["--count", "10"]).expect_code(0);
    let before = tree(&out);
    generate("table", &out, &["--count", "20"]).expect_code(2).expect_error(&["--overwrite"]);
    assert_eq!(before, tree(&out));
    generate("table", &out, &["--count", "20", "--overwrite"]).expect_code(0);
    assert_ne!(before, tree(&out));
}

/// What `caju gen` notes about the data is in the same folder and ends in `.json`.
#[test]
fn patterns_take_the_data_and_not_the_notes_about_it() {
    let p = Pipeline::of(json!({ "json": { "path": "t/*.json*" } }), json!([]));
    generate("table", &p.folder().join("t"), &["--count", "30", "--format", "json"]).expect_code(0);
    assert!(p.folder().join("t/_caju_gen.json").exists());
    assert_eq!(p.report(&[]).rows(), [30]);
}

#[test]
fn a_format_that_does_not_fit_the_kind() {
    let folder = tempdir().unwrap();
    let ended = generate("images", &folder.path().join("x"), &["--count", "1", "--format", "csv"]);
    ended.expect_code(2).expect_error(&["csv", "images"]);
    let ended = generate("images", &folder.path().join("x"), &["--count", "1", "--format", "parket"]);
    ended.expect_code(2);
}

fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

/// The folders below a folder, by their relative paths.
fn folders(folder: &Path) -> Vec<String> {
    let mut out = Vec::new();
    let mut todo = vec![folder.to_path_buf()];
    while let Some(at) = todo.pop() {
        for path in std::fs::read_dir(at).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_dir()) {
            out.push(path.strip_prefix(folder).unwrap().to_str().unwrap().to_string());
            todo.push(path);
        }
    }
    out.sort();
    out
}

#[test]
fn overwrite_removes_nothing_where_no_note_says_what_is_ours() {
    let folder = tempdir().unwrap();
    let d = folder.path().join("d");
    generate("table", &d.join("clicks"), &["--count", "5"]).expect_code(0);
    write(&d.join("mine/part-0-of-1.docx"), "x");
    write(&d.join("mine/c1/7.jpg"), "y");
    let before = tree(&d);
    for more in [&[][..], &["--overwrite"]] {
        let ended = generate("text", &d, &[&["--count", "2"], more].concat());
        ended.expect_code(2).expect_error(&["not empty", "_caju_gen.json", "choose another folder"]);
        assert_eq!(before, tree(&d));
    }
    // A note that is not one of ours is no leave either.
    write(&d.join("_caju_gen.json"), "{\"kind\": \"table\"}");
    generate("text", &d, &["--count", "2", "--overwrite"]).expect_code(2);
    assert_eq!(before.len() + 1, tree(&d).len());
}

#[test]
fn overwrite_removes_the_noted_data_set_and_nothing_below_or_beside_it() {
    let folder = tempdir().unwrap();
    let d = folder.path().join("d");
    let shards = ["--count", "6", "--shards", "2"];
    generate("text", &d, &[&shards[..], &["--format", "json"]].concat()).expect_code(0);
    generate("table", &d.join("clicks"), &shards).expect_code(0);
    generate("table", &d.join("csv"), &[&shards[..], &["--format", "csv"]].concat()).expect_code(0);
    for name in [
        "part-0-of-1.docx",
        "part-00000-of-00002.docx",
        "part-00000-of-00003.jsonl",
        "part-00000-of-00002.jsonl.bak",
        "json/part-00000-of-00002.jsonl",
        "mine/part-00000-of-00002.jsonl",
        "c001/000001.jpg",
    ] {
        write(&d.join(name), "mine");
    }
    let before = tree(&d);
    generate("text", &d, &["--count", "1", "--format", "json", "--overwrite"]).expect_code(0);
    let mut left = before.clone();
    left.retain(|name, _| {
        !["part-00000-of-00002.jsonl", "part-00001-of-00002.jsonl"].contains(&name.as_str())
    });
    let mut after = tree(&d);
    assert!(after.remove("part-00000-of-00001.jsonl").is_some());
    after.remove("_caju_gen.json");
    left.remove("_caju_gen.json");
    assert_eq!(left, after);
    // Nor is anything written over: a file of another hand, a data set of its own, a folder that is a link.
    let before = tree(&d);
    let refused = |formats: &str, named: &str| {
        let ended =
            generate("text", &d, &["--count", "6", "--shards", "2", "--format", formats, "--overwrite"]);
        ended.expect_code(2).expect_error(&[named, "written over"]);
        assert_eq!(before, tree(&d));
    };
    refused("json,parquet", "json/part-00000-of-00002.jsonl");
    refused("csv,parquet", "csv/part-00000-of-00002.csv");
    generate("text", &d, &["--count", "9", "--shards", "3", "--format", "csv,parquet", "--overwrite"])
        .expect_code(2)
        .expect_error(&["csv/ is a data set of its own"]);
    assert_eq!(before, tree(&d));
}

#[test]
fn overwrite_follows_no_links() {
    let folder = tempdir().unwrap();
    let (d, far) = (folder.path().join("d"), folder.path().join("far"));
    generate("text", &d, &["--count", "4", "--format", "csv,json"]).expect_code(0);
    std::fs::rename(d.join("csv"), &far).unwrap();
    std::os::unix::fs::symlink(&far, d.join("csv")).unwrap();
    generate("text", &d, &["--count", "2", "--format", "json", "--overwrite"]).expect_code(0);
    assert_eq!(tree(&far).len(), 1);
    assert!(!d.join("json").exists() && d.join("part-00000-of-00001.jsonl").exists());
}

#[test]
fn overwrite_removes_the_folders_that_it_empties() {
    let folder = tempdir().unwrap();
    let d = folder.path().join("d");
    generate("images", &d, &["--count", "8", "--format", "files,tfrecord"]).expect_code(0);
    let classes = folders(&d.join("files"));
    assert!(classes.len() > 1, "{classes:?}");
    write(&d.join("files").join(&classes[0]).join("note.txt"), "mine");
    generate("images", &d, &["--count", "1", "--format", "tfrecord", "--overwrite"]).expect_code(0);
    assert_eq!(folders(&d), ["files".to_string(), format!("files/{}", classes[0])]);
    assert_eq!(
        tree(&d).into_keys().collect::<Vec<_>>(),
        [
            "_caju_gen.json".to_string(),
            format!("files/{}/note.txt", classes[0]),
            "part-00000-of-00001.tfrecord".into()
        ]
    );
}

#[test]
fn quickstart_replaces_sample_data_in_its_own_folder_alone() {
    let home = tempdir().unwrap();
    let quickstart = |args: &[&str]| {
        let all = [&["quickstart", "--count", "1", "--epochs", "1", "--quiet"], args].concat();
        caju_in(home.path(), &all)
    };
    let of = |name: &str| home.path().join(name);
    generate("table", &of("data/quickstart"), &["--count", "5", "--format", "csv"]).expect_code(0);
    write(&of("data/quickstart/mine/part-00000-of-00001.csv"), "mine");
    quickstart(&[]).expect_code(0);
    assert!(of("data/quickstart/mine/part-00000-of-00001.csv").exists());
    assert!(!of("data/quickstart/part-00000-of-00001.csv").exists());
    assert!(of("data/quickstart/part-00000-of-00001.tfrecord").exists());

    // Elsewhere only if asked to, whatever the end of the name.
    let other = of("other/data/quickstart");
    generate("table", &other, &["--count", "5"]).expect_code(0);
    let before = tree(&other);
    let ended = quickstart(&["--dir", "other/data/quickstart"]);
    ended.expect_code(2).expect_error(&["another folder", "--overwrite"]);
    assert_eq!(before, tree(&other));
    quickstart(&["--dir", "other/data/quickstart", "--overwrite"]).expect_code(0);

    // Its own folder, but somebody else's files.
    std::fs::remove_dir_all(of("data/quickstart")).unwrap();
    write(&of("data/quickstart/part-00000-of-00001.tfrecord"), "mine");
    quickstart(&[]).expect_code(2).expect_error(&["not empty", "_caju_gen.json"]);
    assert_eq!(std::fs::read(of("data/quickstart/part-00000-of-00001.tfrecord")).unwrap(), b"mine");
}

/// Waits until a file below the folder has a name that ends so.
fn wait_for_file(folder: &Path, wanted: impl Fn(&str) -> bool) {
    let deadline = std::time::Instant::now() + caju_tests::process::TEST_TIMEOUT;
    while !folder.exists() || !listed(folder).iter().any(|name| wanted(name)) {
        assert!(std::time::Instant::now() < deadline, "nothing came into {}", folder.display());
        std::thread::yield_now();
    }
}

/// Names of all files below a folder; tolerates that they come and go.
fn listed(folder: &Path) -> Vec<String> {
    let (mut out, mut todo) = (Vec::new(), vec![folder.to_path_buf()]);
    while let Some(at) = todo.pop() {
        for path in std::fs::read_dir(at).into_iter().flatten().flatten().map(|e| e.path()) {
            if path.is_dir() {
                todo.push(path);
            } else {
                out.push(path.strip_prefix(folder).unwrap().to_str().unwrap().to_string());
            }
        }
    }
    out
}

const ENDLESS: [&str; 4] = ["--count", "100000000", "--format", "parquet,csv"];

fn start(out: &Path) -> Process {
    let mut args = vec!["gen", "table", "--out", out.to_str().unwrap()];
    args.extend(ENDLESS);
    let running = Process::caju(Path::new("/"), &args);
    wait_for_file(out, |name| name.contains("csv#"));
    running
}

#[test]
fn a_signal_ends_gen_and_leaves_nothing_of_it() {
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        let folder = tempdir().unwrap();
        let out = folder.path().join("out");
        let running = start(&out);
        running.signal(signal);
        let ended = running.wait();
        ended.expect_code(code);
        assert!(
            ended.stderr.contains(&format!("SIG{signal}")) && ended.stderr.contains("nothing"),
            "{ended:?}"
        );
        assert!(!out.exists(), "{:?}", listed(&out));
    }
    // In a folder that was there before, with a file of another hand; one object per image.
    let folder = tempdir().unwrap();
    let out = folder.path().join("out");
    generate("images", &out, &["--count", "1", "--format", "files"]).expect_code(0);
    write(&out.join("mine.txt"), "mine");
    let one = ["--cpu-threads", "1", "--format", "files", "--overwrite", "--out"];
    let args = [&["gen", "images", "--count", "100000"], &one[..]].concat();
    let running = Process::caju(folder.path(), &[&args[..], &["out"]].concat());
    wait_for_file(&out, |name| name.ends_with("000003.jpg"));
    running.signal("INT");
    running.wait().expect_code(130);
    assert_eq!(listed(&out), ["mine.txt"]);
    assert_eq!(folders(&out), [""; 0]);
}

#[test]
fn what_a_killed_gen_leaves_can_be_replaced() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("out");
    let running = start(&out);
    running.signal("KILL");
    drop(running);
    assert!(listed(&out).iter().any(|name| name.contains('#')), "{:?}", listed(&out));
    let again = ["--count", "3", "--format", "csv"];
    let ended = generate("table", &out, &again);
    ended.expect_code(2).expect_error(&["cut off", "--overwrite"]);
    generate("table", &out, &[&again[..], &["--overwrite"]].concat()).expect_code(0);
    assert_eq!(tree(&out).into_keys().collect::<Vec<_>>(), ["_caju_gen.json", "part-00000-of-00001.csv"]);
    assert_eq!(folders(&out), [""; 0]);

    // Nothing but what uploads left, as an earlier version did: that is an empty folder.
    let out = folder.path().join("old");
    for name in
        ["part-00000-of-00002.csv#1", "parquet/part-00000-of-00002.parquet#2", "files/c001/000001.jpg#1"]
    {
        write(&out.join(name), "half");
    }
    generate("table", &out, &again).expect_code(0);
    assert_eq!(tree(&out).into_keys().collect::<Vec<_>>(), ["_caju_gen.json", "part-00000-of-00001.csv"]);
}

#[test]
fn no_rows_in_formats_that_keep_their_columns() {
    for (format, source) in [("csv", "csv"), ("parquet", "parquet"), ("arrow", "arrow")] {
        let p = Pipeline::of(json!({ source: { "path": "t" } }), json!([]));
        generate("table", &p.folder().join("t"), &["--count", "0", "--format", format]).expect_code(0);
        assert_eq!(p.report(&[]).rows(), [0], "{format}");
        if format == "csv" {
            let text = std::fs::read_to_string(p.folder().join("t/part-00000-of-00001.csv")).unwrap();
            assert!(text.starts_with("label,I1,") && text.lines().count() == 1, "{text}");
        }
    }
    let folder = tempdir().unwrap();
    let out = folder.path().join("x");
    for (kind, format) in
        [("images", "tfrecord"), ("text", "webdataset"), ("images", "files"), ("table", "json")]
    {
        let ended = generate(kind, &out, &["--count", "0", "--format", &format!("parquet,{format}")]);
        ended.expect_code(2).expect_error(&["--count 0", format, "use parquet or"]);
        assert!(!out.exists());
    }
}

#[test]
fn folders_that_nobody_can_mean() {
    let home = tempdir().unwrap();
    write(&home.path().join("file"), "mine");
    let refused = |out: &str, words: &[&str]| {
        let ended = caju_in(home.path(), &["gen", "table", "--count", "1", "--overwrite", "--out", out]);
        ended.expect_code(2).expect_error(words);
        let ended = caju_in(home.path(), &["quickstart", "--count", "1", "--dir", out]);
        assert!(ended.code == Some(2) && !ended.stderr.contains("panicked"), "{out}: {ended:?}");
    };
    refused("", &["--out", "empty"]);
    refused(" ", &["--out", "empty"]);
    refused("s3:/bucket/x", &["--out", "s3://bucket/x", "./s3:/bucket/x"]);
    refused("file:/tmp/x", &["file:///tmp/x"]);
    refused("~/x", &["--out", "`~`", "./~/x"]);
    refused("file", &["file is a file", "another folder"]);
    refused("file/below", &["file is a file", "another folder"]);
    refused("/dev/null", &["/dev/null is a file", "another folder"]);
    assert_eq!(listed(home.path()), ["file"]);
    assert_eq!(folders(home.path()), [""; 0]);

    for count in ["9223372036854775808", "18446744073709551615"] {
        let ended = generate("table", &home.path().join("x"), &["--count", count]);
        ended.expect_code(2).expect_error(&["--count", "9223372036854775807"]);
    }
    assert!(!home.path().join("x").exists());
}

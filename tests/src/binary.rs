//! Finds the `caju` binary, and sample data that it made.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::UNIX_EPOCH;

use crate::process::caju_in;

/// The binary under test: `CAJU_BIN`, else the one of this build, built now so that it is never stale.
pub fn caju_binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| match std::env::var_os("CAJU_BIN") {
        Some(path) => PathBuf::from(path),
        None => build(),
    })
}

/// The reader of the rounds of chaos, of this build.
pub fn chaos_reader() -> PathBuf {
    caju_binary();
    let path = profile_folder().join("chaos-reader");
    assert!(path.exists(), "{}: cargo build --workspace --bins makes it", path.display());
    path
}

/// The folder of this build's artefacts: `target/debug`, say. Test executables lie in its `deps`.
fn profile_folder() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    exe.parent().and_then(Path::parent).unwrap().to_path_buf()
}

fn build() -> PathBuf {
    let folder = profile_folder();
    let mut cargo = Command::new(env!("CARGO"));
    // As scripts/test does.
    cargo.args(["build", "--quiet", "--workspace", "--bins", "--target-dir"]).arg(folder.parent().unwrap());
    if folder.ends_with("release") {
        cargo.arg("--release");
    }
    // The variables that cargo sets for a test of its package are removed: with them `ring`, and all that depends on it, would be
    // built again.
    let of_package = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(of_package)) {
        cargo.env_remove(name);
    }
    let status = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status().unwrap();
    assert!(status.success(), "cannot build the binary under test");
    folder.join("caju")
}

/// Sample images that all tests of a build share, in `tfrecord`, `parquet`, `webdataset` and `files` below
/// the folder: [`IMAGES`] photos in [`SHARDS`] files per format. Made once, by the binary itself.
pub fn sample_images() -> PathBuf {
    let count = IMAGES.to_string();
    let shards = SHARDS.to_string();
    sample(
        "images",
        &["--count", &count, "--shards", &shards, "--format", "tfrecord,parquet,webdataset,files"],
    )
}

/// A sample table, in `parquet`, `csv` and `json` below the folder: [`ROWS`] rows in [`SHARDS`] files.
pub fn sample_table() -> PathBuf {
    let count = ROWS.to_string();
    let shards = SHARDS.to_string();
    sample("table", &["--count", &count, "--shards", &shards, "--format", "parquet,csv,json"])
}

/// Photos in [`sample_images`].
pub const IMAGES: u64 = 60;
/// Rows in [`sample_table`].
pub const ROWS: u64 = 4000;
/// Files per format of the sample data.
pub const SHARDS: u64 = 3;

fn sample(kind: &str, args: &[&str]) -> PathBuf {
    let root = profile_folder().join("test-data");
    fs::create_dir_all(&root).unwrap();
    // Tests run as processes of their own; one makes the data, the others wait for it.
    let lock = File::create(root.join(format!("{kind}.lock"))).unwrap();
    lock.lock().unwrap();
    let meta = fs::metadata(caju_binary()).unwrap();
    let built = meta.modified().unwrap().duration_since(UNIX_EPOCH).unwrap();
    let stamp = format!("{} {} {args:?}", meta.len(), built.as_nanos());
    let (folder, stamp_file) = (root.join(kind), root.join(format!("{kind}.stamp")));
    if fs::read_to_string(&stamp_file).is_ok_and(|s| s == stamp) {
        return folder;
    }
    drop(fs::remove_file(&stamp_file));
    if folder.exists() {
        fs::remove_dir_all(&folder).unwrap();
    }
    let mut all = vec!["gen", kind, "--out", folder.to_str().unwrap(), "--quiet"];
    all.extend(args);
    caju_in(&root, &all).expect_code(0);
    fs::write(stamp_file, stamp).unwrap();
    folder
}

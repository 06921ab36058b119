//! The examples that come with the project run unchanged, and the README shows the same code.

use std::path::{Path, PathBuf};

use caju_tests::caju_in;
use tempfile::tempdir;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// Lines that mean something.
fn bare(yaml: &str) -> Vec<&str> {
    yaml.lines().filter(|l| !l.trim_start().starts_with('#') && !l.trim().is_empty()).collect()
}

#[test]
fn every_example_runs_on_the_data_that_it_names() {
    let folder = tempdir().unwrap();
    let pipelines = folder.path().join("examples/pipelines");
    std::fs::create_dir_all(&pipelines).unwrap();
    for file in std::fs::read_dir(root().join("examples/pipelines")).unwrap() {
        let file = file.unwrap();
        let text = std::fs::read_to_string(file.path()).unwrap();
        std::fs::write(pipelines.join(file.file_name()), &text).unwrap();
        // The comment on top says how the data is made; a little of it will do.
        for line in text.lines().filter_map(|l| l.strip_prefix("#   caju gen ")) {
            let mut args: Vec<_> = ["gen"].into_iter().chain(line.split_whitespace()).collect();
            let count = args.iter().position(|a| *a == "--count").unwrap();
            args[count + 1] = "40";
            args.push("--overwrite");
            caju_in(folder.path(), &args).expect_code(0);
        }
        let path = format!("examples/pipelines/{}", file.file_name().to_str().unwrap());
        if path.ends_with("quickstart.yaml") {
            let out = ["gen", "images", "--out", "data/quickstart", "--count", "40", "--format", "tfrecord"];
            caju_in(folder.path(), &out).expect_code(0);
        }
        caju_in(folder.path(), &["check", &path]).expect_code(0);
        caju_in(folder.path(), &["run", &path]).expect_code(0);
    }
}

#[test]
fn the_readme_shows_the_quickstart() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let shown = readme.split_once("```yaml").and_then(|(_, rest)| rest.split_once("```")).unwrap().0;
    let file = std::fs::read_to_string(root().join("examples/pipelines/quickstart.yaml")).unwrap();
    assert_eq!(bare(shown), bare(&file));
}

//! Pipeline files and reports.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::process::{Ended, caju_in};

/// A pipeline file in a folder of its own.
#[derive(Debug)]
pub struct Pipeline {
    folder: TempDir,
}

impl Pipeline {
    /// Writes a definition. JSON is YAML.
    pub fn new(definition: &Value) -> Self {
        Self::text(&serde_json::to_string_pretty(definition).unwrap())
    }

    /// Writes the text of a pipeline file unchanged.
    pub fn text(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("pipeline.yaml"), text).unwrap();
        Self { folder }
    }

    /// A source and steps.
    pub fn of(source: Value, steps: Value) -> Self {
        Self::new(&json!({ "source": source, "steps": steps }))
    }

    /// The file.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("pipeline.yaml")
    }

    /// The folder, for further files.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Puts a file into its folder.
    #[must_use]
    pub fn with_file(self, name: &str, bytes: &[u8]) -> Self {
        std::fs::write(self.folder.path().join(name), bytes).unwrap();
        self
    }

    /// `caju check` on it.
    pub fn check(&self) -> Ended {
        caju_in(self.folder(), &["check", "pipeline.yaml"])
    }

    /// `caju run` on it.
    pub fn run(&self, args: &[&str]) -> Ended {
        let mut all = vec!["run", "pipeline.yaml"];
        all.extend(args);
        caju_in(self.folder(), &all)
    }

    /// `caju run` on it with a report, which must succeed.
    #[track_caller]
    pub fn report(&self, args: &[&str]) -> Report {
        let mut all = vec!["--report", "report.json"];
        all.extend(args);
        self.run(&all).expect_code(0);
        Report::load(&self.folder().join("report.json"))
    }
}

/// A report, `caju.run/v1`.
#[derive(Debug, Clone)]
pub struct Report(pub Value);

impl Report {
    /// Reads a report.
    #[track_caller]
    pub fn load(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        Self(serde_json::from_str(&text).unwrap())
    }

    /// One value of each epoch.
    pub fn epochs(&self, key: &str) -> Vec<Value> {
        self.0["epochs"].as_array().unwrap().iter().map(|e| e[key].clone()).collect()
    }

    /// Rows of each epoch.
    pub fn rows(&self) -> Vec<u64> {
        self.epochs("rows").iter().map(|v| v.as_u64().unwrap()).collect()
    }

    /// Batches of each epoch.
    pub fn batches(&self) -> Vec<u64> {
        self.epochs("batches").iter().map(|v| v.as_u64().unwrap()).collect()
    }

    /// How many splits of an epoch were computed, stored, and read.
    pub fn splits(&self, epoch: usize) -> [u64; 3] {
        let of = &self.epochs("splits")[epoch];
        ["compute", "put", "get"].map(|mode| of[mode].as_u64().unwrap())
    }

    /// The checksum of each epoch's rows.
    pub fn checksums(&self) -> Vec<String> {
        self.epochs("rows_checksum").iter().map(|v| v.as_str().unwrap().to_string()).collect()
    }
}

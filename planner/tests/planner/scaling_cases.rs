//! The golden numbers of workers, shared by the test that compares them and the example that rewrites them.

use std::path::PathBuf;

use caju_planner::{Profile, Scaling, WorkerLimits, scale};

/// The upper limit of every case: small, because an answer lists every number.
const MAX_WORKERS: u64 = 12;

/// One profile, and the file that holds the answer.
pub(crate) struct Case {
    /// The profile's name.
    pub(crate) name: String,
    /// The profile's file.
    pub(crate) profile: PathBuf,
    /// The answer's file.
    pub(crate) scaling: PathBuf,
}

/// Every `NAME.profile.json`.
pub(crate) fn cases() -> Vec<Case> {
    let dir = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden_scaling"));
    let mut names: Vec<String> = std::fs::read_dir(&dir)
        .expect("the folder of golden scalings")
        .filter_map(|e| e.ok()?.file_name().to_str()?.strip_suffix(".profile.json").map(str::to_owned))
        .collect();
    names.sort();
    let case = |name: String| Case {
        profile: dir.join(format!("{name}.profile.json")),
        scaling: dir.join(format!("{name}.scaling.json")),
        name,
    };
    names.into_iter().map(case).collect()
}

impl Case {
    /// The profile.
    pub(crate) fn read(&self) -> Profile {
        let text = std::fs::read_to_string(&self.profile).expect("a profile");
        Profile::from_json(&text).expect("a valid profile")
    }

    /// The answer.
    pub(crate) fn scale(&self) -> Scaling {
        scale(&self.read(), WorkerLimits::new(1, MAX_WORKERS).expect("limits")).expect("an answer")
    }

    /// The answer's bytes.
    pub(crate) fn bytes(&self) -> String {
        self.scale().to_json() + "\n"
    }
}

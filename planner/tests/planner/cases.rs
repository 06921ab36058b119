//! The golden plans, shared by the test that compares them and the example that rewrites them.

use std::path::PathBuf;

use caju_planner::{Policy, Profile, plan};

/// One profile under one policy, and the file that holds the decision.
pub(crate) struct Case {
    /// The profile's file.
    pub(crate) profile: PathBuf,
    /// The policy.
    pub(crate) policy: &'static str,
    /// The decision's file.
    pub(crate) decision: PathBuf,
}

/// Where they are: with the end-to-end tests, which decide them once more with the real binary.
pub(crate) fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden_plans"))
}

/// Every case: each `NAME.profile.json` under `auto`, Figure 7 also under `cachew`.
pub(crate) fn cases() -> Vec<Case> {
    let dir = folder();
    let mut names: Vec<String> = std::fs::read_dir(&dir)
        .expect("the folder of golden plans")
        .filter_map(|e| e.ok()?.file_name().to_str()?.strip_suffix(".profile.json").map(str::to_owned))
        .collect();
    names.sort();
    let mut out = Vec::new();
    for name in names {
        let profile = dir.join(format!("{name}.profile.json"));
        out.push(Case {
            profile: profile.clone(),
            policy: "auto",
            decision: dir.join(format!("{name}.decision.json")),
        });
        if name.starts_with("figure7-") {
            let decision = dir.join(format!("{name}.cachew.decision.json"));
            out.push(Case { profile, policy: "cachew", decision });
        }
    }
    out
}

impl Case {
    /// The decision's bytes.
    pub(crate) fn decide(&self) -> String {
        let text = std::fs::read_to_string(&self.profile).expect("a profile");
        let profile = Profile::from_json(&text).unwrap_or_else(|e| panic!("{}: {e}", self.profile.display()));
        let policy: Policy = self.policy.parse().expect("a policy");
        plan(&profile, &policy).expect("a decision").to_json() + "\n"
    }
}

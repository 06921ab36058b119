//! Any bytes as a profile: refused with one line, or decided on by every policy.

use caju_planner::{Decision, Policy, Profile, plan};

pub(crate) fn one(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match Profile::from_json(text) {
        Err(e) => assert!(!e.message().is_empty() && !e.message().contains('\n'), "{e}"),
        Ok(profile) => {
            for policy in ["compute", "source", "full", "cachew", "auto"] {
                let policy: Policy = policy.parse().expect("a policy");
                let decision = plan(&profile, &policy).expect("a valid profile has a decision");
                let again = Decision::from_json(&decision.to_json()).expect("a decision reads back");
                assert_eq!(again.choice, decision.choice);
                assert!(!decision.to_text().is_empty());
            }
        }
    }
}

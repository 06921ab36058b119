//! Any bytes as a profile: refused with one line, or decided on by every policy.

use caju_planner::{Decision, Profile, plan, policy_by_name};

pub(crate) fn one(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match Profile::from_json(text) {
        Err(e) => assert!(!e.message().is_empty() && !e.message().contains('\n'), "{e}"),
        Ok(profile) => {
            for policy in ["compute", "source", "full", "cachew", "auto"] {
                let policy = policy_by_name(policy).expect("a policy");
                let decision = plan(&profile, policy.as_ref()).expect("a valid profile has a decision");
                let again = Decision::from_json(&decision.to_json()).expect("a decision reads back");
                assert_eq!(again.choice, decision.choice);
                assert!(!decision.to_text().is_empty());
            }
        }
    }
}

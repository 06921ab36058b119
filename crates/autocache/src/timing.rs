//! When a decision is made: whether observations are conclusive, and how long is waited for more.

use std::collections::VecDeque;

use caju_planner::{
    self as planner, Choice, Decision, Hint, Margin, Policy, Profile, margins, probe_error_loss,
};
use caju_types::Result;

use crate::encoding::Encoding;
use crate::hint::HintDef;
use crate::probes;
use crate::profile_builder::Measurements;

/// Seconds of an epoch before which nothing is decided: shorter measurements show the start-up, not the work.
const MIN_ELAPSED_S: f64 = 0.9;
/// Seconds of an epoch after which the best choice so far is taken, conclusive or not.
const DECISION_TIMEOUT_S: f64 = 20.0;
/// The fraction of an epoch's splits after which the best choice so far is taken: rows that go by cannot be stored in this
/// epoch any more.
const MAX_FRACTION_BEGUN: f64 = 0.08;
/// Seconds that a decision waits for every hint and encoding to be probed.
const PROBE_TIMEOUT_S: f64 = 5.0;
/// How many times longer every rival must take before a choice is conclusive while encodings are not probed. The missing
/// ones then change no more than how the rows of the chosen hint are written.
const CLEAR_LEAD: f64 = 1.3;
/// The relative error of the costs of a single probe. The mean of several has the error over the root of their number.
const PROBE_ERROR: f64 = 0.35;
/// Probability that a probe's error flips the choice where an error of [`PROBE_ERROR`] can. The error must be that large, and in
/// favour of the rival; each is taken as likely as not.
const PROBE_ERROR_PROBABILITY: f64 = 0.25;
/// The number of probes of one encoding after which further ones give no new information.
const MAX_PROBES: usize = 3;
/// Observations that are kept; the newest count.
const MAX_OBSERVATIONS: usize = 12;

/// Decisions by disjoint sample windows of one epoch, each as if there were nothing else.
#[derive(Debug, Default)]
pub(crate) struct Observations {
    last: Measurements,
    decisions: VecDeque<Decision>,
}

impl Observations {
    /// Adds the sample window since the last observation, as far as a profile can be made of it.
    pub(crate) fn add(
        &mut self,
        measured: &Measurements,
        decide: impl FnOnce(&Measurements) -> Result<Decision>,
    ) {
        let Some(window) = measured.window_since(&self.last) else { return };
        if let Ok(decision) = decide(&window) {
            self.decisions.push_back(decision);
        }
        if self.decisions.len() > MAX_OBSERVATIONS {
            self.decisions.pop_front();
        }
        self.last = measured.clone();
    }

    /// How far the rivals of a choice are behind, by all observations.
    pub(crate) fn margins(&mut self, choice: &Choice) -> Vec<Margin> {
        margins(choice, self.decisions.make_contiguous())
    }

    /// Whether the observations agree that nothing else comes near the decision.
    pub(crate) fn are_conclusive(
        &self,
        margins: &[Margin],
        decision: &Decision,
        measured: &Measurements,
    ) -> bool {
        let lead = if measured.all_probed() { 1.0 } else { CLEAR_LEAD };
        // A rival that no observation could weigh is not behind.
        let chosen = decision.choice.hint();
        let weighed = |r: Option<&str>| r == chosen || margins.iter().any(|m| m.rival.as_deref() == r);
        let mut rivals = decision.options.iter().filter(|o| o.feasible && o.horizon_s.is_some());
        let all = rivals.all(|o| weighed(o.choice.hint()));
        all && !self.decisions.is_empty() && margins.iter().all(|m| m.is_settled(lead))
    }
}

/// Whether a decision can be tried at all: everything was probed, or the time for probing is over.
pub(crate) fn may_try(measured: &Measurements, hints: &[HintDef]) -> bool {
    measured.is_complete(hints) || is_probing_over(measured)
}

/// Whether the minimum time has passed, and the choice is conclusive or the time for deciding is over.
pub(crate) fn is_due(measured: &Measurements, conclusive: bool) -> bool {
    measured.elapsed_s() >= MIN_ELAPSED_S && (conclusive || is_time_over(measured))
}

/// Whether hints that were not probed are waited for no longer. In an epoch of few splits a large fraction begins at once.
pub(crate) fn is_probing_over(measured: &Measurements) -> bool {
    measured.can_be_weighed() && measured.elapsed_s() >= PROBE_TIMEOUT_S && is_time_over(measured)
}

/// Whether the time for deciding is over.
fn is_time_over(measured: &Measurements) -> bool {
    let elapsed = measured.elapsed_s();
    let probed = measured.all_probed() || elapsed >= PROBE_TIMEOUT_S;
    elapsed >= DECISION_TIMEOUT_S
        || probed && measured.fraction_begun().is_some_and(|s| s >= MAX_FRACTION_BEGUN)
}

/// Whether to wait until the encodings were probed once more. By the possible error of the probes another choice may save
/// more in the whole horizon than it costs to compute the remainder of this epoch, whose rows are then stored in the next.
pub(crate) fn is_another_probe_worth_it(
    measured: &Measurements,
    profile: &Profile,
    decision: &Decision,
    policy: &Policy,
) -> bool {
    let counts = probes::counts(&measured.tasks);
    let of = |hint: &str, format: &str, compression: &str| {
        let encoding = Encoding::named(format, compression).ok();
        encoding.and_then(|encoding| counts.get(&(hint, encoding))).copied().unwrap_or(0)
    };
    let error = |hint: &Hint, e: &planner::Encoding| {
        PROBE_ERROR / (of(&hint.name, &e.format, &e.compression).max(1) as f64).sqrt()
    };
    let Ok(Some(stake)) = probe_error_loss(profile, &decision.choice, policy, error) else { return false };
    // Computing was measured with every row.
    let count = |choice: &Choice| match choice {
        Choice::Compute => MAX_PROBES,
        Choice::Materialize { hint, format, compression, .. } => of(hint, format, compression),
    };
    let least = count(&decision.choice).min(count(&stake.rival));
    let remainder = 1.0 - measured.fraction_begun().unwrap_or(0.0).min(1.0);
    let cost_s = decision.compute().and_then(|o| o.epoch_s).unwrap_or(0.0) * remainder;
    (1..MAX_PROBES).contains(&least) && stake.seconds * PROBE_ERROR_PROBABILITY > cost_s
}

#[cfg(test)]
mod tests {
    use caju_planner::plan;

    use super::*;
    use crate::report::{ProbeReport, TaskReport};

    /// The fraction is soon begun in a short epoch, and what compresses best is probed last.
    #[test]
    fn probes_are_waited_for_within_a_bound() {
        let after = |elapsed_s, splits_computed, all_probed| {
            let task = TaskReport { elapsed_s, splits_computed, all_probed, ..Default::default() };
            Measurements { tasks: vec![task], splits_total: 100, ..Default::default() }
        };
        assert!(!is_time_over(&after(1.0, 7, true)));
        assert!(is_time_over(&after(1.0, 8, true)));
        assert!(!is_time_over(&after(1.0, 40, false)), "something may be better");
        assert!(is_time_over(&after(5.0, 40, false)), "but not for long");
        assert!(is_time_over(&after(20.0, 1, false)));
    }

    /// `lz4` reads by a tenth faster than `zstd`, by a single probe of a few rows.
    #[test]
    fn what_one_probe_cannot_tell_apart_is_probed_again_where_that_pays() {
        let encoding = |compression: &str, decode: f64| {
            serde_json::json!({"format": "arrow", "compression": compression, "bytes_per_row": 1000,
                "encode_cpu_s_per_row": 1e-5, "decode_cpu_s_per_row": decode})
        };
        let profile = |epochs: u64, lz4: f64, zstd: f64| {
            let profile = serde_json::json!({
                "schema": "caju.profile/v1", "cluster": {"workers": 1, "cores_per_worker": 2},
                "horizon": {"epochs": epochs}, "source": {"rows": 100_000},
                "stages": [{"name": "read", "io_bytes_per_row": 100, "cpu_s_per_row": 1e-3,
                    "service_s_per_row": 1e-3, "out_rows_per_row": 1, "out_bytes_per_row": 100}],
                "hints": [{"name": "a", "after_stage": "read", "split_local": true,
                    "encodings": [encoding("lz4", lz4), encoding("zstd", zstd)]}]
            });
            Profile::from_json(&profile.to_string()).unwrap()
        };
        let probed = |times: usize| {
            let probe = |e: &str| ProbeReport {
                hint: "a".into(),
                encoding: e.parse().unwrap(),
                ..Default::default()
            };
            let probes = (0..times).flat_map(|_| [probe("arrow/lz4"), probe("arrow/zstd")]).collect();
            let task = TaskReport { splits_computed: 10, probes, ..Default::default() };
            Measurements { tasks: vec![task], splits_total: 100, ..Default::default() }
        };
        let waits = |profile: &Profile, times| {
            let decision = plan(profile, &Policy::Auto).unwrap();
            is_another_probe_worth_it(&probed(times), profile, &decision, &Policy::Auto)
        };
        let close = profile(100, 1e-4, 1.1e-4);
        assert!(waits(&close, 1));
        assert!(!waits(&close, MAX_PROBES), "more probes tell nothing new");
        assert!(!waits(&close, 0), "nothing was probed");
        assert!(!waits(&profile(3, 1e-4, 1.1e-4), 1), "that would cost more than it saves");
        assert!(!waits(&profile(100, 1e-4, 3e-4), 1), "nothing is in doubt");
    }
}

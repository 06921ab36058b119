//! What each policy would have cost by other people's measurements: the golden plans whose options were
//! measured, as a table. Shared by the test that compares it and the example that rewrites it.

use std::fmt::Write as _;
use std::path::PathBuf;

use caju_planner::{Choice, Decision, Profile, format_rate, plan};

use crate::cases;

/// The policies of the table.
pub(crate) const POLICIES: [&str; 2] = ["auto", "cachew"];

/// One measured profile, replayed.
#[derive(Debug)]
pub(crate) struct Replay {
    /// The golden plan's name.
    pub(crate) name: String,
    /// Every measured option: its name, the predicted and the measured rate.
    pub(crate) options: Vec<(String, f64, f64)>,
    /// The option that was fastest.
    pub(crate) best: usize,
    /// The option that each of [`POLICIES`] takes.
    pub(crate) taken: [usize; 2],
}

impl Replay {
    /// The share of time that a policy loses against the best measured option.
    pub(crate) fn regret(&self, policy: usize) -> f64 {
        self.options[self.best].2 / self.options[self.taken[policy]].2 - 1.0
    }
}

/// The table's file.
pub(crate) fn file() -> PathBuf {
    cases::folder().join("regret.txt")
}

/// Every golden plan with measured options whose name begins so, in the order of names.
pub(crate) fn replays(prefix: &str) -> Vec<Replay> {
    let mut out = Vec::new();
    for case in cases::cases() {
        let name = case.profile.file_name().and_then(|n| n.to_str()).expect("a file name");
        let name = name.trim_end_matches(".profile.json").to_owned();
        if case.policy == "auto" && name.starts_with(prefix) {
            let text = std::fs::read_to_string(&case.profile).expect("a profile");
            let profile = Profile::from_json(&text).expect("a valid profile");
            out.extend((!profile.measured.is_empty()).then(|| replay(name, &profile)));
        }
    }
    out
}

fn replay(name: String, profile: &Profile) -> Replay {
    let decide =
        |policy: &str| -> Decision { plan(profile, &policy.parse().expect("a policy")).expect("a decision") };
    let decisions = POLICIES.map(decide);
    let measured: Vec<_> = (decisions[0].options.iter())
        .filter_map(|o| Some((o.choice.clone(), o.rows_per_s?, profile.measured_rate(&o.choice)?)))
        .collect();
    let best = (0..measured.len()).max_by(|&a, &b| measured[a].2.total_cmp(&measured[b].2));
    let taken = decisions.map(|d| measured.iter().position(|m| m.0 == d.choice).expect("measured"));
    let label = |c: &Choice| match c {
        Choice::Compute => "compute".to_owned(),
        Choice::Materialize { hint, .. } => hint.clone(),
    };
    let options = measured.iter().map(|m| (label(&m.0), m.1, m.2)).collect();
    Replay { name, options, best: best.expect("an option"), taken }
}

/// The table.
pub(crate) fn table() -> String {
    let mut out =
        String::from("Regret against the best measured option; rates in rows/s of a steady epoch.\n");
    for (prefix, title) in
        [("figure7-", "Cachew (ATC'22), Figure 7"), ("presto-", "PRESTO (SIGMOD'22), ImageNet")]
    {
        let all = replays(prefix);
        let _ = write!(
            out,
            "\n{title}\n{:<21}{:<22}{:<22}{:>8}   {:<22}{:>8}\n",
            "profile", "best", "auto", "regret", "cachew", "regret"
        );
        for r in &all {
            let shown = |i: usize| format!("{} {}", r.options[i].0, format_rate(r.options[i].2));
            let percent = |p: usize| format!("{:.2} %", r.regret(p) * 100.0);
            let _ = writeln!(
                out,
                "{:<21}{:<22}{:<22}{:>8}   {:<22}{:>8}",
                r.name,
                shown(r.best),
                shown(r.taken[0]),
                percent(0),
                shown(r.taken[1]),
                percent(1)
            );
        }
        for (what, of) in [("mean", mean as fn(&[Replay], usize) -> f64), ("worst", worst)] {
            let [auto, cachew] = [of(&all, 0) * 100.0, of(&all, 1) * 100.0];
            let (auto, cachew) = (format!("{auto:.2} %"), format!("{cachew:.2} %"));
            let _ = writeln!(out, "{what:<65}{auto:>8}   {:<22}{cachew:>8}", "");
        }
        out += "predicted / measured of each option\n";
        for r in &all {
            let one = |(name, predicted, measured): &(String, f64, f64)| {
                format!("{name} {} / {}", format_rate(*predicted), format_rate(*measured))
            };
            let all: Vec<_> = r.options.iter().map(one).collect();
            let _ = writeln!(out, "{:<21}{}", r.name, all.join(", "));
        }
    }
    out
}

/// The mean regret of a policy.
pub(crate) fn mean(all: &[Replay], policy: usize) -> f64 {
    all.iter().map(|r| r.regret(policy)).sum::<f64>() / all.len() as f64
}

/// The largest regret of a policy.
pub(crate) fn worst(all: &[Replay], policy: usize) -> f64 {
    all.iter().map(|r| r.regret(policy)).fold(0.0, f64::max)
}

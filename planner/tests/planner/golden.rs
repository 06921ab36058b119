//! Recorded profiles and their decisions, byte for byte.

use caju_planner::{Choice, Decision, Model, Policy, Profile, Sharing, plan};

use crate::cases::{Case, cases};
use crate::large;

/// To change a golden decision on purpose: `cargo run -p caju-planner --example bless`, and read the diff.
#[test]
fn golden_plans() {
    let all = cases();
    assert!(all.len() >= 30, "{} cases", all.len());
    let mut changed = Vec::new();
    for case in all {
        let new = case.decide();
        assert_eq!(new, case.decide(), "the same profile gives the same bytes");
        if std::fs::read_to_string(&case.decision).unwrap_or_default() != new {
            changed.push(case.decision.display().to_string());
        }
    }
    assert!(
        changed.is_empty(),
        "these decisions changed; if on purpose, run the example `bless`: {changed:#?}"
    );
}

fn decision(name: &str) -> Decision {
    let case: Case =
        cases().into_iter().find(|c| c.decision.ends_with(format!("{name}.decision.json"))).unwrap();
    Decision::from_json(&case.decide()).unwrap()
}

fn choice(name: &str) -> String {
    match decision(name).choice {
        Choice::Compute => "compute".into(),
        Choice::Materialize { hint, format, compression, fraction } => {
            format!("{hint} {format}/{compression} {fraction}")
        }
    }
}

/// What the golden plans are for, so that a blessed mistake still fails.
#[test]
fn golden_choices() {
    for (name, want) in [
        ("design-example", "source arrow/none 1"),
        ("presto-imagenet-hdd", "resized arrow/none 1"),
        ("presto-imagenet-ssd", "resized arrow/none 1"),
        ("compressed-encoding-wins", "resized arrow/zstd 1"),
        ("fraction-under-budget", "resized arrow/none 0.497554338"),
        ("whole-or-nothing", "compute"),
        ("no-budget", "compute"),
        ("consumer-bound", "compute"),
        ("network-bound", "compute"),
        ("hit-slower-than-computing", "compute"),
        ("hit-in-one-epoch", "resized arrow/none 1"),
        ("hit-in-part", "resized arrow/none 1"),
        ("hit-in-part-one-epoch", "resized arrow/none 0.4"),
        ("sleep-bound-stage", "looked-up arrow/none 1"),
        ("random-above-hint", "cropped arrow/none 1"),
        ("single-epoch", "compute"),
        ("several-jobs", "resized arrow/none 1"),
        ("tie-stores-less", "compute"),
        ("unknown-horizon", "resized arrow/none 1"),
        ("no-hints", "compute"),
        ("no-rows", "compute"),
        ("sharing-at-the-hint", "compute"),
        ("sharing-below-the-hint", "decoded arrow/zstd 1"),
    ] {
        assert_eq!(choice(name), want, "{name}: {}", decision(name).reason);
    }
    let random = decision("random-above-hint");
    assert_eq!(random.chosen().unwrap().freezes_random, Some(true));
    assert!(random.reason.contains("`crop` are frozen"), "{}", random.reason);
    assert!(decision("consumer-bound").reason.contains("the consumer"));
    assert!(decision("network-bound").reason.contains("the network"));
    assert!(decision("unknown-horizon").reason.contains("10 epochs (assumed)"));
    assert_eq!(decision("sleep-bound-stage").compute().unwrap().bottleneck, "stage:lookup");
    let none = decision("no-budget");
    let infeasible = none.options.iter().find(|o| !o.feasible).unwrap();
    assert_eq!((infeasible.rows_per_s, infeasible.epoch_s, infeasible.horizon_s), (None, None, None));
    assert!(none.to_json().contains("\"rows_per_s\": null"), "{}", none.to_json());
}

/// Jobs that share rows are one computation: what one job alone would store, eight jobs need not.
#[test]
fn jobs_that_share_count_as_one() {
    for name in ["sharing-at-the-hint", "sharing-below-the-hint"] {
        let case = cases().into_iter().find(|c| c.profile.ends_with(format!("{name}.profile.json"))).unwrap();
        let mut profile = Profile::from_json(&std::fs::read_to_string(&case.profile).unwrap()).unwrap();
        let shared = decision(name);
        assert!(shared.reason.starts_with("8 jobs share one computation up to `"), "{}", shared.reason);
        profile.sharing = None;
        let alone = plan(&profile, &Policy::Auto).unwrap();
        assert!(alone.choice != Choice::Compute, "{}", alone.reason);
        let rate = |d: &Decision| d.compute().unwrap().rows_per_s.unwrap();
        // A row of each of eight jobs: 2.02 ms for all and 1 ms each, or 3.02 ms for all. Apart it would be 24.16 ms.
        let cpu_ms = if name == "sharing-at-the-hint" { 2.02 + 8.0 } else { 3.02 };
        assert!((rate(&shared) / (8000.0 / cpu_ms) - 1.0).abs() < 1e-6, "{name}: {}", rate(&shared));
        assert!((rate(&alone) / (8000.0 / 3.02) - 1.0).abs() < 1e-6, "{name}: {}", rate(&alone));
        // One job that shares with nobody is a job alone.
        profile.sharing = Some(Sharing { jobs: 1, after_stage: "crop".into() });
        assert_eq!(plan(&profile, &Policy::Auto).unwrap(), alone);
    }
}

/// PRESTO's table comes out of its derived profile, row by row.
#[test]
fn presto_rates() {
    for (name, want) in [
        ("presto-imagenet-hdd", &[107.0, 962.0, 744.0, 1790.0, 577.0][..]),
        ("presto-imagenet-ssd", &[588.0, f64::NAN, f64::NAN, 2123.0, 798.0][..]),
    ] {
        let options = decision(name).options;
        for (o, want) in options.iter().zip(want) {
            let got = o.rows_per_s.unwrap();
            assert!(want.is_nan() || (got / want - 1.0).abs() < 1e-3, "{name}: {got} for {want}");
        }
    }
}

/// The order of the fields is part of the format.
#[test]
fn fields_in_order() {
    let json = decision("design-example").to_json();
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    let keys = |v: &serde_json::Value| v.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&value), ["schema", "policy", "choice", "options", "reason"]);
    assert_eq!(keys(&value["choice"]), ["kind", "hint", "format", "compression", "fraction"]);
    let rest = ["rows_per_s", "bottleneck", "epoch_s", "horizon_s", "snapshot_bytes", "feasible", "why"]
        .map(str::to_owned);
    let compute = [vec!["kind".to_owned()], rest.to_vec()].concat();
    assert_eq!(keys(&value["options"][0]), compute);
    let stored = ["kind", "hint", "format", "compression", "fraction", "freezes_random"].map(str::to_owned);
    assert_eq!(keys(&value["options"][1]), [stored.to_vec(), rest.to_vec()].concat());
}

/// A table has a line per option and one mark.
#[test]
fn text_is_a_table() {
    for case in cases() {
        let decision = Decision::from_json(&case.decide()).unwrap();
        let text = decision.to_text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2 * decision.options.len() + 6, "{text}");
        assert_eq!(lines.iter().filter(|l| l.starts_with("* ")).count(), 1, "{text}");
        println!("{}\n{text}", case.profile.file_name().unwrap().display());
    }
}

/// Ten thousand stages, a hundred hints, ten encodings: the work is the sum of the three, not their product.
#[test]
fn work_is_linear() {
    let profile = large::profile(10_000, 100, 10);
    let model = Model::new(&profile);
    assert_eq!(model.candidates().len(), 1001);
    assert!(model.visits() <= 2 * 10_000 + 2 * 1000 + 1, "{}", model.visits());
    let text = profile.to_json();
    assert_eq!(Profile::from_json(&text).unwrap().stages.len(), 10_000);
    let decision = caju_planner::plan(&profile, &caju_planner::Policy::Auto).unwrap();
    assert_eq!(decision.options.len(), 1001);
}

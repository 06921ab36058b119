//! Policies and the model by hand-made numbers.

use caju_planner::{Choice, Decision, Existing, POLICIES, Policy, Profile, gluster_read_ms, plan};

fn example() -> Profile {
    Profile::from_json(include_str!("../../../tests/golden_plans/design-example.profile.json")).unwrap()
}

fn decide(p: &Profile, policy: &str) -> Decision {
    plan(p, &policy.parse().unwrap()).unwrap()
}

fn near(a: Option<f64>, b: f64) {
    let a = a.unwrap();
    assert!((a / b - 1.0).abs() < 1e-8, "{a} for {b}");
}

/// The decision on the golden profile `design-example`, computed by hand.
#[test]
fn design_example() {
    let d = decide(&example(), "auto");
    let (compute, source) = (&d.options[0], &d.options[1]);
    near(compute.rows_per_s, 4e8 / 110_000.0);
    near(compute.epoch_s, 500_400.0 * 110_000.0 / 4e8);
    near(compute.horizon_s, 90.0 * 500_400.0 * 110_000.0 / 4e8);
    assert_eq!(compute.bottleneck, "source_store");
    near(source.rows_per_s, 5.7e8 / 110_100.0);
    let (write, read) = (500_400.0 * 110_100.0 / 4e8, 500_400.0 * 110_100.0 / 5.7e8);
    near(source.horizon_s, write + 89.0 * read);
    assert_eq!((source.bottleneck.as_str(), source.snapshot_bytes), ("cache_store", 55_094_040_000));
    assert_eq!(d.break_even_epoch(source), Some(2));
    assert_eq!(d.break_even_epoch(compute), None);
    assert_eq!(d.chosen(), Some(source));
}

/// Two encodings that take the same bytes are read as fast from a store that is the limit: the one that leaves the cores in
/// peace is taken, though the other is a thousandth smaller and named first.
#[test]
fn of_equals_the_one_with_more_room_is_taken() {
    let mut p = example();
    let hint = &mut p.hints[0];
    hint.encodings.truncate(1);
    let (cores, bytes) =
        (p.cluster.cores_per_worker * p.cluster.workers as f64, hint.encodings[0].bytes_per_row);
    let at_the_limit = bytes / p.cache_store.read_bytes_per_s.unwrap() * cores;
    let mut busy = hint.encodings[0].clone();
    let used: f64 = p.stages.iter().map(|s| s.cpu_s_per_row).sum();
    let room = (at_the_limit - used).max(0.0);
    hint.encodings[0].decode_cpu_s_per_row = 0.0;
    busy.format = "parquet".into();
    busy.bytes_per_row *= 0.999;
    busy.decode_cpu_s_per_row = room * 0.99;
    hint.encodings.insert(0, busy);
    let d = decide(&p, "auto");
    let rates: Vec<_> =
        d.options[1..].iter().map(|o| (o.bottleneck.as_str(), o.rows_per_s.unwrap())).collect();
    assert!(rates.iter().all(|(limit, _)| *limit == "cache_store") && rates[0].1 > rates[1].1, "{rates:?}");
    assert_eq!(d.chosen(), Some(&d.options[2]), "{}", d.reason);
    // Nearly as busy is as good: then the first one named.
    p.hints[0].encodings[1].decode_cpu_s_per_row = room * 0.97;
    let d = decide(&p, "auto");
    assert_eq!(d.chosen(), Some(&d.options[1]), "{}", d.reason);
    p.hints[0].encodings.reverse();
    let d = decide(&p, "auto");
    assert_eq!(d.chosen(), Some(&d.options[1]), "{}", d.reason);
    // By more than a tie smaller is smaller.
    p.hints[0].encodings[1].bytes_per_row *= 0.97;
    let d = decide(&p, "auto");
    assert_eq!(d.chosen(), Some(&d.options[2]), "{}", d.reason);
}

/// `existing` takes the writing epoch away, and a partly stored snapshot is two options.
#[test]
fn existing_snapshots() {
    let mut p = example();
    let snapshot = |fraction| Existing {
        hint: "source".into(),
        format: "arrow".into(),
        compression: "none".into(),
        fraction,
    };
    p.existing = vec![snapshot(1.0)];
    let d = decide(&p, "auto");
    assert_eq!(d.options.len(), 2);
    near(d.options[1].horizon_s, 90.0 * 500_400.0 * 110_100.0 / 5.7e8);
    assert_eq!(d.break_even_epoch(&d.options[1]), Some(1));

    p.existing = vec![snapshot(0.5)];
    let d = decide(&p, "auto");
    assert_eq!(d.options.len(), 3);
    // Half from each store, and they work concurrently: the source store is the slower half.
    let half = 500_400.0 * 110_000.0 * 0.5 / 4e8;
    near(d.options[1].horizon_s, 90.0 * half);
    assert_eq!(d.options[1].bottleneck, "source_store");
    assert!(d.options[1].why.contains("stored already"), "{}", d.options[1].why);
    // Both stores at once beat either alone.
    assert_eq!(d.choice, d.options[1].choice);
}

#[test]
fn without_hints_everything_computes() {
    let mut p = example();
    p.hints.clear();
    for policy in ["compute", "source", "full", "cachew", "auto"] {
        let d = decide(&p, policy);
        assert_eq!((d.choice, d.policy.to_string().as_str(), d.options.len()), (Choice::Compute, policy, 1));
    }
}

#[test]
fn unknown_policies() {
    let message = |name: &str| name.parse::<Policy>().unwrap_err().to_string();
    for name in ["ful", "hint:", "Auto", "", "oracle\n"] {
        assert!(POLICIES.iter().all(|p| message(name).contains(p)), "{}", message(name));
    }
    assert!(message("ful").ends_with("did you mean `full`?"));
    assert!(message("comptue").ends_with("did you mean `compute`?"));
    let e = plan(&example(), &"hint:sourc".parse().unwrap()).unwrap_err().to_string();
    assert_eq!(
        e,
        "policy `hint:sourc`: the profile has no hint of that name; its hints are `source`; did you mean `source`?"
    );
}

/// The static table: its points, a line between them, and the lines go on at both ends.
#[test]
fn cachew_table() {
    for (bytes, ms) in
        [(1e5, 0.0038), (1e6, 0.255), (5e6, 5.63), (1e7, 11.9), (5e7, 75.1), (1e8, 155.0), (4e8, 625.0)]
    {
        assert!((gluster_read_ms(bytes) - ms).abs() < 1e-12, "{bytes}");
    }
    assert!((gluster_read_ms(7.5e6) - (5.63 + 11.9) / 2.0).abs() < 1e-12);
    assert!((gluster_read_ms(7e8) - (2.0 * 625.0 - 155.0)).abs() < 1e-9);
    assert!(gluster_read_ms(87_000.0) > 0.0 && gluster_read_ms(86_000.0) < 0.0);
    assert!((gluster_read_ms(0.0) - -0.024111111).abs() < 1e-6);
}

/// The negative line makes Cachew store whatever is small, however fast computing is.
#[test]
fn cachew_is_faithful() {
    let mut p = example();
    p.stages[0].out_bytes_per_row = 50_000.0;
    (p.stages[0].cpu_s_per_row, p.stages[0].service_s_per_row) = (0.0, 0.0);
    p.source_store.read_bytes_per_s = None;
    let d = decide(&p, "cachew");
    assert!(matches!(d.choice, Choice::Materialize { .. }), "{}", d.reason);
    assert_eq!(decide(&p, "auto").choice, Choice::Compute);

    // Above the table's zero a read of 0.0038 ms is held against the stage's 0.02 ms over 8 cores.
    let mut p = example();
    p.stages[0].out_bytes_per_row = 100_000.0;
    p.stages[0].service_s_per_row = 8.0 * 0.0037e-3;
    assert_eq!(decide(&p, "cachew").choice, Choice::Compute);
    p.stages[0].service_s_per_row = 8.0 * 0.0039e-3;
    assert_ne!(decide(&p, "cachew").choice, Choice::Compute);

    // It knows neither horizon nor budget; what cannot be stored at all is computed.
    p.horizon.epochs = Some(1);
    assert_ne!(decide(&p, "cachew").choice, Choice::Compute);
    p.budget.snapshot_bytes = Some(0.0);
    let d = decide(&p, "cachew");
    assert_eq!(d.choice, Choice::Compute);
    assert!(d.reason.contains("but cannot"), "{}", d.reason);
}

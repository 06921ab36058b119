//! The number of workers for recorded profiles.

use caju_planner::{PoolJob, Profile, Scaling, TargetRange, WorkerLimits, scale, scale_pool};
use caju_types::ErrorKind;
use serde_json::Value;

use crate::scaling_cases::{Case, cases};

fn case(name: &str) -> Case {
    cases().into_iter().find(|c| c.name == name).unwrap()
}

fn limits(min: u64, max: u64) -> WorkerLimits {
    WorkerLimits::new(min, max).unwrap()
}

/// To change a golden answer on purpose: `cargo run -p caju-planner --example bless`, and read the diff.
#[test]
fn golden_scalings() {
    let all = cases();
    assert!(all.len() >= 15, "{} cases", all.len());
    let stale = |c: &Case| std::fs::read_to_string(&c.scaling).unwrap_or_default() != c.bytes();
    let changed: Vec<String> = all.into_iter().filter(stale).map(|c| c.name).collect();
    assert!(
        changed.is_empty(),
        "these answers changed; if on purpose, run the example `bless`: {changed:#?}"
    );
}

/// What the golden answers are for, by hand, so that a blessed mistake still fails.
#[test]
fn golden_numbers() {
    for (name, workers, bottleneck, says) in [
        // 8 cores / 4 ms = 2,000 rows/s with a worker: 9,000 need 4.5.
        (
            "cores",
            5,
            "consumer",
            "With 5 workers the consumers, which take 9,000 rows/s, do not wait; with 4 they would",
        ),
        ("exact", 4, "consumer", "with 3 they would wait 25 % of their time"),
        ("one-is-enough", 1, "consumer", "1 worker, the fewest allowed, is enough"),
        // 4e8 / 110,000 = 3,636 rows/s, whatever the number.
        (
            "source-store",
            2,
            "source_store",
            "more workers would not help, a source store with more bandwidth would",
        ),
        ("no-demand", 12, "cores", "names no demand (consumer.rows_per_s)"),
        ("no-demand-source-store", 2, "source_store", "more workers would not help"),
        (
            "most-allowed",
            12,
            "cores",
            "the most allowed: the consumers wait 73 % of their time; about 45 workers",
        ),
        // 1.25e9 / 602,112 = 2,076 rows/s with a worker.
        ("network", 5, "consumer", "do not wait"),
        // 500 rows/s with a worker, one at a time.
        ("serial-stage", 6, "consumer", "do not wait"),
        // Ten rows of one: 900 source rows/s.
        ("flat-map", 1, "consumer", "9,000 rows/s"),
        // 8 cores / 0.99 ms = 8,081 rows/s.
        ("snapshot", 2, "consumer", "Rows are read from decoded arrow/none."),
        ("snapshot-of-one-epoch", 5, "consumer", "do not wait"),
        ("cache-store", 5, "consumer", "do not wait"),
        ("cachew-figure6a", 4, "consumer", "4 workers make the cheapest epoch: 1.31"),
        ("prices-worker-only", 4, "cores", "the consumers wait 11 % of their time"),
        ("prices-accelerator", 5, "consumer", "which do not wait"),
        ("prices-cheap-accelerator", 4, "cores", "cheapest"),
        ("no-rows", 5, "consumer", "cheapest"),
    ] {
        let scaling = case(name).scale();
        let chosen = scaling.chosen().unwrap();
        assert_eq!(
            (scaling.workers, chosen.bottleneck.as_str()),
            (workers, bottleneck),
            "{name}: {}",
            scaling.reason
        );
        assert!(scaling.reason.contains(says), "{name}: {}", scaling.reason);
    }
}

/// The fields of the format, in order.
#[test]
fn fields_of_the_scaling_format() {
    let scaling = case("cachew-figure6a").scale();
    let value: Value = serde_json::from_str(&scaling.to_json()).unwrap();
    let keys = |v: &Value| v.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&value), ["schema", "workers", "candidates", "reason"]);
    assert_eq!(
        keys(&value["candidates"][0]),
        ["workers", "rows_per_s", "consumer_wait", "cost_per_h", "cost_per_epoch", "bottleneck", "why"]
    );
    assert_eq!(value["schema"], "caju.scaling/v1");
    assert_eq!(Scaling::from_json(&scaling.to_json()).unwrap(), scaling);
    let e = Scaling::from_json(&scaling.to_json().replace("scaling/v1", "scaling/v2")).unwrap_err();
    assert_eq!(e.to_string(), "schema: expected \"caju.scaling/v1\", found \"caju.scaling/v2\"");
}

/// Numbers that cannot be known are null.
#[test]
fn absent_prices_and_demand_are_null() {
    let value: Value = serde_json::from_str(&case("no-demand").scale().to_json()).unwrap();
    for field in ["consumer_wait", "cost_per_h", "cost_per_epoch"] {
        assert_eq!(value["candidates"][0][field], Value::Null);
    }
}

#[test]
fn limits_bound_the_number() {
    let profile = case("cores").read();
    let of = |min, max| scale(&profile, limits(min, max)).unwrap();
    assert_eq!(of(1, 3).workers, 3);
    let more = of(7, 9);
    assert_eq!((more.workers, more.candidates.len()), (7, 3));
    assert!(more.reason.starts_with("7 workers, the fewest allowed, are enough"), "{}", more.reason);
    for (min, max, says) in [
        (0, 5, "--min-workers 0: expected a whole number >= 1"),
        (5, 3, "--max-workers 3 is less than --min-workers 5; raise the one or lower the other"),
        (1, 10_001, "--max-workers 10001: expected at most 10000, because the answer lists every number"),
    ] {
        let e = WorkerLimits::new(min, max).unwrap_err();
        assert_eq!((e.kind(), e.to_string().as_str()), (ErrorKind::InvalidArgument, says));
    }
}

/// Rates that differ by less than 0.5 % count as the same. The answer says so, also of the numbers above it.
#[test]
fn rates_that_are_nearly_the_highest_are_enough() {
    let profile = case("no-demand").read();
    let scaling = scale(&profile, limits(1, 1000)).unwrap();
    let says = "995 workers reach 1,990,000 rows/s, less than 0.5 % below the 2,000,000 rows/s of 1,000 workers, the highest \
                rate allowed, limited by";
    assert!(scaling.workers == 995 && scaling.reason.starts_with(says), "{}", scaling.reason);
    let most = scaling.candidates.last().unwrap();
    assert!(most.why.ends_with("less than 0.5 % faster than 995 workers"), "{}", most.why);
}

/// Consumers that get no row of the source set no number of workers.
#[test]
fn without_a_row_for_the_consumers_the_fewest_workers_do() {
    let mut profile = case("cores").read();
    profile.stages[0].out_rows_per_row = 0.0;
    let scaling = scale(&profile, limits(2, 100)).unwrap();
    let says = "2 workers, the fewest allowed, are as good as more: the stages give no row to the consumers";
    assert!(scaling.workers == 2 && scaling.reason.starts_with(says), "{}", scaling.reason);
    let why = &scaling.candidates[1].why;
    assert!(why.ends_with("no row reaches the consumers, whatever the number"), "{why}");
}

/// Sentences about one worker, and about a rate that nothing limits.
#[test]
fn reasons_are_sentences() {
    let mut profile = case("most-allowed").read();
    let one = scale(&profile, limits(1, 1)).unwrap();
    assert!(
        one.reason.starts_with("1 worker reaches 2,000 rows/s and is the most allowed"),
        "{}",
        one.reason
    );
    profile.prices.worker_per_h = Some(1.0);
    let one = scale(&profile, limits(1, 1)).unwrap();
    assert!(one.reason.starts_with("1 worker makes the cheapest epoch"), "{}", one.reason);
    let mut profile = case("no-demand").read();
    for stage in &mut profile.stages {
        (stage.cpu_s_per_row, stage.service_s_per_row) = (0.0, 0.0);
        (stage.io_bytes_per_row, stage.out_bytes_per_row) = (0.0, 0.0);
    }
    let free = scale(&profile, limits(1, 5)).unwrap();
    let says = "1 worker, the fewest allowed, is enough: nothing that was measured limits the rate";
    assert!(free.reason.starts_with(says), "{}", free.reason);
}

/// The text shows the numbers around the chosen one.
#[test]
fn scaling_text() {
    let mut profile = case("cores").read();
    profile.consumer.rows_per_s = Some(39_000.0);
    let text = scale(&profile, limits(1, 100)).unwrap().to_text();
    assert!(text.contains("\n*      20  39,000             0 %"), "{text}");
    assert!(text.contains("89 more numbers: --format json shows them"), "{text}");
    assert!(!text.contains("\n       14 "), "{text}");
}

/// Prices that are wrong name their field.
#[test]
fn prices_are_checked() {
    let text = std::fs::read_to_string(case("cachew-figure6a").profile).unwrap();
    for (from, to, says) in [
        (
            "\"worker_per_h\": 0.38",
            "\"worker_per_h\": -1",
            "prices.worker_per_h: expected a number >= 0, found -1",
        ),
        (
            "\"accelerator_per_h\": 8.0",
            "\"accelerator_per_h\": \"8\"",
            "prices.accelerator_per_h: expected a number >= 0, found \"8\"",
        ),
    ] {
        assert!(text.contains(from));
        assert_eq!(Profile::from_json(&text.replace(from, to)).unwrap_err().to_string(), says);
    }
}

/// A present number that the error of the measurements could explain stays; from elsewhere one step leads to the best.
#[test]
fn numbers_change_beyond_the_error_only() {
    let profile = case("cores").read();
    let range = TargetRange::of(&profile, limits(1, 100), 0.15).unwrap();
    assert_eq!(range, TargetRange { low: 4, best: 5, high: 6 });
    let settled: Vec<u64> = (1..9).map(|n| range.settle(n)).collect();
    assert_eq!(settled, [5, 5, 5, 4, 5, 6, 5, 5]);
}

/// Jobs of several profiles, with priorities and weights.
#[test]
fn several_jobs_share_workers() {
    let job = |name: &str| PoolJob::of_profile(name, &case(name).read()).unwrap();
    let (cores, serial) = (job("cores"), job("serial-stage"));
    assert!((cores.busy_workers - 4.5).abs() < 1e-9 && cores.spread == 0.0, "{cores:?}");
    // A stage that waits takes no cores from others: the job is spread over six workers, and 0.4 % of each.
    assert!((serial.spread - 6.0).abs() < 1e-9 && serial.busy_workers < 0.01, "{serial:?}");
    let both = scale_pool(&[cores.clone(), serial.clone()], limits(1, 100)).unwrap();
    assert_eq!(both.workers, 6);
    assert_eq!(both.jobs.iter().map(|j| (j.alone, j.served)).collect::<Vec<_>>(), [(5, 1.0), (6, 1.0)]);

    let two = [cores.clone(), PoolJob { name: "heavy".into(), weight: 2.0, ..cores.clone() }];
    let shares = scale_pool(&two, limits(1, 6)).unwrap();
    let got: Vec<f64> = shares.jobs.iter().map(|j| j.workers).collect();
    assert!((got[0] - 2.0).abs() < 1e-9 && (got[1] - 4.0).abs() < 1e-9, "{got:?}");
    // What the heavier job does not need goes to the other one.
    let shares = scale_pool(&two, limits(1, 8)).unwrap();
    let got: Vec<f64> = shares.jobs.iter().map(|j| j.workers).collect();
    assert!((got[0] - 3.5).abs() < 1e-9 && (got[1] - 4.5).abs() < 1e-9, "{got:?}");

    let first = PoolJob { name: "first".into(), priority: 1, ..cores.clone() };
    let shares = scale_pool(&[cores.clone(), first], limits(1, 5)).unwrap();
    assert!((shares.jobs[1].served - 1.0).abs() < 1e-9 && (shares.jobs[0].workers - 0.5).abs() < 1e-9);

    let e = scale_pool(&[PoolJob { weight: 0.0, ..cores }], limits(1, 5)).unwrap_err();
    assert_eq!(e.to_string(), "job `cores`: weight: expected a number > 0, found 0");
    assert_eq!(scale_pool(&[], limits(2, 5)).unwrap().workers, 2);
}

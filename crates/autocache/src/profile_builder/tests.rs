//! The profile that the builder makes of reports.

use caju_types::Fingerprint;

use super::*;
use crate::coverage::{Coverage, StoredParts};

/// A pipeline with one hint.
fn pipeline() -> Pipeline<'static> {
    static HINTS: std::sync::LazyLock<Vec<HintDef>> = std::sync::LazyLock::new(|| {
        let (name, prefix) = ("a".to_string(), Fingerprint(3));
        vec![HintDef {
            name,
            prefix,
            random: false,
            chooses: false,
            cross_split_stage: None,
            not_storable: None,
        }]
    });
    Pipeline { hints: &HINTS, random_stages: &[] }
}

fn stage(name: &str, rows: u64, cpu_s: f64) -> StageReport {
    StageReport {
        name: name.into(),
        rows_in: rows,
        rows_out: rows,
        bytes_out: rows * 100,
        cpu_s,
        busy_s: cpu_s,
        ..StageReport::default()
    }
}

fn probe(encode_cpu_s: f64) -> ProbeReport {
    ProbeReport {
        hint: "a".into(),
        encoding: Encoding::default(),
        rows: 10,
        bytes: 1000,
        encode_cpu_s,
        decode_cpu_s: 0.0,
        write_bytes_per_s: 1e9,
        read_bytes_per_s: 1e9,
        raw_bytes: 0,
    }
}

/// One worker after the given number of seconds: a thousand rows per second, each twice as expensive after the second.
fn after(seconds: f64, rows: u64, cpu_s: f64, probes: &[f64]) -> Measurements {
    let task = TaskReport {
        task: TaskId(1),
        stages: vec![
            stage("read", rows, 0.0),
            stage("map", rows, cpu_s),
            StageReport { kind: StageKind::Hint, ..stage("1.autocache", rows, 0.0) },
        ],
        probes: probes.iter().copied().map(probe).collect(),
        checked_parts: true,
        elapsed_s: seconds,
        threads: 2.0,
        splits_computed: rows / 100,
        source_bytes: rows * 100,
        source_s: seconds / 10.0,
        source_requests_at_once: 3,
        ..TaskReport::default()
    };
    Measurements { tasks: vec![task], workers: 1, splits_total: 100, ..Measurements::default() }
}

#[test]
fn a_sample_window_is_as_if_there_had_been_nothing_else() {
    let (first, second) = (after(1.0, 1000, 1.0, &[0.01]), after(2.0, 2000, 3.0, &[0.01, 0.05]));
    let window = second.window_since(&first).unwrap();
    let profile = window.profile(pipeline());
    let map = profile.stages.iter().find(|s| s.name == "map").unwrap();
    assert!((map.cpu_s_per_row - 0.002).abs() < 1e-9, "{map:?}");
    // The newest repetition of the probe counts. The epoch has as many rows as all figures together say.
    assert!((profile.hints[0].encodings[0].encode_cpu_s_per_row - 0.005).abs() < 1e-9, "{profile:?}");
    assert_eq!(profile.source.rows, second.profile(pipeline()).source.rows);
    // A hundred splits, of which 17 are through and three half-way.
    assert_eq!(profile.source.rows, 2000 * 200 / 37);
}

#[test]
fn memory_tiers_are_in_the_profiles_of_epochs_and_of_sample_windows() {
    let memory = |m: &Measurements| m.profile(pipeline()).cache_store.memory_bytes_per_worker;
    let (mut first, mut second) = (after(1.0, 1000, 1.0, &[]), after(2.0, 2000, 3.0, &[]));
    assert_eq!(memory(&second), None, "parts are mapped");
    first.tasks[0].memory_tier_bytes = 1 << 20;
    second.tasks[0].memory_tier_bytes = 1 << 20;
    assert_eq!(memory(&second.window_since(&first).unwrap()), Some(1048576.0));
    second.tasks.push(TaskReport { task: TaskId(2), ..second.tasks[0].clone() });
    assert_eq!(memory(&second), Some(1048576.0), "each of them");
}

/// The rows that were tried are of another size than those of the epoch, which the stage in front of the hint has seen.
#[test]
fn probes_are_scaled_by_bytes_where_they_are_known() {
    let mut measured = after(1.0, 1000, 1.0, &[0.01]);
    let encoding = |m: &Measurements| m.profile(pipeline()).hints.remove(0).encodings.remove(0);
    let by_rows = encoding(&measured);
    assert!((by_rows.bytes_per_row - 100.0).abs() < 1e-9, "{by_rows:?}");
    // A hundred bytes a row are known, fifty were tried.
    measured.tasks[0].probes[0].raw_bytes = 500;
    let by_bytes = encoding(&measured);
    assert!((by_bytes.bytes_per_row - 200.0).abs() < 1e-9, "{by_bytes:?}");
    let times = by_bytes.encode_cpu_s_per_row / by_rows.encode_cpu_s_per_row;
    assert!((times - 2.0).abs() < 1e-9, "{by_bytes:?}");
}

#[test]
fn the_median_of_the_store_rates_counts() {
    let rate = |rates: &[f64]| {
        let probes = rates.iter().map(|r| ProbeReport { read_bytes_per_s: *r, ..probe(0.01) });
        let mut measured = after(2.0, 2000, 1.0, &[]);
        measured.tasks[0].probes = probes.collect();
        let window = measured.window_since(&after(1.0, 1000, 0.5, &[])).unwrap();
        let of = |m: &Measurements| m.profile(pipeline()).cache_store.read_bytes_per_s;
        assert_eq!(of(&window), of(&measured));
        of(&measured)
    };
    assert_eq!(rate(&[]), None);
    assert_eq!(rate(&[0.0, 3e8, 0.0]), Some(3e8));
    assert_eq!(rate(&[3e8, 1e8]), Some(2e8));
    assert_eq!(rate(&[3e8, 0.0, 9e8, 2e8]), Some(3e8));
}

/// A further probe has more rows, and does not measure the store.
#[test]
fn further_probes_count_and_the_store_rate_stays() {
    let further = |encode_cpu_s: f64| ProbeReport {
        rows: 60,
        bytes: 3000,
        write_bytes_per_s: 0.0,
        read_bytes_per_s: 0.0,
        ..probe(encode_cpu_s)
    };
    let (first, mut second) = (after(1.0, 1000, 1.0, &[0.01]), after(2.0, 2000, 3.0, &[0.01]));
    second.tasks[0].probes.extend([further(0.03), further(0.09), probe(0.5)]);
    for (measured, encode_s) in [(&second, 0.001), (&second.window_since(&first).unwrap(), 0.0015)] {
        let profile = measured.profile(pipeline());
        let encoding = &profile.hints[0].encodings[0];
        assert!((encoding.encode_cpu_s_per_row - encode_s).abs() < 1e-9, "{encoding:?}");
        assert!((encoding.bytes_per_row - 50.0).abs() < 1e-9, "{encoding:?}");
        assert_eq!(profile.cache_store.read_bytes_per_s, Some(1e9));
        assert_eq!(profile.cache_store.write_bytes_per_s, Some(1e9));
    }
    // A second worker's first probes are no third and fourth ones.
    let other = after(2.0, 2000, 3.0, &[0.01]).tasks.remove(0);
    second.tasks.push(other);
    assert_eq!(probes::counts(&second.tasks).into_values().collect::<Vec<_>>(), [4]);
}

/// What is read twice in an epoch is stored once.
#[test]
fn repeated_splits_are_readings_of_the_same_rows() {
    let mut measured = after(1.0, 1000, 1.0, &[0.01]);
    assert_eq!(measured.profile(pipeline()).source.readings, None, "nobody has counted them");
    for (splits, readings) in [(100, None), (50, Some(2)), (34, Some(2)), (0, None)] {
        measured.coverage = CoverageState::Known(Coverage { splits: Some(splits), ..Coverage::default() });
        let profile = measured.profile(pipeline());
        profile.validate().unwrap();
        assert_eq!(profile.source.readings, readings, "{splits} of 100");
    }
}

#[test]
fn without_new_rows_there_is_no_sample_window() {
    let first = after(1.0, 1000, 1.0, &[]);
    assert!(first.window_since(&first).is_none());
    assert!(after(2.0, 1000, 1.0, &[]).window_since(&first).is_none(), "no row since");
    assert!(first.window_since(&Measurements::default()).is_some(), "the first window is all there is");
}

#[test]
fn stores_and_networks_have_the_rate_of_their_requests() {
    let mut measured = after(1.0, 1000, 1.0, &[]);
    let profile = measured.profile(pipeline());
    // 100 kB in a tenth of a second, by one of three requests.
    assert!((profile.source_store.read_bytes_per_s.unwrap() - 3e6).abs() < 1.0, "{profile:?}");
    assert_eq!(profile.cluster.network_bytes_per_s_per_worker, None, "nobody reads from elsewhere");
    (measured.tasks[0].sent_bytes, measured.tasks[0].sent_s) = (5_000_000, 0.5);
    let profile = measured.profile(pipeline());
    assert!((profile.cluster.network_bytes_per_s_per_worker.unwrap() - 1e7).abs() < 1.0, "{profile:?}");
    assert!((measured.fraction_begun().unwrap() - 0.1).abs() < 1e-9);
}

#[test]
fn sending_is_a_stage_where_it_costs_something() {
    let mut measured = after(1.0, 1000, 1.0, &[]);
    measured.tasks[0].stages.push(StageReport { kind: StageKind::Output, ..stage("output", 1000, 0.0) });
    assert!(measured.profile(pipeline()).stages.iter().all(|s| s.name != "output"));
    measured.tasks[0].stages[3].cpu_s = 0.5;
    let profile = measured.profile(pipeline());
    profile.validate().unwrap();
    assert_eq!(profile.stages.last().unwrap().name, "output");
}

/// A shuffle that fills its buffer has emitted few of the rows that it read, which says nothing about its ratio of
/// output to input.
#[test]
fn rows_that_a_shuffle_holds_back_come_out_later() {
    let mut measured = after(1.0, 1000, 1.0, &[]);
    let held = StageReport {
        kind: StageKind::CrossSplit,
        rows_out: 100,
        bytes_out: 100 * 100,
        ..stage("2.shuffle", 1000, 0.5)
    };
    measured.tasks[0].stages.extend([held, stage("3.map", 100, 0.3)]);
    let profile = measured.profile(pipeline());
    profile.validate().unwrap();
    let [.., shuffle, map] = profile.stages.as_slice() else { panic!("{profile:?}") };
    let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} is not {b}: {profile:?}");
    near(shuffle.out_rows_per_row, 1.0);
    near(shuffle.cpu_s_per_row, 0.5e-3);
    near(shuffle.out_bytes_per_row, 100.0);
    assert_eq!(shuffle.max_parallelism, Some(1.0), "one chunk after the other");
    near(map.cpu_s_per_row, 3e-3);
    assert_eq!(map.max_parallelism, None);
}

/// Parts at the hint `a` of this fraction of the splits.
fn stored(encoding: &str, fraction: f64) -> CoverageState {
    let parts = vec![StoredParts { hint: "a".into(), encoding: encoding.parse().unwrap(), fraction }];
    CoverageState::Known(Coverage { parts, ..Coverage::default() })
}

fn encodings(profile: &Profile) -> Vec<String> {
    profile.hints[0].encodings.iter().map(|e| format!("{}/{}", e.format, e.compression)).collect()
}

#[test]
fn parts_of_under_a_tenth_do_not_fix_the_encoding() {
    let mut measured = after(1.0, 1000, 1.0, &[0.01]);
    let zstd = ProbeReport { encoding: "parquet/zstd".parse().unwrap(), ..probe(0.02) };
    measured.tasks[0].probes.push(zstd);
    let both = ["arrow/none", "parquet/zstd"];
    let seen = |measured: &Measurements| {
        let profile = measured.profile(pipeline());
        profile.validate().unwrap();
        let fractions: Vec<f64> = profile.existing.iter().map(|x| x.fraction).collect();
        (encodings(&profile), fractions)
    };
    measured.coverage = stored("parquet/zstd", 0.4);
    assert_eq!(seen(&measured), (vec![both[1].to_string()], vec![0.4]), "parts are read as they are");
    // One part of an earlier job.
    measured.coverage = stored("parquet/zstd", 0.001);
    assert_eq!(seen(&measured), (both.map(String::from).to_vec(), vec![]));
    // What the job says rules, unless nothing is left to write.
    measured.encoding = Some(Encoding::default());
    measured.coverage = stored("parquet/zstd", 0.4);
    assert_eq!(seen(&measured), (vec![both[0].to_string()], vec![]));
    measured.coverage = stored("parquet/zstd", 1.0);
    assert_eq!(seen(&measured), (vec![both[1].to_string()], vec![1.0]));
}

#[test]
fn the_check_of_the_storage_is_waited_for_within_a_bound() {
    let early = Measurements {
        coverage: CoverageState::Pending(Coverage::default()),
        ..after(1.0, 1000, 1.0, &[0.01])
    };
    assert!(!early.can_be_weighed() && !early.is_complete(pipeline().hints));
    let late = Measurements {
        coverage: CoverageState::Pending(Coverage::default()),
        ..after(20.0, 1000, 1.0, &[0.01])
    };
    assert!(late.is_complete(pipeline().hints) && late.profile(pipeline()).existing.is_empty());
}

/// One of three workers has measured the store: the others have as much of it.
#[test]
fn workers_that_have_not_measured_the_store_count_like_those_that_have() {
    let mut measured = after(1.0, 1000, 1.0, &[0.01]);
    for id in 2..4 {
        measured.tasks.push(TaskReport { task: TaskId(id), probes: Vec::new(), ..measured.tasks[0].clone() });
    }
    measured.workers = 3;
    assert_eq!(measured.profile(pipeline()).cache_store.read_bytes_per_s, Some(3e9));
    // A store that was not measured is not taken to be unlimited.
    measured.tasks[0].probes[0].read_bytes_per_s = 0.0;
    assert!(measured.can_be_weighed() && !measured.is_complete(pipeline().hints));
}

#[test]
fn jobs_that_share_are_in_the_profile_with_their_last_common_stage() {
    let mut measured = after(1.0, 1000, 1.0, &[0.01]);
    let below = [
        stage("crop", 1000, 0.5),
        StageReport { kind: StageKind::CrossSplit, ..stage("shuffle", 1000, 0.1) },
        stage("normalize", 1000, 0.1),
        StageReport { kind: StageKind::Output, ..stage("output", 1000, 0.1) },
    ];
    measured.tasks[0].stages.extend(below);
    assert_eq!(measured.profile(pipeline()).sharing, None);
    for (hint, after_stage) in [(Some("a"), "map"), (None, "crop")] {
        measured.sharing = Some(SharingFacts { jobs: 3, hint: hint.map(Into::into) });
        let sharing = measured.profile(pipeline()).sharing.unwrap();
        assert_eq!((sharing.jobs, sharing.after_stage.as_str()), (3, after_stage));
    }
    // A hint that is no option has no stage to name.
    measured.sharing = Some(SharingFacts { jobs: 3, hint: Some("other".into()) });
    assert_eq!(measured.profile(pipeline()).sharing, None);
}

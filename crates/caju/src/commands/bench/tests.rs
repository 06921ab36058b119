use caju_runtime::Stores;
use futures::StreamExt;
use object_store::{ObjectStore, ObjectStoreExt};

use super::distinct;
use super::scratch::Scratch;
use super::summary::Summary;
use super::text::times;
use super::trial::Trial;
use crate::report::{EpochReport, SplitsReport};

/// A cold job; its first epoch computes, and the others read the given number of splits.
fn trial(policy: &str, times: &[f64], get: u64) -> Trial {
    let epoch = |(epoch, wall_s): (usize, &f64)| EpochReport {
        epoch: epoch as u64,
        rows: 100,
        batches: 1,
        wall_s: *wall_s,
        rows_per_s: 100.0 / wall_s,
        source_bytes_read: 1 << 20,
        cache_bytes_read: 3 << 20,
        cache_bytes_written: 512,
        splits: if epoch == 0 { SplitsReport::default() } else { SplitsReport { get, ..Default::default() } },
        ..EpochReport::default()
    };
    Trial {
        policy: policy.into(),
        repeat: 0,
        warm: false,
        epochs: times.iter().enumerate().map(epoch).collect(),
        stored_bytes: 0,
        choice: None,
        decision: None,
        cpu_s: 0.0,
    }
}

/// A warm job, which reads from its epoch `from` on.
fn warm(policy: &str, times: &[f64], from: usize) -> Trial {
    let mut trial = trial(policy, times, 0);
    trial.warm = true;
    trial.epochs.iter_mut().skip(from).for_each(|e| e.splits.get = 3);
    trial
}

fn near(a: Option<f64>, b: f64) -> bool {
    a.is_some_and(|a| (a - b).abs() < 1e-9)
}

#[test]
fn regret_is_against_the_best_that_decides_nothing() {
    let policies = ["compute", "hint:a", "auto"].map(String::from);
    let trials =
        [trial("compute", &[4.0, 4.0], 0), trial("hint:a", &[4.5, 0.5], 3), trial("auto", &[4.6, 0.5], 3)];
    let longer = Summary::of(&policies, &trials, 2, 12);
    assert!((longer.lines[1].horizon_s - 10.0).abs() < 1e-9 && longer.lines[2].regret < 0.011);
    let summary = Summary::of(&policies, &trials, 2, 2);
    assert_eq!(summary.oracle, "hint:a");
    assert!((summary.lines[0].regret - 0.6).abs() < 1e-9);
    assert!((summary.lines[2].regret - 0.02).abs() < 1e-9);
    assert_eq!(summary.lines[0].cached_from, None);
    assert_eq!(summary.lines[1].cached_from, Some(1));
    assert!(summary.text().contains("+60.0 %"), "{}", summary.text());
}

#[test]
fn warm_jobs_are_judged_by_warm_jobs() {
    let policies = ["compute", "hint:a", "hint:b", "auto"].map(String::from);
    let trials = [
        trial("compute", &[1.0, 1.0], 0),
        warm("compute", &[1.0, 1.0], 2),
        trial("hint:a", &[2.0, 0.5], 3),
        warm("hint:a", &[0.5, 0.5], 0),
        // No warm job was run.
        trial("hint:b", &[2.0, 0.5], 3),
        trial("auto", &[2.0, 0.5], 3),
        warm("auto", &[0.7, 0.5], 1),
    ];
    let summary = Summary::of(&policies, &trials, 2, 2);
    assert_eq!((summary.oracle.as_str(), summary.warm_oracle.as_deref()), ("compute", Some("hint:a")));
    let [compute, a, b, auto] = summary.lines.as_slice() else { panic!("{summary:?}") };
    assert!(near(compute.warm_regret, 1.0) && near(a.warm_regret, 0.0) && near(auto.warm_regret, 0.2));
    assert_eq!(b.warm_regret, None);
    let from = [compute, a, b, auto].map(|l| l.warm_cached_from);
    assert_eq!(from, [None, Some(0), None, Some(1)]);
    let json = serde_json::to_value(&summary).unwrap();
    assert!(json["lines"][2]["warm_regret"].is_null() && json["lines"][2]["warm_cached_from"].is_null());
    assert_eq!((&json["warm_oracle"], &json["lines"][1]["warm_cached_from"]), (&"hint:a".into(), &0.into()));

    let text = summary.text();
    for words in ["warm job", "+20.0 %", "epoch 0", "hint:a, the best warm one"] {
        assert!(text.contains(words), "`{words}` is not in\n{text}");
    }
    let cold: Vec<_> = trials.into_iter().filter(|t| !t.warm).collect();
    let summary = Summary::of(&policies, &cold, 2, 2);
    assert!(summary.warm_oracle.is_none() && summary.lines.iter().all(|l| l.warm_regret.is_none()));
    assert!(!summary.text().contains("warm"), "{}", summary.text());
}

#[test]
fn one_round_says_nothing_of_noise() {
    let policies = ["compute".to_string()];
    let mut trials = vec![trial("compute", &[2.0, 2.0], 0)];
    let one = Summary::of(&policies, &trials, 2, 2);
    let json = serde_json::to_value(&one).unwrap();
    assert!(json["noise"].is_null() && json["lines"][0]["spread"].is_null(), "{json}");
    assert!(one.text().contains("one round: noise unknown"), "{}", one.text());
    trials.push(trial("compute", &[3.0, 3.0], 0));
    let two = Summary::of(&policies, &trials, 2, 2);
    assert!(near(two.noise, 0.4) && near(two.lines[0].spread, 0.4), "{two:?}");
    assert!(two.text().contains("40.0 % between rounds"), "{}", two.text());
}

/// Trials of one policy, one a round.
fn rounds(policy: &str, times: &[f64]) -> Vec<Trial> {
    (0..).zip(times).map(|(repeat, s)| Trial { repeat, ..trial(policy, &[*s], 0) }).collect()
}

#[test]
fn a_machine_that_drifts_favours_nobody() {
    let policies = ["compute", "hint:far", "auto"].map(String::from);
    // Every round is slower than the one before it, and the refine rounds without `hint:far` are the slowest.
    let mut trials = rounds("compute", &[10.0, 12.0, 14.0, 16.0, 18.0, 20.0, 22.0, 24.0]);
    trials.extend(rounds("hint:far", &[14.0]));
    trials.extend(rounds("auto", &[10.5, 12.24, 14.14, 16.32, 18.0, 20.2, 22.66, 26.4]));
    let summary = Summary::of(&policies, &trials, 1, 1);
    let [compute, far, auto] = summary.lines.as_slice() else { panic!("{summary:?}") };
    assert_eq!((summary.oracle.as_str(), compute.regret, compute.rounds, far.rounds), ("compute", 0.0, 8, 1));
    assert!((far.regret - 0.4).abs() < 1e-9 && far.regret_between.is_none(), "{far:?}");
    // Of 5, 2, 1, 2, 0, 1, 3 and 10 percent the middle is 2; the least and the most are aside.
    let (low, high) = auto.regret_between.unwrap();
    assert!(near(Some(auto.regret), 0.02) && near(Some(low), 0.01) && near(Some(high), 0.05), "{auto:?}");
    assert!(summary.text().contains("+2.0 % (+1.0 .. +5.0)"), "{}", summary.text());
    assert_eq!(summary.refined(), ["compute", "auto"]);
}

#[test]
fn few_rounds_are_shown_whole() {
    let policies = ["compute", "auto"].map(String::from);
    let mut trials = rounds("compute", &[1.0, 1.0, 1.0]);
    trials.extend(rounds("auto", &[1.5, 1.25, 1.0]));
    let summary = Summary::of(&policies, &trials, 1, 1);
    let auto = &summary.lines[1];
    assert_eq!((auto.regret, auto.regret_between), (0.25, Some((0.0, 0.5))));
    assert_eq!(summary.refined(), policies);
}

#[test]
fn times_and_bytes_of_epochs_are_reported() {
    let policies = ["compute", "hint:a-name-of-some-length"].map(String::from);
    let long = [9.0, 0.57, 0.55, 0.5, 0.5, 0.53, 0.54];
    let trials = policies.clone().map(|p| trial(&p, &long, 3));
    let text = Summary::of(&policies, &trials, 7, 90).text();
    for words in ["9.00 0.57 0.55 ... 0.53 0.54 s", "source read", "7.00 MiB", "21.00 MiB", "3.50 KiB"] {
        assert!(text.contains(words), "`{words}` is not in\n{text}");
    }
    assert!(text.lines().all(|l| l.chars().count() <= 140), "{text}");
    assert_eq!(times(&long[1..]), "0.57 0.55 0.50 0.50 0.53 0.54 s");
    assert_eq!(times(&[0.88]), "0.88 s");
}

#[test]
fn a_policy_is_run_once_a_round() {
    let asked = ["auto", "compute", "auto", "compute"].map(String::from);
    assert_eq!(distinct(&asked), ["auto", "compute"]);
}

#[tokio::test]
async fn caches_in_a_store_have_places_of_their_own_and_go() {
    let scratch = Scratch::open(Some("memory://bench-scratch/caches")).await.unwrap();
    let (cache, other) = (scratch.new_cache().unwrap(), scratch.new_cache().unwrap());
    assert!(cache.url().starts_with("memory://bench-scratch/caches/caju-bench-"), "{}", cache.url());
    let stores = Stores::default();
    for cache in [&cache, &other] {
        for name in ["v1/a", "v1/b/c"] {
            let at = stores.resolve(&format!("{}/{name}", cache.url())).unwrap();
            at.store.put(&at.path, "hello".into()).await.unwrap();
        }
    }
    assert_eq!(cache.bytes().await.unwrap(), 10);
    cache.remove().await.unwrap();
    let store = stores.resolve("memory://bench-scratch/").unwrap().store;
    assert_eq!((store.list(None).count().await, other.bytes().await.unwrap()), (2, 10));
}

#[tokio::test]
async fn caches_in_a_folder_go_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap().to_string();
    for place in [path.clone(), format!("file://{path}")] {
        let cache = Scratch::open(Some(place.as_str())).await.unwrap().new_cache().unwrap();
        assert!(cache.url().starts_with(&format!("{path}/caju-bench-")), "{}", cache.url());
        std::fs::write(format!("{}/part", cache.url()), "hello").unwrap();
        assert_eq!(cache.bytes().await.unwrap(), 5);
        cache.remove().await.unwrap();
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn malformed_urls_are_refused() {
    for place in ["s3:///key", "s4://bucket/key", "file://host/key"] {
        let e = Scratch::open(Some(place)).await.unwrap_err();
        assert_eq!(e.kind(), caju_types::ErrorKind::InvalidArgument, "{e}");
        assert!(e.message().starts_with("--scratch: "), "{e}");
    }
}

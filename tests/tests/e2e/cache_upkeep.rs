//! `caju cache` where something is wrong: damage, mistyped places, and too little room.

use std::fs;
use std::path::Path;
use std::time::Instant;

use caju_tests::process::{Process, TEST_TIMEOUT};
use caju_tests::{Pipeline, caju_in};
use serde_json::{Value, json};

use crate::cache_commands::{cache, cache_json, doubled, expensive_and_cheap, only, parts, store};

/// What no job reads again is found damaged for ever, unless it is dropped.
#[test]
fn verify_repairs() {
    let p = doubled();
    store(&p, "full");
    let of = only(&p);
    let flip = |part: &Path| {
        let mut bytes = fs::read(part).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(part, bytes).unwrap();
    };
    // The file was deleted, and its part is damaged; so is the newest manifest, by its number.
    fs::remove_file(p.folder().join("data/0.parquet")).unwrap();
    parts(&p, &of).iter().for_each(|part| flip(part));
    fs::write(p.folder().join("cache/v1").join(&of).join("manifest-00000009.json"), "{\"seal\":\"junk")
        .unwrap();
    store(&p, "full");
    cache(&p, &["verify"]).expect_code(4);
    let repaired = cache(&p, &["verify", "--repair"]);
    repaired.expect_code(0);
    for words in ["1 damaged", "dropped: ", ".commit", ".arrow", "what is damaged was dropped"] {
        assert!(repaired.stdout.contains(words), "`{words}` is not in\n{}", repaired.stdout);
    }
    cache(&p, &["verify"]).expect_code(0);
    let report = cache_json(&p, &["verify", "--repair"]);
    assert_eq!((&report["parts"], &report["dropped"]), (&2.into(), &json!([])));

    // Of a save nothing is dropped, and saving again replaces it.
    let def =
        json!({"source": {"parquet": {"path": "data/*.parquet"}}, "steps": [{"with_columns": {"y": "id"}}]});
    fs::write(p.path(), def.to_string()).unwrap();
    let save = || caju_in(p.folder(), &["save", "pipeline.yaml", "--to", "saved"]);
    let verify =
        |args: &[&str]| caju_in(p.folder(), &[&["cache", "verify", "--cache", "saved"], args].concat());
    save().expect_code(0);
    let snapshot = fs::read_dir(p.folder().join("saved/v1")).unwrap().flatten();
    let folder = snapshot.map(|e| e.path().join("parts")).find(|f| f.exists()).unwrap();
    let part = fs::read_dir(folder).unwrap().flatten().map(|e| e.path());
    let part = part.filter(|f| f.extension().is_some_and(|e| e == "arrow")).min().unwrap();
    flip(&part);
    let kept = verify(&["--repair"]);
    kept.expect_code(4);
    for words in ["1 damaged", "this is a save", "nothing was dropped", "caju save"] {
        assert!(kept.stdout.contains(words), "`{words}` is not in\n{}", kept.stdout);
    }
    assert!(part.exists());
    save().expect_code(0);
    verify(&[]).expect_code(0);
}

/// What is mistyped neither becomes a cache nor passes for an empty one, wherever it is.
#[test]
fn places_without_a_cache_are_refused() {
    let p = doubled();
    for place in ["memory://nowhere/cache", "elsewhere"] {
        for args in [&["ls"][..], &["verify"], &["gc"], &["rm", "f5938fad"]] {
            let ended = caju_in(p.folder(), &[&["cache"], args, &["--cache", place]].concat());
            ended.expect_code(2).expect_error(&["no cache at", "check --cache"]);
        }
    }
}

/// `--cache-lease`: what a writer that was killed has left is removed once the writer counts as dead.
#[test]
fn gc_takes_a_process_for_dead_after_the_cache_lease() {
    let p = Pipeline::of(
        json!({ "range": 200_000 }),
        json!([{ "sleep": { "per_row": "1ms" } }, "autocache", { "batch": 10 }]),
    );
    let leases_removed = |lease: &str| {
        let would = cache_json(&p, &["gc", "--dry-run", "--grace", "0s", "--cache-lease", lease]);
        let objects = would["objects"].as_array().unwrap().clone();
        objects.iter().filter(|o| o["object"].as_str().unwrap().contains("writers/")).count()
    };
    let job = Process::caju(p.folder(), &["run", "pipeline.yaml", "--policy", "full", "--cache", "cache"]);
    job.wait_for_error_line("rows/s");
    let deadline = Instant::now() + TEST_TIMEOUT;
    while leases_removed("0s") == 0 {
        assert!(Instant::now() < deadline, "the job stores nothing");
    }
    job.signal("KILL");
    job.wait_for_end();
    assert_eq!((leases_removed("1h"), leases_removed("0s")), (0, 1));
}

/// A cheap job must not evict rows that are expensive to compute: the two would evict each other
/// for ever.
#[test]
fn a_budget_is_not_spent_on_what_is_worth_less() {
    let (p, [dear, cheap]) = expensive_and_cheap();
    cache(&p, &["rm", &cheap]).expect_code(0);
    let all = cache_json(&p, &["ls"])["bytes"].as_u64().unwrap();
    let budget = (all + 20_000).to_string();
    let run = |steps: Value| {
        let def =
            json!({ "name": "one", "source": { "parquet": { "path": "data/*.parquet" } }, "steps": steps });
        fs::write(p.path(), def.to_string()).unwrap();
        let args = ["--cache", "cache", "--policy", "full", "--cache-budget", &budget];
        p.run(&args)
    };
    let wide = json!({ "with_columns": { "text": "repeat('abcdefgh', 30)" } });
    let ended = run(json!([wide, "autocache"]));
    ended.expect_code(0);
    assert!(ended.stderr.contains("is full") && ended.stderr.contains("CPU s per GiB"), "{}", ended.stderr);
    assert_eq!((only(&p), parts(&p, &dear).len()), (dear.clone(), 3));
    // What is dearer still gets what it needs.
    run(json!([{ "burn": { "per_row": "5ms" } }, wide, "autocache"])).expect_code(0);
    assert!(parts(&p, &dear).len() < 3);
    assert!(cache_json(&p, &["ls"])["bytes"].as_u64().unwrap() <= all + 20_000);
}

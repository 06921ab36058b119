//! A short run of every target over its seeds and mutations of them, without a fuzzer.
//!
//! A mutation is a number; the number of one that broke a promise is on standard error, also if the process dies of
//! it. Replay with `CAJU_FUZZ_SEED=NUMBER`, or a file with `CAJU_FUZZ_INPUT=PATH`; `CAJU_FUZZ_RUNS=N` runs more
//! mutations:
//!
//! ```text
//! CAJU_FUZZ_SEED=17 cargo test -p caju-fuzz --test seeds parquet
//! ```

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests; what to replay comes from the environment"
)]
#![allow(clippy::explicit_write, reason = "`eprintln` is captured, and lost when the process dies")]

mod allocator;

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, PoisonError};

use caju_fuzz::{MOST_BYTES, TARGETS, Target, mutate::mutated, seeds, target};

/// Mutations of each target; seconds in an unoptimised build.
const RUNS: u64 = 1000;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a whole number")))
}

/// Says what is run where a dying process leaves it to be read: not through the capture of the test's output.
fn say(line: &str) {
    writeln!(std::io::stderr(), "{line}").unwrap();
}

fn run(target: Target, what: &str, replay: &str, input: &[u8]) {
    // Kept until the next one: seeds that are added give numbers another meaning.
    let kept = format!("{}/fuzz-{}", env!("CARGO_TARGET_TMPDIR"), target.name);
    std::fs::write(&kept, input).unwrap();
    let again =
        format!("{replay} cargo test -p caju-fuzz --test seeds {} (the input is in {kept})", target.name);
    allocator::watch(MOST_BYTES, &format!("{what} asks for too much memory; again: {again}\n"));
    let done = catch_unwind(AssertUnwindSafe(|| (target.one)(input)));
    let peak = allocator::peak();
    if let Err(panic) = done {
        say(&format!("{what} broke a promise; again: {again}"));
        resume_unwind(panic);
    }
    assert!(peak <= MOST_BYTES, "{what} had {peak} bytes allocated; again: {again}");
}

/// One target at a time: the allocator counts for the whole process.
static ALONE: Mutex<()> = Mutex::new(());

fn short_run(name: &str) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let target = target(name);
    if let Ok(path) = std::env::var("CAJU_FUZZ_INPUT") {
        return run(target, &path, &format!("CAJU_FUZZ_INPUT={path}"), &std::fs::read(&path).unwrap());
    }
    let seeds = seeds(name);
    // What is made once, as a cluster or a cache, is not counted for an input.
    (target.one)(&seeds[0].1);
    let mutation = |n: u64| {
        let what = format!("{name}: mutation {n}");
        run(target, &what, &format!("CAJU_FUZZ_SEED={n}"), &mutated(&seeds, n));
    };
    if let Some(n) = number("CAJU_FUZZ_SEED") {
        return mutation(n);
    }
    for (seed, data) in &seeds {
        let path = caju_fuzz::corpus(name).join(seed);
        run(target, &format!("{name}: seed {seed}"), &format!("CAJU_FUZZ_INPUT={}", path.display()), data);
    }
    (0..number("CAJU_FUZZ_RUNS").unwrap_or(RUNS)).for_each(mutation);
}

macro_rules! targets {
    ($($name:ident),* $(,)?) => {
        $(
            #[test]
            fn $name() {
                short_run(stringify!($name));
            }
        )*

        #[test]
        fn every_target_has_a_test_and_seeds() {
            let tested = [$(stringify!($name)),*];
            for target in TARGETS {
                assert!(tested.contains(&target.name), "{} has no test", target.name);
            }
            // The one binary takes its target by name, and `fuzz/run` takes the names from the folders of seeds.
            let folders = std::fs::read_dir(caju_fuzz::corpus("")).unwrap();
            let mut folders: Vec<String> =
                folders.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            folders.sort();
            let mut targets: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
            targets.sort_unstable();
            assert_eq!(folders, targets, "the folders of fuzz/corpus and the targets differ");
        }
    };
}

targets!(
    arrow, csv, example, expression, flight, frame, image, json, memory, message, messages, parquet, part,
    peer, pipeline, profile, record, tar, tfrecord, ticket,
);

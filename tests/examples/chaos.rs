//! Rounds of random faults against real processes; see `caju_tests::chaos`.
//!
//! ```sh
//! cargo run -p caju-tests --example chaos -- --rounds 100 --seed 1
//! ```
//!
//! Round `i` has the seed `SEED + i`. Ends with code 1 if a round failed, and prints the line that replays it.

#![allow(clippy::unwrap_used, reason = "a wrong argument ends the program")]

use std::time::Instant;

use caju_tests::chaos::{Fixture, run};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str, default: u64| match args.iter().position(|a| a == name) {
        Some(at) => args.get(at + 1).and_then(|v| v.parse().ok()).expect("--rounds N --seed N"),
        None => default,
    };
    let (rounds, first) = (value("--rounds", 100), value("--seed", 1));
    let (fixture, begin) = (Fixture::new(), Instant::now());
    let mut failed = Vec::new();
    for seed in first..first + rounds {
        match run(seed, &fixture) {
            Ok(summary) => println!("passed: {summary}"),
            Err(problem) => {
                failed.push(seed);
                println!("FAILED: {problem}");
            }
        }
    }
    let passed = rounds - failed.len() as u64;
    println!(
        "{passed} of {rounds} rounds passed in {:.0} s; failed seeds: {failed:?}",
        begin.elapsed().as_secs_f64()
    );
    std::process::exit(i32::from(!failed.is_empty()));
}

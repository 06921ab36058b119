//! Some rounds of random faults. 100 of them: `cargo run -p caju-tests --example chaos -- --rounds 100`.

use caju_tests::chaos::{Fixture, run};

/// Between them these rounds compute, store and read, with trainers that share their rows, consumers in rounds of both kinds, a
/// state folder that is damaged, a reader that is killed, and one that sleeps for longer than the client timeout.
const SEEDS: [u64; 5] = [2, 4, 5, 6, 7];
/// The groups of readers that [`SEEDS`] lack: a reader that goes on from its states, consumers without rounds, and trainers with
/// `--sharing-lag` `spill` and `throttle`.
const OTHER_GROUPS: [u64; 4] = [8, 9, 10, 11];

fn pass(seeds: &[u64]) {
    let fixture = Fixture::new();
    for seed in seeds {
        run(*seed, &fixture).unwrap_or_else(|problem| panic!("{problem}"));
    }
}

#[test]
fn five_rounds_of_chaos() {
    pass(&SEEDS);
}

#[test]
fn rounds_of_chaos_of_the_other_groups() {
    pass(&OTHER_GROUPS);
}

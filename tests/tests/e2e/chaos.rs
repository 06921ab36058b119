//! Some rounds of random faults. 100 of them: `cargo run -p caju-tests --example chaos -- --rounds 100`.

use caju_tests::chaos::{Fixture, run};

/// Between them these rounds compute, store and read, with trainers that share their rows, consumers in rounds of both kinds, a
/// state folder that is damaged, a reader that is killed, and one that sleeps for longer than the client timeout.
const SEEDS: [u64; 5] = [2, 4, 5, 6, 7];

#[test]
fn five_rounds_of_chaos() {
    let fixture = Fixture::new();
    for seed in SEEDS {
        run(seed, &fixture).unwrap_or_else(|problem| panic!("{problem}"));
    }
}

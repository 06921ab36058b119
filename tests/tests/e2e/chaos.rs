//! Some rounds of random faults. 100 of them: `cargo run -p caju-tests --example chaos -- --rounds 100`.

use caju_tests::chaos::{Fixture, run};

/// Between them these rounds compute, store and read, with one reader and two.
#[test]
fn five_rounds_of_chaos() {
    let fixture = Fixture::new();
    for seed in 1..=5 {
        run(seed, &fixture).unwrap_or_else(|problem| panic!("{problem}"));
    }
}

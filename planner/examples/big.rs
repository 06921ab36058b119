//! Prints how long a large profile takes: 10,000 stages, 100 hints, 10 encodings each.
//!
//! `cargo run --release -p caju-planner --example big`

#[path = "../tests/planner/large.rs"]
mod large;

use std::time::Instant;

use caju_planner::{Policy, Profile, plan};

fn main() -> caju_types::Result<()> {
    let text = large::profile(10_000, 100, 10).to_json();
    for _ in 0..5 {
        let start = Instant::now();
        let profile = Profile::from_json(&text)?;
        let read = start.elapsed();
        let decision = plan(&profile, &Policy::Auto)?;
        let planned = start.elapsed() - read;
        let bytes = decision.to_json().len();
        let printed = start.elapsed() - read - planned;
        println!(
            "{} options: read {} bytes in {read:.1?}, planned in {planned:.1?}, printed {bytes} bytes in {printed:.1?}",
            decision.options.len(),
            text.len(),
        );
    }
    Ok(())
}

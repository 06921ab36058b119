//! What the end of an epoch costs; see `caju_tests::epoch_end`.
//!
//! ```sh
//! cargo run -p caju-tests --example epoch_end
//! ```
//!
//! First an epoch with one of four workers at a tenth of the speed, in splits of several sizes; then epochs with 1 to 16
//! workers of one speed. Prints tables in Markdown.

use std::time::Duration;

use caju_tests::epoch_end::{Measured, Setup};

fn line(what: &str, m: &Measured) {
    println!(
        "| {what} | {:.2} s | {:.2} s | {:.2} | {:.2} s |",
        m.ideal.as_secs_f64(),
        m.wall.as_secs_f64(),
        m.wall.as_secs_f64() / m.ideal.as_secs_f64(),
        m.tail.as_secs_f64()
    );
}

fn main() {
    let head = "| ideal | epoch | epoch / ideal | last 1 % of the rows |\n|---|---|---|---|---|";
    println!("| one of 4 workers at a tenth of the speed, split of {head}");
    for (files, rows_per_file) in [(310, 10), (155, 20), (62, 50), (31, 100)] {
        let setup = Setup {
            fast: 3,
            slowdown: Some(10),
            files,
            rows_per_file,
            per_row: Duration::from_millis(10),
            straggler_factor: 3,
        };
        line(&format!("{:.1} s", rows_per_file as f64 / 100.0), &setup.measure());
    }
    println!("\n| workers {head}");
    for fast in [1, 2, 4, 8, 16] {
        let setup = Setup {
            fast,
            slowdown: None,
            files: 40 * fast,
            rows_per_file: 20,
            per_row: Duration::from_millis(10),
            straggler_factor: 3,
        };
        line(&fast.to_string(), &setup.measure());
    }
}

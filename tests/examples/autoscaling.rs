//! Epoch times by the number of workers, and the numbers that three rules choose; see `caju_tests::autoscaling`.
//!
//! ```sh
//! cargo run -p caju-tests --example autoscaling -- OUT.json [ROWS] [MAX_WORKERS]
//! ```
//!
//! The ratios are those of Figure 6a of the Cachew paper: the workers' time for an epoch is 1,730 / 495 times that of the reader.
//! `experiments/autoscaling/run.py` makes tables and a picture of the result.

use std::time::Duration;

use caju_planner::{Profile, ScalingPolicy, ScalingSample, WorkerLimits};
use caju_tests::autoscaling::{Measured, Setup};
use serde_json::json;

/// Seconds of an epoch with one worker, and those of the accelerator alone, in the paper.
const PAPER: (f64, f64) = (1730.0, 495.0);
/// The fraction of its cores that a worker uses while it is the bottleneck. A worker here sleeps, so this stands in for what HPA
/// would see: in the paper it stayed at one worker, so it saw less than its target of 80 %.
const BUSY_CORES: f64 = 0.55;
/// Dollars per hour of a worker and of the accelerator.
const PRICES: (f64, f64) = (0.38, 8.0);

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, default: usize| args.get(i).map_or(default, |n| n.parse().expect("a number"));
    let out = args.first().expect("autoscaling OUT.json [ROWS] [MAX_WORKERS]");
    let (rows, most) = (number(1, 2000), number(2, 8));
    let (per_row, batch) = (Duration::from_millis(10), 20);
    let step = per_row.mul_f64(20.0 * PAPER.1 / PAPER.0);
    let setup = Setup { files: rows / 10, rows_per_file: 10, per_row, batch, step };
    let measured: Vec<Measured> = (1..=most)
        .map(|workers| {
            let m = setup.measure(workers);
            eprintln!("{workers} workers: {:.2} s, target {}", m.epoch.as_secs_f64(), m.target);
            m
        })
        .collect();
    let at = |n: u64| measured[usize::try_from(n).expect("small") - 1];
    let sample = |n: u64| {
        let m = at(n);
        let busy = per_row.mul_f64(rows as f64).as_secs_f64() / m.epoch.as_secs_f64() / n as f64;
        ScalingSample {
            cpu_utilization: BUSY_CORES * busy.min(1.0),
            batch_s: m.epoch.as_secs_f64() / m.batches as f64,
        }
    };
    // The rules that it is compared with use no more of a profile than the number that they begin with.
    let profile = Profile::from_json(
        r#"{"schema": "caju.profile/v1", "cluster": {"workers": 1, "cores_per_worker": 8}, "source": {"rows": 0},
            "stages": [{"name": "work", "io_bytes_per_row": 0, "cpu_s_per_row": 0, "service_s_per_row": 0,
                        "out_rows_per_row": 1, "out_bytes_per_row": 0}]}"#,
    )
    .expect("a profile");
    let limits = WorkerLimits::new(1, most as u64).expect("limits");
    let steps = |name: &str| {
        let policy: ScalingPolicy = name.parse().expect("a policy");
        policy.steps(&profile, limits, sample).expect("steps")
    };
    let points: Vec<_> = (measured.iter())
        .map(|m| {
            let (epoch_s, wait_s) = (m.epoch.as_secs_f64(), m.wait.as_secs_f64());
            let per_h = PRICES.1 + PRICES.0 * m.workers as f64;
            json!({"workers": m.workers, "epoch_s": epoch_s, "consumer_wait": wait_s / epoch_s, "cost_per_h": per_h,
                   "cost": per_h * epoch_s / 3600.0, "target": m.target})
        })
        .collect();
    let result = json!({
        "points": points,
        "steps": {"caju": [1, at(1).target], "hpa": steps("hpa"), "cachew": steps("cachew")},
        "ideal_1_worker_s": per_row.as_secs_f64() * rows as f64,
        "reader_alone_s": step.as_secs_f64() * rows as f64 / batch as f64,
    });
    std::fs::write(out, format!("{result:#}\n")).expect("the result's file");
}

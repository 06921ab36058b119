//! Published measurements replayed: Cachew's Figure 7 and PRESTO's ImageNet table.
//!
//! The profiles are derived in `tests/golden_plans/README.md`. For Figure 7 one base profile, in which only
//! the sleep differs, stands for all seven rows, so that five of them are predictions.

use crate::regret::{self, Replay};

/// The share by which two measurements of the table must differ to be told apart.
///
/// Where the sleep is not the bottleneck it cannot matter, so those runs repeat each other: compute at 200
/// and 250 ms, source at 200 and 250 ms, full in every row. Their pooled standard deviation, times sqrt(2)
/// for a difference, times 2.306 (Student's t, 95 %, 8 degrees of freedom).
fn noise(all: &[Replay]) -> f64 {
    let column = |c: usize, n: usize| all[..n].iter().map(|r| 1.0 / r.options[c].2).collect::<Vec<f64>>();
    let groups = [column(0, 2), column(1, 2), column(2, 7)];
    let (mut squares, mut freedom) = (0.0, 0.0);
    for g in &groups {
        let mean = g.iter().sum::<f64>() / g.len() as f64;
        squares += g.iter().map(|v| (v / mean - 1.0).powi(2)).sum::<f64>();
        freedom += g.len() as f64 - 1.0;
    }
    assert_eq!(freedom, 8.0);
    2.306 * 2f64.sqrt() * (squares / freedom).sqrt()
}

#[test]
fn figure7() {
    let all = regret::replays("figure7-");
    assert_eq!(all.len(), 7);
    let noise = noise(&all);
    println!("run-to-run noise of a difference (95 %): {:.1} %", noise * 100.0);
    for r in &all {
        assert_eq!(r.options.len(), 3, "{r:?}");
        assert!(r.regret(0) <= 0.03 || r.regret(0) <= noise, "loses more than the noise: {r:?}");
        // The outlier of the table apart, the model also predicts the times.
        for (name, predicted, measured) in &r.options {
            let off = (measured / predicted - 1.0).abs();
            assert!(off < 0.04 || (r.name == "figure7-300" && name == "compute"), "{} {name}: {off}", r.name);
        }
    }
    assert!(regret::mean(&all, 0) <= 0.01, "mean regret {}", regret::mean(&all, 0));
    assert!(regret::worst(&all, 0) < regret::worst(&all, 1), "cachew does worse");
}

#[test]
fn presto() {
    let all = regret::replays("presto-");
    assert_eq!(all.len(), 2);
    for r in &all {
        assert_eq!((r.options[r.taken[0]].0.as_str(), r.regret(0)), ("resized", 0.0), "{r:?}");
    }
}

/// Printed, and kept as a file, so that a change of the planner shows what it gains or loses.
#[test]
fn regret_table() {
    let table = regret::table();
    println!("{table}");
    let kept = std::fs::read_to_string(regret::file()).unwrap_or_default();
    assert_eq!(kept, table, "the regrets changed; if on purpose, run the example `bless`");
}

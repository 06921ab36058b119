//! What the trials of a bench say, policy by policy.

use std::fmt::Write as _;

use caju_types::format_bytes;
use serde::Serialize;

use super::Trial;
use crate::commands::summary::table;

/// One policy.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Line {
    pub(crate) policy: String,
    /// Seconds of all epochs of a cold job, median.
    pub(crate) total_s: f64,
    /// The same of a warm one.
    pub(crate) warm_total_s: Option<f64>,
    /// Seconds of the whole horizon, cold: the measured epochs, and those after them like the last; median.
    pub(crate) horizon_s: f64,
    /// The same of a warm job.
    pub(crate) warm_horizon_s: Option<f64>,
    /// Seconds of each epoch of a cold job, medians.
    pub(crate) epoch_s: Vec<f64>,
    /// Rows per second of the last epoch, median.
    pub(crate) steady_rows_per_s: f64,
    /// Bytes in the cache after a cold job, median.
    pub(crate) stored_bytes: f64,
    /// Bytes that a cold job read from its source, and read from and wrote to its cache, medians.
    pub(crate) source_bytes: f64,
    pub(crate) cache_read_bytes: f64,
    pub(crate) cache_written_bytes: f64,
    /// CPU seconds of a cold job, median.
    pub(crate) cpu_s: f64,
    /// The first epoch of a cold job that read all of its splits from the cache.
    pub(crate) cached_from: Option<u64>,
    /// Time lost over the horizon against the best measured policy: 0.01 is one percent.
    pub(crate) regret: f64,
    /// The same of the last epoch: what is lost in every further one.
    pub(crate) steady_regret: f64,
    /// Between the fastest and the slowest round, as a share of the median.
    pub(crate) spread: f64,
    /// What a planning policy chose, by how often.
    pub(crate) choices: Vec<(String, usize)>,
}

/// All of them, in the order in which they were asked for.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Summary {
    pub(crate) lines: Vec<Line>,
    /// The best measured policy of those that decide nothing.
    pub(crate) oracle: String,
    /// The median spread between rounds of one policy.
    pub(crate) noise: f64,
    /// Epochs that the times are of, and how many of them were measured.
    pub(crate) horizon: u64,
    pub(crate) epochs: u64,
}

/// Policies that choose for themselves are no candidates for the oracle.
fn decides(policy: &str) -> bool {
    matches!(policy, "auto" | "cachew")
}

impl Summary {
    pub(crate) fn of(policies: &[String], trials: &[Trial], epochs: u64, horizon: u64) -> Self {
        let mut lines: Vec<Line> = policies.iter().map(|p| Line::of(p, trials, epochs, horizon)).collect();
        let exact: Vec<&Line> = lines.iter().filter(|l| !decides(&l.policy)).collect();
        let best = if exact.is_empty() { lines.iter().collect() } else { exact };
        let best = best.into_iter().min_by(|a, b| a.horizon_s.total_cmp(&b.horizon_s));
        let (oracle, best) = best.map_or((String::new(), 0.0), |l| (l.policy.clone(), l.horizon_s));
        let exact = lines.iter().filter(|l| !decides(&l.policy) || l.policy == oracle);
        let steady = exact.map(|l| l.steady_rows_per_s).fold(0.0, f64::max);
        for line in &mut lines {
            if line.steady_rows_per_s > 0.0 {
                line.steady_regret = steady / line.steady_rows_per_s - 1.0;
            }
            line.regret = if best > 0.0 { line.horizon_s / best - 1.0 } else { 0.0 };
        }
        let noise = median(lines.iter().map(|l| l.spread).collect());
        Self { lines, oracle, noise, horizon, epochs }
    }

    /// A table, and what it means.
    pub(crate) fn text(&self) -> String {
        let head = [
            "policy",
            "measured",
            "horizon",
            "regret",
            "warm",
            "steady rows/s",
            "lost",
            "stored",
            "cached from",
            "chose",
        ];
        let mut rows = vec![head.map(String::from)];
        for l in &self.lines {
            let chose: Vec<String> = l
                .choices
                .iter()
                .map(|(c, n)| if l.choices.len() == 1 { c.clone() } else { format!("{c} ({n})") })
                .collect();
            rows.push([
                l.policy.clone(),
                format!("{:.2} s", l.total_s),
                format!("{:.2} s", l.horizon_s),
                format!("{:+.1} %", 100.0 * l.regret),
                l.warm_horizon_s.map_or_else(|| "-".to_string(), |s| format!("{s:.2} s")),
                format!("{:.0}", l.steady_rows_per_s),
                format!("{:+.1} %", 100.0 * l.steady_regret),
                format_bytes(whole(l.stored_bytes)),
                l.cached_from.map_or_else(|| "-".to_string(), |e| format!("epoch {e}")),
                chose.join(", "),
            ]);
        }
        let mut out = table(&rows);
        let _ = write!(
            out,
            "\n  horizon      {} epochs; {} were measured{}\n  oracle       {}\n  noise        {:.1} % between rounds of \
             one policy (median)\n",
            self.horizon,
            self.epochs,
            if self.horizon > self.epochs { ", the others are taken to be like the last" } else { "" },
            self.oracle,
            100.0 * self.noise
        );
        out
    }
}

impl Line {
    fn of(policy: &str, trials: &[Trial], epochs: u64, horizon: u64) -> Self {
        let of = |warm: bool| trials.iter().filter(move |t| t.policy == policy && t.warm == warm);
        let cold = |f: &dyn Fn(&Trial) -> f64| median(of(false).map(f).collect());
        let totals: Vec<f64> = of(false).map(Trial::total_s).collect();
        let total_s = median(totals.clone());
        let spread = match (totals.iter().copied().reduce(f64::max), totals.iter().copied().reduce(f64::min))
        {
            (Some(most), Some(least)) if total_s > 0.0 => (most - least) / total_s,
            _ => 0.0,
        };
        let epoch = |e: u64| {
            let at = usize::try_from(e).unwrap_or(usize::MAX);
            median(of(false).filter_map(|t| t.epochs.get(at)).map(|e| e.wall_s).collect())
        };
        let all_read = |t: &Trial, e: usize| {
            t.epochs.get(e).is_some_and(|e| e.splits.get > 0 && e.splits.compute + e.splits.put == 0)
        };
        let cached_from = (0..epochs).find(|e| {
            let e = usize::try_from(*e).unwrap_or(usize::MAX);
            of(false).next().is_some() && of(false).all(|t| all_read(t, e))
        });
        let mut choices: Vec<(String, usize)> = Vec::new();
        for choice in of(false).filter_map(|t| t.choice.as_ref()).map(choice_text) {
            match choices.iter_mut().find(|(c, _)| *c == choice) {
                Some((_, n)) => *n += 1,
                None => choices.push((choice, 1)),
            }
        }
        let warm: Vec<f64> = of(true).map(Trial::total_s).collect();
        let over = |warm: bool| of(warm).map(|t| t.horizon_s(horizon)).collect::<Vec<f64>>();
        Self {
            policy: policy.to_string(),
            total_s,
            warm_total_s: (!warm.is_empty()).then(|| median(warm.clone())),
            horizon_s: median(over(false)),
            warm_horizon_s: (!warm.is_empty()).then(|| median(over(true))),
            epoch_s: (0..epochs).map(epoch).collect(),
            steady_rows_per_s: cold(&|t| t.epochs.last().map_or(0.0, |e| e.rows_per_s)),
            stored_bytes: cold(&|t| t.stored_bytes as f64),
            source_bytes: cold(&|t| t.epochs.iter().map(|e| e.source_bytes_read as f64).sum()),
            cache_read_bytes: cold(&|t| t.epochs.iter().map(|e| e.cache_bytes_read as f64).sum()),
            cache_written_bytes: cold(&|t| t.epochs.iter().map(|e| e.cache_bytes_written as f64).sum()),
            cpu_s: cold(&|t| t.cpu_s),
            cached_from,
            regret: 0.0,
            steady_regret: 0.0,
            spread,
            choices,
        }
    }
}

/// A decision's choice in a few words.
fn choice_text(choice: &serde_json::Value) -> String {
    let text = |key: &str| choice.get(key).and_then(|v| v.as_str()).unwrap_or_default().to_string();
    if text("kind") != "materialize" {
        return text("kind");
    }
    let share = choice.get("fraction").and_then(serde_json::Value::as_f64).unwrap_or(1.0);
    let part = if share < 1.0 { format!("{:.0} % of ", 100.0 * share) } else { String::new() };
    format!("{part}{} as {}/{}", text("hint"), text("format"), text("compression"))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    match n {
        0 => 0.0,
        _ if n % 2 == 1 => values[n / 2],
        _ => f64::midpoint(values[n / 2 - 1], values[n / 2]),
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number of bytes, for people")]
fn whole(v: f64) -> u64 {
    v.max(0.0).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{EpochReport, SplitsReport};

    fn trial(policy: &str, times: &[f64], get: u64) -> Trial {
        let epoch = |(epoch, wall_s): (usize, &f64)| EpochReport {
            epoch: epoch as u64,
            rows: 100,
            batches: 1,
            wall_s: *wall_s,
            rows_per_s: 100.0 / wall_s,
            first_batch_s: 0.0,
            wait_s: 0.0,
            rows_checksum: None,
            source_bytes_read: 1,
            cache_bytes_read: 0,
            cache_bytes_written: 0,
            splits: if epoch == 0 {
                SplitsReport::default()
            } else {
                SplitsReport { get, ..Default::default() }
            },
            bytes: 0,
            rows_skipped: 0,
        };
        Trial {
            policy: policy.into(),
            repeat: 0,
            warm: false,
            epochs: times.iter().enumerate().map(epoch).collect(),
            stored_bytes: 0,
            choice: None,
            decision: None,
            cpu_s: 0.0,
        }
    }

    #[test]
    fn regret_is_against_the_best_that_decides_nothing() {
        let policies = ["compute", "hint:a", "auto"].map(String::from);
        let trials = [
            trial("compute", &[4.0, 4.0], 0),
            trial("hint:a", &[4.5, 0.5], 3),
            trial("auto", &[4.6, 0.5], 3),
        ];
        let longer = Summary::of(&policies, &trials, 2, 12);
        assert!((longer.lines[1].horizon_s - 10.0).abs() < 1e-9 && longer.lines[2].regret < 0.011);
        let summary = Summary::of(&policies, &trials, 2, 2);
        assert_eq!(summary.oracle, "hint:a");
        assert!((summary.lines[0].regret - 0.6).abs() < 1e-9);
        assert!((summary.lines[2].regret - 0.02).abs() < 1e-9);
        assert_eq!(summary.lines[0].cached_from, None);
        assert_eq!(summary.lines[1].cached_from, Some(1));
        assert!(summary.text().contains("+60.0 %"), "{}", summary.text());
    }
}

//! What the trials of a bench say, policy by policy.

use serde::Serialize;

use super::Trial;

/// One policy.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Line {
    pub(crate) policy: String,
    /// Seconds of all epochs of a cold job, median.
    pub(crate) total_s: f64,
    /// The same of a warm one.
    pub(crate) warm_total_s: Option<f64>,
    /// Seconds of the whole horizon, cold: the measured epochs, and those after them like the last ones; median.
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
    /// The same of a warm one.
    pub(crate) warm_cached_from: Option<u64>,
    /// Time lost over the horizon against the best measured policy: 0.01 is one percent.
    pub(crate) regret: f64,
    /// The same of a warm job, against the best warm one.
    pub(crate) warm_regret: Option<f64>,
    /// The same of the last epoch: what is lost in every further one.
    pub(crate) steady_regret: f64,
    /// Between the fastest and the slowest round, as a share of the median; one round has none.
    pub(crate) spread: Option<f64>,
    /// What a planning policy chose, by how often.
    pub(crate) choices: Vec<(String, usize)>,
}

/// All of them, in the order in which they were asked for.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Summary {
    pub(crate) lines: Vec<Line>,
    /// The best measured policy of those that decide nothing.
    pub(crate) oracle: String,
    /// The best of them in a warm job.
    pub(crate) warm_oracle: Option<String>,
    /// The median spread between rounds of one policy; unknown after one round.
    pub(crate) noise: Option<f64>,
    /// Epochs that the times are of, and how many of them were measured.
    pub(crate) horizon: u64,
    pub(crate) epochs: u64,
}

/// Policies that choose for themselves are no candidates for the oracle.
fn decides(policy: &str) -> bool {
    matches!(policy, "auto" | "cachew")
}

/// The policy of the least time, and that time: of those that decide nothing, or of all where there are no others.
fn fastest(lines: &[Line], time: impl Fn(&Line) -> Option<f64>) -> Option<(String, f64)> {
    let among = |all: bool| {
        let some = lines.iter().filter(|l| all || !decides(&l.policy));
        let timed = some.filter_map(|l| Some((l, time(l)?)));
        timed.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(l, s)| (l.policy.clone(), s))
    };
    among(false).or_else(|| among(true))
}

impl Summary {
    pub(crate) fn of(policies: &[String], trials: &[Trial], epochs: u64, horizon: u64) -> Self {
        let mut lines: Vec<Line> = policies.iter().map(|p| Line::of(p, trials, epochs, horizon)).collect();
        let (oracle, best) = fastest(&lines, |l| Some(l.horizon_s)).unwrap_or_default();
        let warm = fastest(&lines, |l| l.warm_horizon_s);
        let exact = lines.iter().filter(|l| !decides(&l.policy) || l.policy == oracle);
        let steady = exact.map(|l| l.steady_rows_per_s).fold(0.0, f64::max);
        for line in &mut lines {
            if line.steady_rows_per_s > 0.0 {
                line.steady_regret = steady / line.steady_rows_per_s - 1.0;
            }
            line.regret = if best > 0.0 { line.horizon_s / best - 1.0 } else { 0.0 };
            line.warm_regret = match (line.warm_horizon_s, &warm) {
                (Some(s), Some((_, best))) if *best > 0.0 => Some(s / best - 1.0),
                _ => None,
            };
        }
        let spreads: Vec<f64> = lines.iter().filter_map(|l| l.spread).collect();
        let noise = (!spreads.is_empty()).then(|| median(spreads));
        Self { lines, oracle, warm_oracle: warm.map(|(policy, _)| policy), noise, horizon, epochs }
    }
}

impl Line {
    fn of(policy: &str, trials: &[Trial], epochs: u64, horizon: u64) -> Self {
        let of = |warm: bool| trials.iter().filter(move |t| t.policy == policy && t.warm == warm);
        let cold = |f: &dyn Fn(&Trial) -> f64| median(of(false).map(f).collect());
        let totals: Vec<f64> = of(false).map(Trial::total_s).collect();
        let spread = spread(&totals);
        let epoch = |e: u64| {
            let at = usize::try_from(e).unwrap_or(usize::MAX);
            median(of(false).filter_map(|t| t.epochs.get(at)).map(|e| e.wall_s).collect())
        };
        let all_read = |t: &Trial, e: usize| {
            t.epochs.get(e).is_some_and(|e| e.splits.get > 0 && e.splits.compute + e.splits.put == 0)
        };
        let cached_from = |warm: bool| {
            (0..epochs).find(|e| {
                let e = usize::try_from(*e).unwrap_or(usize::MAX);
                of(warm).next().is_some() && of(warm).all(|t| all_read(t, e))
            })
        };
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
            total_s: median(totals),
            warm_total_s: (!warm.is_empty()).then(|| median(warm.clone())),
            horizon_s: median(over(false)),
            warm_horizon_s: (!warm.is_empty()).then(|| median(over(true))),
            epoch_s: (0..epochs).map(epoch).collect(),
            steady_rows_per_s: cold(&Trial::steady_rows_per_s),
            stored_bytes: cold(&|t| t.stored_bytes as f64),
            source_bytes: cold(&|t| t.epochs.iter().map(|e| e.source_bytes_read as f64).sum()),
            cache_read_bytes: cold(&|t| t.epochs.iter().map(|e| e.cache_bytes_read as f64).sum()),
            cache_written_bytes: cold(&|t| t.epochs.iter().map(|e| e.cache_bytes_written as f64).sum()),
            cpu_s: cold(&|t| t.cpu_s),
            cached_from: cached_from(false),
            warm_cached_from: cached_from(true),
            regret: 0.0,
            warm_regret: None,
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

/// Between the least and the most, as a share of the median.
fn spread(values: &[f64]) -> Option<f64> {
    let (most, least) = (values.iter().copied().reduce(f64::max)?, values.iter().copied().reduce(f64::min)?);
    let middle = median(values.to_vec());
    (values.len() > 1 && middle > 0.0).then(|| (most - least) / middle)
}

pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    match n {
        0 => 0.0,
        _ if n % 2 == 1 => values[n / 2],
        _ => f64::midpoint(values[n / 2 - 1], values[n / 2]),
    }
}

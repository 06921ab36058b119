//! The result of a bench, policy by policy.

use caju_planner::Choice;
use serde::Serialize;

use super::stats::{median, median_interval, spread};
use super::trial::Trial;

/// The result of one policy.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Line {
    pub(crate) policy: String,
    /// Seconds of all epochs of a cold job, median.
    pub(crate) total_s: f64,
    /// Seconds of all epochs of a warm job, median.
    pub(crate) warm_total_s: Option<f64>,
    /// Seconds of the whole horizon of a cold job, median. Epochs that were not measured count like the last ones.
    pub(crate) horizon_s: f64,
    /// Seconds of the whole horizon of a warm job, median.
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
    /// The first epoch of a warm job that read all of its splits from the cache.
    pub(crate) warm_cached_from: Option<u64>,
    /// Rounds that ran it.
    pub(crate) rounds: usize,
    /// Time lost over the horizon against the best measured policy in the same round, median. 0.01 is one percent.
    pub(crate) regret: f64,
    /// The confidence interval of that median. Unknown after one round.
    pub(crate) regret_between: Option<(f64, f64)>,
    /// Time lost over the horizon by a warm job against the best measured warm job, median.
    pub(crate) warm_regret: Option<f64>,
    /// Regret over the measured epochs alone.
    pub(crate) measured_regret: f64,
    /// Regret of a steady epoch: what every further epoch loses.
    pub(crate) steady_regret: f64,
    /// The difference between the fastest and the slowest round, as a fraction of the median. One round has none.
    pub(crate) spread: Option<f64>,
    /// The choices of a planning policy, with their number of trials.
    pub(crate) choices: Vec<(String, usize)>,
}

/// The results of all policies, in the order of `--policies`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Summary {
    pub(crate) lines: Vec<Line>,
    /// The best measured policy among those that decide nothing.
    pub(crate) oracle: String,
    /// The best of these in a warm job.
    pub(crate) warm_oracle: Option<String>,
    /// The median spread between rounds of one policy. Unknown after one round.
    pub(crate) noise: Option<f64>,
    /// Epochs of the compared job, and how many of them were measured.
    pub(crate) horizon: u64,
    pub(crate) epochs: u64,
}

/// Whether a policy decides by itself. Such policies cannot be the oracle.
fn decides(policy: &str) -> bool {
    matches!(policy, "auto" | "cachew")
}

/// The largest regret after the first rounds with which a policy is run in the refine rounds: precision matters near the
/// best policy only.
const REFINE_LIMIT: f64 = 0.25;

/// Compares policies with an oracle. A machine drifts from minute to minute, so only trials of one round are compared.
struct Comparison<'a> {
    trials: &'a [Trial],
    oracle: &'a str,
    warm: bool,
}

impl Comparison<'_> {
    /// The regret of a policy in each round that ran both.
    fn regrets(&self, policy: &str, time: impl Fn(&Trial) -> f64) -> Vec<f64> {
        let of = |policy| self.trials.iter().filter(move |t| t.policy == policy && t.warm == self.warm);
        let pairs = of(policy).filter_map(|t| {
            let best = of(self.oracle).find(|o| o.repeat == t.repeat)?;
            Some((time(t), time(best)))
        });
        pairs.filter(|(_, best)| *best > 0.0).map(|(own, best)| own / best - 1.0).collect()
    }
}

/// The fastest policy among those that decide nothing, or among all where there are no others. Only policies with the
/// most rounds are candidates: the others were far behind, and the machine may have been faster in their rounds.
fn fastest(lines: &[Line], time: impl Fn(&Line) -> Option<f64>) -> Option<String> {
    let among = |all: bool| {
        let some = || lines.iter().filter(|l| time(l).is_some() && (all || !decides(&l.policy)));
        let most = some().map(|l| l.rounds).max();
        let timed = some().filter(|l| Some(l.rounds) == most).filter_map(|l| Some((l, time(l)?)));
        timed.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(l, _)| l.policy.clone())
    };
    among(false).or_else(|| among(true))
}

impl Summary {
    pub(crate) fn of(policies: &[String], trials: &[Trial], epochs: u64, horizon: u64) -> Self {
        let mut lines: Vec<Line> = policies.iter().map(|p| Line::of(p, trials, epochs, horizon)).collect();
        let oracle = fastest(&lines, |l| Some(l.horizon_s)).unwrap_or_default();
        let warm = fastest(&lines, |l| l.warm_horizon_s);
        let cold = Comparison { trials, oracle: &oracle, warm: false };
        let after = warm.as_deref().map(|oracle| Comparison { trials, oracle, warm: true });
        for line in &mut lines {
            let regrets = cold.regrets(&line.policy, |t| t.horizon_s(horizon));
            line.regret_between = median_interval(&regrets);
            line.regret = median(regrets);
            line.measured_regret = median(cold.regrets(&line.policy, Trial::total_s));
            line.steady_regret = median(cold.regrets(&line.policy, Trial::steady_s));
            let regrets = after.as_ref().map(|a| a.regrets(&line.policy, |t| t.horizon_s(horizon)));
            line.warm_regret = regrets.filter(|r| !r.is_empty()).map(median);
        }
        let spreads: Vec<f64> = lines.iter().filter_map(|l| l.spread).collect();
        let noise = (!spreads.is_empty()).then(|| median(spreads));
        Self { lines, oracle, warm_oracle: warm, noise, horizon, epochs }
    }

    /// The policies of the refine rounds: `auto`, and those that are not far behind the best.
    pub(crate) fn refined(&self) -> Vec<String> {
        let near = self.lines.iter().filter(|l| l.policy == "auto" || l.regret <= REFINE_LIMIT);
        near.map(|l| l.policy.clone()).collect()
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
            rounds: of(false).count(),
            regret: 0.0,
            regret_between: None,
            warm_regret: None,
            measured_regret: 0.0,
            steady_regret: 0.0,
            spread,
            choices,
        }
    }
}

/// A decision's choice in a few words.
fn choice_text(choice: &Choice) -> String {
    let Choice::Materialize { hint, format, compression, fraction } = choice else {
        return "compute".to_string();
    };
    let part = if *fraction < 1.0 { format!("{:.0} % of ", 100.0 * fraction) } else { String::new() };
    format!("{part}{hint} as {format}/{compression}")
}

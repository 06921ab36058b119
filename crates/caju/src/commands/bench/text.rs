//! The tables of a bench, and the explanation of their columns.

use std::fmt::Write as _;

use caju_types::format_bytes;

use super::summary::{Line, Summary};
use crate::text::{table, wrapped};

/// The largest number of epochs that are all shown.
const MAX_SHOWN_EPOCHS: usize = 6;
/// With more epochs, the number shown of the start, where rows are stored, and of the end, where all is steady.
const SHOWN_EPOCHS: (usize, usize) = (3, 2);

impl Summary {
    /// The cost of every policy, the traffic of its cold job, the gain of its warm job, and the meaning of the columns.
    pub(super) fn text(&self) -> String {
        let mut parts = vec![self.costs(), self.traffic()];
        if self.has_warm() {
            parts.push(self.gains());
        }
        parts.push(self.meaning());
        parts.join("\n")
    }

    fn has_warm(&self) -> bool {
        self.lines.iter().any(|l| l.warm_horizon_s.is_some())
    }

    fn costs(&self) -> String {
        let head = [
            "policy",
            "measured",
            "horizon",
            "regret",
            "steady rows/s",
            "lost",
            "stored",
            "cached from",
            "chose",
        ];
        self.table(head, |l| {
            [
                l.policy.clone(),
                seconds(l.total_s),
                seconds(l.horizon_s),
                regret(l),
                format!("{:.0}", l.steady_rows_per_s),
                percent(l.steady_regret),
                bytes(l.stored_bytes),
                or_dash(l.cached_from.map(epoch)),
                chose(l),
            ]
        })
    }

    fn traffic(&self) -> String {
        self.table(["cold job", "epochs", "source read", "cache read", "cache written"], |l| {
            [
                l.policy.clone(),
                times(&l.epoch_s),
                bytes(l.source_bytes),
                bytes(l.cache_read_bytes),
                bytes(l.cache_written_bytes),
            ]
        })
    }

    fn gains(&self) -> String {
        self.table(["warm job", "measured", "horizon", "regret", "cached from"], |l| {
            [
                l.policy.clone(),
                or_dash(l.warm_total_s.map(seconds)),
                or_dash(l.warm_horizon_s.map(seconds)),
                or_dash(l.warm_regret.map(percent)),
                or_dash(l.warm_cached_from.map(epoch)),
            ]
        })
    }

    /// One row a policy, below a head.
    fn table<const N: usize>(&self, head: [&str; N], row: impl Fn(&Line) -> [String; N]) -> String {
        let mut rows = vec![head.map(String::from)];
        rows.extend(self.lines.iter().map(row));
        table(&rows)
    }

    fn meaning(&self) -> String {
        let beyond = match self.horizon > self.epochs {
            true => ", the others are assumed to be like the last ones",
            false => "",
        };
        let cold = "starts with an empty cache: seconds of each measured epoch, and bytes moved in all of them \
                    together (medians of the rounds)";
        let mut notes = vec![
            ("horizon", format!("{} epochs; {} were measured{beyond}", self.horizon, self.epochs)),
            ("cold job", cold.to_string()),
        ];
        if self.has_warm() {
            let best = self.warm_oracle.as_deref().unwrap_or("-");
            let text = format!(
                "the same job again, on the cache that the cold one left; its regret is against {best}, the best \
                 warm one"
            );
            notes.push(("warm job", text));
        }
        notes.push(("oracle", self.oracle.clone()));
        if self.noise.is_some() {
            let text = "time lost against the oracle in the same round: the median of the rounds, and in brackets \
                        where it lies in nine of ten cases (of fewer than five rounds, the least and the most)";
            notes.push(("regret", text.to_string()));
        }
        notes.push(("noise", self.noise_text()));
        let mut out = String::new();
        for (name, text) in notes {
            let _ = writeln!(out, "  {name:<11}  {}", wrapped(&text, 15));
        }
        out
    }

    fn noise_text(&self) -> String {
        match self.noise {
            Some(noise) => format!("{:.1} % between rounds of one policy (median)", 100.0 * noise),
            None => "one round: noise unknown".to_string(),
        }
    }
}

/// Seconds of epochs, abbreviated in the middle.
pub(super) fn times(epochs: &[f64]) -> String {
    let text = |some: &[f64]| some.iter().map(|s| format!("{s:.2}")).collect::<Vec<_>>().join(" ");
    let (first, last) = SHOWN_EPOCHS;
    match epochs.len() {
        n if n > MAX_SHOWN_EPOCHS => {
            format!("{} ... {} s", text(&epochs[..first]), text(&epochs[n - last..]))
        }
        _ => format!("{} s", text(epochs)),
    }
}

fn seconds(s: f64) -> String {
    format!("{s:.2} s")
}

/// Regret, and its confidence interval.
pub(super) fn regret(line: &Line) -> String {
    match line.regret_between {
        Some((low, high)) if (low, high) != (0.0, 0.0) => {
            format!("{} ({:+.1} .. {:+.1})", percent(line.regret), 100.0 * low, 100.0 * high)
        }
        _ => percent(line.regret),
    }
}

fn percent(fraction: f64) -> String {
    format!("{:+.1} %", 100.0 * fraction)
}

fn epoch(n: u64) -> String {
    format!("epoch {n}")
}

fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_string())
}

/// The choices of a planning policy, with their number where they differ.
fn chose(line: &Line) -> String {
    let one = line.choices.len() == 1;
    let texts = line.choices.iter().map(|(c, n)| if one { c.clone() } else { format!("{c} ({n})") });
    texts.collect::<Vec<_>>().join(", ")
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number of bytes, for people")]
fn bytes(v: f64) -> String {
    format_bytes(v.max(0.0).round() as u64)
}

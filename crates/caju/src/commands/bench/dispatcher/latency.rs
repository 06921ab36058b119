//! Times of answers.

use std::time::Duration;

use serde_json::{Value, json};

/// Times of answers of one kind.
#[derive(Debug, Default, Clone)]
pub(super) struct Latencies(Vec<Duration>);

impl Latencies {
    pub(super) fn push(&mut self, time: Duration) {
        self.0.push(time);
    }

    pub(super) fn append(&mut self, mut other: Latencies) {
        self.0.append(&mut other.0);
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The time that `per_mille` thousandths of the answers do not exceed; zero of none.
    fn quantile(&self, per_mille: usize) -> Duration {
        let mut times = self.0.clone();
        times.sort_unstable();
        let at = (times.len() * per_mille / 1000).min(times.len().saturating_sub(1));
        times.get(at).copied().unwrap_or_default()
    }

    /// The quantiles in milliseconds: median, 99 of 100, 999 of 1000, and the longest.
    fn milliseconds(&self) -> [f64; 4] {
        [500, 990, 999, 1000].map(|q| 1e3 * self.quantile(q).as_secs_f64())
    }

    pub(super) fn text(&self) -> String {
        let [median, p99, p999, longest] = self.milliseconds();
        format!(
            "{:>8} answers, median {median:>7.2} ms, p99 {p99:>7.2} ms, p99.9 {p999:>7.2} ms, longest {longest:>8.2} ms",
            self.len()
        )
    }

    pub(super) fn json(&self) -> Value {
        let [median, p99, p999, longest] = self.milliseconds();
        json!({ "answers": self.len(), "median_ms": median, "p99_ms": p99, "p999_ms": p999, "longest_ms": longest })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_times() {
        let mut all = Latencies::default();
        (1..=1000).rev().for_each(|ms| all.push(Duration::from_millis(ms)));
        assert_eq!(all.milliseconds(), [501.0, 991.0, 1000.0, 1000.0]);
        assert_eq!(Latencies::default().milliseconds(), [0.0; 4]);
    }
}

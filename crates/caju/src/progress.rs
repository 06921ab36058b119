//! Progress: a bar on a terminal, plain lines elsewhere, nothing with `--quiet`.

use std::io::IsTerminal;
use std::pin::pin;
use std::time::{Duration, Instant};

use caju_types::{format_bytes, format_count, format_duration};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output;

/// How often a progress bar is updated.
const BAR_TICK: Duration = Duration::from_millis(150);
/// How often a progress line is printed where there is no terminal.
const LINE_TICK: Duration = Duration::from_secs(5);

/// The progress of some work.
#[derive(Debug, Clone, Default)]
pub(crate) struct State {
    /// Rows so far.
    pub(crate) rows: u64,
    /// Bytes so far.
    pub(crate) bytes: u64,
    /// What is done, in any unit of work: rows, splits, bytes.
    pub(crate) done: u64,
    /// The total of `done`, if it is known.
    pub(crate) total: Option<u64>,
    /// A further note, such as the bottleneck.
    pub(crate) note: String,
    /// The text instead of rows and rates, for work on something else.
    pub(crate) text: Option<String>,
}

/// Prints lines on standard output while a progress bar is shown on standard error.
#[derive(Debug, Clone)]
pub(crate) struct Printer(Option<ProgressBar>);

impl Printer {
    /// Prints text. A standard output that cannot be written is reported by the next line of the command itself.
    pub(crate) fn say(&self, text: &str) {
        let print = || drop(output::say(text));
        match &self.0 {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }
}

/// Shows the progress of one piece of work.
#[derive(Debug)]
pub(crate) struct Progress {
    how: How,
    what: String,
    started: Instant,
    last: (Instant, u64, u64),
    rates: Option<(f64, f64)>,
}

#[derive(Debug)]
enum How {
    Bar(ProgressBar),
    Lines,
    Quiet,
}

impl Progress {
    /// `what` is the prefix, such as `epoch 1`.
    pub(crate) fn new(what: impl Into<String>, quiet: bool) -> Self {
        let how = if quiet {
            How::Quiet
        } else if std::io::stderr().is_terminal() {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(8));
            How::Bar(bar)
        } else {
            How::Lines
        };
        let now = Instant::now();
        Self { how, what: what.into(), started: now, last: (now, 0, 0), rates: None }
    }

    /// Prints lines above the bar.
    pub(crate) fn printer(&self) -> Printer {
        match &self.how {
            How::Bar(bar) => Printer(Some(bar.clone())),
            How::Lines | How::Quiet => Printer(None),
        }
    }

    /// Runs `work` and shows what `state` says meanwhile.
    pub(crate) async fn watch<F: Future>(mut self, work: F, state: impl Fn() -> State) -> F::Output {
        let period = match &self.how {
            How::Bar(_) => BAR_TICK,
            How::Lines => LINE_TICK,
            How::Quiet => return work.await,
        };
        let mut work = pin!(work);
        let mut tick = tokio::time::interval_at(tokio::time::Instant::now() + period, period);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let out = loop {
            tokio::select! {
                biased;
                out = &mut work => break out,
                _ = tick.tick() => self.show(&state()),
            }
        };
        if let How::Bar(bar) = &self.how {
            bar.finish_and_clear();
        }
        out
    }

    fn show(&mut self, state: &State) {
        self.measure(state);
        let text = self.text(state);
        match &self.how {
            How::Quiet => {}
            How::Lines => {
                let percent = state
                    .total
                    .filter(|t| *t > 0)
                    .map(|t| format!("{:.0} % ", 100.0 * (state.done.min(t) as f64) / (t as f64)));
                let time = format_duration(self.started.elapsed());
                output::note(format_args!(
                    "{}: {}after {time}: {text}",
                    self.what,
                    percent.unwrap_or_default()
                ));
            }
            How::Bar(bar) => {
                let template = match state.total {
                    Some(_) => "{prefix} {bar:24.cyan/blue} {percent:>3} % {msg} eta {eta}",
                    None => "{prefix} {spinner} {msg}",
                };
                if let Ok(style) = ProgressStyle::with_template(template) {
                    bar.set_style(style.progress_chars("━╸─"));
                }
                bar.set_prefix(self.what.clone());
                match state.total {
                    Some(total) => bar.set_length(total.max(state.done)),
                    None => bar.unset_length(),
                }
                bar.set_position(state.done);
                bar.set_message(text);
                bar.tick();
            }
        }
    }

    /// Updates the smoothed rates.
    fn measure(&mut self, state: &State) {
        let now = Instant::now();
        let seconds = now.duration_since(self.last.0).as_secs_f64().max(1e-6);
        let rate = |new: u64, old: u64| new.saturating_sub(old) as f64 / seconds;
        let fresh = (rate(state.rows, self.last.1), rate(state.bytes, self.last.2));
        self.rates = Some(match self.rates {
            None => fresh,
            Some((r, b)) => (r + 0.3 * (fresh.0 - r), b + 0.3 * (fresh.1 - b)),
        });
        self.last = (now, state.rows, state.bytes);
    }

    fn text(&self, state: &State) -> String {
        let (rows, bytes) = self.rates.unwrap_or_default();
        let rates = || format!("{} rows, {}", format_count(state.rows), rates_text(rows, bytes));
        let mut text = state.text.clone().unwrap_or_else(rates);
        if !state.note.is_empty() {
            text.push_str(", ");
            text.push_str(&state.note);
        }
        text
    }
}

/// `12,345 rows/s, 120.3 MiB/s`.
pub(crate) fn rates_text(rows_per_s: f64, bytes_per_s: f64) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "rates are not negative; float to int saturates"
    )]
    let rows = rows_per_s.round() as u64;
    format!("{} rows/s, {:.1} MiB/s", format_count(rows), bytes_per_s / f64::from(1 << 20))
}

/// `1,000 rows, 105.20 MiB in 2.1 s (476 rows/s, 50.1 MiB/s)`.
pub(crate) fn done_text(rows: u64, bytes: u64, took: Duration) -> String {
    let s = took.as_secs_f64().max(1e-9);
    format!(
        "{} rows, {} in {} ({})",
        format_count(rows),
        format_bytes(bytes),
        format_duration(took),
        rates_text(rows as f64 / s, bytes as f64 / s)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn quiet_work_is_just_the_work() {
        let progress = Progress::new("x", true);
        assert_eq!(progress.watch(async { 42 }, State::default).await, 42);
    }

    #[test]
    fn texts() {
        assert_eq!(rates_text(12345.4, 2.5 * 1048576.0), "12,345 rows/s, 2.5 MiB/s");
        assert_eq!(
            done_text(10, 1024, Duration::from_secs(2)),
            "10 rows, 1.00 KiB in 2.00 s (5 rows/s, 0.0 MiB/s)"
        );
    }
}

//! What was decided, at the moment of the decision.

use std::cell::RefCell;
use std::convert::Infallible;
use std::time::{Duration, Instant};

use caju_client::Client;
use caju_planner::Choice;
use caju_proto::v1::JobStatus;
use caju_types::format_duration;

use super::decision::{decision, marked_reason};
use crate::progress::Printer;
use crate::text::wrapped;

/// How often the dispatcher is asked for its decision. Within one process it decides twice a second at most.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// What is done about the decisions of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Announce {
    /// The dispatcher is asked for them while an epoch runs, and each is printed at once.
    Print,
    /// The dispatcher is asked for them while an epoch runs. The summary says when the last one was made.
    Keep,
    /// They are seen at the ends of epochs only.
    AtEnds,
}

/// When a decision was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DecisionMoment {
    /// The epoch.
    epoch: u64,
    /// The moment in that epoch, as `after 1.50 s`.
    when: String,
    /// Whether the decision was printed then.
    pub(crate) is_printed: bool,
    /// The reason of the decision.
    reason: String,
}

/// Writes `epoch 0, after 1.50 s`.
impl std::fmt::Display for DecisionMoment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "epoch {}, {}", self.epoch, self.when)
    }
}

/// Keeps the last decision of one job, and prints each one once if that is wanted.
pub(crate) struct DecisionAnnouncer<'a> {
    client: &'a Client,
    job: &'a str,
    announce: Announce,
    last: RefCell<Option<DecisionMoment>>,
}

impl<'a> DecisionAnnouncer<'a> {
    /// For the decisions of this job.
    pub(crate) fn new(client: &'a Client, job: &'a str, announce: Announce) -> Self {
        Self { client, job, announce, last: RefCell::new(None) }
    }

    /// The moment of the last decision that was seen.
    pub(crate) fn last(&self) -> Option<DecisionMoment> {
        self.last.borrow().clone()
    }

    /// Runs the work of an epoch, and looks for decisions meanwhile.
    pub(crate) async fn during<F: Future>(&self, epoch: u64, printer: &Printer, work: F) -> F::Output {
        if self.announce == Announce::AtEnds {
            return work.await;
        }
        let start = Instant::now();
        tokio::select! {
            biased;
            done = work => done,
            never = Box::pin(self.poll(epoch, start, printer)) => match never {},
        }
    }

    async fn poll(&self, epoch: u64, start: Instant, printer: &Printer) -> Infallible {
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            // The epoch itself fails if the dispatcher does not answer.
            let Ok(status) = self.client.status().await else { continue };
            if let Some(job) = status.jobs.iter().find(|j| j.job == self.job && j.epoch == epoch) {
                self.announce(job, Some(start.elapsed()), printer);
            }
        }
    }

    /// Records the decision of an epoch unless it is the last one. `after` is absent at the epoch's end.
    pub(crate) fn announce(&self, job: &JobStatus, after: Option<Duration>, printer: &Printer) {
        let Some(decision) = decision(job) else { return };
        if self.last.borrow().as_ref().is_some_and(|last| last.reason == decision.reason) {
            return;
        }
        let moment = DecisionMoment {
            epoch: job.epoch,
            when: after
                .map_or_else(|| without_time(job).to_owned(), |t| format!("after {}", format_duration(t))),
            is_printed: self.announce == Announce::Print,
            reason: decision.reason,
        };
        let again = self.last.borrow().is_some();
        if moment.is_printed {
            printer.say(&text(job, &decision.choice, &moment, again));
        }
        self.last.replace(Some(moment));
    }
}

fn text(job: &JobStatus, choice: &Choice, moment: &DecisionMoment, again: bool) -> String {
    let decided = if again { "decided again" } else { "decided" };
    let what = match (job.caching.as_str(), choice.hint()) {
        // The epoch ended before the decision.
        ("", Some(hint)) => format!("the next epoch stores rows at hint `{hint}`"),
        ("", None) => "nothing is stored".to_owned(),
        (caching, _) => caching.to_owned(),
    };
    let reason = wrapped(&marked_reason(&moment.reason), 2);
    format!("epoch {}: {decided} {}: {what}\n  {reason}", moment.epoch, moment.when)
}

/// When a decision was made that was seen after the epoch only: its splits show whether it was in time for them.
fn without_time(job: &JobStatus) -> &'static str {
    let modes = job.modes.unwrap_or_default();
    // Rows that were held back until the decision were computed before it.
    match (modes.put + modes.get > 0, modes.compute + modes.backfilled > 0) {
        (true, false) => "before its first row",
        (true, true) => "while it ran",
        (false, _) => "at its end",
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use caju_proto::v1::SplitModes;

    use super::*;

    /// The moment of a decision without a reason.
    pub(crate) fn moment(epoch: u64, when: &str, is_printed: bool) -> DecisionMoment {
        DecisionMoment { epoch, when: when.into(), is_printed, reason: String::new() }
    }

    #[test]
    fn the_time_of_a_decision_is_that_of_the_splits_it_was_in_time_for() {
        let of = |compute, put, get| {
            let modes = Some(SplitModes { compute, put, get, ..SplitModes::default() });
            without_time(&JobStatus { modes, ..JobStatus::default() })
        };
        assert_eq!(of(0, 0, 12), "before its first row");
        assert_eq!(of(4, 8, 0), "while it ran");
        assert_eq!(of(12, 0, 0), "at its end");
        let modes = Some(SplitModes { put: 12, backfilled: 4, ..SplitModes::default() });
        assert_eq!(without_time(&JobStatus { modes, ..JobStatus::default() }), "while it ran");
    }

    #[test]
    fn a_decision_is_reported_with_its_reason() {
        let moment =
            |when: &str, reason: &str| DecisionMoment { reason: reason.into(), ..moment(1, when, true) };
        let job =
            JobStatus { epoch: 1, caching: "hint `resized` as arrow/none".into(), ..JobStatus::default() };
        let after = moment("after 1.50 s", "Reading is faster.");
        assert_eq!(after.to_string(), "epoch 1, after 1.50 s");
        let shown = text(&job, &Choice::Compute, &after, false);
        assert_eq!(
            shown,
            "epoch 1: decided after 1.50 s: hint `resized` as arrow/none\n  Reading is faster."
        );
        let chosen = Choice::Materialize {
            hint: "resized".into(),
            format: "arrow".into(),
            compression: "none".into(),
            fraction: 1.0,
        };
        let job = JobStatus { epoch: 1, ..JobStatus::default() };
        let shown = text(&job, &chosen, &moment("at its end", "Reading gives 9 rows/s."), false);
        let head = "epoch 1: decided at its end: the next epoch stores rows at hint `resized`\n  Estimate of";
        assert!(shown.starts_with(head), "{shown}");
        let shown = text(&job, &Choice::Compute, &moment("at its end", "Computing is faster."), true);
        assert_eq!(shown, "epoch 1: decided again at its end: nothing is stored\n  Computing is faster.");
    }
}

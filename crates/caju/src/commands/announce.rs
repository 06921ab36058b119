//! Tells the user what was decided, at the moment of the decision.

use std::cell::RefCell;
use std::convert::Infallible;
use std::time::{Duration, Instant};

use caju_client::Client;
use caju_planner::Choice;
use caju_proto::v1::JobStatus;
use caju_types::format_duration;

use super::decision::decision;
use crate::progress::Printer;
use crate::text::wrapped;

/// How often the dispatcher is asked for its decision. Within one process it decides twice a second at most.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Prints each decision of one job once.
pub(crate) struct DecisionAnnouncer<'a> {
    client: &'a Client,
    job: &'a str,
    enabled: bool,
    /// The reason of the last decision that was printed.
    last: RefCell<Option<String>>,
}

impl<'a> DecisionAnnouncer<'a> {
    /// For the decisions of this job. It prints nothing unless it is `enabled`.
    pub(crate) fn new(client: &'a Client, job: &'a str, enabled: bool) -> Self {
        Self { client, job, enabled, last: RefCell::new(None) }
    }

    /// Runs the work of an epoch, and prints each decision of that time.
    pub(crate) async fn during<F: Future>(&self, epoch: u64, printer: &Printer, work: F) -> F::Output {
        if !self.enabled {
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

    /// Prints the decision of an epoch unless it was the last one printed. `after` is absent at the epoch's end.
    pub(crate) fn announce(&self, job: &JobStatus, after: Option<Duration>, printer: &Printer) {
        if !self.enabled {
            return;
        }
        let Some(decision) = decision(job) else { return };
        let previous = self.last.replace(Some(decision.reason.clone()));
        if previous.as_ref() != Some(&decision.reason) {
            printer.say(&text(job, &decision.choice, &decision.reason, previous.is_some(), after));
        }
    }
}

fn text(job: &JobStatus, choice: &Choice, reason: &str, again: bool, after: Option<Duration>) -> String {
    let decided = if again { "decided again" } else { "decided" };
    let when =
        after.map_or_else(|| without_time(job).to_owned(), |t| format!("after {}", format_duration(t)));
    let what = match (job.caching.as_str(), choice.hint()) {
        // The epoch ended before the decision.
        ("", Some(hint)) => format!("the next epoch stores rows at hint `{hint}`"),
        ("", None) => "nothing is stored".to_owned(),
        (caching, _) => caching.to_owned(),
    };
    format!("epoch {}: {decided} {when}: {what}\n  {}", job.epoch, wrapped(reason, 2))
}

/// When a decision was made that was seen after the epoch only: its splits show whether it was in time for them.
fn without_time(job: &JobStatus) -> &'static str {
    let modes = job.modes.unwrap_or_default();
    match (modes.put + modes.get > 0, modes.compute > 0) {
        (true, false) => "before its first row",
        (true, true) => "while it ran",
        (false, _) => "at its end",
    }
}

#[cfg(test)]
mod tests {
    use caju_proto::v1::SplitModes;

    use super::*;

    #[test]
    fn the_time_of_a_decision_is_that_of_the_splits_it_was_in_time_for() {
        let of = |compute, put, get| {
            let modes = Some(SplitModes { compute, put, get, ..SplitModes::default() });
            without_time(&JobStatus { modes, ..JobStatus::default() })
        };
        assert_eq!(of(0, 0, 12), "before its first row");
        assert_eq!(of(4, 8, 0), "while it ran");
        assert_eq!(of(12, 0, 0), "at its end");
    }

    #[test]
    fn a_decision_is_reported_with_its_reason() {
        let job =
            JobStatus { epoch: 1, caching: "hint `resized` as arrow/none".into(), ..JobStatus::default() };
        let shown =
            text(&job, &Choice::Compute, "Reading is faster.", false, Some(Duration::from_millis(1500)));
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
        let shown = text(&JobStatus::default(), &chosen, "Reading is faster.", false, None);
        assert_eq!(
            shown,
            "epoch 0: decided at its end: the next epoch stores rows at hint `resized`\n  Reading is faster."
        );
        let shown = text(&JobStatus::default(), &Choice::Compute, "Computing is faster.", true, None);
        assert_eq!(shown, "epoch 0: decided again at its end: nothing is stored\n  Computing is faster.");
    }
}

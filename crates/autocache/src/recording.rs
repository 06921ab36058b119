//! Recorded events: a log of JSON lines, one event a line, from which a job's decisions are replayed.

use std::time::Duration;

use caju_types::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::{Action, Autocache, Event, NoteLevel};

/// An event with the time at which it was recorded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Recorded {
    /// Milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// It is the first event of a decision without earlier events: that of another job of the same name, or of the same job in
    /// a dispatcher that was started again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub begins: bool,
    /// The event.
    pub event: Event,
}

impl Recorded {
    /// The line of the log, without its end.
    ///
    /// # Errors
    /// `Internal` if the event has no JSON.
    pub fn to_line(&self) -> Result<String> {
        serde_json::to_string(self).map_err(|e| Error::internal(format!("an event as JSON: {e}")))
    }
}

/// Reads a log. A last line without an end is left out: its writer was interrupted.
///
/// # Errors
/// `InvalidArgument` that names the first line that is no event.
///
/// ```
/// let e = caju_autocache::read_log("{}\n").unwrap_err();
/// assert!(e.message().starts_with("line 1: not a recorded event: "), "{e}");
/// ```
pub fn read_log(text: &str) -> Result<Vec<Recorded>> {
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let lines = whole.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let read = |(no, line): (usize, &str)| {
        let recorded = serde_json::from_str(line);
        recorded.map_err(|e| Error::invalid(format!("line {}: not a recorded event: {e}", no + 1)))
    };
    lines.map(read).collect()
}

/// Applies recorded events in their order; what follows from each of them.
pub fn replay(log: Vec<Recorded>) -> impl Iterator<Item = (u64, Vec<Action>)> {
    let mut job = Autocache::default();
    log.into_iter().map(move |recorded| {
        if recorded.begins {
            job = Autocache::default();
        }
        (recorded.at_ms, job.apply(recorded.event))
    })
}

/// What follows from a log, for people: a line per action, with the seconds since the first event. Notes for debugging are
/// left out. Iterations are called by their epochs.
///
/// # Errors
/// Those of [`read_log`].
pub fn describe_replay(text: &str) -> Result<String> {
    let log = read_log(text)?;
    let (events, start) = (log.len(), log.first().map_or(0, |first| first.at_ms));
    let epochs: Vec<(String, String)> = log
        .iter()
        .filter_map(|recorded| match &recorded.event {
            Event::IterationOpened { iteration, epoch, .. } => {
                Some((iteration.to_string(), format!("epoch {epoch}")))
            }
            _ => None,
        })
        .collect();
    let mut decided = false;
    let mut out = String::new();
    for (at_ms, actions) in replay(log) {
        let seconds = Duration::from_millis(at_ms.saturating_sub(start)).as_secs_f64();
        for action in actions {
            if matches!(action, Action::Note { level: NoteLevel::Debug, .. }) {
                continue;
            }
            decided |= matches!(action, Action::Decide { .. } | Action::ChangeDecision { .. });
            let line = format!("{seconds:9.3} s  {action}\n");
            out += &epochs
                .iter()
                .fold(line, |line, (iteration, epoch)| replace_identifier(&line, iteration, epoch));
        }
    }
    if !decided {
        out += &format!("no decision in {events} events\n");
    }
    Ok(out)
}

/// Replaces an identifier where it stands whole: `iteration-1` not within `iteration-12`, nor within a hint's name.
fn replace_identifier(text: &str, identifier: &str, by: &str) -> String {
    let continues = |c: char| c.is_alphanumeric() || c == '-' || c == '_';
    let mut out = String::with_capacity(text.len());
    let mut copied = 0;
    for (at, _) in text.match_indices(identifier) {
        let end = at + identifier.len();
        if text[..at].ends_with(continues) || text[end..].starts_with(continues) {
            continue;
        }
        out.push_str(&text[copied..at]);
        out.push_str(by);
        copied = end;
    }
    out + &text[copied..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_identifiers_are_replaced() {
        let text = "check iteration-1, iteration-12 and iteration-1: `my-iteration-1` stays";
        let replaced = replace_identifier(text, "iteration-1", "epoch 0");
        assert_eq!(replaced, "check epoch 0, iteration-12 and epoch 0: `my-iteration-1` stays");
    }

    #[test]
    fn iterations_1_and_12_are_called_by_their_own_epochs() {
        let log = include_str!("../tests/events/a-worker-is-lost.jsonl");
        let lines: Vec<&str> = log.lines().take(2).collect();
        let later = lines[1].replace("\"iteration\":1,\"epoch\":0", "\"iteration\":12,\"epoch\":3");
        let text = describe_replay(&[&lines[..], &[&later, ""]].concat().join("\n")).unwrap();
        assert!(text.contains("for epoch 0") && text.contains("for epoch 3"), "{text}");
        assert!(!text.contains("epoch 02") && !text.contains("iteration-"), "{text}");
    }
}

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
            out += &epochs.iter().fold(line, |line, (iteration, epoch)| line.replace(iteration, epoch));
        }
    }
    if !decided {
        out += &format!("no decision in {events} events\n");
    }
    Ok(out)
}

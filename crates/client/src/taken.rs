//! Rows that the user took, as they are reported to the dispatcher.

use std::collections::HashMap;

use caju_proto::v1;
use caju_types::RowSet;

use crate::acks::Acks;
use crate::receipts::to_proto;

/// Rows that the user took since the epoch began, per split, and how many of them the dispatcher knows.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    rows: HashMap<u64, RowSet>,
    /// Those of them that the dispatcher has not confirmed.
    unconfirmed: HashMap<u64, RowSet>,
    /// The dispatcher does not know what was acknowledged before: it was restarted.
    repeat: bool,
}

impl Taken {
    /// Takes over what the user took since the last time.
    pub(crate) fn draw(&mut self, acks: &Acks) {
        for run in acks.draw() {
            for rows in [&mut self.rows, &mut self.unconfirmed] {
                rows.entry(run.split).or_default().insert(run.start, run.start.saturating_add(run.len));
            }
        }
    }

    /// Rows since the epoch began.
    pub(crate) fn rows(&self) -> &HashMap<u64, RowSet> {
        &self.rows
    }

    /// What to report to the dispatcher, and whether that is all since the epoch began.
    pub(crate) fn report(&self) -> (Vec<v1::SplitRows>, bool) {
        let rows = if self.repeat { &self.rows } else { &self.unconfirmed };
        (rows.iter().map(|(split, rows)| to_proto(*split, rows)).collect(), self.repeat)
    }

    /// The dispatcher has the last report.
    pub(crate) fn confirm(&mut self, was_all: bool) {
        self.unconfirmed.clear();
        self.repeat &= !was_all;
    }

    /// The next report says everything, if the dispatcher asks for that.
    pub(crate) fn repeat_if(&mut self, asked: bool) {
        self.repeat |= asked;
    }
}

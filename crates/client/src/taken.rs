//! Rows that the user took, as they are reported to the dispatcher.

use std::collections::HashMap;

use caju_proto::v1;
use caju_types::{Result, RowRanges, RowSet, TakenRows};

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
    /// Elements that the user took since the reader began.
    elements: u64,
    /// The numbers of rows of splits, as workers say them.
    sizes: HashMap<u64, u64>,
    /// Those of them that the dispatcher has not confirmed.
    unconfirmed_sizes: HashMap<u64, u64>,
    /// Complete splits: the users of this reader and of others have taken every row.
    complete: RowRanges,
    /// What the user of this one took of them.
    of_complete: TakenRows,
    /// The number of these rows.
    rows_of_complete: u64,
}

impl Taken {
    /// Takes over what the user took since the last time.
    pub(crate) fn draw(&mut self, acks: &Acks) {
        let drawn = acks.draw();
        self.elements = drawn.elements;
        for run in drawn.runs {
            for rows in [&mut self.rows, &mut self.unconfirmed] {
                rows.entry(run.split).or_default().insert(run.start, run.start.saturating_add(run.len));
            }
        }
    }

    /// Workers say how many rows splits have.
    pub(crate) fn sized(&mut self, sized: Vec<(u64, u64)>) {
        for (split, rows) in sized {
            if self.complete.contains(split) {
                continue;
            }
            self.unconfirmed_sizes.insert(split, rows);
            if rows == 0 {
                // Nobody takes rows of it, so nobody is notified that it is complete.
                self.of_complete.add_whole(split);
            } else {
                self.sizes.insert(split, rows);
            }
        }
    }

    /// The dispatcher says that splits are complete: they are not reported any more.
    pub(crate) fn complete(&mut self, splits: &[u64]) {
        for &split in splits {
            self.complete.insert(split, split.saturating_add(1));
            self.unconfirmed.remove(&split);
            self.unconfirmed_sizes.remove(&split);
            let size = self.sizes.remove(&split);
            let Some(rows) = self.rows.remove(&split) else { continue };
            self.rows_of_complete += rows.len();
            // Other readers' states say what their users took: this one's does not.
            if size == Some(rows.len()) {
                self.of_complete.add_whole(split);
                continue;
            }
            self.of_complete.add_rows(split, &rows.ranges());
            if let Some(size) = size {
                self.of_complete.set_size(split, size);
            }
        }
    }

    /// The numbers of rows of these splits, as far as they are known.
    pub(crate) fn sizes_of(&self, splits: &[v1::SplitRows]) -> Vec<v1::SplitCount> {
        let size = |s: &v1::SplitRows| {
            let rows = *self.sizes.get(&s.split_index)?;
            Some(v1::SplitCount { split_index: s.split_index, rows })
        };
        splits.iter().filter_map(size).collect()
    }

    /// Elements since the reader began, by the last call of [`Taken::draw`].
    pub(crate) fn elements(&self) -> u64 {
        self.elements
    }

    /// Rows since the reader began.
    pub(crate) fn num_rows(&self) -> u64 {
        self.rows_of_complete + self.rows.values().map(RowSet::len).sum::<u64>()
    }

    /// Everything that was taken of the epoch, with what was taken before this reader began.
    ///
    /// # Errors
    /// `Internal` if the rows do not fit what was taken before.
    pub(crate) fn all(&self, before: Option<&TakenRows>) -> Result<TakenRows> {
        let mut all = self.of_complete.clone();
        let had = |split: &u64| before.and_then(|b| b.rows_of(*split)).map_or(0, RowRanges::len);
        for (split, rows) in &self.rows {
            match self.sizes.get(split) {
                Some(size) if rows.len() + had(split) == *size => all.add_whole(*split),
                _ => all.add_rows(*split, &rows.ranges()),
            }
        }
        if let Some(before) = before {
            all.extend(before)?;
        }
        Ok(all)
    }

    /// Rows since the epoch began, of splits that are not complete.
    pub(crate) fn rows(&self) -> &HashMap<u64, RowSet> {
        &self.rows
    }

    /// What to report to the dispatcher, and whether that is all since the epoch began.
    pub(crate) fn report(&self) -> (Vec<v1::SplitRows>, bool) {
        let rows = if self.repeat { &self.rows } else { &self.unconfirmed };
        (rows.iter().map(|(split, rows)| to_proto(*split, rows)).collect(), self.repeat)
    }

    /// The numbers of rows of splits to report to the dispatcher.
    pub(crate) fn reported_sizes(&self) -> Vec<v1::SplitCount> {
        let sizes = if self.repeat { &self.sizes } else { &self.unconfirmed_sizes };
        let of =
            |(split_index, rows): (&u64, &u64)| v1::SplitCount { split_index: *split_index, rows: *rows };
        sizes.iter().map(of).collect()
    }

    /// The dispatcher has the last report.
    pub(crate) fn confirm(&mut self, was_all: bool) {
        self.unconfirmed.clear();
        self.unconfirmed_sizes.clear();
        self.repeat &= !was_all;
    }

    /// The next report says everything, if the dispatcher asks for that.
    pub(crate) fn repeat_if(&mut self, asked: bool) {
        self.repeat |= asked;
    }
}

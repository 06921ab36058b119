//! Pipelines with stages that count rows, repeat them or skip bad ones, and the rows that they give.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Value, json};

use crate::random::Random;

/// Of rows whose `id` this number divides, an expression fails.
const BAD_EVERY: i64 = 11;

/// Stages of a pipeline that see the rows of several splits as one stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counting {
    repeat: Repeat,
    /// Rows that are left out at the beginning.
    skip: u64,
    /// The most rows that are read.
    take: Option<u64>,
    /// Bad rows are left out, by `on_error: skip`.
    skips_bad: bool,
}

/// How often the rows are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Repeat {
    Once,
    Times(u64),
    /// Until `take` has enough.
    Endless,
}

impl Counting {
    /// Draws the stages of a pipeline over this number of rows.
    pub(crate) fn draw(r: &mut Random, rows: u64) -> Self {
        let repeat = match r.between(0, 6) {
            0 => Repeat::Times(2),
            1 => Repeat::Times(3),
            2 => Repeat::Endless,
            _ => Repeat::Once,
        };
        let skip = if r.permille(400) { r.between(1, rows) } else { 0 };
        let counts = repeat == Repeat::Endless || repeat == Repeat::Once && skip == 0;
        let take = (counts || r.permille(500)).then(|| r.between(1, rows * 2));
        Self { repeat, skip, take, skips_bad: r.permille(300) }
    }

    /// The stage that fails for bad rows.
    pub(crate) fn fallible_step(&self) -> Option<Value> {
        self.skips_bad.then(|| json!({ "with_columns": { "y": format!("100 / (id % {BAD_EVERY})") } }))
    }

    /// The stages that repeat and count.
    pub(crate) fn steps(&self) -> Vec<Value> {
        let mut steps = Vec::new();
        match self.repeat {
            Repeat::Once => {}
            Repeat::Times(count) => steps.push(json!({ "repeat": count })),
            Repeat::Endless => steps.push(json!({ "repeat": {} })),
        }
        if self.skip > 0 {
            steps.push(json!({ "skip": self.skip }));
        }
        steps.extend(self.take.map(|count| json!({ "take": count })));
        steps
    }

    /// The option `on_error` of the pipeline.
    pub(crate) fn on_error(&self) -> Option<Value> {
        self.skips_bad.then(|| json!({ "skip": { "limit": 1_000_000 } }))
    }

    /// How often each of these values comes, which are those of the good and bad rows in order.
    pub(crate) fn expected(&self, ids: &[i64]) -> BTreeMap<i64, u32> {
        let good: Vec<i64> =
            ids.iter().copied().filter(|id| !self.skips_bad || id % BAD_EVERY != 0).collect();
        let skip = usize::try_from(self.skip).unwrap_or(usize::MAX);
        let take = self.take.map_or(usize::MAX, |count| usize::try_from(count).unwrap_or(usize::MAX));
        let mut times = BTreeMap::new();
        let mut count = |id: i64| *times.entry(id).or_default() += 1;
        match self.repeat {
            Repeat::Endless => good.iter().copied().cycle().skip(skip).take(take).for_each(&mut count),
            Repeat::Once => good.iter().copied().skip(skip).take(take).for_each(&mut count),
            Repeat::Times(repetitions) => {
                let repeated = (0..repetitions).flat_map(|_| good.iter().copied());
                repeated.skip(skip).take(take).for_each(&mut count);
            }
        }
        times
    }
}

impl fmt::Display for Counting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.repeat {
            Repeat::Once => {}
            Repeat::Times(count) => write!(f, ", repeat {count}")?,
            Repeat::Endless => f.write_str(", repeat")?,
        }
        if self.skip > 0 {
            write!(f, ", skip {}", self.skip)?;
        }
        if let Some(count) = self.take {
            write!(f, ", take {count}")?;
        }
        f.write_str(if self.skips_bad { ", on_error: skip" } else { "" })
    }
}

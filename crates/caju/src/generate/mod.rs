//! `caju gen`: sample data that looks like the real thing, the same for the same seed.
//!
//! A row depends on (seed, index) alone; shards are cut by index; so threads, shards in flight and formats
//! written together never show in the rows. Memory is bounded by the shards in flight.

mod encode;
mod image;
mod layout;
mod photo;
mod rng;
mod room;
mod table;
mod text;
mod write;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use caju_runtime::stores::Location;
use caju_types::{Error, Result};
use clap::ValueEnum;

pub(crate) use encode::Format;
pub(crate) use write::{is_complete, write};

/// What kind of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// JPEG pictures of about 500x375 pixels and 110 KB: columns id, image, label
    Images,
    /// A Criteo-like table: label, I1..I13, C1..C26
    Table,
    /// Documents of very different lengths: columns id, text, label
    Text,
}

impl Kind {
    /// The name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Images => "images",
            Kind::Table => "table",
            Kind::Text => "text",
        }
    }

    fn schema(self) -> SchemaRef {
        match self {
            Kind::Images => image::schema(),
            Kind::Table => table::schema(),
            Kind::Text => text::schema(),
        }
    }

    fn rows(self, seed: u64, start: u64, len: usize) -> Result<RecordBatch> {
        match self {
            Kind::Images => image::rows(seed, start, len),
            Kind::Table => table::rows(seed, start, len),
            Kind::Text => text::rows(seed, start, len),
        }
    }

    /// Rows that are made at once: some milliseconds of work, at most a few megabytes.
    fn block_rows(self) -> u64 {
        match self {
            Kind::Images => 16,
            Kind::Table => 8192,
            Kind::Text => 2048,
        }
    }

    /// Rows of a shard of a few tens of megabytes.
    fn shard_rows(self) -> u64 {
        match self {
            Kind::Images => 512,
            Kind::Table => 262_144,
            Kind::Text => 65_536,
        }
    }
}

/// What to make, and where.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) kind: Kind,
    /// A URL or an absolute path.
    pub(crate) out: String,
    pub(crate) count: u64,
    pub(crate) seed: u64,
    /// At least one; one is written into `out`, several into a folder each.
    pub(crate) formats: Vec<Format>,
    /// Files per format; by the count if absent.
    pub(crate) shards: Option<u64>,
    /// Whether an earlier `caju gen` in the same place is replaced.
    pub(crate) overwrite: bool,
}

impl Plan {
    /// Files per format.
    pub(crate) fn shards(&self) -> u64 {
        let by_count = self.count.div_ceil(self.kind.shard_rows());
        self.shards.unwrap_or(by_count).clamp(1, self.count.max(1))
    }

    /// The rows of a shard: shards differ by at most one row.
    #[expect(clippy::cast_possible_truncation, reason = "at most the count")]
    fn shard(&self, shard: u64) -> std::ops::Range<u64> {
        let at = |i: u64| (u128::from(self.count) * u128::from(i) / u128::from(self.shards())) as u64;
        at(shard)..at(shard + 1)
    }
}

/// How far the work is; read by whoever shows it.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    rows: AtomicU64,
    bytes: AtomicU64,
}

impl Counters {
    /// Rows made and bytes written.
    pub(crate) fn get(&self) -> (u64, u64) {
        (self.rows.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}

/// Ends the work in order: uploads are aborted, and what was written is removed.
#[derive(Debug, Default)]
pub(crate) struct Stop(AtomicBool);

impl Stop {
    /// From now on.
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn check(&self, at: &Location) -> Result<()> {
        if self.is_set() {
            return Err(Error::cancelled(format!("stopped; nothing that it wrote is left in {}", at.url)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_cover_every_row_once() {
        for (count, shards) in [(0, None), (1, Some(5)), (10, Some(3)), (5000, None)] {
            let plan = Plan {
                kind: Kind::Images,
                out: String::new(),
                count,
                seed: 0,
                formats: vec![Format::Tfrecord],
                shards,
                overwrite: false,
            };
            let mut next = 0;
            for i in 0..plan.shards() {
                let rows = plan.shard(i);
                assert_eq!(rows.start, next);
                next = rows.end;
            }
            assert_eq!(next, count);
        }
    }
}

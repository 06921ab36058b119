//! Processing modes: how the splits of an iteration reach its tasks.

use std::fmt;

use caju_engine::ShardBy;
use serde::{Deserialize, Serialize};

/// How the splits of an iteration reach its tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Each split goes to one task.
    Dynamic,
    /// Each worker runs the whole pipeline.
    Off,
    /// Each worker of the configured list has every n-th file.
    File,
    /// Each worker of the configured list has every n-th row.
    Data,
    /// By file, if there are enough files for the configured list; else by row.
    FileOrData,
    /// Each worker of the configured list has its shard where the pipeline says so.
    Hint,
}

impl Mode {
    /// The mode's name in flags and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Dynamic => "dynamic",
            Mode::Off => "off",
            Mode::File => "file",
            Mode::Data => "data",
            Mode::FileOrData => "file_or_data",
            Mode::Hint => "hint",
        }
    }

    /// Whether the shards of this mode may divide something.
    pub(crate) fn may_divide(self, by: ShardBy) -> bool {
        match self {
            Mode::File => by == ShardBy::File,
            Mode::Data => by == ShardBy::Data,
            Mode::FileOrData => by != ShardBy::Hint,
            Mode::Hint => by == ShardBy::Hint,
            Mode::Dynamic | Mode::Off => false,
        }
    }

    /// Whether workers have shards by their positions in the configured list.
    pub fn is_static(self) -> bool {
        match self {
            Mode::Dynamic | Mode::Off => false,
            Mode::File | Mode::Data | Mode::FileOrData | Mode::Hint => true,
        }
    }

    /// Whether each worker has splits of its own, so that the end of one is not the end of others.
    pub fn has_feed_per_worker(self) -> bool {
        self != Mode::Dynamic
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

//! The datasets of the rounds, and the rows that each of them has.

use std::collections::HashSet;
use std::path::Path;

use serde_json::{Value, json};

/// Rows of a source.
const SOURCE_ROWS: u64 = 30_000;
/// How long the rows of an epoch take, in milliseconds, whatever the number of workers is.
pub(super) const EPOCH_MS: u64 = 3_000;
/// Rows of an element.
pub(super) const BATCH: u64 = 50;
/// Files of [`Dataset::Files`].
const FILES: u64 = 6;
/// The column of lists.
pub(super) const LISTS: &str = "tokens";
/// The items of a row's list less one, as an expression.
const LENGTH: &str = "id * 7919 % 13";
/// The most items of a row's list.
pub(super) const MAX_ITEMS: u64 = 13;
/// The first lengths of the classes of rows, but for the first class.
pub(super) const CLASSES: [i64; 2] = [4, 8];

/// The class of a row's length.
pub(super) fn class_of(id: i64) -> usize {
    CLASSES.partition_point(|first| *first <= id * 7919 % 13)
}

/// What a job reads. Each has a hint, `stored`, and takes its time below that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dataset {
    /// Numbers.
    Range,
    /// Files, whose rows are shuffled.
    Files,
    /// Numbers of which some are filtered out; the batches are mapped.
    Mapped,
    /// Numbers with lists, in batches of like lengths, whose lists are padded.
    Classes,
    /// Numbers with lists, in batches.
    Lists,
}

impl Dataset {
    pub(super) const ALL: [Self; 5] = [Self::Range, Self::Files, Self::Mapped, Self::Classes, Self::Lists];
    /// Those without lists.
    pub(super) const FLAT: [Self; 3] = [Self::Range, Self::Files, Self::Mapped];

    /// Writes the source files of all datasets to a folder.
    pub(super) fn write_sources(folder: &Path) {
        let per_file = SOURCE_ROWS / FILES;
        for file in 0..FILES {
            let rows = (file * per_file..(file + 1) * per_file).map(|id| format!("{id},name of {id}\n"));
            let text = ["id,name\n".to_string()].into_iter().chain(rows).collect::<String>();
            std::fs::write(folder.join(format!("names-{file}.csv")), text).unwrap();
        }
    }

    /// The pipeline, with sources in a folder. Each row takes a time below the hint.
    pub(super) fn definition(self, folder: &Path, row_us: u64) -> Value {
        let (hint, batch) = (json!({ "autocache": "stored" }), json!({ "batch": BATCH }));
        let sleep = json!({ "sleep": { "per_row": format!("{row_us}us") } });
        let range = json!({ "range": SOURCE_ROWS });
        let (source, steps) = match self {
            Self::Range => {
                (range, vec![json!({ "with_columns": { "x": "id * 3 + 1" } }), hint, sleep, batch])
            }
            Self::Files => {
                let path = folder.join("names-*.csv");
                let schema = json!({ "id": "int64", "name": "string" });
                let csv = json!({ "csv": { "path": path, "schema": schema, "split": "8KiB" } });
                (csv, vec![hint, sleep, json!({ "shuffle": 500 }), batch])
            }
            Self::Mapped => {
                let map = json!({ "map": { "y": "id * 5", "id": "id" } });
                (range, vec![json!({ "filter": "id % 3 <> 0" }), hint, sleep, batch, map])
            }
            Self::Classes | Self::Lists => {
                let list = format!("array_repeat(id, {LENGTH} + 1)");
                let columns = json!({ "with_columns": { "x": "id * 3 + 1", LISTS: list } });
                let classes = json!({ "bucket_by_length": {
                    "length": LENGTH, "boundaries": CLASSES, "batch_sizes": BATCH, "pad": true,
                } });
                let last = if self == Self::Classes { classes } else { batch };
                (range, vec![columns, hint, sleep, last])
            }
        };
        json!({ "source": source, "steps": steps })
    }

    /// The rows, as text, without their lists.
    pub(super) fn rows(self) -> HashSet<String> {
        let all = 0..SOURCE_ROWS;
        match self {
            Self::Range | Self::Classes | Self::Lists => {
                all.map(|id| format!("{id}|{}", id * 3 + 1)).collect()
            }
            Self::Files => all.map(|id| format!("{id}|name of {id}")).collect(),
            Self::Mapped => all.filter(|id| id % 3 != 0).map(|id| format!("{}|{id}", id * 5)).collect(),
        }
    }

    /// The number of classes of rows that fill elements of their own.
    pub(super) fn classes(self) -> usize {
        if self == Self::Classes { CLASSES.len() + 1 } else { 1 }
    }

    /// The time that a row takes on its worker, in microseconds.
    pub(super) fn row_us(self, workers: usize) -> u64 {
        EPOCH_MS * 1_000 * workers as u64 / self.rows().len() as u64
    }
}

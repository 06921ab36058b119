//! Saves: what is to be stored under a folder of its own, and how it ended.

use caju_autocache::Encoding;
use caju_types::{DatasetId, Fingerprint};
use serde::{Deserialize, Serialize};

use super::{Failure, State};

/// The most ended saves that `caju status` shows. Older ones are forgotten.
const MAX_ENDED_SAVES: usize = 256;

/// Where a job stores rows instead of in the cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SaveTarget {
    /// The root of the save.
    pub url: String,
    /// The size of chunks; absent: a part is one chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk_bytes: Option<u64>,
}

/// A save, by the URL of its root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Save {
    /// Where, and in what chunks.
    pub target: SaveTarget,
    /// The definition in the form in which it is saved, registered under this name.
    pub dataset: DatasetId,
    /// The snapshot below the root.
    pub prefix: Fingerprint,
    /// The pipeline's name, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// How parts are encoded.
    pub encoding: Encoding,
    /// When it was asked for, in milliseconds since the Unix epoch.
    pub started_ms: u64,
    /// How far it is.
    #[serde(default)]
    pub stage: SaveStage,
}

/// How far a save is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum SaveStage {
    /// Splits are being stored.
    #[default]
    Running,
    /// Every split has its part.
    Finished(SaveTotals),
    /// It ended with an error.
    Failed(Failure),
}

/// What a finished save holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SaveTotals {
    /// Splits, each with a part.
    pub splits: u64,
    /// Chunks.
    pub chunks: u64,
    /// Rows, before they are repeated.
    pub rows: u64,
    /// Bytes of the parts.
    pub bytes: u64,
    /// Bad rows that were left out under `on_error: skip`. Older versions did not count them.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub skipped: u64,
}

impl Save {
    /// Whether something is left to do.
    pub fn is_running(&self) -> bool {
        self.stage == SaveStage::Running
    }
}

impl State {
    pub(super) fn add_save(&mut self, save: &Save) {
        self.saves.insert(save.target.url.clone(), save.clone());
        let mut ended: Vec<_> =
            self.saves.values().filter(|s| !s.is_running()).map(|s| (s.started_ms, &s.target.url)).collect();
        ended.sort_unstable();
        let over = ended.len().saturating_sub(MAX_ENDED_SAVES);
        let over: Vec<String> = ended.into_iter().take(over).map(|(_, url)| url.clone()).collect();
        for url in over {
            self.saves.remove(&url);
        }
    }

    pub(super) fn end_save(&mut self, url: &str, stage: &SaveStage) {
        if let Some(save) = self.saves.get_mut(url) {
            save.stage = stage.clone();
        }
    }
}

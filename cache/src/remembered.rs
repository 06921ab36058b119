//! What was measured of a pipeline, for the next job that runs it.
//!
//! Beside the snapshots, under `ROOT/v1/plans`, lies one small object per definition: the planner's profile of its last job,
//! and how many jobs there were. A job that comes back is planned from it at once, without measuring anew.

use caju_runtime::stores::store_error;
use caju_runtime::{Location, Stores};
use caju_types::{ErrorKind, Fingerprint, Result};
use object_store::ObjectStoreExt;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::record::{seal, unseal};

/// What is known of a pipeline from earlier jobs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Remembered {
    /// `caju.remembered/v1`.
    pub schema: String,
    /// The last profile (`caju.profile/v1`) by which a decision was made.
    pub profile: Option<Value>,
    /// Epochs that the last job said that it would have.
    pub epochs: Option<u64>,
    /// The most epochs that a job had which did not say how many there would be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reached: Option<u64>,
    /// Jobs so far.
    pub jobs: u64,
    /// Splits that the last job's source had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub splits: Option<u64>,
    /// Cores of all workers that it had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<u64>,
}

impl Default for Remembered {
    fn default() -> Self {
        Self {
            schema: Self::SCHEMA.into(),
            profile: None,
            epochs: None,
            reached: None,
            jobs: 0,
            splits: None,
            cores: None,
        }
    }
}

impl Remembered {
    /// The version of the format.
    pub const SCHEMA: &str = "caju.remembered/v1";

    fn place(stores: &Stores, root: &str, definition: Fingerprint) -> Result<Location> {
        let mut at = stores.resolve(root).map_err(|e| e.context("cache root"))?;
        let name = format!("{definition}.json");
        at.path = at.path.join(crate::layout::VERSION).join(crate::layout::PLANS).join(name);
        Ok(at)
    }

    /// Writes it below a cache root, whatever was there.
    ///
    /// # Errors
    /// What the store says.
    pub async fn remember(&self, stores: &Stores, root: &str, definition: Fingerprint) -> Result<()> {
        let at = Self::place(stores, root, definition)?;
        at.store.put(&at.path, seal(self)?.into()).await.map_err(|e| store_error(&at.url, e))?;
        Ok(())
    }

    /// What is known of a definition below a cache root; nothing if there is none, or what is there is damaged or of another
    /// version.
    ///
    /// # Errors
    /// What the store says.
    pub async fn recall(stores: &Stores, root: &str, definition: Fingerprint) -> Result<Option<Self>> {
        let at = Self::place(stores, root, definition)?;
        let read = async { at.store.get(&at.path).await?.bytes().await };
        let bytes = match read.await.map_err(|e| store_error(&at.url, e)) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e.context("what is remembered of the pipeline")),
        };
        match unseal::<Self>(&bytes) {
            Ok(known) => Ok(Some(known).filter(|k| k.schema == Self::SCHEMA)),
            Err(why) => {
                tracing::warn!(why, "a damaged record of earlier jobs is ignored");
                Ok(None)
            }
        }
    }
}

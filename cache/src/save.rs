//! The description of a save: what was saved, and whether the save is complete.
//!
//! A save is a snapshot under a root of its own. Its parts are never evicted. The root also has `save.json`, so that a save
//! is loaded by the folder's URL alone. This object is created only if absent when the save begins, and replaced when the
//! save ends.

use std::sync::Arc;

use bytes::Bytes;
use caju_autocache::Encoding;
use caju_runtime::stores::{DurableStore, store_error};
use caju_runtime::{Location, Stores};
use caju_types::{Error, Fingerprint, Result, SplitKey};
use object_store::{ObjectStore, PutMode, PutOptions, PutPayload};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::layout::SAVE_NAME;
use crate::record::{Record, seal};
use crate::store::read_record;

/// The progress of a save.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum SaveState {
    /// Parts are still being written.
    #[default]
    Writing,
    /// Every split has its part.
    Finished,
    /// It ended with an error. Its parts are whole, and are used when the save is started again.
    Failed,
}

/// The content of `save.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SaveDescription {
    /// `caju.save/v1`.
    pub schema: String,
    /// The snapshot that holds the rows.
    pub fingerprint: Fingerprint,
    /// The pipeline's name.
    #[serde(default)]
    pub name: Option<String>,
    /// The definition as it was given.
    #[serde(deserialize_with = "caju_types::json::bounded")]
    pub definition: Value,
    /// Stages of the definition that only order or group rows. They are not stored.
    #[serde(default)]
    pub left_out: Vec<String>,
    /// The columns with their types, for people.
    #[serde(deserialize_with = "caju_types::json::bounded")]
    pub columns: Value,
    /// The columns as an Arrow schema in JSON.
    #[serde(deserialize_with = "caju_types::json::bounded")]
    pub arrow_schema: Value,
    /// How parts are encoded.
    pub encoding: Encoding,
    /// The bytes of a chunk, where chunks were asked for; else a part is one chunk.
    #[serde(default)]
    pub chunk_bytes: Option<u64>,
    /// How often each row is read: the count of the definition's `repeat`.
    pub copies: u64,
    /// Its progress.
    pub state: SaveState,
    /// The error with which it failed.
    #[serde(default)]
    pub error: Option<String>,
    /// Once it is finished: the splits of the source in order. Each has a part.
    #[serde(default)]
    pub splits: Vec<SplitKey>,
    /// Once it is finished: the rows of all parts, not counting repetitions.
    #[serde(default)]
    pub rows: u64,
    /// Once it is finished: the bytes of all parts.
    #[serde(default)]
    pub bytes: u64,
    /// Once it is finished: the number of chunks of all parts.
    #[serde(default)]
    pub chunks: u64,
    /// Once it is finished: the bad rows that were left out of all parts under `on_error: skip`. Saves of older versions do not
    /// name them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub skipped: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}

impl Record for SaveDescription {
    const NAME: &'static str = "the description of a save";
    /// A split takes 35 bytes. So five million splits fit, with a definition that has tables of 64 MiB in it.
    const MAX_BYTES: u64 = 256 << 20;
}

impl SaveDescription {
    /// The version of the format. Every description carries it.
    pub const SCHEMA: &str = "caju.save/v1";

    /// Reads the description of the save at a URL. None if there is no save.
    ///
    /// # Errors
    /// `DataLoss` for a description that is damaged, too large or of another version, and the errors of the store.
    pub async fn load(stores: &Stores, url: &str) -> Result<Option<Self>> {
        let at = locate(stores, url)?;
        let Some(read) = read_record::<Self>(&at).await? else { return Ok(None) };
        let bad = |why: String| {
            Error::data_loss(format!(
                "{}: this is no description of a save: {why}; save again to another URL",
                at.url
            ))
        };
        let saved = read.map_err(bad)?;
        if saved.schema != Self::SCHEMA {
            return Err(bad(format!("expected {}, found {}", Self::SCHEMA, saved.schema)));
        }
        Ok(Some(saved))
    }

    /// Writes the description, unless one exists. Gives the existing one then.
    ///
    /// # Errors
    /// The errors of the store.
    pub async fn begin(self, stores: &Stores, url: &str) -> Result<Self> {
        let at = locate(stores, url)?;
        if let Some(there) = Self::load(stores, url).await? {
            return Ok(there);
        }
        match at.store.put_opts(&at.path, self.payload()?, PutMode::Create.into()).await {
            Ok(_) => Ok(self),
            Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => {
                Self::load(stores, url).await?.ok_or_else(|| {
                    Error::unavailable(format!("{}: it keeps being created and deleted by others", at.url))
                })
            }
            // The store does not support conditional puts. The last process to begin wins, and all write the same.
            Err(_) => self.replace(stores, url).await,
        }
    }

    /// Writes the description, and replaces an existing one.
    ///
    /// # Errors
    /// The errors of the store.
    pub async fn replace(self, stores: &Stores, url: &str) -> Result<Self> {
        let at = locate(stores, url)?;
        let put = at.store.put_opts(&at.path, self.payload()?, PutOptions::default()).await;
        put.map_err(|e| store_error(&at.url, e))?;
        Ok(self)
    }

    fn payload(&self) -> Result<PutPayload> {
        Ok(PutPayload::from(Bytes::from(seal(self)?)))
    }
}

fn locate(stores: &Stores, url: &str) -> Result<Location> {
    let at = stores.resolve(url).map_err(|e| e.context("save"))?;
    let key =
        if at.url.key.is_empty() { SAVE_NAME.to_owned() } else { format!("{}/{SAVE_NAME}", at.url.key) };
    let path =
        if at.path.as_ref().is_empty() { SAVE_NAME.to_owned() } else { format!("{}/{SAVE_NAME}", at.path) };
    let path = object_store::path::Path::parse(&path).map_err(|e| Error::invalid(format!("{url}: {e}")))?;
    // Remote stores keep what they have accepted. Local files survive a power failure only once they were synced.
    let store: Arc<dyn ObjectStore> = match at.local {
        Some(_) => Arc::new(DurableStore::new(at.store, Arc::default())),
        None => at.store,
    };
    Ok(Location { url: at.url.with_key(key), path, local: None, store })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved(state: SaveState) -> SaveDescription {
        SaveDescription {
            schema: SaveDescription::SCHEMA.into(),
            fingerprint: Fingerprint(7),
            name: None,
            definition: Value::Null,
            left_out: Vec::new(),
            columns: Value::Null,
            arrow_schema: Value::Null,
            encoding: Encoding::default(),
            chunk_bytes: None,
            copies: 1,
            state,
            error: None,
            splits: vec![SplitKey(1)],
            rows: 0,
            bytes: 0,
            chunks: 0,
            skipped: 0,
        }
    }

    #[test]
    fn the_number_of_skipped_rows_is_written_where_there_are_some() {
        let written = |skipped| {
            let saved = SaveDescription { skipped, ..saved(SaveState::Finished) };
            let text = serde_json::to_value(&saved).unwrap();
            assert_eq!(serde_json::from_value::<SaveDescription>(text.clone()).unwrap(), saved);
            text.get("skipped").cloned()
        };
        assert_eq!(written(0), None, "such a save is written as before");
        assert_eq!(written(3), Some(3.into()));
    }

    #[tokio::test]
    async fn the_first_to_begin_wins_and_damage_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let stores = Stores::default();
        for url in ["memory://saved-tests/a/b", folder.path().join("x/y").to_str().unwrap()] {
            assert_eq!(SaveDescription::load(&stores, url).await.unwrap(), None);
            let first = saved(SaveState::Writing).begin(&stores, url).await.unwrap();
            let second = saved(SaveState::Finished).begin(&stores, url).await.unwrap();
            assert_eq!(first, second);
            saved(SaveState::Finished).replace(&stores, url).await.unwrap();
            assert_eq!(
                SaveDescription::load(&stores, url).await.unwrap().unwrap().state,
                SaveState::Finished
            );
        }
        std::fs::write(folder.path().join("x/y/save.json"), "{\"seal\":\"00\"}").unwrap();
        let e =
            SaveDescription::load(&stores, folder.path().join("x/y").to_str().unwrap()).await.unwrap_err();
        assert_eq!(e.kind(), caju_types::ErrorKind::DataLoss);
    }
}

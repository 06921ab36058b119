//! Stored listings of sources: a job can then read stored rows while the source is out of reach.
//!
//! `ROOT/v1/listings` has one object per source (its kind, options and paths). It is written whenever a listing of the
//! source is complete. Parts are found by their splits, and the stored listing names the splits. A `take` that needs no more
//! splits ends a listing early: what was listed then has an object of its own, which names the source and the stages up to
//! the `take`.

use arrow_schema::Schema;
use caju_runtime::stores::store_error;
use caju_runtime::{Location, Stores};
use caju_types::{Error, Result, hash128};
use object_store::ObjectStoreExt;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::record::{Record, seal};
use crate::schema::canonical;
use crate::store::read_record;

/// The listing of a source at one time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SourceListing {
    /// [`Self::SCHEMA`].
    pub schema: String,
    /// The source as definitions write it; of an incomplete listing also the stages for which it was enough.
    #[serde(deserialize_with = "caju_types::json::bounded")]
    pub source: Value,
    /// Its columns.
    pub columns: Schema,
    /// Its splits as JSON, in canonical order, before stages choose among them.
    pub splits: Vec<String>,
}

impl Record for SourceListing {
    const NAME: &'static str = "the listing of a source";
    /// A million splits fit, in 536 bytes each. Most take 200 to 400 bytes as escaped JSON. The dispatcher records 64 MiB of
    /// splits at most.
    const MAX_BYTES: u64 = 512 << 20;
}

impl SourceListing {
    /// The version of the format, and of the types that readers give columns: those of version 1 had timestamps of 96 bits in
    /// nanoseconds. Those of version 2 had only the splits that a `take`, `skip` or `shard` left of the source.
    pub const SCHEMA: &str = "caju.listing/v3";

    /// The listing of a source.
    pub fn new(source: Value, columns: Schema, splits: Vec<String>) -> Self {
        Self { schema: Self::SCHEMA.into(), source, columns, splits }
    }

    fn locate(stores: &Stores, root: &str, source: &Value) -> Result<Location> {
        let mut text = String::new();
        canonical(source, &mut text);
        let mut at = stores.resolve(root).map_err(|e| e.context("cache root"))?;
        let name = format!("{:032x}.json", hash128(text.as_bytes()));
        at.path = at.path.join(crate::layout::VERSION).join("listings").join(name);
        Ok(at)
    }

    /// Writes the listing below a cache root, unless an equal one is stored.
    ///
    /// # Errors
    /// The errors of the store.
    pub async fn store(&self, stores: &Stores, root: &str) -> Result<()> {
        if Self::load(stores, root, &self.source).await.is_ok_and(|known| known.as_ref() == Some(self)) {
            return Ok(());
        }
        let at = Self::locate(stores, root, &self.source)?;
        at.store.put(&at.path, seal(self)?.into()).await.map_err(|e| store_error(&at.url, e))?;
        Ok(())
    }

    /// The stored listing of a source below a cache root; none if there is no complete one, or if it is damaged or of
    /// another version.
    ///
    /// # Errors
    /// The errors of the store.
    pub async fn load(stores: &Stores, root: &str, source: &Value) -> Result<Option<Self>> {
        let at = Self::locate(stores, root, source)?;
        let named = |e: Error| Error::new(e.kind(), format!("the listing of the source: {}", e.message()));
        Ok(match read_record::<Self>(&at).await.map_err(named)? {
            Some(Ok(listing)) if listing.schema == Self::SCHEMA && listing.source == *source => Some(listing),
            Some(Ok(_)) | None => None,
            Some(Err(why)) => {
                tracing::warn!(record = %at.url, why, "a damaged listing of a source is ignored");
                None
            }
        })
    }
}

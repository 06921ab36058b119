//! Reads of whole records.
//!
//! Records are read here and nowhere else. Anybody may have written an object, so its size is compared with the bound of its
//! kind ([`Record::MAX_BYTES`]) before any memory is allocated for it.

use std::fmt::Display;

use bytes::Bytes;
use caju_runtime::Location;
use caju_runtime::stores::store_error;
use caju_types::Result;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use serde::de::DeserializeOwned;

use super::{Root, optional};
use crate::record::{Record, unseal};

/// Reads the object of a record. The inner error says that the object is too large for such a record: nothing of it was
/// read.
///
/// # Errors
/// `NotFound`, and the other errors of the store.
async fn get<T: Record>(
    store: &dyn ObjectStore,
    path: &Path,
    name: impl Display,
) -> Result<Result<Bytes, String>> {
    let object = store.get(path).await.map_err(|e| store_error(&name, e))?;
    // The size of the object, and that of the answer. Both are known before the answer's body is read.
    let bytes = object.meta.size.max(object.range.end.saturating_sub(object.range.start));
    if bytes > T::MAX_BYTES {
        return Ok(Err(format!("it has {bytes} bytes, and {} has at most {}", T::NAME, T::MAX_BYTES)));
    }
    object.bytes().await.map(Ok).map_err(|e| store_error(&name, e))
}

/// Reads a record outside a cache's store; none if it does not exist. The inner error says why it is damaged: an object that
/// is too large counts as that.
///
/// # Errors
/// The errors of the store.
pub(crate) async fn read_record<T: Record + DeserializeOwned>(
    at: &Location,
) -> Result<Option<Result<T, String>>> {
    let bytes = optional(get::<T>(at.store.as_ref(), &at.path, &at.url).await)?;
    Ok(bytes.map(|bytes| unseal(&bytes?)))
}

impl Root {
    async fn get<T: Record>(&self, path: &Path) -> Result<Option<Result<Bytes, String>>> {
        let get = || get::<T>(self.store.as_ref(), path, self.name(path));
        optional(self.retry.run(self.name(path), get).await)
    }

    /// Reads a record; none if it does not exist. The inner error says why it is damaged: an object that is too large counts
    /// as that.
    pub(crate) async fn read_record<T: Record + DeserializeOwned>(
        &self,
        path: &Path,
    ) -> Result<Option<Result<T, String>>> {
        Ok(self.get::<T>(path).await?.map(|bytes| unseal(&bytes?)))
    }

    /// Reads the bytes of a record; none if it does not exist. There are no bytes of an object that is too large. No record
    /// is empty, so such an object counts as damaged.
    pub(crate) async fn read_bytes<T: Record>(&self, path: &Path) -> Result<Option<Bytes>> {
        let Some(read) = self.get::<T>(path).await? else { return Ok(None) };
        Ok(Some(read.unwrap_or_else(|why| {
            tracing::warn!(record = %self.name(path), why, "a damaged record is not read");
            Bytes::new()
        })))
    }
}

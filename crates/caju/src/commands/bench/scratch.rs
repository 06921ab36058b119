//! Where the caches of a bench lie: in a folder, or below a URL of an object store. Each goes after its trials.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use caju_runtime::stores::{Location, store_error};
use caju_runtime::{Stores, SystemClock};
use caju_types::{Error, Result};
use futures::{StreamExt, TryStreamExt, future, stream};
use object_store::{ObjectStore, ObjectStoreExt};
use tempfile::TempDir;

use super::far::{self, Distance};
use crate::commands::shared;

/// What the names of caches begin with.
const PREFIX: &str = "caju-bench-";

/// How often a store is asked whether all is gone: what was under way when a job failed may land late.
const LOOKS: usize = 5;

/// The place for all caches of a bench.
#[derive(Debug)]
pub(super) enum Scratch {
    /// A folder; the system's temporary one if none is named.
    Folder(Option<PathBuf>),
    /// Below a URL.
    Store(Location),
    /// In memory, behind a network that there is not: as a store that is far away would answer.
    Far(Location),
}

/// The root of the store in memory.
const FAR: &str = "memory://caju-bench";

/// The place of one cache.
#[derive(Debug)]
pub(super) enum Room {
    Folder(TempDir),
    Store(Location),
}

impl Scratch {
    /// Understands `--scratch`: a folder as it is, or a URL. A store is tried out, since jobs would go on without a
    /// cache that cannot be written, and nobody would notice what was measured.
    ///
    /// # Errors
    /// `InvalidArgument` for a malformed URL, and what the store says.
    pub(super) async fn open(place: Option<&str>) -> Result<Self> {
        let Some(place) = place.filter(|p| p.contains("://")) else {
            return Ok(Self::Folder(place.map(PathBuf::from)));
        };
        let at = shared::stores().and_then(|s| s.resolve(place)).map_err(|e| e.context("--scratch"))?;
        if let Some(folder) = &at.local {
            return Ok(Self::Folder(Some(folder.clone())));
        }
        try_out(&at).await.map_err(|e| e.context("--scratch"))?;
        Ok(Self::Store(at))
    }

    /// A store as far away as is said.
    ///
    /// # Errors
    /// `Internal` if its name is none.
    pub(super) fn far(distance: Distance) -> Result<Self> {
        let at = Stores::new(BTreeMap::new(), None)?.resolve(FAR)?;
        Ok(Self::Far(Location { store: far::shared(distance), ..at }))
    }

    /// Makes a job's stores know this place.
    ///
    /// # Errors
    /// `Internal` if its name is none.
    pub(super) fn register(&self, stores: &Stores) -> Result<()> {
        match self {
            Self::Far(at) => stores.register(FAR, Arc::clone(&at.store)),
            Self::Folder(_) | Self::Store(_) => Ok(()),
        }
    }

    /// A place that nobody else has.
    ///
    /// # Errors
    /// `Unavailable` if no folder can be made.
    pub(super) fn room(&self) -> Result<Room> {
        let folder = match self {
            Self::Store(at) | Self::Far(at) => return Ok(Room::Store(below(at))),
            Self::Folder(Some(at)) => tempfile::Builder::new().prefix(PREFIX).tempdir_in(at),
            Self::Folder(None) => tempfile::Builder::new().prefix(PREFIX).tempdir(),
        };
        folder
            .map(Room::Folder)
            .map_err(|e| Error::unavailable(format!("no folder for a cache can be made: {e}")))
    }
}

impl Room {
    /// The path or URL, as `--cache` takes it.
    pub(super) fn url(&self) -> String {
        match self {
            Self::Folder(folder) => folder.path().display().to_string(),
            Self::Store(at) => at.url.to_string(),
        }
    }

    /// Bytes that lie there.
    ///
    /// # Errors
    /// What a store says; a local file that cannot be read counts nothing.
    pub(super) async fn bytes(&self) -> Result<u64> {
        let at = match self {
            Self::Folder(folder) => return Ok(bytes_below(folder.path())),
            Self::Store(at) => at,
        };
        let found = at.store.list(Some(&at.path)).map_err(|e| store_error(&at.url, e));
        found.try_fold(0_u64, |sum, meta| future::ready(Ok(sum + meta.size))).await
    }

    /// Removes it with all that lies there.
    ///
    /// # Errors
    /// What the file system or the store says, with the place.
    pub(super) async fn remove(self) -> Result<()> {
        match self {
            Self::Folder(folder) => {
                let shown = folder.path().display().to_string();
                folder.close().map_err(|e| Error::unavailable(format!("{shown}: {e}")))
            }
            Self::Store(at) => remove_all(&at).await,
        }
    }
}

/// A place of its own below another.
fn below(at: &Location) -> Location {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let now = SystemClock::shared().unix_time().as_nanos();
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = at.path.clone().join(format!("{PREFIX}{now:x}-{}-{n}", std::process::id()));
    Location { url: at.url.with_key(path.as_ref()), store: Arc::clone(&at.store), path, local: None }
}

/// Writes a small object and deletes it.
async fn try_out(at: &Location) -> Result<()> {
    let Location { url, store, path, .. } = below(at);
    store.put(&path, "caju bench".into()).await.map_err(|e| store_error(&url, e))?;
    store.delete(&path).await.map_err(|e| store_error(&url, e))
}

/// Deletes every object below a place, until a listing shows none.
async fn remove_all(at: &Location) -> Result<()> {
    let error = |e| store_error(&at.url, e);
    for _ in 0..LOOKS {
        let found = at.store.list(Some(&at.path)).map_ok(|meta| meta.location);
        let found: Vec<_> = found.try_collect().await.map_err(error)?;
        if found.is_empty() {
            return Ok(());
        }
        let mut deleted = at.store.delete_stream(stream::iter(found.into_iter().map(Ok)).boxed());
        while let Some(next) = deleted.next().await {
            match next {
                Ok(_) | Err(object_store::Error::NotFound { .. }) => {}
                Err(e) => return Err(error(e)),
            }
        }
    }
    Err(Error::unavailable(format!("{}: objects are there, however often they are deleted", at.url)))
}

/// Bytes of the files below a folder; what cannot be read counts nothing.
fn bytes_below(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let size = |e: std::fs::DirEntry| match e.metadata() {
        Ok(m) if m.is_dir() => bytes_below(&e.path()),
        Ok(m) => m.len(),
        Err(_) => 0,
    };
    entries.flatten().map(size).sum()
}

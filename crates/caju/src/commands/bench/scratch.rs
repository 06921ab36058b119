//! The place of a bench's caches: a folder, or a URL of an object store. Each cache is removed after its trials.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use caju_runtime::stores::{Location, store_error};
use caju_runtime::{Stores, SystemClock};
use caju_types::{Error, Result};
use futures::{StreamExt, TryStreamExt, future, stream};
use object_store::{ObjectStore, ObjectStoreExt};
use tempfile::TempDir;

use super::slow_store::{self, Throttle};
use crate::commands::shared;

/// The beginning of the names of caches.
const PREFIX: &str = "caju-bench-";

/// How often a cache is removed until nothing is left. Writes in flight when a job failed may arrive late.
const DELETE_ATTEMPTS: usize = 5;
/// The pause between two attempts to remove a folder: the tasks of a job that was dropped end within it.
const DELETE_PAUSE: Duration = Duration::from_millis(200);

/// The place for all caches of a bench.
#[derive(Debug)]
pub(super) enum Scratch {
    /// A folder; the system's temporary one if none is named.
    Folder(Option<PathBuf>),
    /// Below a URL.
    Store(Location),
    /// In memory, throttled like a remote store.
    Slow(Location),
}

/// The root of the throttled store in memory.
const SLOW_STORE: &str = "memory://caju-bench";

/// The cache of one trial.
#[derive(Debug)]
pub(super) enum TrialCache {
    Folder(TempDir),
    Store(Location),
}

impl Scratch {
    /// The place that `--scratch` names: a folder or a URL. A store is probed with one write, because jobs continue
    /// without a cache that cannot be written, and the measurement would silently be of another thing.
    ///
    /// # Errors
    /// `InvalidArgument` for a malformed URL, and the errors of the store.
    pub(super) async fn open(place: Option<&str>) -> Result<Self> {
        let Some(place) = place.filter(|p| p.contains("://")) else {
            return Ok(Self::Folder(place.map(PathBuf::from)));
        };
        let at = shared::stores().and_then(|s| s.resolve(place)).map_err(|e| e.context("--scratch"))?;
        if let Some(folder) = &at.local {
            return Ok(Self::Folder(Some(folder.clone())));
        }
        probe(&at).await.map_err(|e| e.context("--scratch"))?;
        Ok(Self::Store(at))
    }

    /// A throttled store in memory.
    ///
    /// # Errors
    /// `Internal` if its URL is malformed.
    pub(super) fn slow(throttle: Throttle) -> Result<Self> {
        let at = Stores::new(BTreeMap::new(), None)?.resolve(SLOW_STORE)?;
        Ok(Self::Slow(Location { store: slow_store::shared(throttle), ..at }))
    }

    /// Registers this place in a job's stores.
    ///
    /// # Errors
    /// `Internal` if its URL is malformed.
    pub(super) fn register(&self, stores: &Stores) -> Result<()> {
        match self {
            Self::Slow(at) => stores.register(SLOW_STORE, Arc::clone(&at.store)),
            Self::Folder(_) | Self::Store(_) => Ok(()),
        }
    }

    /// A new, empty cache with a name of its own.
    ///
    /// # Errors
    /// `Unavailable` if no folder can be created.
    pub(super) fn new_cache(&self) -> Result<TrialCache> {
        let folder = match self {
            Self::Store(at) | Self::Slow(at) => return Ok(TrialCache::Store(below(at))),
            Self::Folder(Some(at)) => tempfile::Builder::new().prefix(PREFIX).tempdir_in(at),
            Self::Folder(None) => tempfile::Builder::new().prefix(PREFIX).tempdir(),
        };
        folder
            .map(TrialCache::Folder)
            .map_err(|e| Error::unavailable(format!("no folder for a cache can be created: {e}")))
    }
}

impl TrialCache {
    /// The path or URL, as `--cache` takes it.
    pub(super) fn url(&self) -> String {
        match self {
            Self::Folder(folder) => folder.path().display().to_string(),
            Self::Store(at) => at.url.to_string(),
        }
    }

    /// Bytes stored in it.
    ///
    /// # Errors
    /// The errors of a store. A local file that cannot be read counts as empty.
    pub(super) async fn bytes(&self) -> Result<u64> {
        let at = match self {
            Self::Folder(folder) => return Ok(bytes_below(folder.path())),
            Self::Store(at) => at,
        };
        let found = at.store.list(Some(&at.path)).map_err(|e| store_error(&at.url, e));
        found.try_fold(0_u64, |sum, meta| future::ready(Ok(sum + meta.size))).await
    }

    /// Removes it with its content.
    ///
    /// # Errors
    /// The errors of the file system or the store, with the place.
    pub(super) async fn remove(self) -> Result<()> {
        match self {
            Self::Folder(folder) => remove_folder(folder).await,
            Self::Store(at) => remove_all(&at).await,
        }
    }
}

/// A place with a name of its own below another.
fn below(at: &Location) -> Location {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let now = SystemClock::shared().unix_time().as_nanos();
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = at.path.clone().join(format!("{PREFIX}{now:x}-{}-{n}", std::process::id()));
    Location { url: at.url.with_key(path.as_ref()), store: Arc::clone(&at.store), path, local: None }
}

/// Writes a small object and deletes it.
async fn probe(at: &Location) -> Result<()> {
    let Location { url, store, path, .. } = below(at);
    store.put(&path, "caju bench".into()).await.map_err(|e| store_error(&url, e))?;
    store.delete(&path).await.map_err(|e| store_error(&url, e))
}

/// Removes a folder until it stays away: a job that was dropped may write files for a moment longer.
async fn remove_folder(folder: TempDir) -> Result<()> {
    let error = |e: io::Error| Error::unavailable(format!("{}: {e}", folder.path().display()));
    for _ in 0..DELETE_ATTEMPTS {
        match std::fs::remove_dir_all(folder.path()) {
            Err(e) if !matches!(e.kind(), io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::NotFound) => {
                return Err(error(e));
            }
            _ => tokio::time::sleep(DELETE_PAUSE).await,
        }
        if !folder.path().exists() {
            return Ok(());
        }
    }
    Err(Error::unavailable(format!(
        "{}: files are left after {DELETE_ATTEMPTS} attempts to remove them",
        folder.path().display()
    )))
}

/// Deletes every object below a place, until a listing shows none.
async fn remove_all(at: &Location) -> Result<()> {
    let error = |e| store_error(&at.url, e);
    for _ in 0..DELETE_ATTEMPTS {
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
    Err(Error::unavailable(format!(
        "{}: objects are left after {DELETE_ATTEMPTS} attempts to delete them",
        at.url
    )))
}

/// Bytes of the files below a folder; a file that cannot be read counts as empty.
fn bytes_below(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let size = |e: std::fs::DirEntry| match e.metadata() {
        Ok(m) if m.is_dir() => bytes_below(&e.path()),
        Ok(m) => m.len(),
        Err(_) => 0,
    };
    entries.flatten().map(size).sum()
}

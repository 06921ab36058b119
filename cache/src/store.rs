//! The object store under a cache: with counters, retries, and creation of an object only if it is absent.

mod local;
mod records;

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow_buffer::MutableBuffer;
use bytes::Bytes;
use caju_runtime::stores::{DurableStore, io_error, store_error};
use caju_runtime::{Clock, CountingStore, IoCounters, Location, OrderedMutex, blocking};
use caju_types::{Error, ErrorKind, Result, hash128};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    GetOptions, GetRange, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions,
    PutPayload,
};

use crate::layout::Layout;
use crate::locks;
use crate::options::CacheOptions;
use crate::record::Record;
use crate::retry::Retry;

pub(crate) use records::read_record;

/// The outcome of creating an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Created {
    /// The object is ours.
    Yes,
    /// Another process created it first: this is its content. It is empty for an object that is too large to be read.
    Taken(Bytes),
}

/// An object as a listing shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) path: Path,
    pub(crate) bytes: u64,
    /// Milliseconds since 1970 by the store's own clock.
    pub(crate) modified_ms: i64,
    pub(crate) etag: Option<String>,
}

impl From<ObjectMeta> for Listed {
    fn from(m: ObjectMeta) -> Self {
        Self {
            bytes: m.size,
            modified_ms: m.last_modified.timestamp_millis(),
            etag: m.e_tag,
            path: m.location,
        }
    }
}

/// Consecutive pieces of an object, each in an allocation of its own with a 64-byte aligned start, and the size of the
/// whole object. The last pieces are short if the object is.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub(crate) pieces: Vec<Bytes>,
    pub(crate) object_bytes: u64,
}

/// How often a request to a remote store is made in all.
const MAX_REMOTE_ATTEMPTS: u32 = 2;
/// How often an object is created that other processes keep creating and deleting.
const MAX_CREATE_ATTEMPTS: usize = 16;
/// Levels of folders below `ROOT/v1` in which objects lie.
const MAX_FOLDER_DEPTH: u32 = 3;

/// The store of one cache root.
#[derive(Debug)]
pub(crate) struct Root {
    url: String,
    store: Arc<dyn ObjectStore>,
    local: Option<PathBuf>,
    pub(crate) layout: Layout,
    pub(crate) io: Arc<IoCounters>,
    pub(crate) retry: Retry,
    pub(crate) clock: Arc<dyn Clock>,
    conditional: bool,
    /// Whether files of the root can be mapped: whether they are on a file system of this host.
    mappable: bool,
    /// The store's error, if it refuses to have anything written.
    refusal: Option<Error>,
    names: AtomicU64,
    seed: u64,
}

impl Root {
    /// Opens the root and finds out whether its store honours conditional puts.
    pub(crate) async fn open(
        at: Location,
        options: &CacheOptions,
        clock: Arc<dyn Clock>,
        writer: &str,
    ) -> Result<Self> {
        let io = Arc::new(IoCounters::new());
        #[expect(clippy::cast_possible_truncation, reason = "any 64 bits do")]
        let seed = hash128(format!("{writer} {}", clock.unix_time().as_nanos()).as_bytes()) as u64;
        // Clients of remote stores retry themselves. More retries here would only delay the report of a dead store.
        let remote = matches!(at.url.scheme.as_str(), "s3" | "gs" | "az" | "http" | "https");
        let retry = Retry::new(
            Arc::clone(&clock),
            if remote { options.attempts.min(MAX_REMOTE_ATTEMPTS) } else { options.attempts },
            options.retry_base,
            options.request_timeout,
            seed,
        );
        let local = match at.local.clone() {
            Some(folder) => local::inspect(folder).await,
            None => local::Folder::default(),
        };
        let store: Arc<dyn ObjectStore> = match local.is_save {
            true => Arc::new(DurableStore::new(at.store, Arc::clone(&io))),
            false => at.store,
        };
        let mut root = Self {
            url: at.url.to_string(),
            store: Arc::new(CountingStore::new(store, Arc::clone(&io))),
            layout: Layout::new(&at.path),
            local: at.local.as_ref().map(|_| PathBuf::from("/")),
            io,
            retry,
            clock,
            conditional: true,
            mappable: local.is_mappable,
            refusal: None,
            names: AtomicU64::new(0),
            seed,
        };
        if !options.read_only {
            match root.probe().await {
                Ok(conditional) => root.conditional = conditional,
                // Stored rows can be read all the same.
                Err(e) if e.kind() == ErrorKind::PermissionDenied => {
                    if is_first_refusal(&root.url) {
                        tracing::warn!(error = %e, "the cache is read only: stored rows are read, and none are stored");
                    }
                    root.refusal = Some(e);
                }
                Err(e) => return Err(e),
            }
        }
        Ok(root)
    }

    /// Whether files of the root can be mapped into memory.
    pub(crate) fn is_mappable(&self) -> bool {
        self.mappable
    }

    /// The store's error if it refused to have anything written below the root.
    pub(crate) fn refusal(&self) -> Option<&Error> {
        self.refusal.as_ref()
    }

    /// The time by the store's clock, in milliseconds since 1970: that of an object written just now.
    pub(crate) async fn now_ms(&self) -> Result<i64> {
        let path = self.layout.probe(&self.unique("time"));
        self.put(&path, Bytes::from_static(b"{}")).await?;
        let now = self.head(&path).await?.map(|o| o.modified_ms);
        self.delete(&path).await?;
        now.ok_or_else(|| Error::unavailable(format!("{}: an object just written is not there", self.url)))
    }

    /// Finds out whether the store honours conditional puts: it then refuses to create an object twice.
    async fn probe(&self) -> Result<bool> {
        let path = self.layout.probe(&self.unique("probe"));
        let create = async |body: &'static [u8]| {
            let put = || self.put_once(&path, Bytes::from_static(body), PutMode::Create);
            self.retry.run(self.name(&path), put).await
        };
        let honoured = match create(b"1").await {
            Ok(()) => match create(b"2").await {
                Ok(()) => false,
                Err(e) if already_exists(&e) => true,
                Err(e) => return Err(self.unwritable(&e)),
            },
            // An earlier attempt created the object, and its answer was lost.
            Err(e) if already_exists(&e) => true,
            // A transient error answers nothing, and other processes may have got another answer.
            Err(e) if crate::retry::is_transient(&e) => return Err(self.unwritable(&e)),
            // Not supported, or a file system without hard links, which reports that in many ways.
            Err(_) => match self.put(&path, Bytes::from_static(b"1")).await {
                Ok(()) => false,
                Err(e) => return Err(self.unwritable(&e)),
            },
        };
        if let Err(error) = self.delete(&path).await {
            tracing::debug!(%error, "a probe object was left behind");
        }
        if !honoured {
            tracing::warn!(
                root = self.url,
                "the cache store does not honour conditional puts: commit records get unique names, and the oldest one wins"
            );
        }
        Ok(honoured)
    }

    fn unwritable(&self, e: &Error) -> Error {
        Error::new(e.kind(), format!("the cache root {} cannot be written: {}", self.url, e.message()))
    }

    /// Whether [`Root::create`] is atomic. If not, names that must not collide carry the attempt.
    pub(crate) fn conditional(&self) -> bool {
        self.conditional
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// A name that no other process and no earlier call has made.
    pub(crate) fn unique(&self, purpose: &str) -> String {
        let n = self.names.fetch_add(1, Ordering::Relaxed);
        let now = self.clock.unix_time().as_nanos();
        let hash = hash128(format!("{purpose} {} {now} {n}", self.seed).as_bytes());
        format!("{:016x}", (hash >> 64) ^ (hash & u128::from(u64::MAX)))
    }

    pub(crate) fn name<'a>(&'a self, path: &'a Path) -> Name<'a> {
        Name { root: self, path }
    }

    /// The path of an object in the local file system; none for a remote root.
    pub(crate) fn local_path(&self, path: &Path) -> Option<PathBuf> {
        self.local.as_ref().map(|root| root.join(path.as_ref()))
    }

    async fn put_once(&self, path: &Path, body: Bytes, mode: PutMode) -> Result<()> {
        let options = PutOptions { mode, ..PutOptions::default() };
        let put = async {
            let put = self.store.put_opts(path, PutPayload::from(body), options).await;
            put.map(drop).map_err(|e| store_error(self.name(path), e))
        };
        self.retry.within(self.name(path), put).await
    }

    /// Writes an object, and replaces an existing one.
    pub(crate) async fn put(&self, path: &Path, body: Bytes) -> Result<()> {
        self.retry.run(self.name(path), || self.put_once(path, body.clone(), PutMode::Overwrite)).await
    }

    /// Writes several pieces as one object, and replaces an existing one.
    pub(crate) async fn put_pieces(&self, path: &Path, pieces: &[Bytes]) -> Result<()> {
        self.retry
            .run(self.name(path), || async {
                let payload: PutPayload = pieces.iter().cloned().collect();
                let put = self.store.put_opts(path, payload, PutOptions::default()).await;
                put.map(drop).map_err(|e| store_error(self.name(path), e))
            })
            .await
    }

    /// Creates a record's object unless it exists. A creation whose answer was lost is recognised by the object's content,
    /// which therefore has to be unique to the caller.
    pub(crate) async fn create<T: Record>(&self, path: &Path, body: Bytes) -> Result<Created> {
        if !self.conditional {
            return match self.read_bytes::<T>(path).await? {
                Some(there) if there == body => Ok(Created::Yes),
                Some(there) => Ok(Created::Taken(there)),
                None => self.put(path, body).await.map(|()| Created::Yes),
            };
        }
        // The object may be deleted between the refusal and the read: then it is tried again.
        for _ in 0..MAX_CREATE_ATTEMPTS {
            let put = || self.put_once(path, body.clone(), PutMode::Create);
            match self.retry.run(self.name(path), put).await {
                Ok(()) => return Ok(Created::Yes),
                Err(e) if already_exists(&e) => {}
                Err(e) => return Err(e),
            }
            match self.read_bytes::<T>(path).await? {
                Some(there) if there == body => return Ok(Created::Yes),
                Some(there) => return Ok(Created::Taken(there)),
                None => {}
            }
        }
        Err(Error::unavailable(format!("{}: it keeps being created and deleted by others", self.name(path))))
    }

    /// The size, time and etag of an object; none if it does not exist.
    pub(crate) async fn head(&self, path: &Path) -> Result<Option<Listed>> {
        let head = || async { self.store.head(path).await.map_err(|e| store_error(self.name(path), e)) };
        Ok(optional(self.retry.run(self.name(path), head).await)?.map(Listed::from))
    }

    /// The files that object_store's local store was still writing when its process ended, each with its name and time as
    /// an object. Such files are named `NAME#1`, and listings leave them out.
    pub(crate) async fn partial_files(&self) -> Result<Vec<(PathBuf, Listed)>> {
        let Some(base) = self.local_path(&self.layout.base()) else { return Ok(Vec::new()) };
        let prefix = self.layout.base();
        let walk = move || {
            let mut found = Vec::new();
            local::partial_files_below(&base, &prefix, MAX_FOLDER_DEPTH, &mut found);
            found
        };
        blocking("looking for incomplete files", walk).await
    }

    /// Reads a range of an object in one request, into memory that is aligned for Arrow.
    pub(crate) async fn get_range(&self, path: &Path, range: std::ops::Range<u64>) -> Result<Bytes> {
        let mut fetched = self.get_pieces(path, range.start, &[range.end - range.start]).await?;
        Ok(fetched.pieces.pop().unwrap_or_default())
    }

    /// Reads consecutive pieces of these lengths in one request.
    pub(crate) async fn get_pieces(&self, path: &Path, start: u64, lengths: &[u64]) -> Result<Fetched> {
        self.retry.run(self.name(path), || self.get_pieces_once(path, start, lengths)).await
    }

    async fn get_pieces_once(&self, path: &Path, start: u64, lengths: &[u64]) -> Result<Fetched> {
        if let Some(file) = self.local_path(path) {
            return self.read_pieces(path, file, start, lengths).await;
        }
        let end = start + lengths.iter().sum::<u64>();
        let options = GetOptions { range: Some(GetRange::Bounded(start..end)), ..GetOptions::default() };
        let result = match self.store.get_opts(path, options).await {
            Ok(result) => result,
            Err(e) => return Err(self.range_error(path, end, e).await),
        };
        let object_bytes = result.meta.size;
        let mut body = result.into_stream();
        let mut rest = Bytes::new();
        let mut pieces = Vec::with_capacity(lengths.len());
        let mut short = false;
        for length in lengths {
            let length = usize::try_from(*length).map_err(|_| {
                Error::exhausted(format!("{}: a block of it does not fit memory", self.name(path)))
            })?;
            let mut piece = MutableBuffer::with_capacity(length);
            while piece.len() < length {
                if rest.is_empty() {
                    let Some(chunk) = body.next().await else { break };
                    rest = chunk.map_err(|e| store_error(self.name(path), e))?;
                }
                piece.extend_from_slice(&rest.split_to(rest.len().min(length - piece.len())));
            }
            short |= piece.len() < length;
            pieces.push(local::aligned_bytes(piece));
        }
        let longer = !rest.is_empty()
            || body.next().await.transpose().is_ok_and(|more| more.is_some_and(|c| !c.is_empty()));
        if longer {
            return Err(self.cut(path, "longer"));
        }
        // The caller detects a short object by its size.
        if short && object_bytes >= end {
            return Err(self.cut(path, "shorter"));
        }
        Ok(Fetched { pieces, object_bytes })
    }

    /// Reads pieces of a local file. object_store would give them in buffers of 8 KiB.
    async fn read_pieces(&self, path: &Path, file: PathBuf, start: u64, lengths: &[u64]) -> Result<Fetched> {
        let lengths = lengths.to_vec();
        let read = blocking("reading a part", move || local::read_pieces(&file, start, &lengths)).await?;
        let fetched = read.map_err(|e| match e.kind() {
            std::io::ErrorKind::InvalidData => Error::data_loss(format!("{}: {e}", self.name(path))),
            _ => io_error(self.name(path), &e),
        })?;
        self.io.add_read(fetched.pieces.iter().map(|p| p.len() as u64).sum());
        Ok(fetched)
    }

    fn cut(&self, path: &Path, how: &str) -> Error {
        Error::unavailable(format!("{}: the store's answer was {how} than asked for", self.name(path)))
    }

    /// The error of a request for a range that ends at `end`. A range beyond the end of the object means that the object is
    /// truncated, not that the store failed.
    ///
    /// No kind of error says so, and the text of any other error may have the same words: it names the object. The size decides.
    async fn range_error(&self, path: &Path, end: u64, error: object_store::Error) -> Error {
        let text = error.to_string();
        let may_be_beyond = ["416", "range", "Range"].iter().any(|t| text.contains(t));
        let error = store_error(self.name(path), error);
        if may_be_beyond
            && error.kind() == ErrorKind::Unavailable
            && self.store.head(path).await.is_ok_and(|object| object.size < end)
        {
            return Error::data_loss(format!("{}: it is shorter than its record says", self.name(path)));
        }
        error
    }

    /// Starts an upload in pieces.
    pub(crate) async fn upload(&self, path: &Path) -> Result<Box<dyn MultipartUpload>> {
        let start =
            || async { self.store.put_multipart(path).await.map_err(|e| store_error(self.name(path), e)) };
        self.retry.run(self.name(path), start).await
    }

    /// Everything below a folder, in no particular order.
    pub(crate) async fn list(&self, folder: &Path) -> Result<Vec<Listed>> {
        let list = || async {
            let all = self.store.list(Some(folder)).map_ok(Listed::from).try_collect::<Vec<_>>().await;
            match all {
                Ok(all) => Ok(all),
                // The local folder does not exist, or was deleted during the listing. Other stores have no folders: there
                // the bucket does not exist.
                Err(object_store::Error::NotFound { .. }) if self.local.is_some() => Ok(Vec::new()),
                Err(e) => Err(store_error(self.name(folder), e)),
            }
        };
        self.retry.run(self.name(folder), list).await
    }

    /// Deletes an object. An object that does not exist is no error.
    pub(crate) async fn delete(&self, path: &Path) -> Result<()> {
        let delete = || async { self.store.delete(path).await.map_err(|e| store_error(self.name(path), e)) };
        optional(self.retry.run(self.name(path), delete).await).map(drop)
    }

    /// Deletes many objects with few requests. Objects that do not exist are no error.
    pub(crate) async fn delete_all(&self, paths: Vec<Path>) -> Result<()> {
        let all = futures::stream::iter(paths.into_iter().map(Ok)).boxed();
        let mut deleted = self.store.delete_stream(all);
        while let Some(next) = deleted.next().await {
            match next {
                Ok(_) | Err(object_store::Error::NotFound { .. }) => {}
                Err(e) => return Err(store_error(&self.url, e)),
            }
        }
        Ok(())
    }
}

/// Roots of which this process has warned that they cannot be written.
static WARNED: OrderedMutex<BTreeSet<String>> = OrderedMutex::new(locks::UNWRITABLE_ROOTS, BTreeSet::new());
/// The most roots in [`WARNED`], which bounds its memory. There is no warning for further ones.
const MAX_WARNED: usize = 1000;

/// Whether this is the first time that this process warns of a root.
fn is_first_refusal(root: &str) -> bool {
    let mut warned = WARNED.lock();
    warned.len() < MAX_WARNED && warned.insert(root.to_owned())
}

/// Whether a creation failed because the object exists. Some stores report two concurrent creations as a failed
/// precondition.
fn already_exists(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::FailedPrecondition)
}

/// Turns `NotFound` into none.
fn optional<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// An object's URL, for messages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Name<'a> {
    root: &'a Root,
    path: &'a Path,
}

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let root = self.root.url.as_str();
        match self.root.layout.relative(self.path) {
            Some(rest) => write!(f, "{}/{}/{rest}", root.trim_end_matches('/'), crate::layout::VERSION),
            None => write!(f, "{root}"),
        }
    }
}

//! Reading a file at the version that was listed; any other version is an error.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use caju_runtime::stores::{CountingStore, Listed, Location, local_version, store_error};
use caju_runtime::{
    IoCounters, LockRank, OrderedMutex, blocking, recycle, thread_blocks_read, thread_cpu_time,
};
use caju_types::{Error, Result};
use futures::stream::{self, BoxStream, StreamExt};
use object_store::{GetOptions, ObjectStore, coalesce_ranges};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use crate::context::SourceContext;
use crate::read_observer;
use crate::split::{FileRef, FileVersion};

/// Ranges of one local request at most this many bytes apart are read together.
const LOCAL_COALESCE: u64 = 16 << 10;
/// Ranges of one remote request at most this many bytes apart are read together.
const REMOTE_COALESCE: u64 = 512 << 10;
/// Blocks of a local file that are read ahead: the operating system reads ahead, too.
const LOCAL_READAHEAD: usize = 1;
/// Blocks of a remote file that are read ahead: several hide the latency of a request.
const REMOTE_READAHEAD: usize = 3;

/// The reference of a file that a listing found.
pub(crate) fn file_ref(listed: &Listed) -> FileRef {
    let version = FileVersion {
        size: listed.size,
        etag: listed.etag.clone(),
        mtime_ns: listed.mtime_ns,
        ctime_ns: listed.ctime_ns,
        content_hash: None,
    };
    FileRef { url: listed.url.to_string(), version }
}

fn changed(url: &str, how: &str) -> Error {
    Error::failed_precondition(format!(
        "{url}: the file changed while it was read ({how}); start again, and keep source files unchanged \
         during a run"
    ))
}

/// The locks of a file are taken in this order. The handle's is held while a closure reads the file.
const HANDLE: LockRank = LockRank::new(120, "the handle of a source file");
const LOCAL_FILE: LockRank = LockRank::new(121, "a local source file");
const VERSION: LockRank = LockRank::leaf("the version of a source file");

/// A file that is read at one version only. Shared by reference counting; reads may run concurrently.
#[derive(Debug)]
pub(crate) struct SourceFile {
    /// The file as it was listed.
    pub(crate) file: FileRef,
    at: Location,
    store: CountingStore,
    io: Arc<IoCounters>,
    block_bytes: u64,
    local: OrderedMutex<Option<Arc<OrderedMutex<File>>>>,
    /// The version to ask for; differs from the listed one only under `version: content`.
    version: OrderedMutex<FileVersion>,
}

impl SourceFile {
    /// Names the file; nothing is read yet.
    pub(crate) fn new(ctx: &SourceContext, file: &FileRef) -> Result<Arc<Self>> {
        let at = ctx.stores.resolve(&file.url)?;
        Ok(Arc::new(Self {
            file: file.clone(),
            store: CountingStore::new(Arc::clone(&at.store), Arc::clone(&ctx.io)),
            at,
            io: Arc::clone(&ctx.io),
            block_bytes: ctx.limits.block_bytes.max(4096),
            local: OrderedMutex::new(HANDLE, None),
            version: OrderedMutex::new(VERSION, file.version.clone()),
        }))
    }

    /// Size in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.file.version.size
    }

    /// Whether the file is on this machine, so that requests are cheap.
    pub(crate) fn is_local(&self) -> bool {
        self.at.local.is_some()
    }

    /// The bytes of a range; the range must lie within the file.
    pub(crate) async fn read(self: &Arc<Self>, range: Range<u64>) -> Result<Bytes> {
        let mut all = self.read_ranges(vec![range]).await?;
        all.pop().ok_or_else(|| Error::internal("no range"))
    }

    /// The bytes of several ranges, near ones in one request.
    pub(crate) async fn read_ranges(self: &Arc<Self>, ranges: Vec<Range<u64>>) -> Result<Vec<Bytes>> {
        if self.is_local() {
            return self.with_local(move |f| f.ranges(&ranges)).await;
        }
        coalesce_ranges(&ranges, |range| self.get(range), REMOTE_COALESCE).await
    }

    /// A range as consecutive blocks, with a bounded readahead.
    pub(crate) fn blocks(self: &Arc<Self>, range: Range<u64>) -> BoxStream<'static, Result<Bytes>> {
        let (step, end) = (self.block_bytes, range.end);
        let file = Arc::clone(self);
        let readahead = if self.is_local() { LOCAL_READAHEAD } else { REMOTE_READAHEAD };
        // The first block is small: the first rows should not wait for a large read.
        let first = range.start..end.min(range.start + step.min(512 << 10));
        let mut at = first.end;
        let rest = std::iter::from_fn(move || {
            let next = at..end.min(at + step);
            at = next.end;
            (next.start < next.end).then_some(next)
        });
        stream::iter((!first.is_empty()).then_some(first).into_iter().chain(rest))
            .map(move |range| {
                let file = Arc::clone(&file);
                async move { file.read(range).await }
            })
            .buffered(1 + readahead)
            .boxed()
    }

    /// Runs a closure that may read the local file many times, on a thread where that is allowed.
    pub(crate) async fn with_local<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&mut LocalReads) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let me = Arc::clone(self);
        let observer = read_observer::current();
        let run = move || {
            let cpu = thread_cpu_time();
            let (result, bytes, took) = me.run_local(work);
            if let Some(observer) = observer {
                observer.on_cpu(thread_cpu_time().saturating_sub(cpu));
                observer.on_read(bytes, took);
            }
            result
        };
        blocking(format!("reading {}", self.file.url), run).await?
    }

    /// The result, with the bytes that were read and the time that the file system took for them.
    fn run_local<T>(&self, work: impl FnOnce(&mut LocalReads) -> Result<T>) -> (Result<T>, u64, Duration) {
        let handle = match self.open_local() {
            Ok(handle) => handle,
            Err(e) => return (Err(e), 0, Duration::ZERO),
        };
        let mut file = handle.lock();
        let mut reads = LocalReads { me: self, file: &mut file, bytes: 0, requests: 0, took: Duration::ZERO };
        let result = work(&mut reads);
        // A read is valid only if the file did not change during it.
        let after = self.check_local(reads.file);
        reads.count();
        (after.and(result), reads.bytes, reads.took)
    }

    fn open_local(&self) -> Result<Arc<OrderedMutex<File>>> {
        let mut local = self.local.lock();
        if let Some(handle) = &*local {
            return Ok(Arc::clone(handle));
        }
        let path = self.at.local.as_deref().ok_or_else(|| Error::internal("not a local file"))?;
        let mut file = File::open(path).map_err(|e| self.io_error(&e))?;
        if let Err(e) = self.check_local(&file) {
            self.adopt_local(&mut file, e)?;
        }
        let handle = Arc::new(OrderedMutex::new(LOCAL_FILE, file));
        *local = Some(Arc::clone(&handle));
        Ok(handle)
    }

    fn check_local(&self, file: &File) -> Result<()> {
        let (size, mtime, ctime) = local_version(&file.metadata().map_err(|e| self.io_error(&e))?);
        let want = self.version.lock();
        let how = if want.size != size {
            format!("it had {} bytes and has {size}", want.size)
        } else if want.mtime_ns != Some(mtime) {
            "its modification time is another one".to_string()
        } else if want.ctime_ns != Some(ctime) {
            "its change time is another one".to_string()
        } else {
            return Ok(());
        };
        Err(changed(&self.file.url, &how))
    }

    /// Under `version: content` a file with other times is the same file if its content is.
    fn adopt_local(&self, file: &mut File, otherwise: Error) -> Result<()> {
        let Some(want) = &self.file.version.content_hash else { return Err(otherwise) };
        let (size, mtime, ctime) = local_version(&file.metadata().map_err(|e| self.io_error(&e))?);
        let mut hash = Xxh3::new();
        let mut buffer = vec![0; 1 << 20];
        loop {
            let n = file.read(&mut buffer).map_err(|e| self.io_error(&e))?;
            if n == 0 {
                break;
            }
            self.io.add_read(n as u64);
            hash.update(&buffer[..n]);
        }
        if &hex(hash.digest128()) != want {
            return Err(otherwise);
        }
        let mut version = self.version.lock();
        (version.size, version.mtime_ns, version.ctime_ns) = (size, Some(mtime), Some(ctime));
        Ok(())
    }

    fn io_error(&self, error: &std::io::Error) -> Error {
        let url = &self.file.url;
        match error.kind() {
            std::io::ErrorKind::NotFound => {
                Error::not_found(format!("{url}: the file was listed and is gone"))
            }
            std::io::ErrorKind::PermissionDenied => Error::permission_denied(format!(
                "{url}: permission denied; let the user that runs caju read it"
            )),
            std::io::ErrorKind::UnexpectedEof => changed(url, "it became shorter"),
            _ => Error::unavailable(format!("{url}: {error}")),
        }
    }

    async fn get(self: &Arc<Self>, range: Range<u64>) -> Result<Bytes> {
        match self.get_once(range.clone()).await {
            Err(e) if self.file.version.content_hash.is_some() && is_changed(&e) => {
                self.adopt_remote(e).await?;
                self.get_once(range).await
            }
            result => result,
        }
    }

    async fn get_once(&self, range: Range<u64>) -> Result<Bytes> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let url = &self.file.url;
        let want = self.version.lock().clone();
        let options = GetOptions {
            // `If-Match` compares strongly (RFC 9110, 13.1.1): a weak e-tag matches nothing.
            if_match: want.etag.clone().filter(|etag| !etag.starts_with("W/")),
            range: Some(range.clone().into()),
            ..GetOptions::default()
        };
        let error = |e: object_store::Error| match e {
            object_store::Error::NotFound { .. } => {
                Error::not_found(format!("{url}: the object was listed and is gone"))
            }
            e => store_error(url, e),
        };
        let asked = Instant::now();
        let result = self.store.get_opts(&self.at.path, options).await.map_err(error)?;
        // Some stores ignore If-Match, so the version in the answer is checked too.
        let meta = &result.meta;
        if let (Some(a), Some(b)) = (&want.etag, &meta.e_tag) {
            if a != b {
                return Err(changed(url, "its e-tag is another one"));
            }
        } else if want
            .mtime_ns
            .is_some_and(|ns| ns.div_euclid(1_000_000_000) != meta.last_modified.timestamp())
        {
            // Headers have whole seconds where listings have fractions.
            return Err(changed(url, "its modification time is another one"));
        } else if want.etag.is_none() {
            // The listing had no e-tag: from now on it is this one.
            self.version.lock().etag = meta.e_tag.clone();
        }
        if meta.size != want.size {
            return Err(changed(url, &format!("it had {} bytes and has {}", want.size, meta.size)));
        }
        let bytes = result.bytes().await.map_err(error)?;
        if let Some(observer) = read_observer::current() {
            observer.on_read(bytes.len() as u64, asked.elapsed());
        }
        if bytes.len() as u64 != range.end - range.start {
            return Err(Error::unavailable(format!(
                "{url}: the store answered {} bytes instead of {}",
                bytes.len(),
                range.end - range.start
            )));
        }
        Ok(bytes)
    }

    async fn adopt_remote(self: &Arc<Self>, otherwise: Error) -> Result<()> {
        let now = file_ref(&self.stores_head().await?);
        *self.version.lock() = now.version;
        if Some(self.content_hash().await?) == self.file.version.content_hash {
            return Ok(());
        }
        Err(otherwise)
    }

    async fn stores_head(&self) -> Result<Listed> {
        let options = GetOptions { head: true, ..GetOptions::default() };
        let meta = self
            .store
            .get_opts(&self.at.path, options)
            .await
            .map_err(|e| store_error(&self.file.url, e))?
            .meta;
        Ok(Listed {
            url: self.at.url.clone(),
            size: meta.size,
            etag: meta.e_tag,
            mtime_ns: meta.last_modified.timestamp_nanos_opt(),
            ctime_ns: None,
        })
    }

    /// xxh3-128 of the whole content, in hexadecimal.
    pub(crate) async fn content_hash(self: &Arc<Self>) -> Result<String> {
        let mut hash = Xxh3::new();
        let size = self.version.lock().size;
        let mut at = 0;
        while at < size {
            let end = size.min(at + self.block_bytes);
            if self.is_local() {
                hash.update(&self.with_local(move |f| f.read(at..end)).await?);
            } else {
                hash.update(&self.get_once(at..end).await?);
            }
            at = end;
        }
        Ok(hex(hash.digest128()))
    }

    /// Checks after reads that the content is still the listed one, where only the content shows a change. Reads it once more.
    ///
    /// # Errors
    /// `FailedPrecondition` for another content, and the errors of reading.
    pub(crate) async fn check_content(self: &Arc<Self>) -> Result<()> {
        match self.file.version.sole_content_hash() {
            Some(listed) => self.check_hash(listed, &self.content_hash().await?),
            None => Ok(()),
        }
    }

    /// As [`SourceFile::check_content`], of the whole content as it was read.
    ///
    /// # Errors
    /// `FailedPrecondition` for another content.
    pub(crate) fn check_whole(&self, content: &[u8]) -> Result<()> {
        match self.file.version.sole_content_hash() {
            Some(listed) => self.check_hash(listed, &hex(xxh3_128(content))),
            None => Ok(()),
        }
    }

    fn check_hash(&self, listed: &str, hash: &str) -> Result<()> {
        if hash == listed { Ok(()) } else { Err(changed(&self.file.url, "its content is another one")) }
    }
}

fn hex(hash: u128) -> String {
    format!("{hash:032x}")
}

fn is_changed(e: &Error) -> bool {
    e.kind() == caju_types::ErrorKind::FailedPrecondition
}

/// Reads of a local file on a thread that may block.
pub(crate) struct LocalReads<'a> {
    me: &'a SourceFile,
    file: &'a mut File,
    bytes: u64,
    requests: u64,
    took: Duration,
}

impl LocalReads<'_> {
    /// The bytes of a range.
    pub(crate) fn read(&mut self, range: Range<u64>) -> Result<Bytes> {
        let len = usize::try_from(range.end - range.start).map_err(|e| Error::internal(e.to_string()))?;
        let mut out = recycle::take(len);
        let (wall, cpu, blocks) = (Instant::now(), thread_cpu_time(), thread_blocks_read());
        self.file.seek(SeekFrom::Start(range.start)).map_err(|e| self.me.io_error(&e))?;
        let n = (&mut *self.file).take(len as u64).read_to_end(&mut out).map_err(|e| self.me.io_error(&e))?;
        // Cached bytes cost their copying alone; other wall time was spent waiting for a CPU.
        let cached = thread_blocks_read() == blocks;
        self.took += if cached { thread_cpu_time().saturating_sub(cpu) } else { wall.elapsed() };
        if n < len {
            return Err(changed(&self.me.file.url, "it became shorter"));
        }
        self.bytes += len as u64;
        self.requests += 1;
        Ok(recycle::bytes(out))
    }

    fn ranges(&mut self, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        if let [range] = ranges {
            return Ok(vec![self.read(range.clone())?]);
        }
        let mut order: Vec<usize> = (0..ranges.len()).collect();
        order.sort_unstable_by_key(|&i| ranges[i].start);
        let mut out = vec![Bytes::new(); ranges.len()];
        let mut i = 0;
        while i < order.len() {
            let start = ranges[order[i]].start;
            let mut end = ranges[order[i]].end;
            let mut j = i + 1;
            while j < order.len() && ranges[order[j]].start <= end + LOCAL_COALESCE {
                end = end.max(ranges[order[j]].end);
                j += 1;
            }
            let bytes = self.read(start..end)?;
            for &k in &order[i..j] {
                let (a, b) = (ranges[k].start - start, ranges[k].end - start);
                #[expect(clippy::cast_possible_truncation, reason = "within a buffer in memory")]
                let part = bytes.slice(a as usize..b as usize);
                out[k] = part;
            }
            i = j;
        }
        Ok(out)
    }

    fn count(&self) {
        for i in 0..self.requests {
            self.me.io.add_read(if i == 0 { self.bytes } else { 0 });
        }
    }
}

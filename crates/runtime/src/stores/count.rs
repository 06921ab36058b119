//! Counting the requests to a store, and their bytes.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result, UploadPart,
};

use super::layer::{Layered, StoreLayer};

/// Requests and bytes of one user of stores, counted at the object store. Users share one by an `Arc`.
#[derive(Debug, Default)]
pub struct IoCounters {
    reads: AtomicU64,
    lists: AtomicU64,
    writes: AtomicU64,
    deletes: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    syncs: AtomicU64,
}

/// The values of [`IoCounters`] at one time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IoSnapshot {
    /// Requests that read objects or their metadata.
    pub reads: u64,
    /// Listings. A listing that a store answers in pages counts once.
    pub lists: u64,
    /// Requests that write or copy objects or parts of them.
    pub writes: u64,
    /// Objects that were requested to be deleted.
    pub deletes: u64,
    /// Bytes of content that were received.
    pub bytes_read: u64,
    /// Bytes of content that were sent.
    pub bytes_written: u64,
    /// Calls of `fsync`, of files and folders.
    pub syncs: u64,
}

impl IoCounters {
    /// Counters at zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// The values now.
    pub fn snapshot(&self) -> IoSnapshot {
        let get = |a: &AtomicU64| a.load(Ordering::Relaxed);
        IoSnapshot {
            reads: get(&self.reads),
            lists: get(&self.lists),
            writes: get(&self.writes),
            deletes: get(&self.deletes),
            bytes_read: get(&self.bytes_read),
            bytes_written: get(&self.bytes_written),
            syncs: get(&self.syncs),
        }
    }

    /// Counts one read request of `bytes` bytes, for readers that open local files themselves.
    pub fn add_read(&self, bytes: u64) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.bytes_read.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts one list request, for code that lists local folders itself.
    pub fn add_list(&self) {
        self.lists.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn add_sync(&self) {
        self.syncs.fetch_add(1, Ordering::Relaxed);
    }

    fn add_write(&self, bytes: usize) {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.bytes_written.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// A store that counts its requests in [`IoCounters`].
pub type CountingStore = Layered<Counting>;

/// The layer of [`CountingStore`].
#[derive(Debug, Clone)]
pub struct Counting {
    inner: Arc<dyn ObjectStore>,
    io: Arc<IoCounters>,
}

impl CountingStore {
    /// Counts the requests to `inner` in `io`.
    pub fn new(inner: Arc<dyn ObjectStore>, io: Arc<IoCounters>) -> Self {
        Layered(Counting { inner, io })
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl StoreLayer for Counting {
    const NAME: &'static str = "CountingStore";

    fn inner(&self) -> &dyn ObjectStore {
        self.inner.as_ref()
    }

    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        self.io.add_write(payload.content_length());
        self.inner.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.io.add_write(0);
        let upload = self.inner.put_multipart_opts(location, opts).await?;
        Ok(Box::new(CountingUpload { upload, io: Arc::clone(&self.io) }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.io.add_read(0);
        let head = options.head;
        let mut result = self.inner.get_opts(location, options).await?;
        if head {
            return Ok(result);
        }
        let io = Arc::clone(&self.io);
        result.payload = match result.payload {
            GetResultPayload::Stream(s) => GetResultPayload::Stream(
                s.inspect(move |item| {
                    if let Ok(bytes) = item {
                        io.bytes_read.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                    }
                })
                .boxed(),
            ),
            // The caller reads the file itself, in practice the whole range.
            file @ GetResultPayload::File(..) => {
                let range = &result.range;
                io.bytes_read.fetch_add(range.end - range.start, Ordering::Relaxed);
                file
            }
        };
        Ok(result)
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let result = self.inner.get_ranges(location, ranges).await?;
        self.io.add_read(result.iter().map(|b| b.len() as u64).sum());
        Ok(result)
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let io = Arc::clone(&self.io);
        self.inner.delete_stream(
            locations
                .inspect(move |_| {
                    io.deletes.fetch_add(1, Ordering::Relaxed);
                })
                .boxed(),
        )
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.io.add_list();
        self.inner.list(prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.io.add_list();
        self.inner.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.io.add_list();
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.io.add_write(0);
        self.inner.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.io.add_write(0);
        self.inner.rename_opts(from, to, options).await
    }
}

#[derive(Debug)]
struct CountingUpload {
    upload: Box<dyn MultipartUpload>,
    io: Arc<IoCounters>,
}

#[async_trait]
impl MultipartUpload for CountingUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        self.io.add_write(data.content_length());
        self.upload.put_part(data)
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.io.add_write(0);
        self.upload.complete().await
    }

    async fn abort(&mut self) -> Result<()> {
        self.upload.abort().await
    }
}

//! A store in memory with the latency and bandwidth of a remote one.
//!
//! `object_store`'s own throttle does not count the bytes of writes. A store with slow reads and instant writes would make
//! writing look free.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use caju_runtime::stores::{Layered, StoreLayer};
use futures::future::FutureExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::throttle::{ThrottleConfig, ThrottledStore};
use object_store::{
    MultipartUpload, ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};

/// The bounds of each request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Throttle {
    /// Bytes per second that a request reads or writes. Unbounded if absent.
    pub(super) bytes_per_s: Option<u64>,
    /// The least time that a request takes.
    pub(super) latency: Duration,
}

/// A store in memory, behind a throttle.
type SlowStore = Layered<Slow>;

/// The layer of [`SlowStore`].
#[derive(Debug)]
struct Slow {
    inner: ThrottledStore<InMemory>,
    ns_per_byte: u64,
}

impl Slow {
    /// An empty store.
    fn new(throttle: Throttle) -> Self {
        let ns_per_byte = throttle.bytes_per_s.map_or(0, |rate| 1_000_000_000 / rate.max(1));
        let config = ThrottleConfig {
            wait_delete_per_call: throttle.latency,
            wait_get_per_call: throttle.latency,
            wait_put_per_call: throttle.latency,
            wait_list_per_call: throttle.latency,
            wait_list_with_delimiter_per_call: throttle.latency,
            wait_get_per_byte: Duration::from_nanos(ns_per_byte),
            ..ThrottleConfig::default()
        };
        Self { inner: ThrottledStore::new(InMemory::new(), config), ns_per_byte }
    }
}

/// The time to transfer this many bytes.
fn transfer_time(bytes: usize, ns_per_byte: u64) -> Duration {
    Duration::from_nanos((bytes as u64).saturating_mul(ns_per_byte))
}

#[async_trait]
impl StoreLayer for Slow {
    const NAME: &'static str = "SlowStore";

    fn inner(&self) -> &dyn ObjectStore {
        &self.inner
    }

    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        tokio::time::sleep(transfer_time(payload.content_length(), self.ns_per_byte)).await;
        self.inner.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let upload = self.inner.put_multipart_opts(location, opts).await?;
        Ok(Box::new(SlowUpload { upload, ns_per_byte: self.ns_per_byte }))
    }
}

#[derive(Debug)]
struct SlowUpload {
    upload: Box<dyn MultipartUpload>,
    ns_per_byte: u64,
}

#[async_trait]
impl MultipartUpload for SlowUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let wait = transfer_time(data.content_length(), self.ns_per_byte);
        let part = self.upload.put_part(data);
        async move {
            tokio::time::sleep(wait).await;
            part.await
        }
        .boxed()
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.upload.complete().await
    }

    async fn abort(&mut self) -> Result<()> {
        self.upload.abort().await
    }
}

/// The store behind a shared pointer.
pub(super) fn shared(throttle: Throttle) -> Arc<dyn ObjectStore> {
    let store: SlowStore = Layered(Slow::new(throttle));
    Arc::new(store)
}

#[cfg(test)]
mod tests {
    use object_store::ObjectStoreExt;

    use super::*;

    /// Only the lower bound is checked: a busy machine takes longer.
    #[tokio::test]
    async fn bytes_take_their_time_in_both_directions() {
        let store = shared(Throttle { bytes_per_s: Some(1_000_000), latency: Duration::from_millis(10) });
        let path = Path::from("a");
        let payload = || PutPayload::from(vec![1u8; 50_000]);
        let least = Duration::from_millis(60);

        let start = std::time::Instant::now();
        store.put(&path, payload()).await.unwrap();
        assert!(start.elapsed() >= least, "put: {:?}", start.elapsed());

        let start = std::time::Instant::now();
        assert_eq!(store.get(&path).await.unwrap().bytes().await.unwrap().len(), 50_000);
        assert!(start.elapsed() >= least, "get: {:?}", start.elapsed());

        let mut upload = store.put_multipart(&path).await.unwrap();
        let start = std::time::Instant::now();
        upload.put_part(payload()).await.unwrap();
        assert!(start.elapsed() >= Duration::from_millis(50), "part: {:?}", start.elapsed());
        upload.complete().await.unwrap();
    }
}

//! Fault injection: failures of networks, disks and processes, at the moments that a test chooses.
//!
//! ```
//! # use std::sync::Arc;
//! use caju_testkit::faulty::{Fault, Faults, Op, Rule, faulty_store};
//! use object_store::memory::InMemory;
//! let faults = Faults::new();
//! // The second read of anything below `parts/` loses its connection after 100 bytes.
//! faults.add(Rule::new(Op::Get, Fault::Cut(100)).on("parts/").skip(1));
//! let store = faulty_store(Arc::new(InMemory::new()), faults.clone());
//! # drop(store);
//! ```

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use caju_runtime::Clock;
use caju_runtime::stores::{Layered, StoreLayer};
use futures::stream::{BoxStream, StreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result,
    UploadPart,
};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};

/// A kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Op {
    /// Any request.
    Any,
    /// Writing an object in one request.
    Put,
    /// Starting a multipart upload.
    Upload,
    /// One piece of a multipart upload.
    Piece,
    /// Completing a multipart upload.
    Complete,
    /// Reading an object, a range of it, or its metadata.
    Get,
    /// Listing.
    List,
    /// Deleting.
    Delete,
    /// Copying or renaming.
    Copy,
}

/// A fault.
#[derive(Debug, Clone)]
pub enum Fault {
    /// The request fails with this text, such as `503 SlowDown`, and has no effect.
    Error(&'static str),
    /// The disk is full.
    NoSpace,
    /// The store refuses the request: permission is denied.
    Denied,
    /// The request is carried out, but its answer is lost.
    LostAnswer,
    /// The answer's body ends with an error after this many bytes.
    Cut(u64),
    /// The answer's body ends without an error after this many bytes.
    Short(u64),
    /// The object claims to have this many bytes. Reading the answer's body is an error.
    Size(u64),
    /// One bit of the byte at this offset of the answer is wrong.
    Flip(u64),
    /// The request first waits for this time on the clock.
    Delay(Duration, Arc<dyn Clock>),
    /// The request first waits for a permit.
    Gate(Arc<Semaphore>),
    /// The request is never answered, as if a process was killed or a connection went silent.
    Silence,
}

/// A fault, and the requests to which it happens.
#[derive(Debug, Clone)]
pub struct Rule {
    op: Op,
    path: String,
    skip: u64,
    times: u64,
    fault: Fault,
}

impl Rule {
    /// The fault happens to the next request of this kind, once.
    pub fn new(op: Op, fault: Fault) -> Self {
        Self { op, path: String::new(), skip: 0, times: 1, fault }
    }

    /// Restricts the rule to requests whose path contains this text.
    #[must_use]
    pub fn on(mut self, path: &str) -> Self {
        self.path = path.to_string();
        self
    }

    /// Skips this many matching requests first.
    #[must_use]
    pub fn skip(mut self, requests: u64) -> Self {
        self.skip = requests;
        self
    }

    /// The fault happens to this many requests instead of one.
    #[must_use]
    pub fn times(mut self, requests: u64) -> Self {
        self.times = requests;
        self
    }

    /// The fault happens to every matching request from then on.
    #[must_use]
    pub fn always(self) -> Self {
        self.times(u64::MAX)
    }
}

#[derive(Debug, Default)]
struct Plan {
    rules: Vec<Rule>,
    /// Requests out of 1000 that fail at random.
    rate: u64,
    /// The state of the random number generator.
    state: u64,
    ignore_conditions: bool,
    fired: u64,
    log: Vec<(Op, String)>,
}

/// The faults of one store. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    plan: Arc<Mutex<Plan>>,
    changed: Arc<Notify>,
}

impl Faults {
    /// No faults yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a rule. Of several matching rules the one added first applies.
    pub fn add(&self, rule: Rule) {
        self.plan.lock().rules.push(rule);
    }

    /// Ends all faults.
    pub fn clear(&self) {
        let mut plan = self.plan.lock();
        plan.rules.clear();
        plan.rate = 0;
    }

    /// Makes `per_mille` of 1000 requests fail with a 503, drawn at random from a seed.
    pub fn at_random(&self, per_mille: u64, seed: u64) {
        let mut plan = self.plan.lock();
        plan.rate = per_mille;
        plan.state = seed;
    }

    /// Makes the store ignore conditions on writes, as some stores do.
    pub fn ignore_conditions(&self) {
        self.plan.lock().ignore_conditions = true;
    }

    /// The number of faults that have happened.
    pub fn fired(&self) -> u64 {
        self.plan.lock().fired
    }

    /// Waits until `count` faults have happened.
    pub async fn wait_fired(&self, count: u64) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.fired() >= count {
                return;
            }
            changed.await;
        }
    }

    /// The kind and path of every request so far.
    pub fn log(&self) -> Vec<(Op, String)> {
        self.plan.lock().log.clone()
    }

    /// Clears the log of requests.
    pub fn clear_log(&self) {
        self.plan.lock().log.clear();
    }

    fn next(&self, op: Op, path: &str) -> Option<Fault> {
        let mut plan = self.plan.lock();
        plan.log.push((op, path.to_string()));
        let mut fault = None;
        for rule in &mut plan.rules {
            if rule.times == 0 || (rule.op != Op::Any && rule.op != op) || !path.contains(&rule.path) {
                continue;
            }
            if rule.skip > 0 {
                rule.skip -= 1;
                continue;
            }
            if rule.times != u64::MAX {
                rule.times -= 1;
            }
            fault = Some(rule.fault.clone());
            break;
        }
        if fault.is_none() && plan.rate > 0 {
            // xorshift64*: any generator would do.
            let mut s = plan.state.max(1);
            s ^= s >> 12;
            s ^= s << 25;
            s ^= s >> 27;
            plan.state = s;
            if (s.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % 1000 < plan.rate {
                fault = Some(Fault::Error("503 SlowDown"));
            }
        }
        if fault.is_some() {
            plan.fired += 1;
            drop(plan);
            self.changed.notify_waiters();
        }
        fault
    }

    fn mode(&self, mode: PutMode) -> PutMode {
        if self.plan.lock().ignore_conditions { PutMode::Overwrite } else { mode }
    }

    /// Applies faults that happen before the request: it may fail or wait. Gives a fault that affects the answer.
    async fn before(&self, op: Op, path: &str) -> Result<Option<Fault>> {
        match self.next(op, path) {
            None => Ok(None),
            Some(Fault::Error(text)) => Err(generic(text.into())),
            Some(Fault::NoSpace) => {
                Err(generic(Box::new(io::Error::new(io::ErrorKind::StorageFull, "no space left"))))
            }
            Some(Fault::Denied) => Err(Error::PermissionDenied {
                path: path.to_string(),
                source: Box::new(io::Error::from(io::ErrorKind::PermissionDenied)),
            }),
            Some(Fault::Delay(duration, clock)) => {
                clock.sleep(duration).await;
                Ok(None)
            }
            Some(Fault::Gate(gate)) => {
                // A closed semaphore lets requests pass.
                if let Ok(permit) = gate.acquire().await {
                    permit.forget();
                }
                Ok(None)
            }
            Some(Fault::Silence) => std::future::pending().await,
            later => Ok(later),
        }
    }
}

fn generic(source: Box<dyn std::error::Error + Send + Sync>) -> Error {
    Error::Generic { store: "faulty", source }
}

fn after<T>(fault: Option<&Fault>, value: T) -> Result<T> {
    match fault {
        Some(Fault::LostAnswer) => Err(generic("the connection was lost".into())),
        _ => Ok(value),
    }
}

/// A store with injected faults.
pub type FaultyStore = Layered<Faulty>;

/// The layer of [`FaultyStore`].
#[derive(Debug, Clone)]
pub struct Faulty {
    inner: Arc<dyn ObjectStore>,
    faults: Faults,
}

/// A store to whose requests `faults` happen.
pub fn faulty_store(inner: Arc<dyn ObjectStore>, faults: Faults) -> FaultyStore {
    Layered(Faulty { inner, faults })
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl StoreLayer for Faulty {
    const NAME: &'static str = "FaultyStore";

    fn inner(&self) -> &dyn ObjectStore {
        self.inner.as_ref()
    }

    async fn put_opts(&self, path: &Path, payload: PutPayload, mut options: PutOptions) -> Result<PutResult> {
        let fault = self.faults.before(Op::Put, path.as_ref()).await?;
        options.mode = self.faults.mode(options.mode);
        after(fault.as_ref(), self.inner.put_opts(path, payload, options).await?)
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.faults.before(Op::Upload, path.as_ref()).await?;
        let upload = self.inner.put_multipart_opts(path, options).await?;
        Ok(Box::new(FaultyUpload { upload, faults: self.faults.clone(), path: path.to_string() }))
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        let fault = self.faults.before(Op::Get, path.as_ref()).await?;
        let mut result = self.inner.get_opts(path, options).await?;
        if let Some(fault) = fault {
            after(Some(&fault), ())?;
            if let Fault::Size(bytes) = fault {
                result.meta.size = bytes;
                result.range = 0..bytes;
                let body = futures::stream::once(async { Err(generic("a false size was believed".into())) });
                result.payload = GetResultPayload::Stream(body.boxed());
                return Ok(result);
            }
            let empty = GetResultPayload::Stream(futures::stream::empty().boxed());
            let whole = GetResult {
                payload: std::mem::replace(&mut result.payload, empty),
                meta: result.meta.clone(),
                range: result.range.clone(),
                attributes: result.attributes.clone(),
            };
            let bytes = whole.bytes().await?;
            result.payload = GetResultPayload::Stream(spoiled(&fault, bytes));
        }
        Ok(result)
    }

    async fn get_ranges(&self, path: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let fault = self.faults.before(Op::Get, path.as_ref()).await?;
        after(fault.as_ref(), self.inner.get_ranges(path, ranges).await?)
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let faults = self.faults.clone();
        let paths = paths.then(move |path| {
            let faults = faults.clone();
            async move {
                let path = path?;
                faults.before(Op::Delete, path.as_ref()).await.map(|_| path)
            }
        });
        self.inner.delete_stream(paths.boxed())
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.listing(prefix, self.inner.list(prefix))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.listing(prefix, self.inner.list_with_offset(prefix, offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.faults.before(Op::List, prefix.map_or("", |p| p.as_ref())).await?;
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let fault = self.faults.before(Op::Copy, to.as_ref()).await?;
        self.inner.copy_opts(from, to, options).await?;
        after(fault.as_ref(), ())
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        let fault = self.faults.before(Op::Copy, to.as_ref()).await?;
        self.inner.rename_opts(from, to, options).await?;
        after(fault.as_ref(), ())
    }
}

impl Faulty {
    fn listing(
        &self,
        prefix: Option<&Path>,
        listing: BoxStream<'static, Result<ObjectMeta>>,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let (faults, prefix) = (self.faults.clone(), prefix.map(ToString::to_string).unwrap_or_default());
        futures::stream::once(async move {
            match faults.before(Op::List, &prefix).await {
                Ok(_) => listing,
                Err(e) => futures::stream::once(async { Err(e) }).boxed(),
            }
        })
        .flatten()
        .boxed()
    }
}

/// The body of an answer with a fault applied.
fn spoiled(fault: &Fault, bytes: Bytes) -> BoxStream<'static, Result<Bytes>> {
    let at = |n: u64| usize::try_from(n).unwrap_or(usize::MAX).min(bytes.len());
    let items = match fault {
        Fault::Cut(n) => vec![Ok(bytes.slice(..at(*n))), Err(generic("the connection was lost".into()))],
        Fault::Short(n) => vec![Ok(bytes.slice(..at(*n)))],
        Fault::Flip(n) => {
            let mut bad = bytes.to_vec();
            let place = at(*n).min(bad.len().saturating_sub(1));
            if let Some(byte) = bad.get_mut(place) {
                *byte ^= 0x10;
            }
            vec![Ok(bad.into())]
        }
        _ => vec![Ok(bytes)],
    };
    futures::stream::iter(items).boxed()
}

#[derive(Debug)]
struct FaultyUpload {
    upload: Box<dyn MultipartUpload>,
    faults: Faults,
    path: String,
}

#[async_trait]
impl MultipartUpload for FaultyUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (faults, path) = (self.faults.clone(), self.path.clone());
        let put = self.upload.put_part(data);
        Box::pin(async move {
            let fault = faults.before(Op::Piece, &path).await?;
            put.await?;
            after(fault.as_ref(), ())
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let fault = self.faults.before(Op::Complete, &self.path).await?;
        after(fault.as_ref(), self.upload.complete().await?)
    }

    async fn abort(&mut self) -> Result<()> {
        self.upload.abort().await
    }
}

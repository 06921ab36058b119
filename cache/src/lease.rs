//! Leases: which processes are alive, without comparing the clocks of two machines.
//!
//! Every process that writes or reads snapshots has one object, `ROOT/v1/writers/ID.json`. The process rewrites it every
//! third of the lease's life with a higher count. An observer takes the process for dead in three cases: it has seen the
//! object unchanged for the whole life, on its own monotonic clock; the object is older than that by the store's clock
//! (compared with another object written just now); or the process is of the observer's own host, and no process with its
//! id and start time runs. A process whose object does not exist has shut down.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use caju_runtime::{OrderedMutex, ProcessIdentity, Tasks, log_failure};
use caju_types::{Fingerprint, Result, hash128};
use object_store::path::Path;
use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;

use crate::locks;
use crate::record::{Claim, Record, seal, unseal};
use crate::store::{Listed, Root};

/// The content of a lease object.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Lease {
    pub(crate) writer: String,
    /// The number of writes so far.
    pub(crate) beat: u64,
    /// Snapshots that the process reads or writes now: they are not evicted.
    pub(crate) uses: Vec<Fingerprint>,
    /// The process, for other processes of its host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) process: Option<ProcessIdentity>,
}

impl Record for Lease {
    const NAME: &'static str = "a lease";
    /// A snapshot in use takes 35 bytes. So a process may use 400,000 snapshots at once.
    const MAX_BYTES: u64 = 16 << 20;
}

/// The least time between two writes of the lease object, however short the lease.
const MIN_RENEW_INTERVAL: Duration = Duration::from_millis(10);

/// The largest error of an object's time: some stores keep whole seconds.
const TIME_ROUNDING: Duration = Duration::from_secs(2);

/// What this process has seen of another's lease object. Times are of this process's monotonic clock.
#[derive(Debug, Clone)]
struct Observation {
    /// Hash of the object.
    content: u128,
    /// When this content was first seen.
    since: Duration,
    /// When the object was last read.
    read_at: Duration,
    /// The least age of the object when it was first seen, by the store's clock.
    initial_age: Duration,
    process: Option<ProcessIdentity>,
}

impl Observation {
    fn is_alive(&self, now: Duration, ttl: Duration) -> bool {
        let idle = now.saturating_sub(self.since).saturating_add(self.initial_age);
        idle < ttl && !self.process.as_ref().is_some_and(ProcessIdentity::has_ended)
    }
}

/// A snapshot that this process uses, or used a moment ago. A reader of many parts drops its hold between two of them: the
/// lease object is not rewritten each time.
#[derive(Debug, Default)]
struct InUse {
    holds: usize,
    idle_beats: u32,
}

/// Renewals for which a snapshot stays in the lease after its last use.
const LINGER_RENEWALS: u32 = 3;

/// The lease of this process, and its observations of others.
#[derive(Debug)]
pub(crate) struct Leases {
    root: Arc<Root>,
    id: String,
    ttl: Duration,
    beat: AtomicU64,
    uses: OrderedMutex<BTreeMap<Fingerprint, InUse>>,
    /// Set once the object was written and is being renewed.
    started: OnceCell<()>,
    /// Held while the object is written. True once the lease was released: nothing is written from then on.
    writing: tokio::sync::Mutex<bool>,
    /// Writes that finish even if their callers are dropped.
    writes: Tasks,
    observed: OrderedMutex<HashMap<String, Observation>>,
    /// Claims of this process whose writers have ended and whose objects may still exist, with their attempts.
    stale_claims: OrderedMutex<Vec<(Path, String)>>,
}

/// The most claims that are remembered for deletion. Further ones stay until the process ends, and are collected then.
const MAX_STALE_CLAIMS: usize = 10_000;

impl Leases {
    pub(crate) fn new(root: Arc<Root>, id: String, ttl: Duration) -> Self {
        Self {
            root,
            id,
            ttl,
            beat: AtomicU64::new(0),
            uses: OrderedMutex::new(locks::USED_SNAPSHOTS, BTreeMap::new()),
            started: OnceCell::new(),
            writing: tokio::sync::Mutex::new(false),
            writes: Tasks::new(),
            observed: OrderedMutex::new(locks::OBSERVED_LEASES, HashMap::new()),
            stale_claims: OrderedMutex::new(locks::STALE_CLAIMS, Vec::new()),
        }
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Writes the lease object, and renews it from then on. Does nothing if it is being renewed already.
    pub(crate) async fn start(self: &Arc<Self>, tasks: &Tasks) -> Result<()> {
        self.started.get_or_try_init(|| self.begin(tasks)).await.copied()
    }

    async fn begin(self: &Arc<Self>, tasks: &Tasks) -> Result<()> {
        self.renew().await?;
        let me = Arc::clone(self);
        tasks.background("keeping the lease on the cache", log_failure, async move {
            loop {
                me.root.clock.sleep((me.ttl / 3).max(MIN_RENEW_INTERVAL)).await;
                if let Err(error) = me.renew().await {
                    tracing::warn!(%error, "the lease on the cache could not be renewed");
                } else if let Err(error) = me.remove_stale_claims().await {
                    tracing::debug!(%error, "a claim could not be deleted yet");
                }
            }
        });
        Ok(())
    }

    /// Writes the lease object now.
    pub(crate) async fn renew(self: &Arc<Self>) -> Result<()> {
        let me = Arc::clone(self);
        // A write finishes even if its caller is dropped. The store may finish it anyway, and then it must not land after
        // the lease was released.
        self.writes.spawn_graceful("writing a lease", async move { me.write().await }).await?
    }

    async fn write(&self) -> Result<()> {
        // One write at a time: a slow older write must not overwrite a newer one.
        let ended = self.writing.lock().await;
        if *ended {
            return Ok(());
        }
        let lease = Lease {
            writer: self.id.clone(),
            beat: self.beat.fetch_add(1, Ordering::Relaxed),
            uses: self.still_used(),
            process: ProcessIdentity::current(),
        };
        self.root.put(&self.root.layout.writer(&self.id), seal(&lease)?.into()).await
    }

    fn still_used(&self) -> Vec<Fingerprint> {
        let mut uses = self.uses.lock();
        uses.retain(|_, u| {
            u.idle_beats = if u.holds > 0 { 0 } else { u.idle_beats + 1 };
            u.idle_beats <= LINGER_RENEWALS
        });
        uses.keys().copied().collect()
    }

    /// Marks a snapshot as in use until the guard is dropped. True if the lease object does not name it yet.
    pub(crate) fn hold(self: &Arc<Self>, of: Fingerprint) -> (Hold, bool) {
        let mut uses = self.uses.lock();
        let new = !uses.contains_key(&of);
        uses.entry(of).or_default().holds += 1;
        (Hold { leases: Arc::clone(self), of }, new)
    }

    /// Whether this process uses a snapshot now.
    pub(crate) fn holds(&self, of: Fingerprint) -> bool {
        self.uses.lock().get(&of).is_some_and(|u| u.holds > 0)
    }

    /// Whether a process is alive, as far as this process knows.
    ///
    /// # Errors
    /// The errors of the store.
    pub(crate) async fn is_alive(&self, writer: &str) -> Result<bool> {
        if writer == self.id {
            return Ok(true);
        }
        let now = self.root.clock.now();
        if let Some(observed) = self.observed.lock().get(writer)
            && now.saturating_sub(observed.read_at) < self.ttl / 8
        {
            return Ok(observed.is_alive(now, self.ttl));
        }
        let path = self.root.layout.writer(writer);
        let Some(bytes) = self.root.read_bytes::<Lease>(&path).await? else {
            self.observed.lock().remove(writer);
            return Ok(false);
        };
        let content = hash128(&bytes);
        let known = self.observed.lock().contains_key(writer);
        let initial_age = if known { Duration::ZERO } else { self.min_age(&path).await };
        let now = self.root.clock.now();
        let process = unseal::<Lease>(&bytes).ok().and_then(|lease| lease.process);
        let fresh = Observation { content, since: now, read_at: now, initial_age, process };
        let mut observed = self.observed.lock();
        let entry = observed.entry(writer.to_string()).or_insert_with(|| fresh.clone());
        entry.read_at = now;
        if entry.content != content {
            *entry = fresh;
        }
        Ok(entry.is_alive(now, self.ttl))
    }

    /// The least time since an object was written, by the store's clock; zero if it is unknown.
    async fn min_age(&self, path: &Path) -> Duration {
        let age = async {
            let now = self.root.now_ms().await?;
            let written = self.root.head(path).await?.map_or(now, |object| object.modified_ms);
            Ok::<_, caju_types::Error>(now.saturating_sub(written))
        };
        match age.await {
            Ok(ms) => Duration::from_millis(u64::try_from(ms).unwrap_or(0)).saturating_sub(TIME_ROUNDING),
            Err(error) => {
                tracing::debug!(%error, "the age of a lease is unknown");
                Duration::ZERO
            }
        }
    }

    /// Remembers a claim that could not be deleted. As long as this process lives and the claim exists, other processes
    /// take its split for being written.
    pub(crate) fn add_stale_claim(&self, claim: Path, attempt: String) {
        let mut stale = self.stale_claims.lock();
        if stale.len() < MAX_STALE_CLAIMS {
            stale.push((claim, attempt));
        }
    }

    /// Deletes the claims that could not be deleted before.
    pub(crate) async fn remove_stale_claims(&self) -> Result<()> {
        loop {
            let Some((path, attempt)) = self.stale_claims.lock().pop() else { return Ok(()) };
            let removed = async {
                let claim = self.root.read_record::<Claim>(&path).await?.and_then(Result::ok);
                // Another claim may have taken the name.
                if claim.is_some_and(|c| c.attempt == attempt) {
                    self.root.delete(&path).await?;
                }
                Ok(())
            };
            if let Err(e) = removed.await {
                self.add_stale_claim(path, attempt);
                return Err(e);
            }
        }
    }

    /// The lease objects of all processes, with the lease if it is not damaged. An object's time is that of its last
    /// renewal by the store's clock.
    pub(crate) async fn all(&self) -> Result<Vec<(Option<Lease>, Listed)>> {
        let mut out = Vec::new();
        for object in self.root.list(&self.root.layout.writers()).await? {
            let Some(read) = self.root.read_record::<Lease>(&object.path).await? else { continue };
            out.push((read.ok(), object));
        }
        Ok(out)
    }

    /// The leases of processes that may be alive: those whose object changed within the lease's life, or within `grace` if
    /// that is longer. `now` and the times of objects are by the store's clock.
    pub(crate) async fn live(&self, now: i64, grace: Duration) -> Result<Vec<(Lease, Listed)>> {
        let grace = i64::try_from(self.ttl.max(grace).as_millis()).unwrap_or(i64::MAX);
        let mut out = Vec::new();
        for (lease, object) in self.all().await? {
            let Some(lease) = lease else { continue };
            if now.saturating_sub(object.modified_ms) < grace {
                out.push((lease, object));
            }
        }
        Ok(out)
    }

    /// Releases the lease: other processes need not wait for it to expire.
    pub(crate) async fn end(&self) -> Result<()> {
        // After a write that is in flight.
        let mut ended = self.writing.lock().await;
        *ended = true;
        if self.beat.load(Ordering::Relaxed) > 0 {
            self.root.delete(&self.root.layout.writer(&self.id)).await?;
        }
        Ok(())
    }
}

/// Keeps a snapshot in the lease of this process.
#[derive(Debug)]
pub(crate) struct Hold {
    leases: Arc<Leases>,
    of: Fingerprint,
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(used) = self.leases.uses.lock().get_mut(&self.of) {
            used.holds = used.holds.saturating_sub(1);
        }
    }
}

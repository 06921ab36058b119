//! Leases: who is alive, found out without comparing the clocks of two machines.
//!
//! Every process that writes or reads snapshots has one object, `ROOT/v1/writers/ID.json`, that it rewrites
//! every third of the lease's life with a higher count. An observer that has seen the object unchanged for
//! the whole life, on its own monotonic clock, takes the process for dead. So does one that meets an object which the
//! store itself says is older than that: both times are the store's, that of the object and that of another one written
//! just now. A process of the observer's own host is looked for by its number and start. An object that is gone
//! belongs to a process that has left.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use caju_runtime::{ProcessIdentity, Tasks, log_failure};
use caju_types::{Fingerprint, Result, hash128};
use object_store::path::Path;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::record::{Claim, seal, unseal};
use crate::store::Root;

/// The content of a lease object.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Lease {
    pub(crate) writer: String,
    /// Counts up with every write.
    pub(crate) beat: u64,
    /// Snapshots that the process reads or writes now: not to be evicted.
    pub(crate) uses: Vec<Fingerprint>,
    /// The process, for others of its host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) process: Option<ProcessIdentity>,
}

/// However short the lease, its object is not rewritten more often than this.
const SHORTEST_BEAT: Duration = Duration::from_millis(10);

/// What the times of objects are rounded to, at most: some stores keep whole seconds.
const ROUNDING: Duration = Duration::from_secs(2);

#[derive(Debug, Clone)]
struct Seen {
    content: u128,
    since: Duration,
    looked: Duration,
    /// How old the object was at least when it was first seen, by the store's clock.
    aged: Duration,
    process: Option<ProcessIdentity>,
}

impl Seen {
    fn is_alive(&self, now: Duration, ttl: Duration) -> bool {
        let idle = now.saturating_sub(self.since).saturating_add(self.aged);
        idle < ttl && !self.process.as_ref().is_some_and(ProcessIdentity::is_gone)
    }
}

/// A snapshot that this process uses, or did a moment ago: who reads part after part lets go of the snapshot
/// between two of them, and should not have to say so each time.
#[derive(Debug, Default)]
struct InUse {
    holds: usize,
    idle_beats: u32,
}

/// Beats for which a snapshot stays in the lease after its last use.
const LINGER: u32 = 3;

/// The lease of this process, and what it has seen of others'.
#[derive(Debug)]
pub(crate) struct Leases {
    root: Arc<Root>,
    id: String,
    ttl: Duration,
    beat: AtomicU64,
    uses: Mutex<BTreeMap<Fingerprint, InUse>>,
    started: tokio::sync::Mutex<bool>,
    /// Whether the lease was given back: nothing is written from then on.
    writing: tokio::sync::Mutex<bool>,
    /// Writes that must not be cut off half-way.
    writes: Tasks,
    seen: Mutex<HashMap<String, Seen>>,
    /// Claims of this process that nobody holds any more and that may still exist, with their attempts.
    left: Mutex<Vec<(Path, String)>>,
}

/// Claims to be deleted that are remembered; further ones wait for the end of the process.
const MOST_LEFT: usize = 10_000;

impl Leases {
    pub(crate) fn new(root: Arc<Root>, id: String, ttl: Duration) -> Self {
        Self {
            root,
            id,
            ttl,
            beat: AtomicU64::new(0),
            uses: Mutex::default(),
            started: tokio::sync::Mutex::new(false),
            writing: tokio::sync::Mutex::new(false),
            writes: Tasks::new(),
            seen: Mutex::default(),
            left: Mutex::default(),
        }
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Writes the lease object once and keeps it fresh from then on.
    pub(crate) async fn start(self: &Arc<Self>, tasks: &Tasks) -> Result<()> {
        let mut started = self.started.lock().await;
        if *started {
            return Ok(());
        }
        self.renew().await?;
        *started = true;
        let me = Arc::clone(self);
        tasks.background("keeping the lease on the cache", log_failure, async move {
            loop {
                me.root.clock.sleep((me.ttl / 3).max(SHORTEST_BEAT)).await;
                if let Err(error) = me.renew().await {
                    tracing::warn!(%error, "the lease on the cache could not be renewed");
                } else if let Err(error) = me.clean().await {
                    tracing::debug!(%error, "a claim could not be given back yet");
                }
            }
        });
        Ok(())
    }

    /// Writes the lease object now.
    pub(crate) async fn renew(self: &Arc<Self>) -> Result<()> {
        let me = Arc::clone(self);
        // A write whose caller is gone is carried through all the same: the store may do that anyway, and then it
        // must not land after the lease was given back.
        self.writes.spawn_graceful("writing a lease", async move { me.write().await }).await?
    }

    async fn write(&self) -> Result<()> {
        // One at a time: a slow older write must not land on a newer one.
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
            u.idle_beats <= LINGER
        });
        uses.keys().copied().collect()
    }

    /// Says that a snapshot is in use until the guard is dropped; true if the lease does not say so yet.
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

    /// Whether a process is alive, as far as can be told.
    ///
    /// # Errors
    /// What the store says; then nothing is known.
    pub(crate) async fn alive(&self, writer: &str) -> Result<bool> {
        if writer == self.id {
            return Ok(true);
        }
        let now = self.root.clock.now();
        if let Some(seen) = self.seen.lock().get(writer)
            && now.saturating_sub(seen.looked) < self.ttl / 8
        {
            return Ok(seen.is_alive(now, self.ttl));
        }
        let path = self.root.layout.writer(writer);
        let Some(bytes) = self.root.get(&path).await? else {
            self.seen.lock().remove(writer);
            return Ok(false);
        };
        let content = hash128(&bytes);
        let known = self.seen.lock().contains_key(writer);
        let aged = if known { Duration::ZERO } else { self.age(&path).await };
        let now = self.root.clock.now();
        let process = unseal::<Lease>(&bytes).ok().and_then(|lease| lease.process);
        let fresh = Seen { content, since: now, looked: now, aged, process };
        let mut seen = self.seen.lock();
        let entry = seen.entry(writer.to_string()).or_insert_with(|| fresh.clone());
        entry.looked = now;
        if entry.content != content {
            *entry = fresh;
        }
        Ok(entry.is_alive(now, self.ttl))
    }

    /// How long an object has not been written, at least and by the store's clock; nothing where that is not known.
    async fn age(&self, path: &Path) -> Duration {
        let age = async {
            let now = self.root.now_ms().await?;
            let written = self.root.head(path).await?.map_or(now, |object| object.modified_ms);
            Ok::<_, caju_types::Error>(now.saturating_sub(written))
        };
        match age.await {
            Ok(ms) => Duration::from_millis(u64::try_from(ms).unwrap_or(0)).saturating_sub(ROUNDING),
            Err(error) => {
                tracing::debug!(%error, "the age of a lease is not known");
                Duration::ZERO
            }
        }
    }

    /// Remembers a claim that is to be deleted when the store lets us: while this process lives, others
    /// would take its split for being written.
    pub(crate) fn left_behind(&self, claim: Path, attempt: String) {
        let mut left = self.left.lock();
        if left.len() < MOST_LEFT {
            left.push((claim, attempt));
        }
    }

    /// Deletes claims that were left behind.
    pub(crate) async fn clean(&self) -> Result<()> {
        loop {
            let Some((path, attempt)) = self.left.lock().pop() else { return Ok(()) };
            let cleaned = async {
                let body = self.root.get(&path).await?;
                // Another claim may have taken the place.
                if body.and_then(|b| unseal::<Claim>(&b).ok()).is_some_and(|c| c.attempt == attempt) {
                    self.root.delete(&path).await?;
                }
                Ok(())
            };
            if let Err(e) = cleaned.await {
                self.left_behind(path, attempt);
                return Err(e);
            }
        }
    }

    /// The leases of all processes, as they stand in the store, with the time of their last renewal by the
    /// store's clock.
    pub(crate) async fn all(&self) -> Result<Vec<(Option<Lease>, crate::store::Listed)>> {
        let mut out = Vec::new();
        for object in self.root.list(&self.root.layout.writers()).await? {
            let Some(bytes) = self.root.get(&object.path).await? else { continue };
            out.push((unseal::<Lease>(&bytes).ok(), object));
        }
        Ok(out)
    }

    /// Gives the lease back: others need not wait for it to expire.
    pub(crate) async fn end(&self) -> Result<()> {
        // Behind a write that is on its way.
        let mut ended = self.writing.lock().await;
        *ended = true;
        if self.beat.load(Ordering::Relaxed) > 0 {
            self.root.delete(&self.root.layout.writer(&self.id)).await?;
        }
        Ok(())
    }
}

/// Keeps a snapshot in this process's lease.
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

//! Drives the saves of a dispatcher: reads each to its end, which makes the workers store it, until every split of
//! its source has a part.
//!
//! What is done is in the save's folder and what is left to do in the dispatcher's journal, so that this can stop
//! at any moment, and go on in another process.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use caju_cache::{Cache, CacheOptions, PartIndex, PartMeta, ReadOptions, SaveState, Saved, Snapshot};
use caju_client::{Client, ClientConfig, DatasetRef, ReadRequest, SaveTo};
use caju_dispatcher::state::{Save, SaveTotals};
use caju_dispatcher::{DispatcherHandle, Saves};
use caju_pipeline::SAVE_HINT;
use caju_runtime::{Clock, Tasks, caught, log_failure};
use caju_types::{Error, ErrorKind, Result, SplitKey};
use caju_wire::LocalWorkers;
use futures::{FutureExt, StreamExt, TryStreamExt};
use tokio::sync::Semaphore;

/// Saves that run at the same time; others wait.
const AT_ONCE: usize = 4;
/// How often the progress of a save is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// The pause after an epoch that stored nothing: at first, and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));
/// A save that stores nothing for so long fails.
const PATIENCE: Duration = Duration::from_secs(600);
/// Parts of an earlier save that are checked at the same time.
const CHECKED_AT_ONCE: usize = 4;
/// How long the end of a save may take to give its lease back.
const CLOSE: Duration = Duration::from_secs(10);

/// Drives the saves of a dispatcher of this process. Dropping it stops; what is unfinished goes on when a driver
/// starts again.
#[derive(Debug)]
pub struct SaveDriver {
    tasks: Tasks,
}

impl SaveDriver {
    /// Starts to drive what the dispatcher has to save, now and later. `local`: workers of this process. Must be
    /// called within a tokio runtime.
    pub fn start(dispatcher: &DispatcherHandle, local: LocalWorkers) -> Self {
        let tasks = Tasks::new();
        let driver = Arc::new(Driver {
            saves: dispatcher.saves(),
            address: dispatcher.address().to_owned(),
            local,
            room: Semaphore::new(AT_ONCE),
        });
        tasks.background("the driver of saves", log_failure, watch(driver, tasks.clone()));
        Self { tasks }
    }

    /// Stops, within a few seconds.
    pub async fn stop(self) {
        self.tasks.shutdown(Duration::from_secs(2)).await;
    }
}

impl Drop for SaveDriver {
    fn drop(&mut self) {
        self.tasks.stop();
    }
}

struct Driver {
    saves: Saves,
    address: String,
    local: LocalWorkers,
    room: Semaphore,
}

/// Gives every running save a task of its own.
async fn watch(driver: Arc<Driver>, tasks: Tasks) -> Result<()> {
    let mut saves = driver.saves.clone();
    let active: Arc<parking_lot::Mutex<HashSet<String>>> = Arc::default();
    loop {
        let running = match saves.running().await {
            Ok(running) => running,
            Err(error) => {
                tracing::debug!(%error, "saves are not driven any more");
                return Ok(());
            }
        };
        for save in running {
            let url = save.target.url.clone();
            if !active.lock().insert(url.clone()) {
                continue;
            }
            let (driver, active) = (Arc::clone(&driver), Arc::clone(&active));
            tasks.background(format!("the save to {url}"), log_failure, async move {
                driver.run(&save).await;
                active.lock().remove(&url);
                Ok(())
            });
        }
        if !saves.changed().await {
            return Ok(());
        }
    }
}

impl Driver {
    async fn run(&self, save: &Save) {
        let Ok(_room) = self.room.acquire().await else { return };
        let url = &save.target.url;
        // A panic ends the save like any other error: nobody waits for it for ever.
        let result = caught(&format!("the save to {url}"), self.drive(save)).await.and_then(|r| r);
        match &result {
            Ok(totals) => tracing::info!(url, rows = totals.rows, splits = totals.splits, "save finished"),
            Err(error) => tracing::warn!(url, %error, "save failed"),
        }
        if let Err(e) = &result
            && let Err(error) = self.tell_failure(url, e).await
        {
            tracing::warn!(url, %error, "the save's folder could not be told of its failure");
        }
        if let Err(error) = self.saves.end(url, result).await {
            tracing::warn!(url, %error, "the end of a save was not remembered; it is looked at again");
        }
    }

    async fn tell_failure(&self, url: &str, e: &Error) -> Result<()> {
        let stores = self.saves.stores()?;
        if let Some(saved) = Saved::load(&stores, url).await?.filter(|s| s.state == SaveState::Writing) {
            let error = Some(e.message().to_owned());
            Saved { state: SaveState::Failed, error, ..saved }.replace(&stores, url).await?;
        }
        Ok(())
    }

    async fn drive(&self, save: &Save) -> Result<SaveTotals> {
        let (stores, clock) = (self.saves.stores()?, self.saves.clock());
        let id = format!("save-{}-{:x}", std::process::id(), clock.unix_time().as_nanos());
        // Nobody writes to a finished save: what is left then is left over.
        let options = CacheOptions { orphan_grace: Duration::ZERO, ..CacheOptions::default() };
        let cache = Cache::open(&stores, &save.target.url, options, Arc::clone(&clock), id.clone()).await?;
        let result = self.epochs(save, &cache, clock.as_ref(), &id).await;
        if let Err(error) = cache.close(CLOSE).await {
            tracing::debug!(%error, "the driver of a save did not close in order");
        }
        result
    }

    /// Reads epochs of the save until nothing is missing.
    async fn epochs(
        &self,
        save: &Save,
        cache: &Arc<Cache>,
        clock: &dyn Clock,
        id: &str,
    ) -> Result<SaveTotals> {
        let snapshot = cache.snapshot(&save.prefix);
        let client = Client::connect(
            &self.address,
            ClientConfig { local: self.local.clone(), ..ClientConfig::default() },
        )
        .await?;
        let (mut stored, mut since, mut pause) = (None, clock.now(), PAUSE.0);
        let mut trouble = None;
        for epoch in 0.. {
            let splits = self.saves.splits(save).await?;
            if epoch == 0 && self.keeps(&save.target.url, &splits).await? {
                heal(&snapshot, &splits).await?;
            }
            let index = snapshot.index().await?;
            let done = splits.iter().filter(|k| index.contains(k)).count();
            self.saves.progress(&save.target.url, done as u64, splits.len() as u64);
            if done == splits.len() {
                return self.finish(save, cache, &snapshot, splits).await;
            }
            if stored.is_none_or(|before| done > before) {
                (stored, since, pause) = (Some(done), clock.now(), PAUSE.0);
            } else if clock.now().saturating_sub(since) > PATIENCE {
                return Err(stuck(splits.len() - done, splits.len(), trouble));
            } else {
                clock.sleep(pause).await;
                pause = (pause * 2).min(PAUSE.1);
            }
            let job = format!("{id}-{epoch}");
            trouble = match self.read(&client, save, &snapshot, &splits, &job).await {
                Ok(()) => None,
                Err(e) if passes(&e) => {
                    tracing::info!(url = save.target.url, error = %e, "a save goes on after trouble");
                    Some(e)
                }
                Err(e) => return Err(e),
            };
        }
        Err(Error::internal("a save ran out of epochs"))
    }

    /// Whether the save was finished before. One whose source has lost something since is refused: rows that are saved
    /// stay saved.
    async fn keeps(&self, url: &str, splits: &[SplitKey]) -> Result<bool> {
        let stores = self.saves.stores()?;
        let Some(saved) = Saved::load(&stores, url).await? else { return Ok(false) };
        let there: HashSet<&SplitKey> = splits.iter().collect();
        let gone = saved.splits.iter().filter(|k| !there.contains(k)).count();
        if saved.state != SaveState::Finished || gone == 0 {
            return Ok(saved.state == SaveState::Finished);
        }
        Err(Error::failed_precondition(format!(
            "{url} holds a finished save, and the source has {gone} of its {} splits no longer (files were removed or \
             overwritten): saved rows are not thrown away; save to another URL, or delete this save first",
            saved.splits.len()
        )))
    }

    /// Reads one epoch, which has no rows, and tells meanwhile how many parts there are.
    async fn read(
        &self,
        client: &Client,
        save: &Save,
        snapshot: &Snapshot,
        splits: &[SplitKey],
        job: &str,
    ) -> Result<()> {
        let request = ReadRequest {
            dataset: DatasetRef::Registered(save.dataset.0.clone()),
            job: job.to_owned(),
            policy: format!("hint:{SAVE_HINT}"),
            encoding: save.encoding.clone(),
            save: Some(SaveTo {
                url: save.target.url.clone(),
                chunk_bytes: save.target.chunk_bytes.unwrap_or(0),
            }),
            ..ReadRequest::of(empty()?)
        };
        let mut reader = client.read(request).await?;
        let clock = self.saves.clock();
        let result = loop {
            tokio::select! {
                chunk = reader.next_chunk() => match chunk {
                    Ok(Some(_)) => {}
                    Ok(None) => break Ok(()),
                    Err(e) => break Err(e),
                },
                () = clock.sleep(LOOK) => {
                    if let Ok(index) = snapshot.index().await {
                        let done = splits.iter().filter(|k| index.contains(k)).count();
                        self.saves.progress(&save.target.url, done as u64, splits.len() as u64);
                    }
                }
            }
        };
        reader.close().await;
        result
    }

    /// Everything has its part: says so, and clears away what writers that died have left.
    async fn finish(
        &self,
        save: &Save,
        cache: &Arc<Cache>,
        snapshot: &Snapshot,
        splits: Vec<SplitKey>,
    ) -> Result<SaveTotals> {
        snapshot.fold().await?;
        let index = snapshot.index().await?;
        let totals = totals(&index, &splits)?;
        let (stores, url) = (self.saves.stores()?, &save.target.url);
        let saved = Saved::load(&stores, url).await?.ok_or_else(|| {
            Error::data_loss(format!(
                "{url}: the description of the save was deleted while it was written; save again"
            ))
        })?;
        let finished = Saved {
            state: SaveState::Finished,
            error: None,
            splits,
            rows: totals.rows,
            bytes: totals.bytes,
            chunks: totals.chunks,
            ..saved
        };
        finished.replace(&stores, url).await?;
        if let Err(error) = cache.gc(false).await {
            tracing::debug!(url, %error, "what dead writers left in a save stays there");
        }
        Ok(totals)
    }
}

/// Reads every part of a save that was finished before, and sets aside those that are damaged: who saves again over
/// damage has the source at hand, and nobody else can mend it.
async fn heal(snapshot: &Snapshot, splits: &[SplitKey]) -> Result<()> {
    let index = snapshot.index().await?;
    let parts: Vec<_> = splits.iter().filter_map(|key| index.get(key).cloned()).collect();
    let check = |meta| mend(snapshot.clone(), meta).boxed();
    futures::stream::iter(parts).map(check).buffer_unordered(CHECKED_AT_ONCE).try_collect().await
}

/// Reads one part to its end, and sets it aside if it is damaged.
async fn mend(snapshot: Snapshot, meta: Arc<PartMeta>) -> Result<()> {
    let rows = async {
        let mut part = snapshot.open_part(&meta, ReadOptions::default()).await?;
        while let Some(batch) = part.next().await {
            drop(batch?);
        }
        Ok(())
    };
    match rows.await {
        Err(e) if matches!(Error::kind(&e), ErrorKind::DataLoss | ErrorKind::NotFound) => {
            tracing::warn!(part = %meta.path, error = %e, "a part of a save is damaged and is stored again");
            snapshot.discard(&meta, e.message()).await
        }
        other => other,
    }
}

fn totals(index: &PartIndex, splits: &[SplitKey]) -> Result<SaveTotals> {
    let mut totals = SaveTotals { splits: splits.len() as u64, ..SaveTotals::default() };
    for key in splits {
        let part = index.get(key).ok_or_else(|| {
            Error::unavailable(format!("the part of split {key} vanished when the save was all but finished"))
        })?;
        totals.rows += part.rows;
        totals.bytes += part.bytes;
        totals.chunks += part.chunks.len().max(1) as u64;
    }
    Ok(totals)
}

/// Trouble that another epoch may not have: workers and stores come back.
fn passes(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::Unavailable | ErrorKind::DeadlineExceeded | ErrorKind::Cancelled)
}

fn stuck(missing: usize, all: usize, trouble: Option<Error>) -> Error {
    let why = match trouble {
        Some(e) => format!(": {}", e.message()),
        None => "; the logs of the workers say why".to_owned(),
    };
    Error::deadline(format!(
        "{missing} of {all} splits could not be stored for {} s{why}; save again, which goes on where this stopped",
        PATIENCE.as_secs()
    ))
}

/// The request names a registered dataset; this is only the frame.
fn empty() -> Result<caju_pipeline::DatasetDef> {
    caju_pipeline::DatasetDef::from_yaml("source: { range: 0 }", None)
}

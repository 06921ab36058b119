//! Drives the saves of a dispatcher: reads epochs of each, which makes the workers store its splits, until every split
//! of its source has a part.
//!
//! Finished work is in the save's folder, and open work in the dispatcher's journal. The driver can therefore stop at
//! any moment and continue in another process.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use caju_cache::{
    Cache, CacheOptions, PartIndex, PartMeta, ReadOptions, SaveDescription, SaveState, Snapshot,
};
use caju_client::{Client, ClientConfig, DatasetRef, ReadRequest, SaveTo};
use caju_dispatcher::state::{Save, SaveTotals};
use caju_dispatcher::{DispatcherHandle, Saves};
use caju_pipeline::SAVE_HINT;
use caju_runtime::{Clock, Tasks, caught, log_failure};
use caju_types::{Error, ErrorKind, Result, SplitKey};
use caju_wire::LocalWorkers;
use futures::{FutureExt, StreamExt, TryStreamExt};
use tokio::sync::{Semaphore, watch};

/// Saves that run concurrently; others wait. Each has a reader, and all share the workers.
const CONCURRENT_SAVES: usize = 4;
/// How often the progress of a save is updated: it costs a read of the save's manifest.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// The first pause after an epoch that stored nothing. Each further one doubles it.
const MIN_RETRY_PAUSE: Duration = Duration::from_millis(250);
/// The longest pause after an epoch that stored nothing.
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(5);
/// A save that stores nothing for this long fails. Long enough for a restart of workers or of the store.
const STALL_TIMEOUT: Duration = Duration::from_secs(600);
/// Parts of an earlier save that are checked concurrently.
const CONCURRENT_CHECKS: usize = 4;
/// How long a save that ended may take to release its lease.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Drives the saves of a dispatcher of this process. Dropping it stops it. Unfinished saves continue when a driver
/// starts again.
#[derive(Debug)]
pub struct SaveDriver {
    tasks: Tasks,
    ended: watch::Receiver<u64>,
}

impl SaveDriver {
    /// Starts to drive the present and future saves of the dispatcher. `local` are the workers of this process. Must be
    /// called within a tokio runtime.
    pub fn start(dispatcher: &DispatcherHandle, local: LocalWorkers) -> Self {
        let tasks = Tasks::new();
        let (ended, ends) = watch::channel(0);
        let driver = Arc::new(Driver {
            saves: dispatcher.saves(),
            address: dispatcher.address().to_owned(),
            local,
            permits: Semaphore::new(CONCURRENT_SAVES),
            ended,
        });
        tasks.background("the driver of saves", log_failure, start_saves(driver, tasks.clone()));
        Self { tasks, ended: ends }
    }

    /// The number of saves that ended since the start. A change means that one more save finished or failed.
    pub fn ended(&self) -> watch::Receiver<u64> {
        self.ended.clone()
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
    permits: Semaphore,
    ended: watch::Sender<u64>,
}

/// Starts a task for every running save.
async fn start_saves(driver: Arc<Driver>, tasks: Tasks) -> Result<()> {
    let (mut saves, mut ended) = (driver.saves.clone(), driver.ended.subscribe());
    let active: Arc<parking_lot::Mutex<HashSet<String>>> = Arc::default();
    loop {
        let running = match saves.running().await {
            Ok(running) => running,
            Err(error) => {
                tracing::debug!(%error, "the driver of saves stops");
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
                driver.ended.send_modify(|n| *n += 1);
                Ok(())
            });
        }
        // A save that was asked for again while the one before it ended was still being driven.
        let goes_on = tokio::select! {
            goes_on = saves.changed() => goes_on,
            ended = ended.changed() => ended.is_ok(),
        };
        if !goes_on {
            return Ok(());
        }
    }
}

impl Driver {
    async fn run(&self, save: &Save) {
        let Ok(_permit) = self.permits.acquire().await else { return };
        let url = &save.target.url;
        // A panic ends the save like any other error, so that no client waits for ever.
        let result = caught(&format!("the save to {url}"), Box::pin(self.drive(save))).await.and_then(|r| r);
        match &result {
            Ok(totals) => tracing::info!(url, rows = totals.rows, splits = totals.splits, "save finished"),
            Err(error) => tracing::warn!(url, %error, "save failed"),
        }
        if let Err(e) = &result
            && let Err(error) = self.record_failure(url, e).await
        {
            tracing::warn!(url, %error, "the failure could not be recorded in the save's folder");
        }
        if let Err(error) = self.saves.end(url, result).await {
            tracing::warn!(url, %error, "the end of a save was not recorded; the save is driven again");
        }
    }

    async fn record_failure(&self, url: &str, e: &Error) -> Result<()> {
        let stores = self.saves.stores()?;
        if let Some(saved) =
            SaveDescription::load(&stores, url).await?.filter(|s| s.state == SaveState::Writing)
        {
            let error = Some(e.message().to_owned());
            SaveDescription { state: SaveState::Failed, error, ..saved }.replace(&stores, url).await?;
        }
        Ok(())
    }

    async fn drive(&self, save: &Save) -> Result<SaveTotals> {
        let (stores, clock) = (self.saves.stores()?, self.saves.clock());
        let id = format!("save-{}-{:x}", std::process::id(), clock.unix_time().as_nanos());
        // No process writes to a finished save, so objects without a record need no grace period.
        let options = CacheOptions { orphan_grace: Duration::ZERO, ..self.saves.cache_options() };
        let cache = Cache::open(&stores, &save.target.url, options, Arc::clone(&clock), id.clone()).await?;
        let result = self.epochs(save, &cache, clock.as_ref(), &id).await;
        if let Err(error) = cache.close(CLOSE_TIMEOUT).await {
            tracing::debug!(%error, "the cache of a save was not closed cleanly");
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
        let (mut stored, mut since, mut pause) = (None, clock.now(), MIN_RETRY_PAUSE);
        let mut last_error = None;
        for epoch in 0.. {
            let splits = self.saves.splits(save).await?;
            if epoch == 0 {
                match self.was_finished(&save.target.url, &splits).await? {
                    true => discard_damaged(&snapshot, &splits).await?,
                    false => self.discard_foreign(&save.target.url, &snapshot, &splits).await?,
                }
            }
            let index = snapshot.index().await?;
            let done = splits.iter().filter(|k| index.contains(k)).count();
            self.saves.progress(&save.target.url, done as u64, splits.len() as u64);
            // An epoch counts for itself, and parts of earlier epochs and attempts stay.
            self.saves.check_skipped(save, skipped(&index, &splits)).await?;
            if done == splits.len() {
                return self.finish(save, cache, &snapshot, splits).await;
            }
            if stored.is_none_or(|before| done > before) {
                (stored, since, pause) = (Some(done), clock.now(), MIN_RETRY_PAUSE);
            } else if clock.now().saturating_sub(since) > STALL_TIMEOUT {
                return Err(stalled(splits.len() - done, splits.len(), last_error));
            } else {
                clock.sleep(pause).await;
                pause = (pause * 2).min(MAX_RETRY_PAUSE);
            }
            let job = format!("{id}-{epoch}");
            last_error = match self.read_epoch(&client, save, &snapshot, &splits, &job).await {
                Ok(()) => None,
                Err(e) if is_transient(&e) => {
                    tracing::info!(url = save.target.url, error = %e, "a save continues after an error");
                    Some(e)
                }
                Err(e) => return Err(e),
            };
        }
        Err(Error::internal("a save ran out of epochs"))
    }

    /// Whether the save was finished before. It is refused if its source has lost splits since: saved rows stay.
    async fn was_finished(&self, url: &str, splits: &[SplitKey]) -> Result<bool> {
        let stores = self.saves.stores()?;
        let Some(saved) = SaveDescription::load(&stores, url).await? else { return Ok(false) };
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

    /// Discards the parts of a save that is not finished whose splits the source does not have: files were removed or overwritten
    /// since it was begun. Who loads it meanwhile would read their rows, too.
    async fn discard_foreign(&self, url: &str, snapshot: &Snapshot, splits: &[SplitKey]) -> Result<()> {
        let index = snapshot.index().await?;
        let own: HashSet<&SplitKey> = splits.iter().collect();
        let foreign: Vec<_> =
            index.iter().filter(|(key, _)| !own.contains(key)).map(|(_, meta)| Arc::clone(meta)).collect();
        for meta in foreign {
            // Another dispatcher may have listed more files, and have finished the save since.
            if self.was_finished(url, splits).await? {
                return Ok(());
            }
            snapshot.discard(&meta, "the source does not have its split any more").await?;
        }
        Ok(())
    }

    /// Reads one epoch, which delivers no rows, and reports the number of parts meanwhile.
    async fn read_epoch(
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
            encoding: save.encoding.to_string(),
            save: Some(SaveTo {
                url: save.target.url.clone(),
                chunk_bytes: save.target.chunk_bytes.unwrap_or(0),
            }),
            ..ReadRequest::of(placeholder()?)
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
                () = clock.sleep(PROGRESS_INTERVAL) => {
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

    /// Every split has a part: records that, and removes what dead writers left.
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
        let saved = SaveDescription::load(&stores, url).await?.ok_or_else(|| {
            Error::data_loss(format!(
                "{url}: the description of the save was deleted while it was written; save again"
            ))
        })?;
        let finished = SaveDescription {
            state: SaveState::Finished,
            error: None,
            splits,
            rows: totals.rows,
            bytes: totals.bytes,
            chunks: totals.chunks,
            skipped: totals.skipped,
            ..saved
        };
        finished.replace(&stores, url).await?;
        if let Err(error) = cache.gc(false).await {
            tracing::debug!(url, %error, "objects of dead writers stay in a save");
        }
        Ok(totals)
    }
}

/// Reads every part of a save that was finished before, and discards the damaged ones, which this save then stores
/// again: only a save has the source at hand.
async fn discard_damaged(snapshot: &Snapshot, splits: &[SplitKey]) -> Result<()> {
    let index = snapshot.index().await?;
    let parts: Vec<_> = splits.iter().filter_map(|key| index.get(key).cloned()).collect();
    let check = |meta| discard_if_damaged(snapshot.clone(), meta).boxed();
    futures::stream::iter(parts).map(check).buffer_unordered(CONCURRENT_CHECKS).try_collect().await
}

/// Reads one part to its end, and discards it if it is damaged.
async fn discard_if_damaged(snapshot: Snapshot, meta: Arc<PartMeta>) -> Result<()> {
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
            Error::unavailable(format!(
                "the part of split {key} disappeared when the save was almost finished"
            ))
        })?;
        totals.rows += part.rows;
        totals.bytes += part.bytes;
        totals.chunks += part.chunks.len().max(1) as u64;
    }
    totals.skipped = skipped(index, splits);
    Ok(totals)
}

/// Bad rows that were left out of the parts of these splits.
fn skipped(index: &PartIndex, splits: &[SplitKey]) -> u64 {
    splits.iter().filter_map(|key| index.get(key)).map(|part| part.skipped).fold(0, u64::saturating_add)
}

/// Whether another epoch may succeed: workers and stores come back.
fn is_transient(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::Unavailable | ErrorKind::DeadlineExceeded | ErrorKind::Cancelled)
}

fn stalled(missing: usize, all: usize, last_error: Option<Error>) -> Error {
    let why = match last_error {
        Some(e) => format!(": {}", e.message()),
        None => "; the logs of the workers say why".to_owned(),
    };
    Error::deadline(format!(
        "{missing} of {all} splits could not be stored for {} s{why}; run the same save again, which continues",
        STALL_TIMEOUT.as_secs()
    ))
}

/// A placeholder: the request names a registered dataset.
fn placeholder() -> Result<caju_pipeline::DatasetDef> {
    caju_pipeline::DatasetDef::from_yaml("source: { range: 0 }", None)
}

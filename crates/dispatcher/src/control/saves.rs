//! Saves: begun by a call, journaled, and driven by the owner of [`Saves`].

use std::collections::HashMap;
use std::sync::Arc;

use caju_autocache::{HintDef, fixed_hint};
use caju_cache::{CacheOptions, Encoding, SaveDescription, SaveState};
use caju_pipeline::{DatasetDef, SAVE_HINT, SavedForm};
use caju_proto::v1;
use caju_runtime::stores::{StoreUrl, may_lie_in, without_links};
use caju_runtime::{Clock, OrderedMutex, Stores, blocking};
use caju_types::{DatasetId, Error, Fingerprint, Result, SplitKey};
use futures::TryStreamExt;
use serde_json::Value;
use tokio::sync::watch;

use super::context::Context;
use super::datasets::{Datasets, find};
use super::workers::too_many_skipped;
use crate::definition::{Definition, parse};
use crate::locks;
use crate::state::{Dataset, Policy, Save, SaveStage, SaveTarget, SaveTotals, Update};

/// Begins saves, and knows how far running ones are.
pub(crate) struct SaveCalls {
    context: Arc<Context>,
    datasets: Arc<Datasets>,
    /// Splits that have their parts, and all splits, by the URL of the save.
    splits: OrderedMutex<HashMap<String, (u64, u64)>>,
    /// Wakes those who want to know of new saves.
    notifier: watch::Sender<()>,
}

impl SaveCalls {
    pub(super) fn new(context: Arc<Context>, datasets: Arc<Datasets>) -> Self {
        let splits = OrderedMutex::new(locks::SAVES, HashMap::new());
        Self { context, datasets, splits, notifier: watch::Sender::default() }
    }

    pub(super) fn status(&self, save: &Save) -> v1::SaveStatus {
        let url = &save.target.url;
        let (done, total) = self.splits.lock().get(url).copied().unwrap_or_default();
        let mut status = v1::SaveStatus {
            url: url.clone(),
            pipeline: save.name.clone().unwrap_or_default(),
            fingerprint: save.prefix.to_string(),
            state: "running".into(),
            splits_total: total,
            splits_done: done,
            ..v1::SaveStatus::default()
        };
        match &save.stage {
            SaveStage::Running => {}
            SaveStage::Finished(totals) => {
                status.state = "finished".into();
                (status.splits_total, status.splits_done) = (totals.splits, totals.splits);
                (status.rows, status.bytes, status.chunks) = (totals.rows, totals.bytes, totals.chunks);
                status.rows_skipped = totals.skipped;
            }
            SaveStage::Failed(failure) => {
                status.state = "failed".into();
                status.failure = Some(failure.into());
            }
        }
        status
    }
}

/// The saves of a dispatcher, for the driver that runs them.
#[derive(Clone)]
pub struct Saves {
    calls: Arc<SaveCalls>,
    news: watch::Receiver<()>,
}

impl std::fmt::Debug for Saves {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Saves").finish_non_exhaustive()
    }
}

impl Saves {
    pub(crate) fn of(calls: &Arc<SaveCalls>) -> Self {
        Self { news: calls.notifier.subscribe(), calls: Arc::clone(calls) }
    }

    /// Saves that have work left.
    ///
    /// # Errors
    /// `Unavailable` when the dispatcher shuts down.
    pub async fn running(&self) -> Result<Vec<Save>> {
        self.calls
            .context
            .read_durable(|state| state.saves.values().filter(|s| s.is_running()).cloned().collect())
            .await
    }

    /// Waits for a new save; false when the dispatcher stops.
    pub async fn changed(&mut self) -> bool {
        tokio::select! {
            changed = self.news.changed() => changed.is_ok(),
            () = self.calls.context.tasks.stopped() => false,
        }
    }

    /// The splits that a save covers, in their order, as the source has them now.
    ///
    /// # Errors
    /// What the source says.
    pub async fn splits(&self, save: &Save) -> Result<Vec<SplitKey>> {
        let bound = self.calls.datasets.bound(&save.dataset).await?;
        let mut splits = (bound.splits)();
        let mut keys = Vec::new();
        while let Some(split) = splits.try_next().await? {
            keys.push(split.key().ok_or_else(|| Error::internal("a split of the source has no key"))?);
        }
        Ok(keys)
    }

    /// Checks the number of bad rows that were left out of all parts of a save. Parts of earlier attempts count.
    ///
    /// # Errors
    /// `DataLoss` for more rows than the pipeline allows, as for an epoch.
    pub async fn check_skipped(&self, save: &Save, skipped: u64) -> Result<()> {
        let limit = self.calls.datasets.bound(&save.dataset).await?.skip_limit;
        match limit.filter(|limit| skipped > *limit) {
            Some(limit) => Err(too_many_skipped(&format!("the save to {}", save.target.url), skipped, limit)),
            None => Ok(()),
        }
    }

    /// Reports how many of all splits have their parts.
    pub fn progress(&self, url: &str, done: u64, total: u64) {
        self.calls.splits.lock().insert(url.to_owned(), (done, total));
    }

    /// Remembers how a save ended.
    ///
    /// # Errors
    /// `Unavailable` when the dispatcher shuts down: then it goes on after the next start.
    pub async fn end(&self, url: &str, result: Result<SaveTotals>) -> Result<()> {
        let stage = match &result {
            Ok(totals) => SaveStage::Finished(*totals),
            Err(e) => SaveStage::Failed(e.into()),
        };
        let url = url.to_owned();
        self.calls
            .context
            .commit(|txn| {
                txn.apply(Update::SaveEnded { url, stage });
                // Ended saves are forgotten in time, with their progress.
                self.calls.splits.lock().retain(|url, _| txn.state.saves.contains_key(url));
                Ok(())
            })
            .await
    }

    /// How the driver accesses the folders of saves.
    pub fn cache_options(&self) -> CacheOptions {
        self.calls.context.config.timers.cache_options()
    }

    /// Where saves are written.
    ///
    /// # Errors
    /// `FailedPrecondition` if this dispatcher has no stores.
    pub fn stores(&self) -> Result<Arc<Stores>> {
        self.calls.stores()
    }

    /// The dispatcher's clock.
    pub fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.calls.context.clock)
    }
}

impl SaveCalls {
    fn stores(&self) -> Result<Arc<Stores>> {
        self.datasets
            .catalog()
            .stores()
            .ok_or_else(|| Error::failed_precondition("this dispatcher has no stores to save to"))
    }

    /// Begins a save, or goes on with one. When this returns, the save's folder says what it will be.
    pub(crate) async fn start_save(&self, request: v1::StartSaveRequest) -> Result<v1::SaveStatus> {
        let stores = self.stores()?;
        self.context.config.memory.check_name("the URL of a save", &request.url)?;
        let url = writable(&stores, &request.url)?.to_string().trim_end_matches('/').to_owned();
        let wanted = Encoding::optional(&request.encoding)?;
        let json = request.definition_json;
        let bytes = json.len();
        let read = move || {
            let given = parse(&json)?;
            Ok((DatasetDef::from_json(&given)?, given))
        };
        let (def, given) = self.datasets.read_apart(bytes, read).await?;
        apart(&def, &StoreUrl::parse(&url)?).await?;
        let form = move || {
            let SavedForm { def, copies, left_out } = SavedForm::of(&def)?;
            Ok((Definition::from(def), copies, left_out))
        };
        let (runs, copies, left_out) = self.datasets.read_apart(bytes, form).await?;
        let (bound, dataset) = self.datasets.bind(runs).await?;
        let hint = save_hint(&dataset)?;
        if hint.random && copies > 1 {
            return Err(Error::invalid(
                "saving a random pipeline with `repeat`: the repetitions would differ, and a save holds one; leave \
                 `repeat` out, and repeat the load",
            ));
        }
        let chunk_bytes = (request.chunk_bytes > 0).then_some(request.chunk_bytes);
        let saved = SaveDescription {
            schema: SaveDescription::SCHEMA.to_owned(),
            fingerprint: hint.prefix,
            name: bound.name.clone(),
            definition: given,
            left_out: left_out.iter().map(ToString::to_string).collect(),
            columns: columns(&bound.schema),
            arrow_schema: serde_json::to_value(bound.schema.as_ref())
                .map_err(|e| Error::internal(format!("a schema as JSON: {e}")))?,
            encoding: wanted.unwrap_or_default(),
            chunk_bytes,
            copies,
            state: SaveState::Writing,
            error: None,
            splits: Vec::new(),
            rows: 0,
            bytes: 0,
            chunks: 0,
            skipped: 0,
        };
        let there = begin(&stores, &url, saved).await?;
        if there.state == SaveState::Finished {
            check_form(&url, &there, wanted, chunk_bytes)?;
        }
        // Parts of one save are alike: those that are stored again too.
        let encoding = wanted.unwrap_or(there.encoding);
        let target = SaveTarget { url: url.clone(), chunk_bytes: chunk_bytes.or(there.chunk_bytes) };
        let started_ms = self.context.unix_ms();
        let status = self
            .context
            .commit(|txn| {
                let dataset = self.datasets.register(txn, &bound, dataset.clone(), None, None)?;
                let prefix = save_hint(&dataset)?.prefix;
                let save = Save {
                    target,
                    dataset: dataset.id.clone(),
                    prefix,
                    name: dataset.name,
                    encoding,
                    started_ms,
                    stage: SaveStage::Running,
                };
                match txn.state.saves.get(&url).filter(|s| s.is_running()) {
                    Some(running) if running.dataset == save.dataset => Ok(self.status(running)),
                    Some(_) => Err(taken(&url)),
                    None => {
                        let status = self.status(&save);
                        txn.apply(Update::SaveAdded { save: Box::new(save) });
                        Ok(status)
                    }
                }
            })
            .await?;
        self.notifier.send_replace(());
        Ok(status)
    }

    /// Whether an iteration may store its rows below the root that it names: as for [`SaveCalls::start_save`], since whoever
    /// opens an iteration may name one.
    pub(super) async fn check_save_url(&self, request: &v1::OpenIterationRequest) -> Result<()> {
        if request.save_url.is_empty() {
            return Ok(());
        }
        let stores = self.stores()?;
        self.context.config.memory.check_name("the URL of a save", &request.save_url)?;
        let url = writable(&stores, &request.save_url)?;
        let definition = match request.dataset_id.as_str() {
            "" => self.datasets.definition_of_call(request.definition_json.clone()).await?,
            id => {
                let id = DatasetId(id.to_owned());
                self.context.read_durable(|state| find(state, &id).map(|d| d.definition.clone())).await??
            }
        };
        self.datasets.ensure_read(&definition).await?;
        apart(definition.read()?, &url).await
    }

    /// How a save goes.
    pub(crate) async fn get_save(&self, request: v1::GetSaveRequest) -> Result<v1::SaveStatus> {
        let at = self.stores()?.resolve(&request.url).map_err(|e| e.context("save"))?;
        let url = at.url.to_string().trim_end_matches('/').to_owned();
        self.context.read_durable(|state| state.saves.get(&url).map(|s| self.status(s))).await?.ok_or_else(
            || {
                Error::not_found(format!(
                    "this dispatcher knows of no save to {url}; begin one with `caju save`"
                ))
            },
        )
    }
}

fn save_hint(dataset: &Dataset) -> Result<&HintDef> {
    let policy = Policy::Hint(SAVE_HINT.to_owned());
    let hint = fixed_hint(&policy, &dataset.hints).map_err(|e| {
        let stage = dataset.hints.iter().find_map(|h| h.cross_split_stage.clone()).unwrap_or_default();
        match e.kind() {
            caju_types::ErrorKind::InvalidArgument if !stage.is_empty() => Error::invalid(format!(
                "rows behind `{stage}` cannot be saved yet: they belong to no single split; put `{stage}` behind the load"
            )),
            _ => e,
        }
    })?;
    hint.ok_or_else(|| Error::internal("the form of a save has no hint"))
}

/// # Errors
/// `PermissionDenied` for a place that may not be written.
fn writable(stores: &Stores, url: &str) -> Result<StoreUrl> {
    stores.resolve_to_write(url).map(|at| at.url).map_err(|e| e.context("save"))
}

/// Refuses to save among the files that a pipeline reads: the next one that lists the folder would read the save as its
/// own rows. Symbolic links in the names of local folders are followed.
async fn apart(def: &DatasetDef, url: &StoreUrl) -> Result<()> {
    let paths = def.source_paths();
    for path in &paths {
        if may_lie_in(path, url)? {
            return Err(among(url, path));
        }
    }
    if !url.is_local() || paths.is_empty() {
        return Ok(());
    }
    let (url, paths) = (url.clone(), paths.into_iter().map(str::to_owned).collect::<Vec<_>>());
    blocking("looking for symbolic links", move || {
        let real = StoreUrl::parse(&without_links(&url.to_string())?)?;
        for path in &paths {
            if may_lie_in(&without_links(path)?, &real)? {
                return Err(among(&url, path));
            }
        }
        Ok(())
    })
    .await?
}

fn among(url: &StoreUrl, path: &str) -> Error {
    Error::invalid(format!(
        "save: {url} lies at, above or below the source {path}, and rows saved there could be read as its own; save to a \
         folder apart"
    ))
}

fn taken(url: &str) -> Error {
    Error::already_exists(format!(
        "there is another save at {url} already; save to another URL, or delete that one"
    ))
}

/// Describes the save in its folder, and gives the description that is there. One of the same rows is gone on with; a
/// finished one stays readable meanwhile.
async fn begin(stores: &Stores, url: &str, saved: SaveDescription) -> Result<SaveDescription> {
    let (prefix, copies): (Fingerprint, u64) = (saved.fingerprint, saved.copies);
    let there = saved.clone().begin(stores, url).await?;
    if there.fingerprint != prefix || there.copies != copies {
        return Err(taken(url));
    }
    match there.state {
        SaveState::Failed => saved.replace(stores, url).await,
        // Fingerprints leave paths out. Who loads it would read rows of both.
        SaveState::Writing if there.definition.get("source") != saved.definition.get("source") => {
            Err(Error::already_exists(format!(
                "a save of the same stages over another source was begun at {url}, and is not finished; save to another URL, or \
                 delete that one"
            )))
        }
        SaveState::Writing | SaveState::Finished => Ok(there),
    }
}

/// Refuses to go on with a finished save in another form than it has: what is stored is not stored again.
fn check_form(
    url: &str,
    saved: &SaveDescription,
    encoding: Option<Encoding>,
    chunk_bytes: Option<u64>,
) -> Result<()> {
    let (is, wanted) = if let Some(wanted) = encoding.filter(|wanted| *wanted != saved.encoding) {
        (format!("encoded as {}", saved.encoding), wanted.to_string())
    } else if let Some(wanted) = chunk_bytes.filter(|bytes| Some(*bytes) != saved.chunk_bytes) {
        let is =
            saved.chunk_bytes.map_or("without chunks".to_owned(), |b| format!("with chunks of {b} bytes"));
        (is, format!("{wanted} bytes"))
    } else {
        return Ok(());
    };
    Err(Error::failed_precondition(format!(
        "{url} holds a finished save {is}, not {wanted}: leave that option out to keep what it has, save to another \
         URL, or delete this save first"
    )))
}

fn columns(schema: &arrow_schema::Schema) -> Value {
    let fields = schema.fields().iter().map(|f| (f.name().clone(), f.data_type().to_string().into()));
    Value::Object(fields.collect())
}

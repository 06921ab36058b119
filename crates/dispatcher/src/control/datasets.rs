//! Registration of datasets.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_schema::SchemaRef;
use caju_proto::v1;
use caju_runtime::OrderedMutex;
use caju_types::{DatasetId, Error, Fingerprint, JobName, Result, did_you_mean, hash128, shortened};
use caju_wire::{schema_from_ipc, schema_to_ipc};

use super::Txn;
use super::context::Context;
use super::usage::{Usage, admit_dataset};
use crate::catalog::{Bound, Catalog};
use crate::definition::Definition;
use crate::locks;
use crate::state::{Dataset, State, Update};

/// Bindings that are kept. Others are made again when they are needed.
const MAX_BINDINGS: usize = 256;

/// The most bytes of a definition's text that the runtime's own threads read: below a millisecond of work.
const SHORT_BYTES: usize = 64 << 10;

/// Where the dataset of a request comes from.
pub(super) enum RequestedDataset {
    /// It is registered.
    Known(DatasetId),
    /// It was bound just now.
    Bound(Arc<Bound>, Box<Dataset>),
}

/// What definitions mean: the catalog, its bindings of datasets, and when datasets and jobs were last used.
pub(crate) struct Datasets {
    pub(super) context: Arc<Context>,
    catalog: Arc<dyn Catalog>,
    bound: OrderedMutex<HashMap<DatasetId, Arc<Bound>>>,
    usage: OrderedMutex<Usage>,
}

impl Datasets {
    pub(super) fn new(context: Arc<Context>, catalog: Arc<dyn Catalog>) -> Self {
        let bound = OrderedMutex::new(locks::BOUND, HashMap::new());
        Self { context, catalog, bound, usage: OrderedMutex::new(locks::USAGE, Usage::default()) }
    }

    /// Makes sense of definitions.
    pub(super) fn catalog(&self) -> &dyn Catalog {
        self.catalog.as_ref()
    }

    /// When datasets and jobs were last used.
    pub(super) fn usage(&self) -> &OrderedMutex<Usage> {
        &self.usage
    }

    /// Reads something of a definition whose text has `bytes`: at once if it is short, else on threads of its own, as many at a
    /// time as are bound. A text of some MiB takes a second, and no heartbeat waits for it.
    pub(crate) async fn read_apart<T, F>(&self, bytes: usize, read: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce() -> Result<T> + Send + 'static,
    {
        if bytes <= SHORT_BYTES {
            return read();
        }
        self.catalog.threads().run("reading the definition", read).await
    }

    /// The definition of a call, in both forms.
    pub(super) async fn definition_of_call(&self, json: String) -> Result<Definition> {
        self.read_apart(json.len(), move || Definition::of_call(&json)).await
    }

    /// Reads a definition of the journal, if nobody has read it yet.
    pub(super) async fn ensure_read(&self, definition: &Definition) -> Result<()> {
        if definition.was_read() {
            return Ok(());
        }
        let definition = definition.clone();
        // Its own error is for those who use it.
        self.read_apart(definition.text().len(), move || {
            let _ = definition.read();
            Ok(())
        })
        .await
    }

    fn cached(&self, id: &DatasetId) -> Option<Arc<Bound>> {
        self.bound.lock().get(id).cloned()
    }

    /// Keeps a binding for its next use.
    pub(super) fn keep(&self, id: &DatasetId, bound: &Arc<Bound>) {
        let mut all = self.bound.lock();
        while all.len() >= MAX_BINDINGS && !all.contains_key(id) {
            let Some(other) = all.keys().next().cloned() else { break };
            all.remove(&other);
        }
        all.insert(id.clone(), Arc::clone(bound));
    }

    /// Binds a definition; the dataset that it would be, under the name of its fingerprint.
    pub(super) async fn bind(&self, definition: Definition) -> Result<(Arc<Bound>, Dataset)> {
        let bound = Arc::new(self.catalog.bind(&definition, None).await?);
        let schema_ipc = schema_to_ipc(&bound.schema)?;
        let source_schema_ipc = schema_to_ipc(&bound.source_schema)?;
        let dataset = Dataset {
            id: DatasetId(bound.fingerprint.to_string()),
            fingerprint: bound.fingerprint,
            identity: identity_of(bound.identity, &schema_ipc, &source_schema_ipc),
            payloads: bound.payloads,
            name: bound.name.clone(),
            definition,
            schema_ipc,
            source_schema_ipc,
            seed: bound.seed,
            single_task: bound.single_task,
            counts_by_file: bound.counts_by_file,
            deterministic: bound.deterministic,
            skip_limit: bound.skip_limit,
            hints: bound.hints.clone(),
            random_stages: bound.random_stages.clone(),
            cache_only: Some(bound.cache_only),
            unlearnt: bound.unlearnt.clone(),
        };
        Ok((bound, dataset))
    }
}

impl Datasets {
    pub(crate) async fn register_dataset(
        &self,
        request: v1::RegisterDatasetRequest,
    ) -> Result<v1::RegisterDatasetResponse> {
        self.context.config.memory.check_name("a dataset's name", &request.dataset_id)?;
        let definition = self.definition_of_call(request.definition_json).await?;
        let (bound, dataset) = self.bind(definition).await?;
        let chosen = Some(request.dataset_id).filter(|id| !id.is_empty()).map(DatasetId);
        let dataset = self.context.commit(|txn| self.register(txn, &bound, dataset, chosen, None)).await?;
        if bound.payloads == dataset.payloads {
            self.keep(&dataset.id, &bound);
        }
        Ok(v1::RegisterDatasetResponse {
            dataset_id: dataset.id.0,
            fingerprint: dataset.fingerprint.to_string(),
            schema_ipc: dataset.schema_ipc.into(),
        })
    }

    /// Registers the dataset of a binding, unless it is known; under a chosen name, or its fingerprint.
    pub(super) fn register(
        &self,
        txn: &mut Txn<'_>,
        bound: &Bound,
        mut dataset: Dataset,
        chosen: Option<DatasetId>,
        job: Option<&JobName>,
    ) -> Result<Dataset> {
        if let Some(id) = chosen {
            if let Some(known) = txn.state.datasets.get(&id) {
                return if is_same(known, &dataset, bound) {
                    let known = known.clone();
                    self.renewed(txn, known, dataset)
                } else {
                    Err(conflict(known, &dataset))
                };
            }
            dataset.id = id;
        } else {
            if let Some(known) = known(txn.state, &dataset, bound, job).cloned() {
                return self.renewed(txn, known, dataset);
            }
            if txn.state.datasets.contains_key(&dataset.id) {
                // The same computation on other files: a fingerprint does not cover paths.
                dataset.id = DatasetId(format!("{}-{}", dataset.fingerprint, dataset.identity));
            }
            if let Some(payloads) = dataset.payloads.filter(|_| txn.state.datasets.contains_key(&dataset.id))
            {
                dataset.id = DatasetId(format!("{}-{payloads}", dataset.fingerprint));
            }
        }
        admit_dataset(&self.context.config.memory, &self.usage.lock(), txn, &dataset)?;
        self.usage.lock().use_dataset(&dataset.id, self.context.clock.now());
        txn.apply(Update::DatasetRegistered { dataset: dataset.clone() });
        Ok(dataset)
    }

    /// A known dataset, with the new definition if nobody reads it: functions of the user's own are named by their code, or by a
    /// version, and the newest form runs. A dataset of an older version gets the columns of its sources.
    fn renewed(&self, txn: &mut Txn<'_>, known: Dataset, new: Dataset) -> Result<Dataset> {
        self.usage.lock().use_dataset(&known.id, self.context.clock.now());
        let is_same = known.definition == new.definition && known.source_schema_ipc == new.source_schema_ipc;
        if is_same || is_read(txn.state, &known) {
            return Ok(known);
        }
        let dataset = Dataset { id: known.id, ..new };
        admit_dataset(&self.context.config.memory, &self.usage.lock(), txn, &dataset)?;
        txn.apply(Update::DatasetRegistered { dataset: dataset.clone() });
        Ok(dataset)
    }

    /// What is registered under an identifier.
    pub(crate) async fn registered_dataset(&self, id: &DatasetId) -> Result<v1::GetDatasetResponse> {
        self.context.config.memory.check_name("a dataset's name", &id.0)?;
        let found = self.context.read_durable(|state| find(state, id).cloned()).await??;
        Ok(v1::GetDatasetResponse {
            fingerprint: found.fingerprint.to_string(),
            schema_ipc: found.schema_ipc.into(),
            definition_json: found.definition.text().to_owned(),
        })
    }

    /// The schema of a registered dataset's elements.
    pub(crate) async fn dataset_schema(&self, id: &DatasetId) -> Result<SchemaRef> {
        self.context.config.memory.check_name("a dataset's name", &id.0)?;
        let ipc = self.context.read_durable(|state| find(state, id).map(|d| d.schema_ipc.clone())).await??;
        stored_schema(&ipc)
    }

    /// The schema of a definition's elements, without registering it.
    pub(crate) async fn definition_schema(&self, definition: &Definition) -> Result<SchemaRef> {
        Ok(self.catalog.bind(definition, None).await?.schema)
    }

    /// The binding of a registered dataset; made again after a restart, with the schema known then. The catalog takes a schema
    /// without fields as unknown: older versions kept one for a dataset of several sources.
    pub(super) async fn bound(&self, id: &DatasetId) -> Result<Arc<Bound>> {
        if let Some(bound) = self.cached(id) {
            return Ok(bound);
        }
        let dataset = self.context.read_durable(|state| find(state, id).cloned()).await??;
        self.binding_of(&dataset).await
    }

    /// The binding of this dataset, which was registered when it was read.
    pub(super) async fn binding_of(&self, dataset: &Dataset) -> Result<Arc<Bound>> {
        if let Some(bound) = self.cached(&dataset.id) {
            return Ok(bound);
        }
        let schema = stored_schema(&dataset.source_schema_ipc)?;
        let bound = self.catalog.bind(&dataset.definition, Some(schema)).await?;
        let bound = Arc::new(bound);
        self.keep(&dataset.id, &bound);
        Ok(bound)
    }
}

/// The dataset that a definition means, if it is registered. A chosen identifier names a dataset of its own, which a definition
/// means only for readers of a job over it, which open their epoch again. Functions in Python say what their code is, and may lie: a job
/// shares rows with another one only if both sent the same functions. A reader that names an existing job joins it with its
/// settings. A dataset with this very identity comes before one of an older version.
fn known<'a>(state: &'a State, new: &Dataset, bound: &Bound, job: Option<&JobName>) -> Option<&'a Dataset> {
    let same = || state.datasets.values().filter(|d| is_same(d, new, bound));
    let of_job = job.and_then(|name| state.jobs.get(name)).map(|j| &j.spec.dataset);
    let joined = same().find(|d| Some(&d.id) == of_job);
    let unnamed = || same().filter(|d| !d.has_chosen_id());
    let with_payloads = || unnamed().filter(|d| d.payloads == new.payloads);
    joined
        .or_else(|| with_payloads().min_by_key(|d| d.identity != new.identity))
        .or_else(|| unnamed().find(|d| !is_read(state, d)))
}

fn is_read(state: &State, dataset: &Dataset) -> bool {
    state.iterations.values().any(|i| i.dataset == dataset.id && !i.is_drained() && !i.members.is_empty())
}

/// The identity of a dataset, by that of its definition, and by the columns of its elements and of its source.
fn identity_of(definition: Fingerprint, schema_ipc: &[u8], source_schema_ipc: &[u8]) -> Fingerprint {
    let mut said = definition.to_string().into_bytes();
    said.extend_from_slice(schema_ipc);
    said.extend_from_slice(source_schema_ipc);
    Fingerprint(hash128(&said))
}

/// Whether a registered dataset is the one of this binding.
fn is_same(known: &Dataset, new: &Dataset, bound: &Bound) -> bool {
    known.identity == new.identity || is_of_older_version(known, new, bound)
}

/// Whether an older version registered this dataset. It kept no columns of several sources, so its identity covers none of them.
fn is_of_older_version(known: &Dataset, new: &Dataset, bound: &Bound) -> bool {
    let of_older = || identity_of(bound.identity, &new.schema_ipc, &known.source_schema_ipc);
    known.fingerprint == new.fingerprint
        && known.schema_ipc == new.schema_ipc
        && (known.definition == new.definition || known.identity == of_older())
        && stored_schema(&known.source_schema_ipc).is_ok_and(|schema| schema.fields().is_empty())
}

fn conflict(known: &Dataset, new: &Dataset) -> Error {
    Error::already_exists(format!(
        "dataset `{}` is registered with fingerprint {}, and this definition has {}{}; choose another name",
        known.id,
        known.fingerprint,
        new.fingerprint,
        difference(known, new)
    ))
}

/// What makes two datasets differ if their fingerprints do not.
pub(super) fn difference(a: &Dataset, b: &Dataset) -> &'static str {
    match (a.fingerprint == b.fingerprint, a.source_schema_ipc == b.source_schema_ipc) {
        (false, _) => "",
        (true, true) => " (they differ in paths, hints or settings that a fingerprint does not cover)",
        (true, false) => " (the columns of the source are other ones now)",
    }
}

/// A registered dataset.
pub(super) fn find<'a>(state: &'a State, id: &DatasetId) -> Result<&'a Dataset> {
    state.datasets.get(id).ok_or_else(|| {
        let hint = did_you_mean(&id.0, state.datasets.keys().map(|k| k.0.as_str()));
        Error::not_found(format!("no dataset `{}` is registered{hint}", shortened(&id.0)))
    })
}

/// The dataset of an opening. One that was found by a definition may have been forgotten since, with the job that read it.
///
/// # Errors
/// `NotFound` for an identifier that the request gives, else `Unavailable`: the next opening binds the definition.
pub(super) fn find_to_open<'a>(
    state: &'a State,
    id: &DatasetId,
    request: &v1::OpenIterationRequest,
) -> Result<&'a Dataset> {
    find(state, id).map_err(|e| match id.0 == request.dataset_id {
        true => e,
        false => Error::unavailable(format!(
            "the dataset of job `{}` was forgotten while an epoch of it was opened; open it again",
            request.job
        )),
    })
}

/// The schema that a dataset was registered with.
fn stored_schema(ipc: &[u8]) -> Result<SchemaRef> {
    schema_from_ipc(ipc)?.ok_or_else(|| Error::data_loss("a stored schema is missing"))
}

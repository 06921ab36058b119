//! Sets of parts: what is stored behind cross-split stages, and read as a whole or not at all.
//!
//! Whether there is a set for an iteration is found out once, when its splits are first asked for, and journaled
//! with the plan: after a restart the same parts, or splits, are handed out in the same order.

use std::collections::HashMap;
use std::sync::Arc;

use caju_autocache::{CachePlan, Document, GroupLease, SetPlan, SetTarget, StoredSet, set_id};
use caju_cache::{SetRecord, SplitSetDigest};
use caju_types::{Error, Fingerprint, Listed, Result};
use futures::TryStreamExt as _;

use super::listing::Listing;
use super::snapshots::Snapshots;
use crate::catalog::{Bound, ListedSplit};
use crate::splits::{SplitOrder, in_order, whole_listing};
use crate::state::{SplitRecord, Update, next_digest};

/// What an iteration's splits are.
pub(super) enum IterationSplits {
    /// All of them, to be computed, in canonical order.
    Splits(Vec<ListedSplit>),
    /// Those that share a part, part by part, and the whole listing in canonical order.
    Groups(Vec<Vec<SplitRecord>>, Listed),
}

/// The plan, if it is about a set.
pub(super) fn plan_of(plan: Option<&Document<CachePlan>>) -> Option<CachePlan> {
    plan?.value().filter(|p| p.set.is_some()).cloned()
}

impl Snapshots {
    /// A set all of whose parts exist.
    async fn whole_set(&self, id: Fingerprint) -> Result<Option<SetRecord>> {
        let snapshot = self.reader().await?.snapshot(&id);
        let Some(record) = snapshot.set().await? else { return Ok(None) };
        Ok(record.is_in(&snapshot.index().await?).then_some(record))
    }

    /// Complete sets at the hints of a definition, for a job with this seed.
    ///
    /// # Errors
    /// What the source or the store says.
    pub(super) async fn sets_at(&self, bound: &Bound, seed: u64) -> Result<Vec<StoredSet>> {
        let splits: Vec<ListedSplit> = (bound.splits)().try_collect().await?;
        let whole = SplitSetDigest::of(names(&splits)?);
        let mut found = Vec::new();
        for (hint, base) in &bound.set_bases {
            let id = set_id(base.seeded(seed), whole);
            let Some(record) = self.whole_set(id).await? else { continue };
            let index = self.reader().await?.snapshot(&id).index().await?;
            let part = record.members.first().and_then(|m| index.get(&m.part));
            found.extend(part.map(|p| StoredSet { hint: hint.clone(), encoding: p.encoding }));
        }
        Ok(found)
    }
}

impl Listing {
    /// The splits of an iteration whose hint stands behind a cross-split stage. The whole listing is needed: a set can
    /// be read only if it covers exactly these splits.
    pub(super) async fn with_set(
        &self,
        snapshots: &Snapshots,
        bound: &Bound,
        plan: CachePlan,
        order: Option<SplitOrder>,
    ) -> Result<IterationSplits> {
        let splits: Vec<ListedSplit> = (bound.splits)().try_collect().await?;
        match &plan.set {
            Some(SetPlan::Open) => self.decide(snapshots, bound, plan, splits, order).await,
            Some(SetPlan::Read { id, attempt }) => match snapshots.whole_set(*id).await? {
                Some(record) if attempt.is_empty() || *attempt == record.attempt => {
                    let ordered = in_order(splits, order).await?;
                    let of_set = rows_of_set(bound, &plan.hint, attempt);
                    let whole = whole_listing(&ordered, &self.skipped_splits, of_set)?;
                    Ok(IterationSplits::Groups(self.groups(*id, &record, &ordered)?, whole))
                }
                _ => Err(Error::failed_precondition(format!(
                    "the stored rows {id} that this epoch reads were removed while the dispatcher was away: which of them \
                     are left cannot be known; start the epoch again under another job name"
                ))),
            },
            _ => Ok(IterationSplits::Splits(splits)),
        }
    }

    async fn decide(
        &self,
        snapshots: &Snapshots,
        bound: &Bound,
        plan: CachePlan,
        splits: Vec<ListedSplit>,
        order: Option<SplitOrder>,
    ) -> Result<IterationSplits> {
        let base = bound.set_bases.iter().find(|(hint, _)| *hint == plan.hint).map(|(_, base)| base);
        let Some(base) = base.filter(|_| !splits.is_empty()) else {
            self.compute_instead(snapshots, plan).await?;
            return Ok(IterationSplits::Splits(splits));
        };
        let whole = SplitSetDigest::of(names(&splits)?);
        let id = set_id(base.seeded(self.job_seed), whole);
        match snapshots.whole_set(id).await {
            Ok(Some(record)) => {
                let ordered = in_order(splits.clone(), order).await?;
                let (attempt, whole) =
                    self.set_of_states(snapshots, bound, &plan.hint, &record, &ordered).await?;
                if let Ok(groups) = self.groups(id, &record, &ordered) {
                    let set_only = plan.set_only || is_chosen(bound, &plan.hint);
                    let set = Some(SetPlan::Read { id, attempt });
                    self.planned(snapshots, CachePlan { set, set_only, ..plan }).await?;
                    return Ok(IterationSplits::Groups(groups, whole));
                }
                tracing::warn!(set = %id, "a set names splits that are not listed; it is not read");
                self.compute_instead(snapshots, plan).await?;
            }
            Ok(None) if !plan.put => self.compute_instead(snapshots, plan).await?,
            Ok(None) => {
                let target = SetTarget { id, attempt: snapshots.context.unique_name("set-"), whole };
                self.planned(snapshots, CachePlan { set: Some(SetPlan::Write(target)), ..plan }).await?;
            }
            Err(error) => {
                tracing::warn!(%error, "the cache cannot be read; rows are computed");
                self.compute_instead(snapshots, plan).await?;
            }
        }
        Ok(IterationSplits::Splits(splits))
    }

    /// The rows of the epoch are computed, as there is no set.
    ///
    /// # Errors
    /// `FailedPrecondition` if users have taken rows of a set that cannot be computed again.
    async fn compute_instead(&self, snapshots: &Snapshots, plan: CachePlan) -> Result<()> {
        let iteration = self.iteration;
        let planned = snapshots.context.commit(|txn| {
            let of = txn.state.iterations.get(&iteration);
            let resume = of.and_then(|i| i.resume.as_deref()).filter(|r| r.goes_on_from_set(&plan.hint));
            if resume.is_some_and(|r| !r.taken.is_empty()) {
                return Err(Error::failed_precondition(format!(
                    "{iteration} cannot go on: it was read from the rows stored at hint `{}`, which stages chose behind a `shuffle`, \
                     and which the cache does not give now; go back to the state of an epoch's end",
                    plan.hint
                )));
            }
            txn.apply(Update::Planned { iteration, plan: Some(plan.without_set().into()) });
            Ok(())
        });
        planned.await
    }

    /// The attempt that stored a set, as states name it from now on, and the listing of the set. A set that was removed and stored
    /// again has the rows that another epoch chose. States name its attempt once their readers know it, and the first rows come
    /// with a listing that depends on it.
    ///
    /// # Errors
    /// `FailedPrecondition` if users have taken rows of a set that another attempt stored.
    async fn set_of_states(
        &self,
        snapshots: &Snapshots,
        bound: &Bound,
        hint: &str,
        record: &SetRecord,
        ordered: &[ListedSplit],
    ) -> Result<(String, Listed)> {
        let of_states = snapshots.context.read_durable(|state| {
            let resume = state.iterations.get(&self.iteration)?.resume.as_deref()?;
            let is_bound = resume.goes_on_from_set(hint) && !resume.taken.is_empty();
            is_bound.then(|| resume.draws.as_deref().map(|draws| draws.set_attempt.clone()))?
        });
        let of_states = of_states.await?;
        let listing =
            |attempt: &str| whole_listing(ordered, &self.skipped_splits, rows_of_set(bound, hint, attempt));
        let found = match of_states.as_deref() {
            None => return Ok((record.attempt.clone(), listing(&record.attempt)?)),
            // Versions that named no attempt had the listing of the splits alone.
            Some("") => {
                [record.attempt.as_str(), ""].into_iter().find_map(|a| Some((a.to_owned(), listing(a).ok()?)))
            }
            Some(attempt) if attempt == record.attempt => Some((record.attempt.clone(), listing(attempt)?)),
            Some(_) => None,
        };
        found.ok_or_else(|| {
            Error::failed_precondition(format!(
                "{} cannot go on: it was read from the rows stored at hint `{hint}`, which stages chose behind a `shuffle`, and \
                 which were removed and stored again since, with other rows; go back to the state of an epoch's end",
                self.iteration
            ))
        })
    }

    async fn planned(&self, snapshots: &Snapshots, plan: CachePlan) -> Result<()> {
        let (iteration, plan) = (self.iteration, Some(plan.into()));
        let planned = snapshots.context.commit(|txn| {
            txn.apply(Update::Planned { iteration, plan });
            Ok(())
        });
        planned.await
    }

    /// The listed splits, part by part, each with the part that has its rows. Their indexes are positions in the epoch's
    /// order, as where rows are computed: a state of a reader means the same in both. `splits` are in this order.
    fn groups(
        &self,
        id: Fingerprint,
        record: &SetRecord,
        splits: &[ListedSplit],
    ) -> Result<Vec<Vec<SplitRecord>>> {
        let mut places: HashMap<u128, Vec<usize>> = HashMap::new();
        for (at, name) in names(splits)?.into_iter().enumerate().rev() {
            places.entry(name).or_default().push(at);
        }
        let mut groups = Vec::with_capacity(record.members.len());
        for member in &record.members {
            let of = u32::try_from(member.covers.len()).unwrap_or(u32::MAX);
            let mut group = Vec::with_capacity(member.covers.len());
            for (at, name) in (0u32..).zip(&member.covers) {
                let place = places.get_mut(&name.0).and_then(Vec::pop);
                let place =
                    place.ok_or_else(|| Error::data_loss("a set covers a split that is not listed"))?;
                let (attempt, rows) = (member.attempt.clone(), member.rows_of(at));
                let lease = GroupLease { set: id, part: member.part, attempt, at, of, rows };
                let json = serde_json::to_string(&lease)
                    .map_err(|e| Error::internal(format!("a place in a set as JSON: {e}")))?;
                group.push(SplitRecord {
                    index: self.feed.index(place as u64),
                    split: Arc::clone(splits[place].json()),
                    group: Some(json.into()),
                    after: None,
                    whole: None,
                });
            }
            groups.push(group);
        }
        Ok(groups)
    }
}

/// What distinguishes the rows of a set from those that another attempt stores: 0 where no stage chooses them.
fn rows_of_set(bound: &Bound, hint: &str, attempt: &str) -> u64 {
    if is_chosen(bound, hint) && !attempt.is_empty() { next_digest(0, attempt) } else { 0 }
}

/// Whether stages choose the rows that are stored at a hint, in an order that each epoch draws for itself.
fn is_chosen(bound: &Bound, hint: &str) -> bool {
    bound.hints.iter().any(|h| h.name == hint && h.chooses)
}

fn names(splits: &[ListedSplit]) -> Result<Vec<u128>> {
    splits.iter().map(ListedSplit::name_in_set).collect()
}

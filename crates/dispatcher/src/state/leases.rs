//! Leases of an iteration: which splits its tasks have, and under which plan they run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use caju_autocache::{CachePlan, Document, SetPlan};
use caju_engine::Shard;
use caju_types::TaskId;

use super::{Feed, FeedId, Iteration, Lease, Resume, SplitRecord};

/// The lease of a split that was never leased before. `issued`: the splits of its feed that were issued, with this one.
fn first_lease(record: &SplitRecord, resume: Option<&Resume>, (plan, issued): (usize, u64)) -> Lease {
    Lease {
        split: Arc::clone(&record.split),
        done: resume.map(|r| r.done_of(record.index)).unwrap_or_default(),
        rows: None,
        size: None,
        lost: 0,
        lost_with: BTreeSet::new(),
        held: BTreeMap::new(),
        taken_over: false,
        plan,
        group: record.group.clone(),
        issued: if record.group.is_some() { issued } else { 0 },
    }
}

impl Iteration {
    /// Splits that are with a task, or were.
    pub fn splits_leased(&self) -> u64 {
        self.feeds.values().map(|f| f.issued.saturating_sub(f.pending.len() as u64)).sum()
    }

    pub(super) fn lease(
        &mut self,
        id: TaskId,
        request_no: u64,
        fresh: &[SplitRecord],
        requeued: &[u64],
        (end, asks_for_lagging): (bool, bool),
    ) {
        let plan = self.former.len();
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let feed = self.feeds.entry(task.feed).or_default();
        task.last_request = request_no;
        task.last_answer.clear();
        task.told_end |= end;
        task.last_lag.clear();
        for index in requeued {
            if let Some(mut lease) = feed.pending.remove(index) {
                // A part of a set is read under the plan that names the set.
                if lease.done.is_empty() && lease.group.is_none() {
                    lease.plan = plan;
                }
                task.leases.insert(*index, lease);
                task.last_answer.push(*index);
            }
        }
        for record in fresh {
            feed.issue(record);
            let lease = first_lease(record, self.resume.as_deref(), (plan, feed.issued));
            task.leases.insert(record.index, lease);
            task.last_answer.push(record.index);
        }
        if !asks_for_lagging && (!requeued.is_empty() || !fresh.is_empty()) {
            self.serve_lagging(id);
        }
    }

    /// Splits were issued, and wait.
    pub(super) fn set_aside(&mut self, feed: FeedId, splits: &[SplitRecord]) {
        let plan = self.former.len();
        let feed = self.feeds.entry(feed).or_default();
        for record in splits {
            feed.issue(record);
            let lease = first_lease(record, self.resume.as_deref(), (plan, feed.issued));
            feed.pending.insert(record.index, lease);
        }
    }

    /// What is stored and read from now on.
    pub(super) fn set_plan(&mut self, mut plan: Option<Document<CachePlan>>) {
        // A set that is written would lack the rows that were taken before. What is left of a stored set is computed. Rows that
        // come from the set alone go on from it: those that were taken are left out behind the hint.
        if let Some(resume) = self.resume.as_deref()
            && let Some(of_set) = plan.as_ref().and_then(Document::value).filter(|p| p.set.is_some())
        {
            let is_known = matches!(of_set.set, Some(SetPlan::Open | SetPlan::Read { .. }));
            plan = Some(match is_known && (of_set.set_only || resume.goes_on_from_set(&of_set.hint)) {
                true => CachePlan { put: false, ..of_set.clone() }.into(),
                false => of_set.clone().without_set().into(),
            });
        }
        if self.plan != plan {
            let former = std::mem::replace(&mut self.plan, plan);
            self.former.push(former);
        }
    }

    /// The plan under which a lease is run.
    pub fn plan_of(&self, lease: &Lease) -> Option<&Document<CachePlan>> {
        self.former.get(lease.plan).unwrap_or(&self.plan).as_ref()
    }

    pub(super) fn exhaust(&mut self, feed: FeedId, listing: Option<u64>, source_changed: Option<&str>) {
        let feed = self.feeds.entry(feed).or_default();
        feed.exhausted = true;
        feed.listing = listing;
        if self.source_changed.is_none() {
            self.source_changed = source_changed.map(Into::into);
        }
        self.version += 1;
    }

    /// The shard that a feed has; none outside the static modes.
    pub fn shard_of(&self, feed: FeedId) -> Option<Shard> {
        let (num_shards, index) = (u64::from(self.num_shards.max(1)), u64::from(feed.0));
        self.shard_by.map(|by| Shard { by, num_shards, index })
    }

    /// The position in the list of workers of the one that has a shard: worker k of n has shards k, k + n, k + 2n, ...
    pub fn slot_of_shard(&self, shard: FeedId) -> u32 {
        shard.0.checked_rem(self.num_workers).unwrap_or(shard.0)
    }

    /// How many workers have shards; 0 outside the static modes.
    pub fn workers_with_shards(&self) -> u32 {
        if self.num_workers == 0 { self.num_shards } else { self.num_workers.min(self.num_shards) }
    }

    /// Shards that still need their workers.
    pub fn shards_with_work(&self) -> impl Iterator<Item = FeedId> + '_ {
        let is_static = self.mode.is_static();
        let waited_for = move |(id, f): &(&FeedId, &Feed)| is_static && f.has_work() && self.is_wanted(**id);
        self.feeds.iter().filter(waited_for).map(|(id, _)| *id)
    }

    /// The lease of a split, wherever it is.
    pub fn lease_of(&self, index: u64) -> Option<&Lease> {
        let pending = self.feeds.get(&FeedId::of_index(index)).and_then(|f| f.pending.get(&index));
        pending.or_else(|| self.tasks.values().find_map(|t| t.leases.get(&index)))
    }
}

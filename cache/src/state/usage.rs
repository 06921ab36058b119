//! Usage records: what each process read from a snapshot.
//!
//! Every process writes one object. The objects of processes that have ended are folded into a sum: otherwise one object
//! per process would stay for as long as the snapshot does.

use std::collections::HashSet;

use bytes::Bytes;
use caju_types::{ErrorKind, Fingerprint, Result};
use object_store::path::Path;

use super::snapshot_state::SnapshotState;
use crate::context::Context;
use crate::record::{UsageRecord, seal};
use crate::scan::Scan;
use crate::store::{Listed, Root};

/// The number of usage records of one snapshot from which on a process that closes its cache folds those of ended
/// processes.
const FOLD_AFTER: usize = 16;

impl SnapshotState {
    /// Counts what was read: for a job (none if empty), the rows, and the CPU seconds that computing them would have taken.
    pub(crate) fn record_use(&self, job: &str, rows: u64, saved_cpu_s: f64) {
        let mut usage = self.usage.lock();
        usage.record.add_job(job);
        usage.record.rows += rows;
        usage.record.saved_cpu_s += saved_cpu_s;
        usage.is_dirty = true;
    }

    /// Writes what this process read, if that changed since the last time.
    pub(crate) async fn flush_usage(&self, ctx: &Context) -> Result<()> {
        let record = {
            let is_empty = self.listing.lock().index.is_empty();
            let mut usage = self.usage.lock();
            // A snapshot in which nothing was stored in the end would consist of this record alone.
            if is_empty && usage.record.rows == 0 {
                return Ok(());
            }
            if !std::mem::take(&mut usage.is_dirty) || ctx.is_read_only() {
                return Ok(());
            }
            usage.record.clone()
        };
        let path = ctx.root.layout.usage(self.of, ctx.leases.id());
        ctx.root.put(&path, seal(&record)?.into()).await
    }

    /// Folds the usage records of processes without a lease, where there are many records.
    pub(crate) async fn fold_usage(&self, ctx: &Context) -> Result<()> {
        if ctx.is_read_only() || self.listing.lock().usage_records < FOLD_AFTER {
            return Ok(());
        }
        let root = &ctx.root;
        let scan = ctx.scan(self.of).await?;
        let leased: HashSet<String> =
            root.list(&root.layout.writers()).await?.iter().map(|o| id(o).to_string()).collect();
        let gone = |id: &str, _: &Listed| !leased.contains(id) && id != ctx.leases.id();
        if let Some(folded) = fold_usage_records(root, self.of, &scan, gone).await? {
            root.put(&folded.path, folded.body).await?;
            root.delete_all(folded.replaced.into_iter().map(|o| o.path).collect()).await?;
        }
        Ok(())
    }
}

impl UsageRecord {
    /// What all processes read from a snapshot so far.
    ///
    /// # Errors
    /// The errors of the store.
    pub(crate) async fn total(root: &Root, scan: &Scan) -> Result<Self> {
        let mut sum = Self::default();
        read_all(root, scan).await?.iter().for_each(|(_, record)| sum.add(record));
        Ok(sum)
    }
}

/// A sum of usage records, and the objects that it replaces. The sum is written before these are deleted, and it names
/// them: what a crash leaves is not counted twice.
pub(crate) struct FoldedUsage {
    pub(crate) path: Path,
    pub(crate) body: Bytes,
    pub(crate) replaced: Vec<Listed>,
}

fn id(object: &Listed) -> &str {
    object.path.filename().unwrap_or_default().trim_end_matches(".json")
}

async fn read_all(root: &Root, scan: &Scan) -> Result<Vec<(Listed, UsageRecord)>> {
    let mut all = Vec::new();
    for object in &scan.uses {
        if let Some(read) = root.read_record::<UsageRecord>(&object.path).await? {
            all.push((object.clone(), read.unwrap_or_default()));
        }
    }
    let folded: HashSet<String> = all.iter().flat_map(|(_, record)| record.folds.iter().cloned()).collect();
    for (object, record) in &mut all {
        if folded.contains(id(object)) {
            *record = UsageRecord::default();
        }
    }
    Ok(all)
}

/// Sums up the usage records of processes that have ended, if that reduces the number of objects.
///
/// # Errors
/// The errors of the store.
pub(crate) async fn fold_usage_records(
    root: &Root,
    of: Fingerprint,
    scan: &Scan,
    has_ended: impl Fn(&str, &Listed) -> bool,
) -> Result<Option<FoldedUsage>> {
    let count = scan.uses.iter().filter(|o| has_ended(id(o), o)).count();
    if count < 2 {
        return Ok(None);
    }
    let mut all = read_all(root, scan).await?;
    all.retain(|(object, _)| has_ended(id(object), object));
    let mut sum = UsageRecord::default();
    all.iter().for_each(|(_, record)| sum.add(record));
    let until = all.iter().map(|(object, _)| object.modified_ms).max().unwrap_or(0);
    let path = root.layout.uses_until(of, until);
    let mut replaced: Vec<Listed> = all.into_iter().map(|(object, _)| object).collect();
    replaced.retain(|object| object.path != path);
    sum.folds = replaced.iter().map(|object| id(object).to_string()).collect();
    match seal(&sum) {
        Ok(body) => Ok(Some(FoldedUsage { path, body: body.into(), replaced })),
        // The records stay as they are. Nothing needs their sum.
        Err(error) if error.kind() == ErrorKind::ResourceExhausted => {
            tracing::debug!(snapshot = %of, %error, "usage records are not folded");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

//! What this process knows of one snapshot: its commit records and its newest manifest.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use caju_runtime::OrderedMutex;
use caju_types::{Fingerprint, Result, SplitKey};
use futures::{StreamExt, TryStreamExt};

use super::index::PartIndex;
use crate::commit::{LoadedCommit, is_consistent, is_present};
use crate::context::Context;
use crate::layout::Generation;
use crate::locks;
use crate::manifest::{Loaded, Manifest};
use crate::record::{Commit, PartMeta, UsageRecord};
use crate::scan::{CommitKey, Scan};
use crate::store::{Listed, Root};

/// Commit records that are read concurrently.
const CONCURRENT_READS: usize = 16;

/// A commit record that was read or written.
#[derive(Debug, Clone)]
struct Record {
    /// The object that it was read from; none for a record of this process until it is listed.
    object: Option<Listed>,
    /// None if the record is damaged or foreign.
    commit: Option<Arc<Commit>>,
    /// Whether the part exists with the length that the record says.
    present: bool,
    /// Number of the addition by which this process wrote or found it outside a listing; 0 for a listed record.
    stamp: u64,
}

/// The listing of one snapshot, with what was read of its objects.
#[derive(Debug, Default)]
pub(super) struct ListingCache {
    listed: bool,
    /// The valid record of every split.
    records: HashMap<CommitKey, Record>,
    highest: HashMap<SplitKey, Generation>,
    pub(super) index: PartIndex,
    /// The newest manifest that is neither damaged nor foreign.
    pub(super) manifest: Option<Loaded>,
    /// The numbers of all manifests, also of damaged and foreign ones.
    pub(super) manifests: BTreeSet<u64>,
    /// Usage records, as of the last listing.
    pub(super) usage_records: usize,
    /// Records that the manifest does not cover.
    pub(super) uncovered: usize,
    /// Records added outside a listing so far.
    stamps: u64,
}

/// What this process read from the snapshot.
#[derive(Debug, Default)]
pub(super) struct OwnUsage {
    pub(super) record: UsageRecord,
    /// Whether the record changed since it was written.
    pub(super) is_dirty: bool,
}

/// The state of one snapshot in this process.
#[derive(Debug)]
pub(crate) struct SnapshotState {
    pub(crate) of: Fingerprint,
    pub(super) listing: OrderedMutex<ListingCache>,
    /// One listing at a time.
    refreshing: tokio::sync::Mutex<()>,
    /// One manifest at a time.
    pub(super) folding: tokio::sync::Mutex<()>,
    /// Splits that tasks of this process write now.
    pub(super) active: OrderedMutex<HashSet<SplitKey>>,
    pub(super) usage: OrderedMutex<OwnUsage>,
}

impl SnapshotState {
    pub(crate) fn new(of: Fingerprint) -> Self {
        Self {
            of,
            listing: OrderedMutex::new(locks::LISTING, ListingCache::default()),
            refreshing: tokio::sync::Mutex::new(()),
            folding: tokio::sync::Mutex::new(()),
            active: OrderedMutex::new(locks::WRITTEN_SPLITS, HashSet::new()),
            usage: OrderedMutex::new(locks::USAGE, OwnUsage::default()),
        }
    }

    /// The part of a split, without asking the store.
    pub(crate) fn cached_part(&self, split: SplitKey) -> Option<Arc<PartMeta>> {
        self.listing.lock().index.parts.get(&split).cloned()
    }

    pub(super) fn is_listed(&self) -> bool {
        self.listing.lock().listed
    }

    /// The generation that a new commit of the split would have.
    pub(super) fn next_generation(&self, split: SplitKey) -> Generation {
        self.listing.lock().highest.get(&split).copied().unwrap_or(0) + 1
    }

    /// Drops all that is known, because objects were removed: the next refresh reads them again.
    pub(crate) fn forget(&self) {
        let mut listing = self.listing.lock();
        let stamps = listing.stamps;
        *listing = ListingCache { stamps, ..ListingCache::default() };
    }

    /// Lists the snapshot's folder and reads what is new in it.
    pub(crate) async fn refresh(&self, ctx: &Context) -> Result<PartIndex> {
        let _turn = self.refreshing.lock().await;
        let root = &ctx.root;
        let begun = self.listing.lock().stamps;
        let scan = ctx.scan(self.of).await?;
        let manifest = self.newest_manifest(root, &scan).await?;
        let folded = manifest.as_ref().and_then(|m| m.manifest.as_ref()).map(|m| m.by_key());
        let folded = folded.unwrap_or_default();

        let old = self.listing.lock().records.clone();
        let mut records = HashMap::new();
        let mut unknown = Vec::new();
        for (key, object) in scan.winners().into_values() {
            if let Some(record) = reuse_record(&old, &folded, &scan, key, object) {
                records.insert(key.clone(), record);
            } else {
                unknown.push((key.clone(), object.clone()));
            }
        }
        let read = futures::stream::iter(unknown)
            .map(|(key, object)| async { self.read_record(root, &scan, key, object).await })
            .buffer_unordered(CONCURRENT_READS)
            .try_collect::<Vec<_>>()
            .await?;
        records.extend(read.into_iter().flatten());
        let index = self.install(records, manifest, &folded, begun);
        let mut listing = self.listing.lock();
        listing.manifests.extend(scan.manifests.keys());
        listing.usage_records = scan.uses.len();
        Ok(index)
    }

    /// The newest manifest that is neither damaged nor foreign. It is read again only if it changed.
    async fn newest_manifest(&self, root: &Root, scan: &Scan) -> Result<Option<Loaded>> {
        let old = self.listing.lock().manifest.clone();
        for object in scan.manifests.values().rev() {
            if let Some(old) = old.as_ref().filter(|o| &o.object == object) {
                return Ok(Some(old.clone()));
            }
            if let Some(manifest) = Manifest::load(root, self.of, object).await? {
                return Ok(Some(Loaded { object: object.clone(), manifest: Some(manifest) }));
            }
        }
        Ok(None)
    }

    async fn read_record(
        &self,
        root: &Root,
        scan: &Scan,
        key: CommitKey,
        object: Listed,
    ) -> Result<Option<(CommitKey, Record)>> {
        let commit = match LoadedCommit::read(root, self.of, &object).await? {
            LoadedCommit::Missing => return Ok(None),
            LoadedCommit::Damaged => None,
            LoadedCommit::Valid(commit) => Some(*commit),
        };
        let present = match &commit {
            Some(Commit::Part(meta)) => match listed_bytes(scan, meta) {
                Some(bytes) => bytes == meta.bytes,
                // A listing is not atomic: the part may have been created after the listing had passed its name.
                None => is_present(root, meta).await?,
            },
            _ => false,
        };
        Ok(Some((key, Record { object: Some(object), commit: commit.map(Arc::new), present, stamp: 0 })))
    }

    fn install(
        &self,
        mut records: HashMap<CommitKey, Record>,
        manifest: Option<Loaded>,
        folded: &HashMap<(SplitKey, Generation), Arc<PartMeta>>,
        begun: u64,
    ) -> PartIndex {
        let mut listing = self.listing.lock();
        // Commits that this process added after the listing had begun.
        for (key, record) in &listing.records {
            if record.stamp > begun && !records.contains_key(key) {
                let newer = records.keys().any(|k| k.0 == key.0 && k.1 >= key.1);
                if !newer {
                    records.retain(|k, _| k.0 != key.0);
                    records.insert(key.clone(), record.clone());
                }
            }
        }
        let mut parts = HashMap::with_capacity(records.len());
        listing.uncovered = 0;
        listing.highest.clear();
        for (key, record) in &records {
            listing.highest.insert(key.0, key.1);
            if let (Some(Commit::Part(meta)), true) = (record.commit.as_deref(), record.present) {
                let covered = folded.get(&(key.0, key.1)).is_some_and(|m| m.attempt == meta.attempt);
                listing.uncovered += usize::from(!covered);
                // An unchanged part keeps its allocation from the index before.
                let same = listing.index.parts.get(&key.0).filter(|m| ***m == *meta);
                parts.insert(key.0, same.cloned().unwrap_or_else(|| Arc::new(meta.clone())));
            }
        }
        let described =
            manifest.as_ref().and_then(|m| m.manifest.as_ref()).map(|m| Arc::clone(&m.description));
        let description = described.or_else(|| listing.index.description.clone());
        listing.index = PartIndex { parts: Arc::new(parts), description };
        listing.records = records;
        listing.manifest = manifest;
        listing.listed = true;
        listing.index.clone()
    }

    /// Adds a record that this process wrote, or read outside a listing.
    pub(super) fn add_record(&self, key: CommitKey, commit: Commit, present: bool) {
        let mut listing = self.listing.lock();
        let highest = listing.highest.get(&key.0).copied().unwrap_or(0);
        if highest > key.1 {
            return;
        }
        listing.records.retain(|k, _| k.0 != key.0);
        listing.highest.insert(key.0, key.1);
        let parts = Arc::make_mut(&mut listing.index.parts);
        match &commit {
            Commit::Part(meta) if present => {
                parts.insert(key.0, Arc::new(meta.clone()));
                listing.uncovered += 1;
            }
            _ => {
                parts.remove(&key.0);
            }
        }
        listing.stamps += 1;
        let stamp = listing.stamps;
        listing.records.insert(key, Record { object: None, commit: Some(Arc::new(commit)), present, stamp });
    }
}

fn listed_bytes(scan: &Scan, meta: &PartMeta) -> Option<u64> {
    scan.parts.get(&(meta.split, meta.attempt.clone())).map(|o| o.bytes)
}

/// The record of a listed object, if it need not be read: because it was read before, or because the manifest has it.
fn reuse_record(
    old: &HashMap<CommitKey, Record>,
    folded: &HashMap<(SplitKey, Generation), Arc<PartMeta>>,
    scan: &Scan,
    key: &CommitKey,
    object: &Listed,
) -> Option<Record> {
    let is_listed = |meta: &PartMeta| listed_bytes(scan, meta) == Some(meta.bytes);
    if let Some(record) = old.get(key) {
        let same = record.object.as_ref().is_none_or(|o| o == object);
        match record.commit.as_deref() {
            Some(Commit::Part(meta)) if same && is_listed(meta) => {
                return Some(Record { object: Some(object.clone()), present: true, ..record.clone() });
            }
            Some(Commit::Part(meta)) if same && listed_bytes(scan, meta).is_some() => {
                return Some(Record { object: Some(object.clone()), present: false, ..record.clone() });
            }
            // A part that is not listed was looked for when its record was read. It is not looked for again.
            Some(Commit::Part(_)) if same && record.object.is_some() && !record.present => {
                return Some(record.clone());
            }
            Some(Commit::Part(_)) => {}
            Some(Commit::Void { .. }) | None if same => {
                return Some(Record { object: Some(object.clone()), ..record.clone() });
            }
            _ => {}
        }
    }
    let meta = folded.get(&(key.0, key.1)).filter(|m| is_listed(m) && is_consistent(m))?;
    if key.2.as_ref().is_some_and(|attempt| attempt != &meta.attempt) {
        return None;
    }
    let commit = Some(Arc::new(Commit::Part(meta.as_ref().clone())));
    Some(Record { object: Some(object.clone()), commit, present: true, stamp: 0 })
}

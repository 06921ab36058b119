//! What this process knows about one snapshot, and how it finds out.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use caju_types::{Fingerprint, Result, SplitKey};
use futures::{StreamExt, TryStreamExt};
use parking_lot::Mutex;

use super::{PartIndex, Uses};
use crate::Cache;
use crate::layout::Generation;
use crate::manifest::{Loaded, Manifest, consistent, load_commit};
use crate::record::{Commit, PartMeta, seal, unseal};
use crate::scan::{CommitKey, Scan};
use crate::store::{Created, Listed, Root};
use crate::write::Committed;

/// Records that are read at once.
const READS: usize = 16;

/// A commit record that was read or written.
#[derive(Debug, Clone)]
struct Record {
    /// The object that it was read from; none for our own until it is listed.
    object: Option<Listed>,
    /// None if it could not be understood.
    commit: Option<Arc<Commit>>,
    /// Whether its part is where it should be.
    present: bool,
    /// When this process wrote or met it, by its own count; 0 for records that were listed.
    stamp: u64,
}

#[derive(Debug, Default)]
pub(super) struct Known {
    listed: bool,
    /// The valid record of every split.
    records: HashMap<CommitKey, Record>,
    highest: HashMap<SplitKey, Generation>,
    pub(super) index: PartIndex,
    /// The newest manifest that can be understood.
    pub(super) manifest: Option<Loaded>,
    /// The numbers of all manifests, those that cannot be understood too.
    pub(super) manifests: BTreeSet<u64>,
    /// Objects in which processes say what they read.
    pub(super) uses: usize,
    /// Records that the manifest does not cover.
    pub(super) uncovered: usize,
    stamps: u64,
}

/// The state of one snapshot in this process.
#[derive(Debug)]
pub(crate) struct SnapshotState {
    pub(crate) of: Fingerprint,
    pub(super) known: Mutex<Known>,
    refreshing: tokio::sync::Mutex<()>,
    pub(super) folding: tokio::sync::Mutex<()>,
    /// Splits that tasks of this process write now.
    pub(super) active: Mutex<HashSet<SplitKey>>,
    /// What this process read, and whether that is still to be said.
    pub(super) uses: Mutex<(Uses, bool)>,
}

impl SnapshotState {
    pub(crate) fn new(of: Fingerprint) -> Self {
        Self {
            of,
            known: Mutex::default(),
            refreshing: tokio::sync::Mutex::new(()),
            folding: tokio::sync::Mutex::new(()),
            active: Mutex::default(),
            uses: Mutex::default(),
        }
    }

    pub(crate) fn known_part(&self, split: SplitKey) -> Option<Arc<PartMeta>> {
        self.known.lock().index.parts.get(&split).cloned()
    }

    pub(super) fn is_listed(&self) -> bool {
        self.known.lock().listed
    }

    /// The generation that a new commit of the split would have.
    pub(super) fn next_generation(&self, split: SplitKey) -> Generation {
        self.known.lock().highest.get(&split).copied().unwrap_or(0) + 1
    }

    /// Forgets everything: after a removal.
    pub(crate) fn forget(&self) {
        let mut known = self.known.lock();
        let stamps = known.stamps;
        *known = Known { stamps, ..Known::default() };
    }

    pub(crate) async fn refresh(&self, cache: &Cache) -> Result<PartIndex> {
        let _turn = self.refreshing.lock().await;
        let root = &cache.root;
        let begun = self.known.lock().stamps;
        let scan = Scan::of(&root.layout, self.of, root.list(&root.layout.folder(self.of)).await?);
        let manifest = self.newest_manifest(root, &scan).await?;
        let folded = manifest.as_ref().and_then(|m| m.manifest.as_ref()).map(|m| m.by_key());
        let folded = folded.unwrap_or_default();

        let old = self.known.lock().records.clone();
        let mut records = HashMap::new();
        let mut unknown = Vec::new();
        for (key, object) in scan.winners().into_values() {
            if let Some(record) = remembered(&old, &folded, &scan, key, object) {
                records.insert(key.clone(), record);
            } else {
                unknown.push((key.clone(), object.clone()));
            }
        }
        let read = futures::stream::iter(unknown)
            .map(|(key, object)| async { self.read_record(root, &scan, key, object).await })
            .buffer_unordered(READS)
            .try_collect::<Vec<_>>()
            .await?;
        records.extend(read.into_iter().flatten());
        let index = self.install(records, manifest, &folded, begun);
        let mut known = self.known.lock();
        known.manifests.extend(scan.manifests.keys());
        known.uses = scan.uses.len();
        Ok(index)
    }

    /// The newest manifest that can be understood, read anew only if it changed.
    async fn newest_manifest(&self, root: &Root, scan: &Scan) -> Result<Option<Loaded>> {
        let old = self.known.lock().manifest.clone();
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
        // Gone since the listing: as if it had never been.
        let Some(commit) = load_commit(root, self.of, &object).await? else { return Ok(None) };
        let present = match &commit {
            Some(Commit::Part(meta)) => match listed_bytes(scan, meta) {
                Some(bytes) => bytes == meta.bytes,
                // A listing is not one moment: the part may have come after its place had passed.
                None => present(root, meta).await?,
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
        let mut known = self.known.lock();
        // Commits of this process that the listing was too early for.
        for (key, record) in &known.records {
            if record.stamp > begun && !records.contains_key(key) {
                let newer = records.keys().any(|k| k.0 == key.0 && k.1 >= key.1);
                if !newer {
                    records.retain(|k, _| k.0 != key.0);
                    records.insert(key.clone(), record.clone());
                }
            }
        }
        let mut parts = HashMap::with_capacity(records.len());
        known.uncovered = 0;
        known.highest.clear();
        for (key, record) in &records {
            known.highest.insert(key.0, key.1);
            if let (Some(Commit::Part(meta)), true) = (record.commit.as_deref(), record.present) {
                let covered = folded.get(&(key.0, key.1)).is_some_and(|m| m.attempt == meta.attempt);
                known.uncovered += usize::from(!covered);
                // Shared with the index before, where nothing changed.
                let same = known.index.parts.get(&key.0).filter(|m| ***m == *meta);
                parts.insert(key.0, same.cloned().unwrap_or_else(|| Arc::new(meta.clone())));
            }
        }
        let described =
            manifest.as_ref().and_then(|m| m.manifest.as_ref()).map(|m| Arc::clone(&m.description));
        let description = described.or_else(|| known.index.description.clone());
        known.index = PartIndex { parts: Arc::new(parts), description };
        known.records = records;
        known.manifest = manifest;
        known.listed = true;
        known.index.clone()
    }

    /// Adds a record that this process wrote or met.
    fn learn(&self, key: CommitKey, commit: Commit, present: bool) {
        let mut known = self.known.lock();
        let highest = known.highest.get(&key.0).copied().unwrap_or(0);
        if highest > key.1 {
            return;
        }
        known.records.retain(|k, _| k.0 != key.0);
        known.highest.insert(key.0, key.1);
        let parts = Arc::make_mut(&mut known.index.parts);
        match &commit {
            Commit::Part(meta) if present => {
                parts.insert(key.0, Arc::new(meta.clone()));
                known.uncovered += 1;
            }
            _ => {
                parts.remove(&key.0);
            }
        }
        known.stamps += 1;
        let stamp = known.stamps;
        known.records.insert(key, Record { object: None, commit: Some(Arc::new(commit)), present, stamp });
    }

    /// What stands at a generation of a split, and whether it is a part that can be read.
    pub(super) async fn look(
        &self,
        root: &Root,
        split: SplitKey,
        generation: Generation,
        bytes: Option<&[u8]>,
    ) -> Result<Seat> {
        let path = root.layout.commit(self.of, split, generation, None);
        let fetched;
        let bytes = match bytes {
            Some(bytes) => bytes,
            None => match root.get(&path).await? {
                Some(bytes) => {
                    fetched = bytes;
                    &fetched
                }
                None => return Ok(Seat::Free),
            },
        };
        match unseal::<Commit>(bytes) {
            Ok(Commit::Part(meta))
                if meta.fingerprint == self.of
                    && meta.split == split
                    && meta.generation == generation
                    && consistent(&meta)
                    && present(root, &meta).await? =>
            {
                self.learn((split, generation, None), Commit::Part(meta.clone()), true);
                Ok(Seat::Part(Arc::new(meta)))
            }
            _ => Ok(Seat::Useless),
        }
    }

    /// Makes a part count, unless another does.
    pub(crate) async fn commit(&self, cache: &Cache, mut meta: PartMeta) -> Result<Committed> {
        let root = &cache.root;
        if !root.conditional() {
            return self.commit_unconditionally(cache, meta).await;
        }
        loop {
            let path = root.layout.commit(self.of, meta.split, meta.generation, None);
            match root.create(&path, seal(&Commit::Part(meta.clone()))?.into()).await? {
                Created::Yes => break,
                Created::Taken(theirs) => {
                    match self.look(root, meta.split, meta.generation, Some(&theirs)).await? {
                        Seat::Part(winner) => return Ok(Committed::Lost(winner)),
                        Seat::Useless | Seat::Free => meta.generation += 1,
                    }
                }
            }
        }
        self.learn((meta.split, meta.generation, None), Commit::Part(meta.clone()), true);
        let meta = Arc::new(meta);
        if self.known.lock().uncovered >= cache.options.fold_after
            && let Err(error) = self.fold(cache).await
        {
            tracing::warn!(%error, "the records of a snapshot could not be folded into a manifest");
        }
        Ok(Committed::Ours(meta))
    }

    async fn commit_unconditionally(&self, cache: &Cache, meta: PartMeta) -> Result<Committed> {
        let root = &cache.root;
        let path = root.layout.commit(self.of, meta.split, meta.generation, Some(&meta.attempt));
        root.put(&path, seal(&Commit::Part(meta.clone()))?.into()).await?;
        let index = self.refresh(cache).await?;
        match index.get(&meta.split) {
            Some(winner) if winner.attempt != meta.attempt => {
                root.delete(&path).await?;
                Ok(Committed::Lost(Arc::clone(winner)))
            }
            _ => Ok(Committed::Ours(Arc::new(meta))),
        }
    }

    /// Puts an empty generation on top of a bad part.
    pub(super) async fn withdraw(&self, cache: &Cache, meta: &PartMeta, why: &str) -> Result<()> {
        let root = &cache.root;
        let (split, generation) = (meta.split, meta.generation + 1);
        let attempt = root.unique("void");
        let void = Commit::Void { split, generation, attempt: attempt.clone(), why: why.to_string() };
        let name = (!root.conditional()).then_some(attempt.as_str());
        let path = root.layout.commit(self.of, split, generation, name);
        if let Created::Yes = root.create(&path, seal(&void)?.into()).await? {
            self.learn((split, generation, name.map(str::to_string)), void, false);
        } else {
            // Somebody else has withdrawn or replaced it.
            self.refresh(cache).await?;
        }
        Ok(())
    }
}

/// What stands where a commit record would go.
pub(super) enum Seat {
    Free,
    Part(Arc<PartMeta>),
    /// A void, a damaged record, or one whose part is gone: the next generation supersedes it.
    Useless,
}

fn listed_bytes(scan: &Scan, meta: &PartMeta) -> Option<u64> {
    scan.parts.get(&(meta.split, meta.attempt.clone())).map(|o| o.bytes)
}

/// Whether the object of a part is there, with its length.
async fn present(root: &Root, meta: &PartMeta) -> Result<bool> {
    let found = root.head(&root.layout.absolute(&meta.path)).await?;
    Ok(found.is_some_and(|o| o.bytes == meta.bytes))
}

/// The record of a commit if it need not be read: it was before, or the manifest has it.
fn remembered(
    old: &HashMap<CommitKey, Record>,
    folded: &HashMap<(SplitKey, Generation), Arc<PartMeta>>,
    scan: &Scan,
    key: &CommitKey,
    object: &Listed,
) -> Option<Record> {
    let fits = |meta: &PartMeta| listed_bytes(scan, meta) == Some(meta.bytes);
    if let Some(record) = old.get(key) {
        let same = record.object.as_ref().is_none_or(|o| o == object);
        match record.commit.as_deref() {
            Some(Commit::Part(meta)) if same && fits(meta) => {
                return Some(Record { object: Some(object.clone()), present: true, ..record.clone() });
            }
            Some(Commit::Part(meta)) if same && listed_bytes(scan, meta).is_some() => {
                return Some(Record { object: Some(object.clone()), present: false, ..record.clone() });
            }
            // Not listed: looked for once, when the record was read.
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
    let meta = folded.get(&(key.0, key.1)).filter(|m| fits(m) && consistent(m))?;
    if key.2.as_ref().is_some_and(|attempt| attempt != &meta.attempt) {
        return None;
    }
    let commit = Some(Arc::new(Commit::Part(meta.as_ref().clone())));
    Some(Record { object: Some(object.clone()), commit, present: true, stamp: 0 })
}

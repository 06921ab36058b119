//! A listing of a snapshot's folder, sorted by kind of object.

use std::collections::{BTreeMap, HashMap};

use caju_types::{Fingerprint, SplitKey};

use crate::layout::{Generation, Layout, Object};
use crate::store::Listed;

/// Names a commit record: split, generation, and the attempt where names carry it.
pub(crate) type CommitKey = (SplitKey, Generation, Option<String>);

/// The objects of one snapshot.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    pub(crate) manifests: BTreeMap<u64, Listed>,
    pub(crate) parts: HashMap<(SplitKey, String), Listed>,
    pub(crate) commits: HashMap<CommitKey, Listed>,
    pub(crate) claims: HashMap<SplitKey, Vec<Listed>>,
    pub(crate) uses: Vec<Listed>,
    pub(crate) sets: Vec<Listed>,
    pub(crate) pinned: bool,
    pub(crate) bytes: u64,
}

impl Scan {
    /// Sorts the objects of one snapshot.
    pub(crate) fn of(layout: &Layout, of: Fingerprint, objects: Vec<Listed>) -> Self {
        let mut scan = Self::default();
        for object in objects {
            if let Some((found, what)) = layout.parse(&object.path)
                && found == of
            {
                scan.add(what, object);
            }
        }
        scan
    }

    /// Sorts the objects of a whole root by snapshot.
    pub(crate) fn all(layout: &Layout, objects: Vec<Listed>) -> BTreeMap<Fingerprint, Scan> {
        let mut scans: BTreeMap<Fingerprint, Scan> = BTreeMap::new();
        for object in objects {
            if let Some((of, what)) = layout.parse(&object.path) {
                scans.entry(of).or_default().add(what, object);
            }
        }
        scans
    }

    fn add(&mut self, what: Object, object: Listed) {
        self.bytes += object.bytes;
        match what {
            Object::Manifest(n) => {
                self.manifests.insert(n, object);
            }
            Object::Part { split, attempt } => {
                self.parts.insert((split, attempt), object);
            }
            Object::Commit { split, generation, attempt } => {
                // One record may have two names, if writers of two versions ran concurrently. The older object counts.
                let older =
                    |there: &Listed| (there.modified_ms, &there.path) <= (object.modified_ms, &object.path);
                let key = (split, generation, attempt);
                if !self.commits.get(&key).is_some_and(older) {
                    self.commits.insert(key, object);
                }
            }
            Object::Claim { split, .. } => {
                self.claims.entry(split).or_default().push(object);
            }
            Object::Use(_) => self.uses.push(object),
            // Its name has the time of the last use among the records that it sums up. The object itself is younger.
            Object::UsesUntil(modified_ms) => self.uses.push(Listed { modified_ms, ..object }),
            Object::Set => self.sets.push(object),
            Object::Pin => self.pinned = true,
            Object::Other => {}
        }
    }

    /// The valid commit record of every split: the one of the highest generation. On stores without conditional puts one
    /// generation may have several records; the oldest by the store's clock is valid, and of equally old ones the first by
    /// name.
    pub(crate) fn winners(&self) -> HashMap<SplitKey, (&CommitKey, &Listed)> {
        let mut best: HashMap<SplitKey, (&CommitKey, &Listed)> = HashMap::new();
        for (key, object) in &self.commits {
            let rank = |k: &CommitKey, o: &Listed| {
                (std::cmp::Reverse(k.1), o.modified_ms, o.path.as_ref().to_string())
            };
            match best.get(&key.0) {
                Some((k, o)) if rank(k, o) <= rank(key, object) => {}
                _ => {
                    best.insert(key.0, (key, object));
                }
            }
        }
        best
    }

    /// When anything was last written or used, by the store's clock.
    pub(crate) fn last_change_ms(&self) -> i64 {
        let all = self.manifests.values().chain(self.commits.values()).chain(self.uses.iter());
        all.map(|o| o.modified_ms).max().unwrap_or(i64::MIN)
    }

    /// When the snapshot was last recorded as used, or a part committed, by the store's clock.
    pub(crate) fn last_use_ms(&self) -> Option<i64> {
        self.uses.iter().chain(self.commits.values()).map(|o| o.modified_ms).max()
    }
}

//! Listings of sources of which no snapshot has rows any more.

use std::collections::{BTreeMap, HashSet};

use caju_types::{Fingerprint, Result, SplitKey};
use serde::Deserialize;

use crate::Cache;
use crate::listing::SourceListing;
use crate::record::unseal;
use crate::scan::Scan;
use crate::store::Listed;

/// What is read of a split to look for its parts.
#[derive(Deserialize)]
struct Key {
    key: SplitKey,
}

/// What snapshots have rows of. Of a set only its parts are known by name, so where there is one, any listing may be
/// that of its source.
struct Stored {
    splits: HashSet<SplitKey>,
    sets: bool,
}

impl Stored {
    fn of<'a>(scans: impl Iterator<Item = &'a Scan>) -> Self {
        let mut stored = Self { splits: HashSet::new(), sets: false };
        for scan in scans {
            stored.splits.extend(scan.commits.keys().map(|(split, ..)| *split));
            stored.sets |= !scan.sets.is_empty();
        }
        stored
    }

    fn has_some_of(&self, splits: &[SplitKey]) -> bool {
        splits.iter().any(|key| self.splits.contains(key))
    }
}

/// The splits that a listing names; none if it cannot be understood.
async fn splits(cache: &Cache, object: &Listed) -> Result<Option<Vec<SplitKey>>> {
    let Some(bytes) = cache.root.get(&object.path).await? else { return Ok(None) };
    let Ok(listing) = unseal::<SourceListing>(&bytes) else { return Ok(None) };
    let key = |split: &String| serde_json::from_str::<Key>(split).ok().map(|k| k.key);
    Ok(listing.splits.iter().map(key).collect())
}

/// Old listings of which these snapshots have no rows.
pub(super) async fn listings(
    cache: &Cache,
    snapshots: &BTreeMap<Fingerprint, Scan>,
    old: &impl Fn(&Listed) -> bool,
) -> Result<Vec<Listed>> {
    let stored = Stored::of(snapshots.values());
    let mut unused = Vec::new();
    if !stored.sets {
        for object in cache.root.list(&cache.root.layout.listings()).await?.into_iter().filter(|o| old(o)) {
            let named = splits(cache, &object).await?;
            if named.is_some_and(|splits| !stored.has_some_of(&splits)) {
                unused.push(object);
            }
        }
    }
    Ok(unused)
}

/// Listings of which one snapshot has rows and no other one.
pub(super) async fn after_removal(cache: &Cache, of: Fingerprint, scan: &Scan) -> Result<Vec<Listed>> {
    let mut others = cache.scan_all().await?;
    others.remove(&of);
    let theirs = Stored::of(others.values());
    let (mut unused, ours) = (Vec::new(), Stored::of(std::iter::once(scan)));
    for object in cache.root.list(&cache.root.layout.listings()).await? {
        let Some(splits) = splits(cache, &object).await? else { continue };
        let last = ours.has_some_of(&splits) && !theirs.sets && !theirs.has_some_of(&splits);
        if last || others.is_empty() {
            unused.push(object);
        }
    }
    Ok(unused)
}

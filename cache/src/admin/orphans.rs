//! Orphaned listings: stored listings of sources of which no snapshot has rows any more.

use std::collections::{BTreeMap, HashSet};

use caju_types::{Fingerprint, Result, SplitKey};
use serde::Deserialize;

use crate::context::Context;
use crate::listing::SourceListing;
use crate::scan::Scan;
use crate::store::{Listed, Root};

/// The field of a listed split that names its parts.
#[derive(Deserialize)]
struct Key {
    key: SplitKey,
}

/// The splits of which snapshots have rows. The parts of a set do not name their splits. So where there is a set, any
/// listing may be that of its source.
struct Coverage {
    splits: HashSet<SplitKey>,
    sets: bool,
}

impl Coverage {
    fn of<'a>(scans: impl Iterator<Item = &'a Scan>) -> Self {
        let mut coverage = Self { splits: HashSet::new(), sets: false };
        for scan in scans {
            coverage.splits.extend(scan.commits.keys().map(|(split, ..)| *split));
            coverage.sets |= !scan.sets.is_empty();
        }
        coverage
    }

    fn covers_any(&self, splits: &[SplitKey]) -> bool {
        splits.iter().any(|key| self.splits.contains(key))
    }
}

/// The splits that a listing names; none if it is damaged.
async fn splits(root: &Root, object: &Listed) -> Result<Option<Vec<SplitKey>>> {
    let Some(Ok(listing)) = root.read_record::<SourceListing>(&object.path).await? else { return Ok(None) };
    let key = |split: &String| serde_json::from_str::<Key>(split).ok().map(|k| k.key);
    Ok(listing.splits.iter().map(key).collect())
}

/// The listings that are `old` and of which these snapshots have no rows.
pub(super) async fn listings(
    root: &Root,
    snapshots: &BTreeMap<Fingerprint, Scan>,
    old: &impl Fn(&Listed) -> bool,
) -> Result<Vec<Listed>> {
    let coverage = Coverage::of(snapshots.values());
    let mut orphans = Vec::new();
    if !coverage.sets {
        for object in root.list(&root.layout.listings()).await?.into_iter().filter(|o| old(o)) {
            let named = splits(root, &object).await?;
            if named.is_some_and(|splits| !coverage.covers_any(&splits)) {
                orphans.push(object);
            }
        }
    }
    Ok(orphans)
}

/// The listings of which this snapshot alone has rows.
pub(super) async fn after_removal(ctx: &Context, of: Fingerprint, scan: &Scan) -> Result<Vec<Listed>> {
    let mut others = ctx.scan_all().await?;
    others.remove(&of);
    let theirs = Coverage::of(others.values());
    let (mut orphans, ours) = (Vec::new(), Coverage::of(std::iter::once(scan)));
    for object in ctx.root.list(&ctx.root.layout.listings()).await? {
        let Some(splits) = splits(&ctx.root, &object).await? else { continue };
        let last = ours.covers_any(&splits) && !theirs.sets && !theirs.covers_any(&splits);
        if last || others.is_empty() {
            orphans.push(object);
        }
    }
    Ok(orphans)
}

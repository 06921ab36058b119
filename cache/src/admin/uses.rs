//! What processes said they read, summed up: one object per process would be there for as long as the snapshot.

use std::collections::HashSet;

use bytes::Bytes;
use caju_types::{Fingerprint, Result};
use object_store::path::Path;

use crate::Cache;
use crate::record::{seal, unseal};
use crate::scan::Scan;
use crate::snapshot::Uses;
use crate::store::{Listed, Root};

/// Objects of processes that are gone from which on whoever closes a cache sums them up.
const MANY: usize = 16;

/// A sum, and the objects that it takes the place of. Written before those are deleted, and it names them: what a
/// crash leaves is not counted twice.
pub(super) struct Folded {
    pub(super) path: Path,
    pub(super) body: Bytes,
    pub(super) gone: Vec<Listed>,
}

fn id(object: &Listed) -> &str {
    object.path.filename().unwrap_or_default().trim_end_matches(".json")
}

async fn read(root: &Root, scan: &Scan) -> Result<Vec<(Listed, Uses)>> {
    let mut all = Vec::new();
    for object in &scan.uses {
        if let Some(bytes) = root.get(&object.path).await? {
            all.push((object.clone(), unseal::<Uses>(&bytes).unwrap_or_default()));
        }
    }
    let folded: HashSet<String> = all.iter().flat_map(|(_, uses)| uses.folds.iter().cloned()).collect();
    for (object, uses) in &mut all {
        if folded.contains(id(object)) {
            *uses = Uses::default();
        }
    }
    Ok(all)
}

/// What was read from a snapshot so far, by all processes.
pub(super) async fn of(root: &Root, scan: &Scan) -> Result<Uses> {
    let mut sum = Uses::default();
    read(root, scan).await?.iter().for_each(|(_, uses)| sum.add(uses));
    Ok(sum)
}

/// Sums up what processes said that are gone, if that makes fewer objects.
pub(super) async fn fold(
    root: &Root,
    of: Fingerprint,
    scan: &Scan,
    gone: impl Fn(&str, &Listed) -> bool,
) -> Result<Option<Folded>> {
    let count = scan.uses.iter().filter(|o| gone(id(o), o)).count();
    if count < 2 {
        return Ok(None);
    }
    let mut all = read(root, scan).await?;
    all.retain(|(object, _)| gone(id(object), object));
    let mut sum = Uses::default();
    all.iter().for_each(|(_, uses)| sum.add(uses));
    let until = all.iter().map(|(object, _)| object.modified_ms).max().unwrap_or(0);
    let path = root.layout.uses_until(of, until);
    let mut gone: Vec<Listed> = all.into_iter().map(|(object, _)| object).collect();
    gone.retain(|object| object.path != path);
    sum.folds = gone.iter().map(|object| id(object).to_string()).collect();
    Ok(Some(Folded { path, body: seal(&sum)?.into(), gone }))
}

impl Cache {
    /// Sums up what processes without a lease said that they read, where there is a lot of it.
    pub(crate) async fn fold_uses(&self, of: Fingerprint) -> Result<()> {
        if self.is_read_only() || self.state(of).uses_seen() < MANY {
            return Ok(());
        }
        let root = &self.root;
        let scan = Scan::of(&root.layout, of, root.list(&root.layout.folder(of)).await?);
        let leased: HashSet<String> =
            root.list(&root.layout.writers()).await?.iter().map(|o| id(o).to_string()).collect();
        let gone = |id: &str, _: &Listed| !leased.contains(id) && id != self.leases.id();
        if let Some(folded) = fold(root, of, &scan, gone).await? {
            root.put(&folded.path, folded.body).await?;
            root.delete_all(folded.gone.into_iter().map(|o| o.path).collect()).await?;
        }
        Ok(())
    }
}

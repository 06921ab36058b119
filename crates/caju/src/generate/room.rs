//! Making room for sample data, and clearing it away: nothing else is ever removed.

use std::collections::BTreeSet;
use std::path::Path as LocalPath;

use caju_runtime::stores::{Location, store_error};
use caju_types::{Error, Result};
use clap::ValueEnum;
use futures::{StreamExt, TryStreamExt, future};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

use super::layout::{Layout, MARKER, Marker, is_class, is_staging};
use super::{Format, Plan};

/// Requests that delete at once.
const DELETES: usize = 8;

/// The note in a folder, if it is one of ours.
///
/// # Errors
/// What the store says, but not `NotFound`.
pub(super) async fn marker(at: &Location) -> Result<Option<Marker>> {
    match at.store.get(&at.path.clone().join(MARKER)).await {
        Ok(found) => {
            let bytes = found.bytes().await.map_err(|e| store_error(&at.url, e))?;
            Ok(serde_json::from_slice(&bytes).ok())
        }
        Err(object_store::Error::NotFound { .. }) => Ok(None),
        Err(e) => Err(store_error(&at.url, e)),
    }
}

/// Whether the folder is still to be made.
///
/// # Errors
/// `InvalidArgument` for a place where no folder can be, because a file is there.
pub(super) fn is_new(at: &Location) -> Result<bool> {
    let Some(local) = &at.local else { return Ok(false) };
    for folder in local.ancestors() {
        match std::fs::metadata(folder) {
            Ok(m) if m.is_dir() => return Ok(folder != local),
            Ok(_) => {
                return Err(Error::invalid(format!(
                    "{}: {} is a file, and sample data needs a folder; choose another folder",
                    at.url,
                    folder.display()
                )));
            }
            Err(_) => {}
        }
    }
    Ok(true)
}

/// Refuses a folder that is not empty; with `overwrite`, removes the data set that the note there stands for.
///
/// # Errors
/// `AlreadyExists` for a folder that holds anything else that is in the way, and what the store says.
pub(super) async fn make_room(plan: &Plan, at: &Location) -> Result<()> {
    let Some(name) = first(at).await? else {
        return sweep(at, &BTreeSet::new());
    };
    let Some((marker, old)) = marker(at).await?.and_then(|m| m.layout().map(|l| (m, l))) else {
        let way_out = match plan.overwrite {
            true => "--overwrite removes nothing here; choose another folder, or remove the files yourself",
            false => "choose another folder",
        };
        return Err(Error::already_exists(format!(
            "{}: not empty (it holds {name}), and no {MARKER} says that `caju gen` wrote it; {way_out}",
            at.url
        )));
    };
    if !plan.overwrite {
        let what = match marker.complete {
            true => format!("not empty (it holds {name})"),
            false => "not empty: `caju gen` was cut off here, or is still at work".to_string(),
        };
        return Err(Error::already_exists(format!(
            "{}: {what}; choose another folder, or replace sample data with --overwrite",
            at.url
        )));
    }
    let held = survey(at, &old, &Layout::of(plan)).await?;
    clear_but(&old, &held, at).await
}

/// Removes a data set: its files, what uploads left, the folders that this empties or that were not there `before`,
/// and last the note.
///
/// # Errors
/// What the store says.
pub(super) async fn clear(layout: &Layout, before: &BTreeSet<String>, at: &Location) -> Result<()> {
    clear_but(layout, &BTreeSet::new(), at).await?;
    if let Some(local) = &at.local {
        // An aborted upload leaves the folder that it made.
        for folder in inner_folders(at).iter().rev().filter(|f| !before.contains(*f) && layout.has_folder(f))
        {
            drop(std::fs::remove_dir(local.join(folder)));
        }
    }
    Ok(())
}

/// The folders below a local one that some data set could put files into.
pub(super) fn inner_folders(at: &Location) -> BTreeSet<String> {
    let Some(local) = &at.local else { return BTreeSet::new() };
    let formats = Format::value_variants().iter().map(|f| f.name().to_string());
    let classes = ["", Format::Files.name()].into_iter().flat_map(|base| classes(local, base));
    formats.filter(|f| local.join(f).is_dir()).chain(classes).collect()
}

/// The name of some file in the folder.
async fn first(at: &Location) -> Result<Option<String>> {
    let found =
        at.store.list(Some(&at.path)).next().await.transpose().map_err(|e| store_error(&at.url, e))?;
    Ok(found.map(|meta| below(at, &meta.location)))
}

/// A file's name relative to the folder.
fn below(at: &Location, path: &Path) -> String {
    let parts: Vec<_> = path.prefix_match(&at.path).into_iter().flatten().collect();
    parts.iter().map(AsRef::as_ref).collect::<Vec<&str>>().join("/")
}

/// The folders above a relative name, outermost first: `files`, `files/c001`.
fn folders(name: &str) -> impl Iterator<Item = &str> {
    name.match_indices('/').map(|(i, _)| &name[..i])
}

/// Whether a folder below the data set's own is a link to somewhere else.
fn is_link(at: &Location, folder: &str) -> bool {
    let meta = at.local.as_ref().and_then(|local| std::fs::symlink_metadata(local.join(folder)).ok());
    meta.is_some_and(|m| m.is_symlink())
}

/// Looks at everything before anything is removed. Gives the folders below that belong to somebody else: data sets of
/// their own, and links.
async fn survey(at: &Location, old: &Layout, new: &Layout) -> Result<BTreeSet<String>> {
    let in_the_way = |what: String| {
        Error::already_exists(format!(
            "{}: {what}, and would be written over; choose another folder, or move it away",
            at.url
        ))
    };
    let (mut held, mut seen) = (BTreeSet::new(), BTreeSet::new());
    let mut listing = at.store.list(Some(&at.path));
    while let Some(meta) = listing.next().await {
        let name = below(at, &meta.map_err(|e| store_error(&at.url, e))?.location);
        if let Some(folder) = name.strip_suffix(MARKER).and_then(|f| f.strip_suffix('/')) {
            held.insert(folder.to_string());
        } else if !old.holds(&name) && new.holds(&name) {
            return Err(in_the_way(format!("{name} is not of the sample data that {MARKER} tells of")));
        }
        for folder in folders(&name) {
            if (old.has_folder(folder) || new.has_folder(folder)) && seen.insert(folder.to_string()) {
                held.extend(is_link(at, folder).then(|| folder.to_string()));
            }
        }
    }
    match held.iter().find(|f| new.has_folder(f)) {
        Some(folder) => Err(in_the_way(format!("{folder}/ is a data set of its own, or a link"))),
        None => Ok(held),
    }
}

async fn clear_but(layout: &Layout, held: &BTreeSet<String>, at: &Location) -> Result<()> {
    let error = |e| store_error(&at.url, e);
    let ours = |name: &str| layout.holds(name) && !folders(name).any(|f| held.contains(f));
    let emptied: BTreeSet<String> = at
        .store
        .list(Some(&at.path))
        .map_err(error)
        .try_filter_map(|meta| {
            let name = below(at, &meta.location);
            future::ready(Ok(ours(&name).then_some((name, meta.location))))
        })
        .map_ok(|(name, path)| async move {
            delete(at, &path).await?;
            Ok(name)
        })
        .try_buffer_unordered(DELETES)
        .try_fold(BTreeSet::new(), |mut all, name: String| {
            all.extend(folders(&name).map(String::from));
            future::ready(Ok(all))
        })
        .await?;
    sweep(at, held)?;
    if let Some(local) = &at.local {
        // The innermost come last. A folder that holds something else refuses to go.
        for folder in emptied.iter().rev() {
            drop(std::fs::remove_dir(local.join(folder)));
        }
    }
    // While it is there, what is left can still be known as ours.
    delete(at, &at.path.clone().join(MARKER)).await
}

async fn delete(at: &Location, path: &Path) -> Result<()> {
    match at.store.delete(path).await {
        Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
        Err(e) => Err(store_error(&at.url, e)),
    }
}

/// Removes what uploads to a local folder left when they were cut off; the store itself does not list it.
fn sweep(at: &Location, held: &BTreeSet<String>) -> Result<()> {
    let Some(local) = &at.local else { return Ok(()) };
    // The innermost come first.
    for folder in inner_folders(at).into_iter().rev().chain([String::new()]) {
        let whole = format!("{folder}/");
        let other = folders(&whole).any(|f| !f.is_empty() && (held.contains(f) || is_link(at, f)));
        if !other && sweep_folder(local, &folder).map_err(|e| unremoved(at, &e))? && !folder.is_empty() {
            drop(std::fs::remove_dir(local.join(folder)));
        }
    }
    Ok(())
}

/// The folders of classes below `base`, relative to the data set's folder.
fn classes(local: &LocalPath, base: &str) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(local.join(base)) else { return Vec::new() };
    let names = entries.flatten().filter_map(|e| e.file_name().into_string().ok());
    let joined = |name: String| if base.is_empty() { name } else { format!("{base}/{name}") };
    names.filter(|name| is_class(name)).map(joined).collect()
}

/// Whether something was removed.
fn sweep_folder(local: &LocalPath, folder: &str) -> std::io::Result<bool> {
    let Ok(entries) = std::fs::read_dir(local.join(folder)) else { return Ok(false) };
    let mut removed = false;
    for entry in entries.flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let name = if folder.is_empty() { name } else { format!("{folder}/{name}") };
        if is_staging(&name) && entry.file_type().is_ok_and(|t| t.is_file()) {
            std::fs::remove_file(entry.path())?;
            removed = true;
        }
    }
    Ok(removed)
}

fn unremoved(at: &Location, e: &std::io::Error) -> Error {
    Error::permission_denied(format!("{}: what an earlier run left cannot be removed: {e}", at.url))
}

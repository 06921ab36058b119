//! The folder of a set of sample data: prepares it, and removes what a set put there. Nothing else is ever removed.

use std::collections::BTreeSet;
use std::path::Path as LocalPath;

use caju_runtime::stores::{Location, store_error};
use caju_types::{Error, Result};
use futures::{StreamExt, TryStreamExt, future};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

use crate::layout::{Layout, MARKER, Marker, is_class_folder, is_staging};
use crate::{Format, SampleSet};

/// Delete requests in flight. Few enough not to be throttled by an object store.
const CONCURRENT_DELETES: usize = 8;

/// The marker of a folder, if there is one that can be read.
///
/// # Errors
/// The errors of the store, except `NotFound`.
pub(crate) async fn read_marker(at: &Location) -> Result<Option<Marker>> {
    match at.store.get(&at.path.clone().join(MARKER)).await {
        Ok(found) => {
            let bytes = found.bytes().await.map_err(|e| store_error(&at.url, e))?;
            Ok(serde_json::from_slice(&bytes).ok())
        }
        Err(object_store::Error::NotFound { .. }) => Ok(None),
        Err(e) => Err(store_error(&at.url, e)),
    }
}

/// Whether the folder does not exist yet. Always false for an object store, which has no folders.
///
/// # Errors
/// `InvalidArgument` if the path of the folder, or of one above it, is a file.
pub(crate) fn is_absent(at: &Location) -> Result<bool> {
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

/// Refuses a folder that is not empty. With `overwrite`, removes the set that the marker there describes.
///
/// # Errors
/// `AlreadyExists` for a folder with other files in the way, and the errors of the store.
pub(crate) async fn prepare(set: &SampleSet, at: &Location) -> Result<()> {
    let Some(name) = first_name(at).await? else {
        return remove_staging_files(at, &BTreeSet::new());
    };
    let Some((marker, old)) = read_marker(at).await?.and_then(|m| m.layout().map(|l| (m, l))) else {
        let way_out = match set.overwrite {
            true => "--overwrite removes nothing here; choose another folder, or remove the files yourself",
            false => "choose another folder",
        };
        return Err(Error::already_exists(format!(
            "{}: not empty (it holds {name}), and no {MARKER} says that `caju gen` wrote it; {way_out}",
            at.url
        )));
    };
    if !set.overwrite {
        let what = match marker.complete {
            true => format!("not empty (it holds {name})"),
            false => "not empty: `caju gen` was cut off here, or is still at work".to_string(),
        };
        return Err(Error::already_exists(format!(
            "{}: {what}; choose another folder, or replace sample data with --overwrite",
            at.url
        )));
    }
    let foreign = foreign_folders(at, &old, &Layout::of(set)).await?;
    remove_except(&old, &foreign, at).await
}

/// Removes a set: its files, the staging files of its uploads, the folders that this empties or that are not in
/// `before`, and the marker last.
///
/// # Errors
/// The errors of the store.
pub(crate) async fn remove(layout: &Layout, before: &BTreeSet<String>, at: &Location) -> Result<()> {
    remove_except(layout, &BTreeSet::new(), at).await?;
    if let Some(local) = &at.local {
        // An aborted upload leaves the folder that it created.
        for folder in inner_folders(at).iter().rev().filter(|f| !before.contains(*f) && layout.has_folder(f))
        {
            drop(std::fs::remove_dir(local.join(folder)));
        }
    }
    Ok(())
}

/// The folders below a local one into which some set could put files.
pub(crate) fn inner_folders(at: &Location) -> BTreeSet<String> {
    let Some(local) = &at.local else { return BTreeSet::new() };
    let formats = Format::ALL.iter().map(|f| f.name().to_string());
    let classes = ["", Format::Files.name()].into_iter().flat_map(|base| class_folders(local, base));
    formats.filter(|f| local.join(f).is_dir()).chain(classes).collect()
}

/// The name of one file in the folder.
async fn first_name(at: &Location) -> Result<Option<String>> {
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

/// Whether a folder below the set's own is a symbolic link.
fn is_link(at: &Location, folder: &str) -> bool {
    let meta = at.local.as_ref().and_then(|local| std::fs::symlink_metadata(local.join(folder)).ok());
    meta.is_some_and(|m| m.is_symlink())
}

/// The folders below that must stay: sets with a marker of their own, and symbolic links. Lists everything before
/// anything is removed, and refuses a folder in which a file or one of these folders would be overwritten.
async fn foreign_folders(at: &Location, old: &Layout, new: &Layout) -> Result<BTreeSet<String>> {
    let in_the_way = |what: String| {
        Error::already_exists(format!(
            "{}: {what}, and would be written over; choose another folder, or move it away",
            at.url
        ))
    };
    let (mut foreign, mut seen) = (BTreeSet::new(), BTreeSet::new());
    let mut listing = at.store.list(Some(&at.path));
    while let Some(meta) = listing.next().await {
        let name = below(at, &meta.map_err(|e| store_error(&at.url, e))?.location);
        if let Some(folder) = name.strip_suffix(MARKER).and_then(|f| f.strip_suffix('/')) {
            foreign.insert(folder.to_string());
        } else if !old.contains(&name) && new.contains(&name) {
            return Err(in_the_way(format!("{name} is not part of the sample data that {MARKER} describes")));
        }
        for folder in folders(&name) {
            if (old.has_folder(folder) || new.has_folder(folder)) && seen.insert(folder.to_string()) {
                foreign.extend(is_link(at, folder).then(|| folder.to_string()));
            }
        }
    }
    match foreign.iter().find(|f| new.has_folder(f)) {
        Some(folder) => Err(in_the_way(format!("{folder}/ is a data set of its own, or a link"))),
        None => Ok(foreign),
    }
}

async fn remove_except(layout: &Layout, foreign: &BTreeSet<String>, at: &Location) -> Result<()> {
    let error = |e| store_error(&at.url, e);
    let ours = |name: &str| layout.contains(name) && !folders(name).any(|f| foreign.contains(f));
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
        .try_buffer_unordered(CONCURRENT_DELETES)
        .try_fold(BTreeSet::new(), |mut all, name: String| {
            all.extend(folders(&name).map(String::from));
            future::ready(Ok(all))
        })
        .await?;
    remove_staging_files(at, foreign)?;
    if let Some(local) = &at.local {
        // The innermost folders come last in the set. A folder with other content cannot be removed.
        for folder in emptied.iter().rev() {
            drop(std::fs::remove_dir(local.join(folder)));
        }
    }
    // The marker goes last: while it exists, the remaining files can be recognised as ours.
    delete(at, &at.path.clone().join(MARKER)).await
}

async fn delete(at: &Location, path: &Path) -> Result<()> {
    match at.store.delete(path).await {
        Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
        Err(e) => Err(store_error(&at.url, e)),
    }
}

/// Removes what interrupted uploads left in a local folder. The store itself does not list these files.
fn remove_staging_files(at: &Location, foreign: &BTreeSet<String>) -> Result<()> {
    let Some(local) = &at.local else { return Ok(()) };
    // The innermost folders come first.
    for folder in inner_folders(at).into_iter().rev().chain([String::new()]) {
        let whole = format!("{folder}/");
        let other = folders(&whole).any(|f| !f.is_empty() && (foreign.contains(f) || is_link(at, f)));
        if !other
            && remove_staging_files_in(local, &folder).map_err(|e| unremoved(at, &e))?
            && !folder.is_empty()
        {
            drop(std::fs::remove_dir(local.join(folder)));
        }
    }
    Ok(())
}

/// The folders of classes below `base`, relative to the set's folder.
fn class_folders(local: &LocalPath, base: &str) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(local.join(base)) else { return Vec::new() };
    let names = entries.flatten().filter_map(|e| e.file_name().into_string().ok());
    let joined = |name: String| if base.is_empty() { name } else { format!("{base}/{name}") };
    names.filter(|name| is_class_folder(name)).map(joined).collect()
}

/// Removes the staging files of one folder. Returns whether there were any.
fn remove_staging_files_in(local: &LocalPath, folder: &str) -> std::io::Result<bool> {
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
    Error::permission_denied(format!("{}: files of an earlier run cannot be removed: {e}", at.url))
}

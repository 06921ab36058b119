//! Listing the files that a path, folder or pattern names: as a stream in canonical order.

use std::sync::Arc;

use caju_types::{Error, Result, did_you_mean};
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};

use super::count::{CountingStore, IoCounters};
use super::error::{io_error, store_error};
use super::file::{Filter, Listed, listed};
use super::glob::{Origin, Pattern, SEALED_BYTES, is_glob, is_hidden, is_sealed, may_be_literal};
use super::resolve::{Location, Stores};
use super::url::StoreUrl;
use super::{local, settled};
use crate::tasks::blocking;

/// Objects whose first bytes are read concurrently, to find out whether a cache or a save wrote them. A folder may have a cache with
/// many thousand records below it, and each read is a request.
const RECORD_READS: usize = 64;

impl Stores {
    /// The files that `path` names, sorted by key. They are found while the stream is polled.
    ///
    /// `path` is a file, a folder (all files below it with one of the `extensions`, given without the dot), or a pattern
    /// with `*`, `?`, `[a-z]`, `{a,b}` and `**`. A file or folder with exactly this name (`x[1].csv`) takes precedence over
    /// the pattern; `[[]` and `[{]` match the characters themselves. Names that start with `.` or `_` are skipped, unless a
    /// segment of the pattern starts with it. Objects that caches and saves wrote below the folder are skipped, too, by their
    /// names and the seals of their records. A user's files in folders with the same names are not. Only the folder before the first glob is listed. Listings of stores that list in the order of keys are
    /// streamed. Listings of other stores (Azure, HTTP) are collected first.
    ///
    /// # Errors
    /// The stream's only item is `NotFound` if nothing matches. It names the pattern and what exists.
    pub fn list(
        self: &Arc<Self>,
        path: &str,
        extensions: &[&str],
        io: &Arc<IoCounters>,
    ) -> BoxStream<'static, Result<Listed>> {
        let extensions = extensions.iter().map(|e| e.to_ascii_lowercase()).collect();
        let (stores, path, io) = (Arc::clone(self), path.to_string(), Arc::clone(io));
        stream::once(async move { stores.start_list(&path, extensions, io).await }).try_flatten().boxed()
    }

    /// The entry of one file.
    ///
    /// # Errors
    /// `NotFound`, and the errors of the store.
    pub async fn head(&self, url: &str, io: &Arc<IoCounters>) -> Result<Listed> {
        head(&self.resolve(url)?, io).await
    }

    async fn start_list(
        self: Arc<Self>,
        path: &str,
        extensions: Vec<String>,
        io: Arc<IoCounters>,
    ) -> Result<BoxStream<'static, Result<Listed>>> {
        let url = StoreUrl::parse(path)?;
        let literal = self.literal_len(&url, &io).await?;
        let globs = url.key.get(literal..).unwrap_or_default();
        if !is_glob(globs) {
            let at = self.resolve(path)?;
            let missing = match head(&at, &io).await {
                Ok(file) => return Ok(stream::once(async move { Ok(file) }).boxed()),
                Err(e) if e.kind() == caju_types::ErrorKind::NotFound => e,
                Err(e) if e.message().ends_with(IS_FOLDER) => e,
                Err(e) => return Err(e),
            };
            drop(missing);
            let filter = Filter { base: at.url.key.clone(), pattern: None, extensions };
            let files = below(&at, filter, &io)?;
            return Ok(or_not_found(files, at, url, false, io).await);
        }
        if path.ends_with('/') {
            return Err(Error::invalid(format!(
                "{path}: a pattern names files, and this one ends in `/`; write {path}* for the files in the folders"
            )));
        }
        let pattern = Pattern::new(&url.key, literal)?;
        let at = self.resolve(&url.with_key(pattern.base.clone()).to_string())?;
        let filter = Filter { base: pattern.base.clone(), pattern: Some(pattern), extensions };
        let files = below(&at, filter, &io)?;
        Ok(or_not_found(files, at, url, true, io).await)
    }

    /// The bytes of a key that are literal: the segments without globs, and those with brackets or braces that name an
    /// existing file or folder.
    async fn literal_len(&self, url: &StoreUrl, io: &Arc<IoCounters>) -> Result<usize> {
        let (mut literal, mut end) = (0, 0);
        for segment in url.key.split('/') {
            end += segment.len();
            if is_glob(segment) {
                let at = |key: &str| self.resolve(&url.with_key(key).to_string());
                let named = url.key.get(..end).unwrap_or_default();
                if !may_be_literal(segment) || !exists(&at(named)?, io).await? {
                    break;
                }
            }
            literal = end;
            end += 1;
        }
        Ok(literal)
    }
}

/// Whether a file or a folder with this name exists.
async fn exists(at: &Location, io: &Arc<IoCounters>) -> Result<bool> {
    match head(at, io).await {
        Ok(_) => return Ok(true),
        Err(e) if e.message().ends_with(IS_FOLDER) => return Ok(true),
        Err(e) if e.kind() == caju_types::ErrorKind::NotFound => {}
        Err(e) => return Err(e),
    }
    if at.local.is_some() {
        return Ok(false);
    }
    let store = CountingStore::new(Arc::clone(&at.store), Arc::clone(io));
    let first = store.list(Some(&at.path)).try_next().await.map_err(|e| store_error(&at.url, e))?;
    Ok(first.is_some())
}

/// The end of the error message for a folder where a file is expected.
const IS_FOLDER: &str = "is a folder, not a file";

async fn head(at: &Location, io: &Arc<IoCounters>) -> Result<Listed> {
    if let Some(path) = at.local.clone() {
        io.add_read(0);
        let m = blocking("reading metadata of a file", move || std::fs::metadata(path))
            .await?
            .map_err(|e| io_error(&at.url, &e))?;
        if m.is_dir() {
            return Err(Error::invalid(format!("{}: {IS_FOLDER}", at.url)));
        }
        if !m.is_file() {
            return Err(Error::invalid(format!(
                "{}: it is a device, a pipe or a socket; sources read regular files",
                at.url
            )));
        }
        let file = settled::settled(vec![listed(at.url.clone(), &m)]).await?.pop();
        return file
            .ok_or_else(|| Error::not_found(format!("{}: it was removed while it was listed", at.url)));
    }
    if at.path.is_root() {
        return Err(Error::not_found(format!("{}: names no object", at.url)));
    }
    let store = CountingStore::new(Arc::clone(&at.store), Arc::clone(io));
    let meta = store.head(&at.path).await.map_err(|e| store_error(&at.url, e))?;
    Ok(from_meta(&at.url, meta))
}

fn from_meta(root: &StoreUrl, meta: ObjectMeta) -> Listed {
    Listed {
        url: root.with_key(meta.location.as_ref()),
        size: meta.size,
        etag: meta.e_tag,
        // The HTTP client gives the beginning of 1970 to what has no time.
        mtime_ns: meta.last_modified.timestamp_nanos_opt().filter(|ns| *ns != 0),
        ctime_ns: None,
    }
}

/// Whether a store lists in the order of keys.
fn lists_in_order(scheme: &str) -> bool {
    matches!(scheme, "s3" | "gs" | "memory")
}

fn below(at: &Location, filter: Filter, io: &Arc<IoCounters>) -> Result<BoxStream<'static, Result<Listed>>> {
    let filter = Arc::new(filter);
    if at.local.is_some() {
        return Ok(local::list_files(&at.url, filter, Arc::clone(io)));
    }
    let root = at.url.clone();
    let store = CountingStore::new(Arc::clone(&at.store), Arc::clone(io));
    let prefix = (!at.path.is_root()).then(|| at.path.clone());
    let url = root.clone();
    let ordered = lists_in_order(&root.scheme);
    // Keys before and after the pattern's literal text need not be listed.
    let literal = filter.pattern.as_ref().filter(|_| ordered).map(|p| p.literal.clone()).unwrap_or_default();
    let offset = literal.char_indices().next_back().map(|(i, _)| &literal[..i]);
    let offset = offset.filter(|o| o.len() > at.path.as_ref().len()).and_then(|o| Path::parse(o).ok());
    let records = CountingStore::new(Arc::clone(&at.store), Arc::clone(io));
    let (records, records_url) = (Arc::new(records), root.clone());
    let listed = match offset {
        Some(offset) => store.list_with_offset(prefix.as_ref(), &offset),
        None => store.list(prefix.as_ref()),
    };
    let found = listed
        .try_take_while(move |m| {
            let key = m.location.as_ref();
            std::future::ready(Ok(key < literal.as_str() || key.starts_with(&literal)))
        })
        .map_err(move |e| store_error(&url, e))
        .map_ok(move |m| {
            let key = m.location.as_ref();
            let origin = if filter.accepts(key) { filter.origin(key) } else { Origin::Stored };
            let (records, url) = (Arc::clone(&records), records_url.clone());
            async move {
                let is_users = match origin {
                    Origin::User => true,
                    Origin::Stored => false,
                    Origin::StoredIfSealed => !is_record(records.as_ref(), &url, &m).await?,
                };
                Ok(is_users.then_some(m))
            }
        })
        .try_buffered(RECORD_READS)
        .try_filter_map(|m| std::future::ready(Ok(m)));
    if !ordered {
        let all = async move {
            let mut all: Vec<_> = found.try_collect::<Vec<_>>().await?;
            all.sort_unstable_by(|a, b| a.location.as_ref().cmp(b.location.as_ref()));
            Ok::<_, Error>(stream::iter(all.into_iter().map(move |m| Ok(from_meta(&root, m)))))
        };
        return Ok(stream::once(all).try_flatten().boxed());
    }
    let mut last: Option<Path> = None;
    let in_order = found.and_then(move |m| {
        let ordered = last.as_ref().is_none_or(|l| l.as_ref() < m.location.as_ref());
        let result = if ordered {
            last = Some(m.location.clone());
            Ok(from_meta(&root, m))
        } else {
            Err(Error::unimplemented(format!(
                "{root}: the store does not list its objects in the order of their keys (a directory bucket?); \
                 name the files one by one in `path`"
            )))
        };
        std::future::ready(result)
    });
    Ok(in_order.boxed())
}

/// Whether an object begins as a record of a cache or a save. One that was deleted since it was listed counts as one.
async fn is_record(store: &CountingStore, root: &StoreUrl, meta: &ObjectMeta) -> Result<bool> {
    if meta.size == 0 {
        return Ok(false);
    }
    match store.get_range(&meta.location, 0..meta.size.min(SEALED_BYTES)).await {
        Ok(start) => Ok(is_sealed(meta.location.as_ref(), &start)),
        Err(object_store::Error::NotFound { .. }) => Ok(true),
        Err(e) => Err(store_error(root.with_key(meta.location.as_ref()), e)),
    }
}

/// The files, or an error if there are none.
async fn or_not_found(
    files: BoxStream<'static, Result<Listed>>,
    folder: Location,
    wanted: StoreUrl,
    glob: bool,
    io: Arc<IoCounters>,
) -> BoxStream<'static, Result<Listed>> {
    let mut files = files.peekable();
    if std::pin::Pin::new(&mut files).peek().await.is_some() {
        return files.boxed();
    }
    let error = not_found(&folder, &wanted, glob, &io).await;
    stream::once(async move { Err(error) }).boxed()
}

async fn not_found(at: &Location, wanted: &StoreUrl, glob: bool, io: &Arc<IoCounters>) -> Error {
    // The message shows the content of a folder: for a plain path that is no folder, of the folder above it.
    let mut shown = at.url.clone();
    let mut names = peek(at, io).await;
    if !glob && names.as_ref().is_some_and(Vec::is_empty) {
        return Error::not_found(format!("{wanted}: the folder is empty"));
    }
    if !glob && names.is_none() {
        shown = at.url.with_key(at.url.key.rsplit_once('/').map_or("", |(folder, _)| folder));
        names = match Path::parse(&shown.key) {
            Ok(path) => {
                let local = at.local.is_some().then(|| shown.local_path());
                peek(&Location { url: shown.clone(), store: Arc::clone(&at.store), path, local }, io).await
            }
            Err(_) => None,
        };
    }
    let hidden = names.as_ref().is_some_and(|n| n.iter().any(|n| is_hidden(n)));
    let what = if glob && hidden {
        format!("no file matches {wanted} (names that start with `.` or `_` are skipped)")
    } else if glob {
        format!("no file matches {wanted}")
    } else if shown.key == wanted.key {
        format!("{wanted}: the folder holds no file of this format")
    } else {
        format!("{wanted}: no such file or folder")
    };
    let Some(names) = names else {
        return Error::not_found(format!("{what}; the folder {shown} does not exist"));
    };
    if names.is_empty() {
        return Error::not_found(format!("{what}; the folder {shown} is empty"));
    }
    let near = if glob {
        String::new()
    } else {
        let name = wanted.key.rsplit('/').next().unwrap_or_default();
        did_you_mean(name, &names)
    };
    let first = names.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
    let more = names.len().saturating_sub(5);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    Error::not_found(format!("{what}; the folder {shown} holds {first}{more}{near}"))
}

/// Names in a folder, for messages: all of a local folder, those of the first hundred objects of a remote one.
async fn peek(at: &Location, io: &Arc<IoCounters>) -> Option<Vec<String>> {
    io.add_list();
    if let Some(path) = at.local.clone() {
        return blocking("listing a folder", move || local::peek(path)).await.ok().flatten();
    }
    let prefix = (!at.path.is_root()).then(|| at.path.clone());
    let found: Vec<ObjectMeta> = at.store.list(prefix.as_ref()).take(100).try_collect().await.ok()?;
    let mut names: Vec<String> = Vec::new();
    for meta in &found {
        let rest = meta.location.as_ref().strip_prefix(at.path.as_ref())?.trim_start_matches('/');
        let name = rest.split_once('/').map_or_else(|| rest.to_string(), |(folder, _)| format!("{folder}/"));
        if names.last() != Some(&name) {
            names.push(name);
        }
    }
    (!names.is_empty()).then_some(names)
}

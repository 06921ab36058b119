//! Lists local folders in the order of whole keys, with the metadata that identify versions of files.

use std::fs::Metadata;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use caju_types::{Error, Result};
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};

use super::count::IoCounters;
use super::error::io_error;
use super::file::{Filter, Listed, listed, local_version, open_file};
use super::glob::{Origin, SEALED_BYTES, is_sealed};
use super::url::StoreUrl;
use crate::clock::SystemClock;

/// Files whose metadata one blocking call reads.
const STAT_BATCH: usize = 256;

/// The most levels of folders. A deeper tree would take much memory, and no tool makes one.
const MAX_DEPTH: usize = 64;

/// How long after its last change a file that is named as one being written is taken for one.
const UNFINISHED: Duration = Duration::from_secs(60);

/// A file or folder that is still to be visited.
#[derive(Debug)]
struct Entry {
    /// The name. That of a folder ends with `/`, so that sorting names sorts whole keys.
    name: String,
    /// It is a symbolic link.
    is_link: bool,
    /// Why it cannot be read, whatever is in it.
    refusal: Option<Refusal>,
    /// Of what cannot be read: a folder, or a link whose name has no extension.
    may_be_folder: bool,
}

/// Why a file or folder cannot be read.
#[derive(Debug)]
enum Refusal {
    /// Its name is not UTF-8, and so it cannot be part of a URL.
    Name,
    /// It is a symbolic link, and what it leads to cannot be reached.
    Link(io::Error),
}

#[derive(Debug)]
struct Folder {
    key: String,
    level: usize,
    /// A symbolic link leads to it.
    is_link: bool,
    /// In reverse order: the next entry is the last one.
    entries: Vec<Entry>,
}

/// A traversal in progress: the open folders, innermost last.
struct Traversal {
    root: StoreUrl,
    filter: Arc<Filter>,
    io: Arc<IoCounters>,
    stack: Vec<Folder>,
}

/// The files below `base` that pass the filter, in the order of their keys. A missing folder is empty.
pub(super) fn list_files(
    base: &StoreUrl,
    filter: Arc<Filter>,
    io: Arc<IoCounters>,
) -> BoxStream<'static, Result<Listed>> {
    let traversal = Traversal { root: base.clone(), filter, io, stack: Vec::new() };
    let start = Some(base.key.clone());
    stream::try_unfold((traversal, start), |(mut traversal, start)| async move {
        let step = move || {
            if let Some(key) = start {
                traversal.enter(key, 0, false)?;
            }
            traversal.step()
        };
        let (files, traversal) = blocking(step).await?;
        let files = match files {
            Some(files) => Some(super::settled::settled(files).await?),
            None => None,
        };
        Ok::<_, Error>(files.map(|f| (stream::iter(f.into_iter().map(Ok)), (traversal, None))))
    })
    .try_flatten()
    .boxed()
}

async fn blocking<T: Send + 'static>(f: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    crate::tasks::blocking("listing a folder", f).await?
}

impl Traversal {
    fn enter(&mut self, key: String, level: usize, is_link: bool) -> Result<()> {
        let url = self.root.with_key(key.clone());
        if level > MAX_DEPTH {
            return Err(Error::invalid(format!(
                "{url}: more than {MAX_DEPTH} folders deep, which is the most; name a folder further down"
            )));
        }
        self.io.add_list();
        let mut entries = match read_folder(&url.local_path()) {
            Ok(entries) => entries,
            // It does not exist or is no folder: nothing is below it.
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(());
            }
            Err(e) => return Err(io_error(&url, &e)),
        };
        // Without a link there is no circle, and where the pattern has an end the circle has one.
        if (is_link || self.stack.iter().any(|folder| folder.is_link)) && !self.filter.is_bounded() {
            self.check_circle(&url)?;
        }
        entries.sort_unstable_by(|a, b| b.name.cmp(&a.name));
        self.stack.push(Folder { key, level, is_link, entries });
        Ok(())
    }

    /// Whether a folder is one that it is in.
    ///
    /// # Errors
    /// `InvalidArgument` if it is: its files would be read again and again.
    fn check_circle(&self, url: &StoreUrl) -> Result<()> {
        let identity = |url: &StoreUrl| std::fs::metadata(url.local_path()).map(|m| (m.dev(), m.ino()));
        let own = identity(url).map_err(|e| io_error(url, &e))?;
        for outer in &self.stack {
            let outer = self.root.with_key(outer.key.clone());
            if identity(&outer).is_ok_and(|other| other == own) {
                return Err(Error::invalid(format!(
                    "{url}: a symbolic link leads to the folder {outer} that it is in, whose files would be read again; remove the \
                     link"
                )));
            }
        }
        Ok(())
    }

    /// The next files, at most a batch; none at the end of the traversal.
    fn step(mut self) -> Result<(Option<Vec<Listed>>, Traversal)> {
        let mut found = Vec::new();
        let mut looked = 0;
        while looked < STAT_BATCH {
            let Some(folder) = self.stack.last_mut() else { break };
            let (level, Some(entry)) = (folder.level, folder.entries.pop()) else {
                self.stack.pop();
                continue;
            };
            looked += 1;
            let name = entry.name.trim_end_matches('/');
            let key = if folder.key.is_empty() { name.to_string() } else { format!("{}/{name}", folder.key) };
            if let Some(refusal) = &entry.refusal {
                let may_be_folder = entry.may_be_folder && self.filter.may_enter(level, name);
                if self.filter.accepts(&key) || may_be_folder {
                    return Err(refused(&self.root.with_key(key), refusal));
                }
            } else if entry.name.ends_with('/') {
                if self.filter.may_enter(level, name) {
                    self.enter(key, level + 1, entry.is_link)?;
                }
            } else if self.filter.accepts(&key) {
                let staged = staged_for(&key);
                let origin = self.filter.origin(staged.unwrap_or(&key));
                let is_staged = staged.is_some();
                // A record that is being written may have no seal yet.
                if origin == Origin::Stored || is_staged && origin == Origin::StoredIfSealed {
                    continue;
                }
                let url = self.root.with_key(key);
                match std::fs::metadata(url.local_path()) {
                    Ok(m) if m.is_file() => {
                        if origin == Origin::StoredIfSealed && is_record(&url)? {
                            continue;
                        }
                        match is_staged {
                            true => unfinished(&url, &m)?,
                            false => found.push(listed(url, &m)),
                        }
                    }
                    Ok(_) => {}
                    Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                        dangling(&url, name)?;
                    }
                    Err(e) => return Err(io_error(&url, &e)),
                }
            } else if entry.is_link && self.filter.may_enter(level, name) {
                // In the place of a folder: it leads to a file, or nowhere.
                let url = self.root.with_key(key);
                match std::fs::metadata(url.local_path()) {
                    Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                        dangling(&url, name)?;
                    }
                    _ => {}
                }
            }
        }
        let end = found.is_empty() && self.stack.is_empty();
        Ok((if end { None } else { Some(found) }, self))
    }
}

/// A file that is gone: it was deleted since the folder was read, or it is a symbolic link that leads nowhere.
///
/// # Errors
/// `NotFound` for such a link: a volume that is not mounted would lose its rows. Hidden ones, as editors make them, are no files of
/// a data set.
fn dangling(url: &StoreUrl, name: &str) -> Result<()> {
    let is_link = std::fs::symlink_metadata(url.local_path()).is_ok_and(|m| m.is_symlink());
    if !is_link || name.starts_with('.') {
        return Ok(());
    }
    Err(Error::not_found(format!(
        "{url}: the symbolic link leads to a file that does not exist; restore it, or remove the link"
    )))
}

/// The error of a file or folder that cannot be read: without it its rows would be left out.
fn refused(url: &StoreUrl, refusal: &Refusal) -> Error {
    match refusal {
        Refusal::Name => Error::invalid(format!(
            "{url}: the name is not valid UTF-8 (its other bytes are shown as \u{fffd}), so no URL can name it; rename it, or name \
             the files by a pattern that leaves it out"
        )),
        Refusal::Link(e) => io_error(url, e).context(
            "the symbolic link leads to what cannot be reached; remove the link, or make it readable",
        ),
    }
}

fn read_folder(path: &Path) -> io::Result<Vec<Entry>> {
    let mut out = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        let (mut name, mut refusal) = match entry.file_name().into_string() {
            Ok(name) => (name, None),
            Err(name) => (name.to_string_lossy().into_owned(), Some(Refusal::Name)),
        };
        let kind = entry.file_type()?;
        let mut is_folder = kind.is_dir();
        if kind.is_symlink() && refusal.is_none() {
            match std::fs::metadata(entry.path()) {
                Ok(m) => is_folder = m.is_dir(),
                // A link that leads nowhere is looked at in its place.
                Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
                Err(e) => refusal = Some(Refusal::Link(e)),
            }
        }
        if is_folder {
            name.push('/');
        }
        let may_be_folder = kind.is_dir() || kind.is_symlink() && !name.contains('.');
        out.push(Entry { name, is_link: kind.is_symlink(), refusal, may_be_folder });
    }
    Ok(out)
}

/// Whether a file begins as a record of a cache or a save. One that was deleted since the folder was read counts as one.
fn is_record(url: &StoreUrl) -> Result<bool> {
    let mut start = Vec::new();
    let read = open_file(&url.local_path()).and_then(|file| file.take(SEALED_BYTES).read_to_end(&mut start));
    match read {
        Ok(_) => Ok(is_sealed(&url.key, &start)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(e) => Err(io_error(url, &e)),
    }
}

/// The name that a file gets when its write ends, if it is named as local stores name files that they are writing
/// (`name#123`).
fn staged_for(name: &str) -> Option<&str> {
    let (name, number) = name.rsplit_once('#')?;
    (!number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())).then_some(name)
}

/// A file that is named as one that is being written. One that has changed within [`UNFINISHED`] is left out: another
/// process may be writing it.
///
/// # Errors
/// `InvalidArgument` for an older one: a user may have named it so, and its rows would be lost.
fn unfinished(url: &StoreUrl, metadata: &Metadata) -> Result<()> {
    let (_, changed_ns, _) = local_version(metadata);
    let changed = Duration::from_nanos(u64::try_from(changed_ns).unwrap_or(0));
    if SystemClock::shared().unix_time().saturating_sub(changed) < UNFINISHED {
        tracing::warn!(file = %url, "a file is left out: it is named as one that is being written (NAME#123)");
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{url}: the name ends as that of a file that is being written (`NAME#123`), and the file has not changed for a \
         minute; rename it to read it, remove it if a process that was killed left it, or name the files by a pattern \
         that leaves it out"
    )))
}

/// The names in a folder, sorted, for messages. Names of folders end with `/`. None if the folder does not exist.
pub(super) fn peek(folder: PathBuf) -> Option<Vec<String>> {
    let mut names: Vec<String> = read_folder(&folder).ok()?.into_iter().map(|e| e.name).collect();
    names.sort_unstable();
    Some(names)
}

//! Listed files, and the selection of files by their keys.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::glob::{Origin, Pattern, is_hidden, origin};
use super::url::StoreUrl;

/// A listed file, with the metadata that identify its version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its URL.
    pub url: StoreUrl,
    /// Size in bytes.
    pub size: u64,
    /// The store's e-tag; none for local files.
    pub etag: Option<String>,
    /// Time of the last modification in nanoseconds since 1970.
    pub mtime_ns: Option<i64>,
    /// Time of the last change of the inode in nanoseconds since 1970; local files only.
    pub ctime_ns: Option<i64>,
}

/// Which keys are wanted.
#[derive(Debug)]
pub(super) struct Filter {
    /// The key of the folder that is listed.
    pub(super) base: String,
    pub(super) pattern: Option<Pattern>,
    /// Wanted extensions without the dot; all if empty. They are used for folders only, where no pattern selects files.
    pub(super) extensions: Vec<String>,
}

impl Filter {
    /// Who wrote the file below the listed folder, as far as its key shows.
    pub(super) fn origin(&self, key: &str) -> Origin {
        origin(key.strip_prefix(self.base.as_str()).unwrap_or(key))
    }

    /// Whether a key is wanted, whoever wrote the file.
    pub(super) fn accepts(&self, key: &str) -> bool {
        if let Some(p) = &self.pattern {
            return p.matches(key);
        }
        let below = key.strip_prefix(self.base.as_str()).unwrap_or(key);
        if below.split('/').any(is_hidden) {
            return false;
        }
        let name = key.rsplit('/').next().unwrap_or(key);
        let lower = name.to_ascii_lowercase();
        self.extensions.is_empty()
            || self.extensions.iter().any(|e| {
                lower.strip_suffix(e.as_str()).is_some_and(|stem| stem.len() > 1 && stem.ends_with('.'))
            })
    }

    /// Whether no key is wanted below some number of folders.
    pub(super) fn is_bounded(&self) -> bool {
        self.pattern.as_ref().is_some_and(Pattern::is_bounded)
    }

    /// Whether keys below a folder can be wanted.
    pub(super) fn may_enter(&self, level: usize, name: &str) -> bool {
        self.pattern.as_ref().map_or(!is_hidden(name), |p| p.may_enter(level, name))
    }
}

/// Opens a local file for reading. Anything but a regular file is refused: opening a pipe would wait for a process that
/// writes to it. Blocking.
///
/// # Errors
/// `InvalidData` if it is no regular file, and what the file system reports.
pub fn open_file(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    // The flag has no effect on regular files.
    options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC);
    let refusal = || io::Error::new(io::ErrorKind::InvalidData, "it is not a regular file");
    let file = options.open(path).map_err(|e| match e.raw_os_error() {
        // A socket cannot be opened, nor a device without a driver.
        Some(libc::ENXIO) => refusal(),
        _ => e,
    })?;
    if !file.metadata()?.is_file() {
        return Err(refusal());
    }
    Ok(file)
}

/// Size, modification time and change time of a local file, in bytes and nanoseconds since 1970.
pub fn local_version(metadata: &Metadata) -> (u64, i64, i64) {
    use std::os::unix::fs::MetadataExt;
    let ns = |s: i64, n: i64| s.saturating_mul(1_000_000_000).saturating_add(n);
    (metadata.len(), ns(metadata.mtime(), metadata.mtime_nsec()), ns(metadata.ctime(), metadata.ctime_nsec()))
}

pub(super) fn listed(url: StoreUrl, metadata: &Metadata) -> Listed {
    let (size, mtime, ctime) = local_version(metadata);
    Listed { url, size, etag: None, mtime_ns: Some(mtime), ctime_ns: Some(ctime) }
}

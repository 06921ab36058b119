//! Folders of one process alone, removed with it, or by the next process of their kind if it was killed.

use std::fs::File;
use std::io;
use std::path::Path;

use caju_types::{Error, Result};
use tempfile::TempDir;

/// In each folder, locked for as long as its owner lives, in whatever container that is: process numbers say nothing
/// across containers that share a temporary folder.
const OWNER: &str = "owner.lock";
/// The lock's name until it is held.
const UNOWNED: &str = "owner.new";
/// What the names of private cache folders begin with.
const CACHE: &str = "caju-cache-";

/// A folder that nobody else uses, and the lock that shows that somebody does.
#[derive(Debug)]
pub struct PrivateFolder {
    // Goes first: a folder without its lock would look like one that is not finished.
    folder: TempDir,
    _owner: File,
}

impl PrivateFolder {
    /// Makes a folder in `at` whose name begins with `prefix`. Folders there of the same prefix whose owners are gone
    /// are removed first, as far as that is possible.
    ///
    /// # Errors
    /// What the file system reports.
    pub fn new(at: &Path, prefix: &str) -> io::Result<Self> {
        sweep(at, prefix);
        let folder = tempfile::Builder::new().prefix(prefix).tempdir_in(at)?;
        // Under its own name only when it is locked: somebody who sweeps at this moment must not find it free.
        let (unowned, owned) = (folder.path().join(UNOWNED), folder.path().join(OWNER));
        let owner = File::create(&unowned)?;
        owner.lock()?;
        std::fs::rename(unowned, owned)?;
        Ok(Self { folder, _owner: owner })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// A folder for the snapshots of this process, in the folder for temporary files.
///
/// # Errors
/// `Unavailable`, saying how to name another place.
pub fn private_cache() -> Result<PrivateFolder> {
    let at = std::env::temp_dir();
    PrivateFolder::new(&at, CACHE).map_err(|e| {
        Error::unavailable(format!(
            "no private cache folder can be made in {}: {e}; name a folder or URL for the cache, or set TMPDIR",
            at.display()
        ))
    })
}

/// Removes folders whose lock nobody holds. Best effort: they are in nobody's way but the disk's.
fn sweep(at: &Path, prefix: &str) {
    let Ok(entries) = std::fs::read_dir(at) else { return };
    for entry in entries.flatten() {
        if !entry.file_name().to_str().is_some_and(|n| n.starts_with(prefix)) {
            continue;
        }
        // Without a lock it is not one of ours, or not finished.
        let Ok(owner) = File::open(entry.path().join(OWNER)) else { continue };
        if owner.try_lock().is_ok() {
            drop(std::fs::remove_dir_all(entry.path()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_folders_whose_owner_is_gone_are_swept() {
        let all = tempfile::tempdir().unwrap();
        let make = |name: &str, owner: bool| {
            let at = all.path().join(name);
            std::fs::create_dir(&at).unwrap();
            owner.then(|| File::create(at.join(OWNER)).unwrap())
        };
        let living = PrivateFolder::new(all.path(), CACHE).unwrap();
        drop(make("caju-cache-dead", true));
        drop(make("caju-cache-of-others", false));
        drop(make("something-else", true));
        let next = PrivateFolder::new(all.path(), CACHE).unwrap();
        let left = |name: &str| all.path().join(name).exists();
        assert!(living.path().exists() && next.path() != living.path());
        assert!(left("caju-cache-of-others") && left("something-else") && !left("caju-cache-dead"));
        let gone = living.path().to_owned();
        drop(living);
        assert!(!gone.exists());
    }
}

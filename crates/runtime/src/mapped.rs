//! Files of this host, mapped into memory under a lease of the kernel.
//!
//! Mapped memory changes with its file: reading a page beyond the end of a truncated file ends the process with SIGBUS, and
//! checked bytes may change a moment later. So a file is mapped only under a read lease (`fcntl(F_SETLEASE)`). The kernel
//! grants the lease if no process has the file open for writing. A process that truncates the file or opens it for writing
//! then waits until the lease is released (up to `/proc/sys/fs/lease-break-time`, 45 s by default). Before it releases the
//! lease, a thread of this module replaces the mapped pages by a private copy of the same bytes. So the bytes of a
//! [`MappedFile`] never change.
//!
//! The kernel sees only accesses through itself. Files on network and user-space file systems (NFS, SMB, Lustre, FUSE, 9p,
//! ...), files of other users, and files that are open for writing are not mapped. Read them instead.
//!
//! A lease takes a descriptor for as long as the bytes are used, and rows may be kept for long. So all maps of a process
//! together hold at most a quarter of its descriptors (`ulimit -n`). Further files are not mapped, either.

use std::path::Path;
use std::sync::Arc;
use std::{fmt, io};

#[cfg(target_os = "linux")]
use linux as system;
#[cfg(not(target_os = "linux"))]
use other as system;

/// A whole file, mapped for reading. Its bytes stay those of the moment when it was mapped, whatever happens to the file.
#[derive(Clone)]
pub struct MappedFile(Arc<system::Map>);

impl fmt::Debug for MappedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MappedFile").field("length", &self.as_ref().len()).finish_non_exhaustive()
    }
}

impl MappedFile {
    /// The most bytes of a file that is mapped: a copy of all mapped bytes has to fit into memory.
    pub const MAX_BYTES: u64 = system::MAX_BYTES;

    /// Maps the present content of an open file. None for an empty file, and where mapping is unsafe or impossible (see the
    /// module's text). Blocking.
    ///
    /// # Errors
    /// What the file system reports about the file's length.
    pub fn new(file: std::fs::File) -> io::Result<Option<Self>> {
        Ok(system::map(file)?.map(Self))
    }

    /// The metadata of the file when it was mapped: its length, its times and so on.
    pub fn metadata(&self) -> &std::fs::Metadata {
        self.0.metadata()
    }

    /// Whether files below a folder can be mapped: whether its file system is local.
    pub fn is_supported_below(folder: &Path) -> bool {
        system::is_local(folder)
    }
}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

#[cfg(not(target_os = "linux"))]
mod other {
    //! Other systems have no leases.

    pub(super) const MAX_BYTES: u64 = 0;

    pub(super) enum Map {}

    impl Map {
        pub(super) fn bytes(&self) -> &[u8] {
            match *self {}
        }

        pub(super) fn metadata(&self) -> &std::fs::Metadata {
            match *self {}
        }
    }

    pub(super) fn map(_: std::fs::File) -> std::io::Result<Option<std::sync::Arc<Map>>> {
        Ok(None)
    }

    pub(super) fn is_local(_: &std::path::Path) -> bool {
        false
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::fs::{File, Metadata};
    use std::io;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;
    use std::path::Path;
    use std::sync::{Arc, Once, Weak};
    use std::time::Duration;

    use memmap2::{Mmap, MmapMut, MmapOptions};
    use parking_lot::{Condvar, Mutex};

    /// See [`MappedFile::MAX_BYTES`](super::MappedFile::MAX_BYTES).
    pub(super) const MAX_BYTES: u64 = 1 << 30;

    /// The interval at which leases are checked. A process that wants to write to a mapped file waits about this long.
    const CHECK_INTERVAL: Duration = Duration::from_millis(200);
    /// Bytes of one read in copying a file.
    const COPY_BYTES: usize = 1 << 20;

    /// Magic numbers of file systems to which no other host writes (`man 2 statfs`).
    const LOCAL: [i64; 8] = [
        0xEF53,      // ext2, ext3, ext4
        0x5846_5342, // xfs
        0x9123_683E, // btrfs
        0x0102_1994, // tmpfs
        0x794C_7630, // overlayfs
        0xF2F5_2010, // f2fs
        0x2FC1_2FC1, // zfs
        0x8584_58F6, // ramfs
    ];

    /// Maps hold at most one of this many descriptors that the process may have: the others are for connections and for
    /// files that are read.
    const DESCRIPTORS_PER_LEASE: u64 = 4;

    /// The command that sets the signal of a lease (`asm-generic/fcntl.h`). The crate `libc` lacks it.
    const F_SETSIG: libc::c_int = 10;

    /// All maps of this process whose leases are held.
    static LEASED: Mutex<Vec<Weak<Map>>> = Mutex::new(Vec::new());
    /// Signalled when there is a new map.
    static ADDED: Condvar = Condvar::new();
    static WATCHER: Once = Once::new();

    pub(super) struct Map {
        pages: Mmap,
        metadata: Metadata,
        /// The file with its lease; none once the pages are a copy.
        lease: Mutex<Option<File>>,
    }

    pub(super) fn is_local(folder: &Path) -> bool {
        File::open(folder).is_ok_and(|folder| on_local_file_system(&folder))
    }

    #[allow(unsafe_code, reason = "fstatfs has no safe wrapper in std")]
    #[allow(clippy::useless_conversion, reason = "the number's type depends on the C library")]
    fn on_local_file_system(file: &File) -> bool {
        let mut stat = std::mem::MaybeUninit::<libc::statfs>::zeroed();
        // SAFETY: `stat` is valid and writable for the duration of the call.
        if unsafe { libc::fstatfs(file.as_raw_fd(), stat.as_mut_ptr()) } != 0 {
            return false;
        }
        // SAFETY: all zeros are a valid statfs, and the call only writes numbers.
        let magic = unsafe { stat.assume_init() }.f_type;
        i64::try_from(magic).is_ok_and(|magic| LOCAL.contains(&magic))
    }

    /// `fcntl` with a number as its argument. `None` if the kernel refuses.
    #[allow(unsafe_code, reason = "fcntl has no safe wrapper in std")]
    fn control(file: &File, command: libc::c_int, argument: libc::c_int) -> Option<libc::c_int> {
        // SAFETY: commands with a number touch no memory of ours.
        let answer = unsafe { libc::fcntl(file.as_raw_fd(), command, argument) };
        (answer >= 0).then_some(answer)
    }

    /// The most leases of this process.
    #[allow(unsafe_code, reason = "getrlimit has no safe wrapper in std")]
    fn max_leases() -> usize {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `limit` is valid and writable for the duration of the call.
        if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
            return usize::MAX;
        }
        usize::try_from(limit.rlim_cur / DESCRIPTORS_PER_LEASE).unwrap_or(usize::MAX)
    }

    /// Adds a map to those whose leases are held, if these are fewer than the given number.
    fn enter(map: &Arc<Map>, max_leases: usize) -> bool {
        let mut leased = LEASED.lock();
        if leased.len() >= max_leases {
            leased.retain(|map| map.strong_count() > 0);
        }
        let fits = leased.len() < max_leases;
        if fits {
            leased.push(Arc::downgrade(map));
        }
        fits
    }

    pub(super) fn map(file: File) -> io::Result<Option<Arc<Map>>> {
        map_within(file, max_leases())
    }

    /// Maps a file if fewer than this number of leases are held.
    #[allow(unsafe_code, reason = "a mapped file must not change")]
    pub(super) fn map_within(file: File, max_leases: usize) -> io::Result<Option<Arc<Map>>> {
        // The kernel signals a lease that is to be released. The default signal would end the process. SIGURG is ignored
        // by default. Nothing here relies on the signal: leases are polled.
        let leased = on_local_file_system(&file)
            && control(&file, F_SETSIG, libc::SIGURG).is_some()
            && control(&file, libc::F_SETLEASE, libc::F_RDLCK).is_some();
        if !leased {
            return Ok(None);
        }
        // From here on the length cannot change.
        let metadata = file.metadata()?;
        let length = metadata.len();
        if length == 0 || length > MAX_BYTES {
            return Ok(None);
        }
        let Ok(length) = usize::try_from(length) else { return Ok(None) };
        // SAFETY: the file cannot change while its lease is held, and before it is released, `replace_pages` replaces the
        // file's pages.
        let Ok(pages) = (unsafe { MmapOptions::new().len(length).map_copy_read_only(&file) }) else {
            return Ok(None);
        };
        let map = Arc::new(Map { pages, metadata, lease: Mutex::new(Some(file)) });
        if !enter(&map, max_leases) {
            return Ok(None);
        }
        WATCHER.call_once(|| {
            let started = std::thread::Builder::new().name("caju-leases".into()).spawn(watch);
            if let Err(error) = started {
                tracing::warn!(%error, "the leases of mapped files are not checked: no thread could be started");
            }
        });
        ADDED.notify_one();
        Ok(Some(map))
    }

    /// Checks the leases for as long as the process lives.
    fn watch() {
        let mut leased = LEASED.lock();
        loop {
            leased.retain(|map| map.strong_count() > 0);
            if leased.is_empty() {
                ADDED.wait(&mut leased);
            } else {
                ADDED.wait_for(&mut leased, CHECK_INTERVAL);
            }
            let maps: Vec<_> = leased.iter().filter_map(Weak::upgrade).collect();
            // This thread may be the last owner of a map, which must not be dropped under the lock.
            parking_lot::MutexGuard::unlocked(&mut leased, || {
                maps.into_iter().filter(|map| map.is_wanted()).for_each(|map| map.release());
            });
        }
    }

    impl Map {
        pub(super) fn bytes(&self) -> &[u8] {
            &self.pages
        }

        pub(super) fn metadata(&self) -> &Metadata {
            &self.metadata
        }

        /// Whether another process waits for the lease.
        fn is_wanted(&self) -> bool {
            let lease = self.lease.lock();
            lease.as_ref().is_some_and(|file| control(file, libc::F_GETLEASE, 0) != Some(libc::F_RDLCK))
        }

        /// Replaces the file's pages by a copy, and releases the lease.
        fn release(&self) {
            let mut lease = self.lease.lock();
            let Some(file) = lease.as_ref() else { return };
            match self.replace_pages(file) {
                Ok(()) => {
                    control(file, libc::F_SETLEASE, libc::F_UNLCK);
                    *lease = None;
                }
                // Tried again at the next check. The other process waits.
                Err(error) => {
                    tracing::warn!(%error, "a mapped file that is about to change cannot be copied")
                }
            }
        }

        /// Moves a private copy of the bytes over the mapped pages.
        #[allow(unsafe_code, reason = "mremap has no safe wrapper")]
        fn replace_pages(&self, file: &File) -> io::Result<()> {
            let length = self.pages.len();
            let mut copy = MmapMut::map_anon(length)?;
            for (i, chunk) in copy.chunks_mut(COPY_BYTES).enumerate() {
                file.read_exact_at(chunk, (i * COPY_BYTES) as u64)?;
            }
            let copy = copy.make_read_only()?;
            let (from, to) = (copy.as_ptr().cast_mut().cast(), self.pages.as_ptr().cast_mut());
            let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            // SAFETY: moves the pages of `copy` over those of this map, as a whole and atomically for other threads. Both
            // hold the same bytes: no process can have written to the file while its lease is held.
            let moved = unsafe { libc::mremap(from, length, length, flags, to.cast::<libc::c_void>()) };
            if moved == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            // This map owns the pages now, at their new address.
            std::mem::forget(copy);
            Ok(())
        }
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use std::fs::File;
    use std::io::Write as _;

    use super::*;

    fn file(bytes: &[u8]) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("part");
        std::fs::write(&path, bytes).unwrap();
        (folder, path)
    }

    #[test]
    fn mapped_bytes_stay_whatever_happens_to_the_file() {
        let content: Vec<u8> = (0..3_000_001u32).map(|i| i.to_le_bytes()[1]).collect();
        let (folder, path) = file(&content);
        assert!(MappedFile::is_supported_below(folder.path()), "tests run on a local file system");
        let first = MappedFile::new(File::open(&path).unwrap()).unwrap().unwrap();
        let second = MappedFile::new(File::open(&path).unwrap()).unwrap().unwrap();
        drop(second.clone());
        // Waits until both leases are released.
        let mut writer = std::fs::OpenOptions::new().write(true).truncate(true).open(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
        assert!(first.as_ref() == content && second.as_ref() == content);
        writer.write_all(&[1; 10]).unwrap();
        assert!(first.as_ref() == content && second.as_ref() == content);
        // It is open for writing.
        assert!(MappedFile::new(File::open(&path).unwrap()).unwrap().is_none());
        drop(writer);
        assert_eq!(MappedFile::new(File::open(&path).unwrap()).unwrap().unwrap().as_ref(), [1; 10]);
    }

    #[test]
    fn a_removed_file_can_still_be_read() {
        let (_folder, path) = file(b"rows");
        let mapped = MappedFile::new(File::open(&path).unwrap()).unwrap().unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(mapped.as_ref(), b"rows");
    }

    #[test]
    fn a_file_is_not_mapped_while_maps_hold_their_part_of_the_descriptors() {
        let (_folder, path) = file(b"rows");
        let map = |max_leases| linux::map_within(File::open(&path).unwrap(), max_leases).unwrap();
        assert!(map(0).is_none());
        let mapped = map(usize::MAX).unwrap();
        assert_eq!(mapped.bytes(), b"rows");
        assert!(map(1).is_none(), "its lease is held");
    }

    #[test]
    fn nothing_is_mapped_on_shared_file_systems() {
        assert!(!MappedFile::is_supported_below(Path::new("/proc")));
        assert!(MappedFile::new(File::open("/proc/self/status").unwrap()).unwrap().is_none());
        let (_folder, path) = file(b"");
        assert!(MappedFile::new(File::open(path).unwrap()).unwrap().is_none(), "an empty file has no pages");
    }
}

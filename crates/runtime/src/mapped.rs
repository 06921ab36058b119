//! Files of this host that are mapped into memory while the kernel guards them.
//!
//! Memory that maps a file changes with the file: reading a page behind the end of a file that was truncated ends the
//! process with SIGBUS, and bytes that were checked may be others a moment later. So a file is mapped only under a read
//! lease (`fcntl(F_SETLEASE)`). The kernel grants the lease while nobody has the file open for writing, and makes
//! whoever truncates the file or opens it for writing wait (up to `/proc/sys/fs/lease-break-time`, 45 s by default)
//! until the lease is given back. Before that, a thread of this module replaces the mapped pages by a private copy of
//! the same bytes. What a [`MappedFile`] shows therefore never changes.
//!
//! Leases know of accesses through this kernel alone. Files on network and user-space file systems (NFS, SMB, Lustre,
//! FUSE, 9p, ...), files that belong to somebody else, and files that are open for writing are not mapped: read them.

use std::path::Path;
use std::sync::Arc;
use std::{fmt, io};

#[cfg(target_os = "linux")]
use linux as system;
#[cfg(not(target_os = "linux"))]
use other as system;

/// A whole file, mapped for reading. Its bytes stay what they were when it was opened, whatever becomes of the file.
#[derive(Clone)]
pub struct MappedFile(Arc<system::Map>);

impl fmt::Debug for MappedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MappedFile").field("length", &self.as_ref().len()).finish_non_exhaustive()
    }
}

impl MappedFile {
    /// Files above this size are not mapped: a copy of all mapped bytes has to fit into memory.
    pub const MOST_BYTES: u64 = 1 << 30;

    /// Maps an open file as it is now; none where that is not safe or not possible (see the module's text), and for an
    /// empty file. Blocking.
    ///
    /// # Errors
    /// What the file system reports about the file's length.
    pub fn new(file: std::fs::File) -> io::Result<Option<Self>> {
        Ok(system::map(file)?.map(Self))
    }

    /// What the file system said of the file when it was mapped: its length, its times and so on.
    pub fn metadata(&self) -> &std::fs::Metadata {
        self.0.metadata()
    }

    /// Whether files below a folder can be mapped: its file system is a local one.
    pub fn is_offered_below(folder: &Path) -> bool {
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
    use std::ptr::NonNull;
    use std::sync::{Arc, Once, Weak};
    use std::time::Duration;

    use parking_lot::{Condvar, Mutex};

    /// How often leases are looked at. Whoever wants to write to a mapped file waits about this long.
    const CHECK: Duration = Duration::from_millis(200);
    /// Bytes that are copied at once before a lease is given back.
    const COPY: usize = 1 << 20;

    /// Magic numbers of file systems that no other host writes to (`man 2 statfs`).
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

    /// The command that chooses the signal of a lease (`asm-generic/fcntl.h`; the crate libc lacks it).
    const F_SETSIG: libc::c_int = 10;

    /// All maps of this process whose leases are held.
    static LEASED: Mutex<Vec<Weak<Map>>> = Mutex::new(Vec::new());
    /// Signalled when there is a new map.
    static ADDED: Condvar = Condvar::new();
    static WATCHER: Once = Once::new();

    pub(super) struct Map {
        start: NonNull<u8>,
        length: usize,
        metadata: Metadata,
        /// The file with its lease; none once the pages are a copy.
        lease: Mutex<Option<File>>,
    }

    // SAFETY: the memory is read-only, and its content never changes (see the module's text).
    #[allow(unsafe_code, reason = "a read-only mapping may be shared between threads")]
    unsafe impl Send for Map {}
    // SAFETY: as above.
    #[allow(unsafe_code, reason = "a read-only mapping may be shared between threads")]
    unsafe impl Sync for Map {}

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

    /// `fcntl` with a number as its argument; `None` if the kernel refuses.
    #[allow(unsafe_code, reason = "fcntl has no safe wrapper in std")]
    fn control(file: &File, command: libc::c_int, argument: libc::c_int) -> Option<libc::c_int> {
        // SAFETY: commands with a number touch no memory of ours.
        let answer = unsafe { libc::fcntl(file.as_raw_fd(), command, argument) };
        (answer >= 0).then_some(answer)
    }

    pub(super) fn map(file: File) -> io::Result<Option<Arc<Map>>> {
        // The signal of a lease that is to be given back; the default one would end the process. This one is ignored
        // by default, and nobody relies on it: leases are polled.
        let leased = on_local_file_system(&file)
            && control(&file, F_SETSIG, libc::SIGURG).is_some()
            && control(&file, libc::F_SETLEASE, libc::F_RDLCK).is_some();
        if !leased {
            return Ok(None);
        }
        // From here on the length does not change.
        let metadata = file.metadata()?;
        let length = metadata.len();
        if length == 0 || length > super::MappedFile::MOST_BYTES {
            return Ok(None);
        }
        let Ok(length) = usize::try_from(length) else { return Ok(None) };
        let Ok(start) = pages(length, libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd()) else {
            return Ok(None);
        };
        let map = Arc::new(Map { start, length, metadata, lease: Mutex::new(Some(file)) });
        LEASED.lock().push(Arc::downgrade(&map));
        WATCHER.call_once(|| {
            let started = std::thread::Builder::new().name("caju-leases".into()).spawn(watch);
            if let Err(error) = started {
                tracing::warn!(%error, "mapped files are not watched");
            }
        });
        ADDED.notify_one();
        Ok(Some(map))
    }

    #[allow(unsafe_code, reason = "mmap has no safe wrapper")]
    fn pages(
        length: usize,
        access: libc::c_int,
        kind: libc::c_int,
        fd: libc::c_int,
    ) -> io::Result<NonNull<u8>> {
        // SAFETY: a fresh mapping at an address of the kernel's choice; the result is checked.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), length, access, kind, fd, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mmap gave a null pointer"))
    }

    /// Looks after the leases, for as long as the process lives.
    fn watch() {
        let mut leased = LEASED.lock();
        loop {
            leased.retain(|map| map.strong_count() > 0);
            if leased.is_empty() {
                ADDED.wait(&mut leased);
            } else {
                ADDED.wait_for(&mut leased, CHECK);
            }
            let maps: Vec<_> = leased.iter().filter_map(Weak::upgrade).collect();
            // The last owner of a map may be this thread: it must not be dropped under the lock.
            parking_lot::MutexGuard::unlocked(&mut leased, || {
                maps.into_iter().filter(|map| map.is_wanted()).for_each(|map| map.part());
            });
        }
    }

    impl Map {
        #[allow(unsafe_code, reason = "the mapping is a slice of bytes")]
        pub(super) fn bytes(&self) -> &[u8] {
            // SAFETY: `start..start + length` stays mapped and readable until `drop`, and its content never changes.
            unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
        }

        pub(super) fn metadata(&self) -> &Metadata {
            &self.metadata
        }

        /// Whether somebody waits for the lease.
        fn is_wanted(&self) -> bool {
            let lease = self.lease.lock();
            lease.as_ref().is_some_and(|file| control(file, libc::F_GETLEASE, 0) != Some(libc::F_RDLCK))
        }

        /// Replaces the file's pages by a copy of them, and gives the lease back.
        fn part(&self) {
            let mut lease = self.lease.lock();
            let Some(file) = lease.as_ref() else { return };
            match self.replace_pages(file) {
                Ok(()) => {
                    control(file, libc::F_SETLEASE, libc::F_UNLCK);
                    *lease = None;
                }
                // Tried again at the next look: whoever wants the file waits.
                Err(error) => {
                    tracing::warn!(%error, "a mapped file that is about to change cannot be copied")
                }
            }
        }

        #[allow(unsafe_code, reason = "mremap has no safe wrapper")]
        fn replace_pages(&self, file: &File) -> io::Result<()> {
            let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let copy = pages(self.length, libc::PROT_READ | libc::PROT_WRITE, private, -1)?;
            let copy = Pages { start: copy, length: self.length };
            let mut buffer = vec![0; COPY.min(self.length)];
            let mut at = 0;
            while at < self.length {
                let n = COPY.min(self.length - at);
                file.read_exact_at(&mut buffer[..n], at as u64)?;
                // SAFETY: `at + n` is at most `length`, which `copy` has, and nobody else knows of `copy`.
                unsafe { std::ptr::copy_nonoverlapping(buffer.as_ptr(), copy.start.as_ptr().add(at), n) };
                at += n;
            }
            // SAFETY: exactly the pages of `copy`.
            if unsafe { libc::mprotect(copy.start.as_ptr().cast(), self.length, libc::PROT_READ) } != 0 {
                return Err(io::Error::last_os_error());
            }
            let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            // SAFETY: moves the pages of `copy` over those of this map, as a whole and at once for other threads. They
            // hold the same bytes: nobody can have written to the file while its lease is held.
            let moved = unsafe {
                libc::mremap(
                    copy.start.as_ptr().cast(),
                    self.length,
                    self.length,
                    how,
                    self.start.as_ptr().cast::<libc::c_void>(),
                )
            };
            if moved == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            // They are this map's now.
            std::mem::forget(copy);
            Ok(())
        }
    }

    /// Pages that nobody else knows of.
    struct Pages {
        start: NonNull<u8>,
        length: usize,
    }

    impl Drop for Pages {
        fn drop(&mut self) {
            unmap(self.start, self.length);
        }
    }

    impl Drop for Map {
        fn drop(&mut self) {
            unmap(self.start, self.length);
        }
    }

    #[allow(unsafe_code, reason = "munmap has no safe wrapper")]
    fn unmap(start: NonNull<u8>, length: usize) {
        // SAFETY: called once per mapping by its owner's `drop`; nobody borrows the bytes any more.
        let rc = unsafe { libc::munmap(start.as_ptr().cast(), length) };
        debug_assert_eq!(rc, 0);
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
    fn what_is_mapped_stays_whatever_becomes_of_the_file() {
        let content: Vec<u8> = (0..3_000_001u32).map(|i| i.to_le_bytes()[1]).collect();
        let (folder, path) = file(&content);
        assert!(MappedFile::is_offered_below(folder.path()), "tests run on a local file system");
        let first = MappedFile::new(File::open(&path).unwrap()).unwrap().unwrap();
        let second = MappedFile::new(File::open(&path).unwrap()).unwrap().unwrap();
        drop(second.clone());
        // Waits until both leases are given back.
        let mut writer = std::fs::OpenOptions::new().write(true).truncate(true).open(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
        assert!(first.as_ref() == content && second.as_ref() == content);
        writer.write_all(&[1; 10]).unwrap();
        assert!(first.as_ref() == content && second.as_ref() == content);
        // Somebody writes to it.
        assert!(MappedFile::new(File::open(&path).unwrap()).unwrap().is_none());
        drop(writer);
        assert_eq!(MappedFile::new(File::open(&path).unwrap()).unwrap().unwrap().as_ref(), [1; 10]);
    }

    #[test]
    fn a_file_that_is_removed_is_still_there_for_its_readers() {
        let (_folder, path) = file(b"rows");
        let mapped = MappedFile::new(File::open(&path).unwrap()).unwrap().unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(mapped.as_ref(), b"rows");
    }

    #[test]
    fn nothing_is_mapped_on_file_systems_that_others_write_to() {
        assert!(!MappedFile::is_offered_below(Path::new("/proc")));
        assert!(MappedFile::new(File::open("/proc/self/status").unwrap()).unwrap().is_none());
        let (_folder, path) = file(b"");
        assert!(MappedFile::new(File::open(path).unwrap()).unwrap().is_none(), "an empty file has no pages");
    }
}

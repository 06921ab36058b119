//! Parts on the local file system, mapped into memory: their pages are the system's cache, and decoding
//! an uncompressed part copies nothing.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

/// A whole file, mapped for reading.
#[derive(Debug)]
pub(crate) struct Map {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping is private and read-only, and only `Drop` changes it.
#[allow(unsafe_code, reason = "a read-only mapping may be shared between threads")]
unsafe impl Send for Map {}
// SAFETY: as above.
#[allow(unsafe_code, reason = "a read-only mapping may be shared between threads")]
unsafe impl Sync for Map {}

impl Map {
    /// Maps `length` bytes of a file, which must be as long as that and not empty.
    ///
    /// Parts are never changed after their commit and are deleted by unlinking, which leaves mappings
    /// valid. Who truncates a part under a reader by hand ends the reader with SIGBUS.
    #[allow(unsafe_code, reason = "mmap has no safe wrapper")]
    pub(crate) fn new(file: &File, length: usize) -> io::Result<Self> {
        if length == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "an empty file cannot be mapped"));
        }
        // SAFETY: a fresh private read-only mapping of an open descriptor; the result is checked.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd(), 0)
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        match NonNull::new(start.cast()) {
            Some(start) => Ok(Self { start, length }),
            None => Err(io::Error::other("mmap gave a null pointer")),
        }
    }
}

impl AsRef<[u8]> for Map {
    #[allow(unsafe_code, reason = "the mapping is a slice of bytes")]
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `start..start + length` stays mapped and readable until `drop`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl Drop for Map {
    #[allow(unsafe_code, reason = "munmap has no safe wrapper")]
    fn drop(&mut self) {
        // SAFETY: exactly the mapping that `new` made; nobody borrows it any more.
        let rc = unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
        debug_assert_eq!(rc, 0);
    }
}

//! Files in memory that cannot change any more, and sockets that pass them on to other processes of the host.
//!
//! A [`SealedFile`] is a `memfd`: it has no name, so there is nothing to collide with or to leave behind, and its memory is
//! freed when the last process has closed and unmapped it, however that process ended. Its seals (`F_SEAL_WRITE`,
//! `F_SEAL_SHRINK`, `F_SEAL_GROW`) hold for everybody and forever. So bytes that were checked stay as they are, and reading a
//! mapped page never ends a process with SIGBUS.
//!
//! Only Linux has these files. Elsewhere making one is an error of the kind `Unsupported`.

use std::fmt;
use std::io;
#[cfg(unix)]
use std::os::fd::{BorrowedFd, OwnedFd};

#[cfg(target_os = "linux")]
use linux as system;
#[cfg(not(target_os = "linux"))]
use other as system;

/// A file in memory that cannot change any more.
#[derive(Debug)]
pub struct SealedFile(system::File);

/// The bytes of a [`SealedFile`], mapped into this process.
///
/// The pages are those of the file, which all processes share. They are mapped privately: a user of the memory that writes
/// to it (a tensor that is changed in place) gets its own copy of the page, and nobody else sees the change.
pub struct SealedMap(system::Map);

impl SealedFile {
    /// A file with these bytes, which are copied once. Blocking.
    ///
    /// # Errors
    /// `Unsupported` where there are no such files, and those of the system: no memory, no descriptor.
    pub fn new<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> io::Result<Self> {
        system::File::new(parts.into_iter()).map(Self)
    }

    /// A file that another process has sent, with the length that this process has named.
    ///
    /// # Errors
    /// `InvalidData` if it is no sealed file of this length.
    #[cfg(unix)]
    pub fn from_peer(file: OwnedFd, length: u64) -> io::Result<Self> {
        system::File::from_peer(file, length).map(Self)
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A number that the file has in every process, and that no other file of the host has while this one is open.
    pub fn id(&self) -> u64 {
        self.0.id()
    }

    /// Maps the bytes. The map needs the file no longer.
    ///
    /// # Errors
    /// Those of the system: no memory, or too many maps.
    pub fn map(&self) -> io::Result<SealedMap> {
        self.0.map().map(SealedMap)
    }

    /// Copies the bytes, for a process that cannot map them.
    ///
    /// # Errors
    /// `UnexpectedEof` if there are fewer bytes than `into` has.
    pub fn read(&self, into: &mut [u8]) -> io::Result<()> {
        self.0.read(into)
    }
}

impl AsRef<[u8]> for SealedMap {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl fmt::Debug for SealedMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealedMap").field("length", &self.as_ref().len()).finish_non_exhaustive()
    }
}

/// Sends bytes over a socket of this host, and a file with the first of them.
///
/// # Errors
/// Those of the system, as `WouldBlock`. Nothing was sent then.
#[cfg(unix)]
pub fn send_with_file(
    socket: BorrowedFd<'_>,
    parts: &[io::IoSlice<'_>],
    file: &SealedFile,
) -> io::Result<usize> {
    system::send(socket, parts, &file.0)
}

/// Whether an error of [`send_with_file`] says that the system passes on no further file now: too many are on their way to
/// processes that have not received them.
#[cfg(unix)]
pub fn refuses_files(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ETOOMANYREFS)
}

/// What came over a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// The number of bytes.
    pub bytes: usize,
    /// The system has dropped files that came with the bytes: this process has no descriptor left, or may not have these
    /// files. It says nothing else, and the bytes come as if nothing were missing.
    pub lost_files: bool,
}

/// Receives bytes from a socket of this host, and the files that came with them.
///
/// # Errors
/// Those of the system, as `WouldBlock`.
#[cfg(unix)]
pub fn receive_with_files(
    socket: BorrowedFd<'_>,
    into: &mut [u8],
    files: &mut Vec<OwnedFd>,
) -> io::Result<Received> {
    system::receive(socket, into, files)
}

#[cfg(not(target_os = "linux"))]
mod other {
    use std::io;
    #[cfg(unix)]
    use std::os::fd::{BorrowedFd, OwnedFd};

    #[derive(Debug)]
    pub(super) enum File {}

    pub(super) enum Map {}

    fn unsupported<T>() -> io::Result<T> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "this system has no sealed files in memory"))
    }

    impl File {
        pub(super) fn new<'a>(_: impl Iterator<Item = &'a [u8]>) -> io::Result<Self> {
            unsupported()
        }

        #[cfg(unix)]
        pub(super) fn from_peer(_: OwnedFd, _: u64) -> io::Result<Self> {
            unsupported()
        }

        pub(super) fn len(&self) -> usize {
            match *self {}
        }

        pub(super) fn id(&self) -> u64 {
            match *self {}
        }

        pub(super) fn map(&self) -> io::Result<Map> {
            match *self {}
        }

        pub(super) fn read(&self, _: &mut [u8]) -> io::Result<()> {
            match *self {}
        }
    }

    impl Map {
        pub(super) fn bytes(&self) -> &[u8] {
            match *self {}
        }
    }

    #[cfg(unix)]
    pub(super) fn send(_: BorrowedFd<'_>, _: &[io::IoSlice<'_>], file: &File) -> io::Result<usize> {
        match *file {}
    }

    #[cfg(unix)]
    pub(super) fn receive(
        _: BorrowedFd<'_>,
        _: &mut [u8],
        _: &mut Vec<OwnedFd>,
    ) -> io::Result<super::Received> {
        unsupported()
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::io::{self, IoSlice, Write};
    use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
    use std::os::unix::fs::{FileExt, MetadataExt};

    use memmap2::{MmapMut, MmapOptions};

    use super::Received;

    /// The seals of every file: its bytes and its length are final.
    const SEALS: libc::c_int = libc::F_SEAL_WRITE | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    /// Says that the file holds no program (`linux/memfd.h`). Kernels before 6.3 do not know it.
    const MFD_NOEXEC_SEAL: libc::c_uint = 8;
    /// Slices handed to one write. The system takes 1024 at most.
    const MAX_SLICES: usize = 128;
    /// Bytes for the files that come with one message: a dozen. One is expected.
    const CONTROL_BYTES: usize = 64;

    /// Memory for ancillary data, aligned as the system wants it.
    #[repr(C, align(8))]
    struct Control([u8; CONTROL_BYTES]);

    #[derive(Debug)]
    pub(super) struct File {
        file: std::fs::File,
        length: usize,
        /// The inode. All files in memory are on one file system of the kernel's own.
        id: u64,
    }

    pub(super) struct Map(MmapMut);

    impl File {
        pub(super) fn new<'a>(parts: impl Iterator<Item = &'a [u8]>) -> io::Result<Self> {
            let mut parts: Vec<IoSlice<'_>> = parts.map(IoSlice::new).collect();
            let length = parts.iter().map(|part| part.len()).sum();
            check_size(length)?;
            let mut file = create()?;
            for group in parts.chunks_mut(MAX_SLICES) {
                write_all(&mut file, group)?;
            }
            control(&file, libc::F_ADD_SEALS, SEALS | libc::F_SEAL_SEAL)?;
            let id = file.metadata()?.ino();
            Ok(Self { file, length, id })
        }

        pub(super) fn from_peer(file: OwnedFd, length: u64) -> io::Result<Self> {
            let wrong = || io::Error::new(io::ErrorKind::InvalidData, "it is no sealed file in memory");
            let file = std::fs::File::from(file);
            // Files of any other kind have no seals.
            let seals = control(&file, libc::F_GET_SEALS, 0).map_err(|_| wrong())?;
            let metadata = file.metadata()?;
            if seals & SEALS != SEALS || metadata.len() != length {
                return Err(wrong());
            }
            let length = usize::try_from(length).map_err(|_| wrong())?;
            Ok(Self { file, length, id: metadata.ino() })
        }

        pub(super) fn len(&self) -> usize {
            self.length
        }

        pub(super) fn id(&self) -> u64 {
            self.id
        }

        #[cfg(test)]
        pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
            std::os::fd::AsFd::as_fd(&self.file)
        }

        #[allow(unsafe_code, reason = "a mapped file must not change")]
        pub(super) fn map(&self) -> io::Result<Map> {
            // SAFETY: the seals keep the file's bytes and length as they are, for every process. The map is private, so what
            // this process may write to it stays its own.
            unsafe { MmapOptions::new().len(self.length).map_copy(&self.file) }.map(Map)
        }

        pub(super) fn read(&self, into: &mut [u8]) -> io::Result<()> {
            self.file.read_exact_at(into, 0)
        }
    }

    impl Map {
        pub(super) fn bytes(&self) -> &[u8] {
            &self.0
        }

        /// Writes as a user of the memory may.
        #[cfg(test)]
        pub(super) fn set_first(&mut self, byte: u8) {
            self.0[0] = byte;
        }
    }

    /// Whether this process may write a file of this size. A longer one would end it with SIGXFSZ: the limit on the size of
    /// files (`ulimit -f`) is one for files in memory, too.
    #[allow(unsafe_code, reason = "getrlimit has no safe wrapper in std")]
    fn check_size(length: usize) -> io::Result<()> {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `limit` lives for the duration of the call and is writable.
        if unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) } < 0 {
            return Err(io::Error::last_os_error());
        }
        let fits = limit.rlim_cur == libc::RLIM_INFINITY || length as u64 <= limit.rlim_cur;
        if fits { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EFBIG)) }
    }

    /// An empty file that can be sealed.
    #[allow(unsafe_code, reason = "memfd_create has no safe wrapper in std")]
    fn create() -> io::Result<std::fs::File> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        let with = |flags| {
            // SAFETY: the name is a C string that outlives the call.
            let file = unsafe { libc::memfd_create(c"caju".as_ptr(), flags) };
            if file < 0 {
                return Err(io::Error::last_os_error());
            }
            // SAFETY: the system has just made this descriptor, and nobody else owns it.
            Ok(std::fs::File::from(unsafe { OwnedFd::from_raw_fd(file) }))
        };
        match with(flags | MFD_NOEXEC_SEAL) {
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => with(flags),
            made => made,
        }
    }

    fn write_all(file: &mut std::fs::File, mut parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        IoSlice::advance_slices(&mut parts, 0);
        while !parts.is_empty() {
            match file.write_vectored(parts) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => IoSlice::advance_slices(&mut parts, n),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// `fcntl` with a number as its argument.
    #[allow(unsafe_code, reason = "fcntl has no safe wrapper in std")]
    fn control(file: &std::fs::File, command: libc::c_int, argument: libc::c_int) -> io::Result<libc::c_int> {
        // SAFETY: commands with a number touch no memory of ours.
        let answer = unsafe { libc::fcntl(file.as_raw_fd(), command, argument) };
        if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
    }

    #[allow(unsafe_code, reason = "sendmsg has no safe wrapper in std")]
    #[allow(clippy::cast_possible_truncation, reason = "the types of lengths depend on the C library")]
    pub(super) fn send(socket: BorrowedFd<'_>, parts: &[IoSlice<'_>], file: &File) -> io::Result<usize> {
        const BYTES: libc::c_uint = size_of::<libc::c_int>() as libc::c_uint;
        let mut memory = Control([0; CONTROL_BYTES]);
        // SAFETY: all zeros are a valid header without a name, data or ancillary data.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        // The system only reads what these point to. `IoSlice` has the layout of `iovec`.
        message.msg_iov = parts.as_ptr().cast_mut().cast();
        message.msg_iovlen = parts.len() as _;
        message.msg_control = memory.0.as_mut_ptr().cast();
        // SAFETY: a computation without pointers.
        message.msg_controllen = unsafe { libc::CMSG_SPACE(BYTES) } as _;
        // SAFETY: `memory` has more than CMSG_SPACE bytes and the alignment of a header, so the header and its data are within
        // it. Nothing else refers to it while they are written.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(BYTES) as _;
            libc::CMSG_DATA(header).cast::<libc::c_int>().write_unaligned(file.file.as_raw_fd());
        }
        // SAFETY: `message`, and all that it points to, lives for the duration of the call.
        let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    #[allow(unsafe_code, reason = "recvmsg has no safe wrapper in std")]
    #[allow(clippy::cast_possible_truncation, reason = "the types of lengths depend on the C library")]
    pub(super) fn receive(
        socket: BorrowedFd<'_>,
        into: &mut [u8],
        files: &mut Vec<OwnedFd>,
    ) -> io::Result<Received> {
        let mut memory = Control([0; CONTROL_BYTES]);
        let mut data = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        // SAFETY: all zeros are a valid header without a name, data or ancillary data.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &raw mut data;
        message.msg_iovlen = 1;
        message.msg_control = memory.0.as_mut_ptr().cast();
        message.msg_controllen = CONTROL_BYTES as _;
        // SAFETY: `message`, and all that it points to, lives for the duration of the call and is writable.
        let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
        let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
        // SAFETY: the system has written headers into `memory` and set `msg_controllen` to their length, within which the
        // macros stay. Each header of this type holds as many descriptors as its length says. They are new and this
        // process's own, and each is taken once.
        unsafe {
            let mut header = libc::CMSG_FIRSTHDR(&raw const message);
            while !header.is_null() {
                if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                    let bytes = ((*header).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
                    let first = libc::CMSG_DATA(header).cast::<libc::c_int>();
                    for at in 0..bytes / size_of::<libc::c_int>() {
                        files.push(OwnedFd::from_raw_fd(first.add(at).read_unaligned()));
                    }
                }
                header = libc::CMSG_NXTHDR(&raw const message, header);
            }
        }
        Ok(Received { bytes: received, lost_files: message.msg_flags & libc::MSG_CTRUNC != 0 })
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests;

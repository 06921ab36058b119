use std::io::{IoSlice, Read, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use super::*;

fn descriptor(file: &SealedFile) -> OwnedFd {
    file.0.as_fd().try_clone_to_owned().unwrap()
}

/// A file that comes over a socket has the bytes, and neither side can change or cut it.
#[test]
fn a_sealed_file_comes_over_a_socket_and_never_changes() {
    let many: Vec<u8> = (0..300_000_u32).map(|i| i.to_le_bytes()[0]).collect();
    let parts: Vec<&[u8]> = many.chunks(1000).chain([&[][..], b"end"]).collect();
    let file = SealedFile::new(parts).unwrap();
    assert_eq!(file.len(), 300_003);
    let id = file.id();
    assert_ne!(SealedFile::new([&b"other"[..]]).unwrap().id(), id);
    let (ours, theirs) = UnixStream::pair().unwrap();
    let parts = [IoSlice::new(b"he"), IoSlice::new(b"ad")];
    assert_eq!(send_with_file(ours.as_fd(), &parts, &file).unwrap(), 4);
    (&ours).write_all(b"more").unwrap();
    drop(file);
    let (mut bytes, mut files) = ([0; 64], Vec::new());
    let got = receive_with_files(theirs.as_fd(), &mut bytes, &mut files).unwrap();
    assert!(bytes[..got.bytes].starts_with(b"head") && !got.lost_files);
    assert_eq!(files.len(), 1);
    let raw = files.pop().unwrap();
    let mut plain = std::fs::File::from(raw.try_clone().unwrap());
    let file = SealedFile::from_peer(raw, 300_003).unwrap();
    assert_eq!(file.id(), id);
    let (one, mut two) = (file.map().unwrap(), file.map().unwrap());
    plain.rewind().unwrap();
    assert!(plain.write_all(b"x").is_err() && plain.set_len(10).is_err() && plain.set_len(1 << 20).is_err());
    // What a user writes into its map is its own.
    two.0.set_first(b'x');
    assert_eq!((one.as_ref()[0], two.as_ref()[0]), (0, b'x'));
    let mut copy = vec![0; file.len()];
    file.read(&mut copy).unwrap();
    drop(file);
    assert!(one.as_ref() == copy && copy.starts_with(&many) && copy.ends_with(b"end"));
}

#[test]
fn what_is_not_sealed_is_refused() {
    let file = SealedFile::new([&b"rows"[..]]).unwrap();
    for wrong in [3, 5] {
        assert_eq!(
            SealedFile::from_peer(descriptor(&file), wrong).unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
    }
    let mut plain = tempfile::tempfile().unwrap();
    plain.write_all(b"rows").unwrap();
    assert!(SealedFile::from_peer(plain.into(), 4).is_err());
    let (socket, _other) = UnixStream::pair().unwrap();
    assert!(SealedFile::from_peer(socket.into(), 0).is_err());
}

#[test]
fn bytes_without_a_file_come_alone() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    (&ours).write_all(b"plain").unwrap();
    let (mut bytes, mut files) = ([0; 64], Vec::new());
    let got = receive_with_files(theirs.as_fd(), &mut bytes, &mut files).unwrap();
    assert_eq!(got, Received { bytes: 5, lost_files: false });
    assert!(files.is_empty() && &bytes[..5] == b"plain");
    let file = SealedFile::new([&b"rows"[..]]).unwrap();
    send_with_file(ours.as_fd(), &[IoSlice::new(b"a")], &file).unwrap();
    // A process that does not expect a file gets the bytes, and the file is closed.
    assert_eq!((&theirs).read(&mut bytes).unwrap(), 1);
}

/// Sets a limit of this process, and returns the one before.
#[allow(unsafe_code, reason = "setrlimit has no safe wrapper in std")]
fn limit(of: libc::__rlimit_resource_t, soft: u64) -> u64 {
    let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `now` lives for the duration of the calls, and is writable.
    unsafe {
        assert_eq!(libc::getrlimit(of, &raw mut now), 0);
        let new = libc::rlimit { rlim_cur: soft, ..now };
        assert_eq!(libc::setrlimit(of, &raw const new), 0);
    }
    now.rlim_cur
}

/// Limits hold for a whole process, so the test runs in one of its own.
#[test]
fn limits_of_the_process_are_errors_and_lose_no_file_in_silence() {
    const NAME: &str = "sealed::tests::limits_of_the_process_are_errors_and_lose_no_file_in_silence";
    if std::env::var_os("CAJU_TEST_LIMITS").is_none() {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let child = child.args(["--exact", NAME, "--nocapture"]).env("CAJU_TEST_LIMITS", "1");
        assert!(child.status().unwrap().success());
        return;
    }
    let (ours, theirs) = UnixStream::pair().unwrap();
    let file = SealedFile::new([&b"rows"[..]]).unwrap();
    send_with_file(ours.as_fd(), &[IoSlice::new(b"head")], &file).unwrap();
    // No descriptor is free: the kernel drops the file, and the bytes come.
    let before = limit(libc::RLIMIT_NOFILE, 3);
    let (mut bytes, mut files) = ([0; 64], Vec::new());
    let got = receive_with_files(theirs.as_fd(), &mut bytes, &mut files);
    limit(libc::RLIMIT_NOFILE, before);
    assert_eq!(got.unwrap(), Received { bytes: 4, lost_files: true });
    assert!(files.is_empty());
    let before = limit(libc::RLIMIT_FSIZE, 100);
    assert_eq!(SealedFile::new([&[0; 101][..]]).unwrap_err().raw_os_error(), Some(libc::EFBIG));
    assert_eq!(SealedFile::new([&[0; 100][..]]).unwrap().len(), 100);
    // The test's own output may be a file.
    limit(libc::RLIMIT_FSIZE, before);
}

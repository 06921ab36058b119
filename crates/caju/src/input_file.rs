//! Files of the user that a command reads as a whole: bounded in bytes, and opened within a time.

use std::fs::File;
use std::io::{Error as IoError, ErrorKind, Read, Result as IoResult};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use caju_runtime::{Thread, log_failure};
use caju_types::{Error, format_bytes, format_duration};

/// How long a named pipe is waited for that nobody has opened for writing. A pipe that has a writer is read to its end, however
/// long the writer takes.
const PIPE_TIMEOUT: Duration = Duration::from_secs(10);

/// The bytes of a file.
///
/// # Errors
/// Those of the system; `FileTooLarge` for more than `max_bytes`, and `TimedOut` for a pipe without a writer.
pub(crate) fn read(path: &Path, max_bytes: u64) -> IoResult<Vec<u8>> {
    bounded(open(path, PIPE_TIMEOUT)?, max_bytes)
}

/// The text of a file.
///
/// # Errors
/// As [`read`], and `InvalidData` if it is not UTF-8.
pub(crate) fn read_text(path: &Path, max_bytes: u64) -> IoResult<String> {
    String::from_utf8(read(path, max_bytes)?)
        .map_err(|e| IoError::new(ErrorKind::InvalidData, e.utf8_error()))
}

/// All bytes of an input.
///
/// # Errors
/// `FileTooLarge` for more than `max_bytes`, and those of the system.
pub(crate) fn bounded(input: impl Read, max_bytes: u64) -> IoResult<Vec<u8>> {
    let mut out = Vec::new();
    // One byte more than the bound shows that the input is too large.
    input.take(max_bytes + 1).read_to_end(&mut out)?;
    if out.len() as u64 > max_bytes {
        let why = format!("it has more than {}, which is the most for such a file", format_bytes(max_bytes));
        return Err(IoError::new(ErrorKind::FileTooLarge, why));
    }
    Ok(out)
}

/// The error of a file that cannot be read, without its name.
pub(crate) fn error(e: &IoError) -> Error {
    match e.kind() {
        ErrorKind::NotFound => Error::not_found("no such file; check the path"),
        ErrorKind::PermissionDenied => Error::permission_denied(e.to_string()),
        ErrorKind::IsADirectory => Error::invalid("it is a folder, and not a file"),
        ErrorKind::InvalidData => Error::invalid("it is not a text file"),
        ErrorKind::FileTooLarge => Error::invalid(e.to_string()),
        ErrorKind::TimedOut => Error::deadline(e.to_string()),
        _ => Error::unavailable(e.to_string()),
    }
}

fn open(path: &Path, timeout: Duration) -> IoResult<File> {
    if !std::fs::metadata(path)?.file_type().is_fifo() {
        return File::open(path);
    }
    let (sender, opened) = sync_channel(1);
    let pipe = path.to_owned();
    // A thread that waits for a writer cannot be stopped. It ends with the process.
    Thread::background("caju-open", log_failure, move || {
        drop(sender.send(File::open(pipe)));
        Ok(())
    })
    .map_err(IoError::other)?;
    opened.recv_timeout(timeout).unwrap_or_else(|_| {
        let why = format!("nobody has opened this pipe for writing within {}", format_duration(timeout));
        Err(IoError::new(ErrorKind::TimedOut, why))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_up_to_its_bound() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "12345").unwrap();
        assert_eq!(read_text(&file, 5).unwrap(), "12345");
        for (path, max_bytes) in [(file.as_path(), 4), (Path::new("/dev/zero"), 1 << 20)] {
            let e = read_text(path, max_bytes).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::FileTooLarge);
            assert!(e.to_string().starts_with("it has more than "), "{e}");
        }
        assert_eq!(read_text(dir.path(), 5).unwrap_err().kind(), ErrorKind::IsADirectory);
        std::fs::write(&file, [0xff]).unwrap();
        assert_eq!(read_text(&file, 5).unwrap_err().kind(), ErrorKind::InvalidData);
    }

    #[test]
    fn a_pipe_without_a_writer_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let make = |name| {
            let pipe = dir.path().join(name);
            assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
            pipe
        };
        let e = open(&make("silent"), Duration::from_millis(20)).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::TimedOut);
        assert_eq!(e.to_string(), "nobody has opened this pipe for writing within 20.0 ms");
        // A pipe with a writer is read to its end.
        let pipe = make("pipe");
        let writer = std::thread::spawn({
            let pipe = pipe.clone();
            move || std::fs::write(pipe, "source: { range: 1 }").unwrap()
        });
        assert_eq!(read_text(&pipe, 100).unwrap(), "source: { range: 1 }");
        writer.join().unwrap();
    }
}

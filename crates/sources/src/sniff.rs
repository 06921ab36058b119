//! Recognises text files that are something else, by their first bytes: the error then says what to do.

/// The number of bytes that [`other_format`] needs.
pub(crate) const SNIFFED_BYTES: usize = 8;

/// The actual format of a file that should be plain text, and what to do about it.
pub(crate) fn other_format(head: &[u8]) -> Option<&'static str> {
    const MAGIC: [(&[u8], &str); 8] = [
        (b"\x1f\x8b", "it is compressed by gzip; set `compression: gzip`, or give it the extension `.gz`"),
        (
            b"\x28\xb5\x2f\xfd",
            "it is compressed by zstd; set `compression: zstd`, or give it the extension `.zst`",
        ),
        (b"\xfd7zXZ\0", "it is compressed by xz, which is not supported; compress it by gzip or zstd"),
        (b"\x04\x22\x4d\x18", "it is compressed by lz4, which is not supported; compress it by gzip or zstd"),
        (
            b"PK\x03\x04",
            "it is a zip archive, which is not supported; extract it, or compress it by gzip or zstd",
        ),
        (b"ARROW1\0\0", "it is an Arrow IPC file; use the source `arrow`"),
        (b"\xff\xfe", "it is UTF-16 text; convert it to UTF-8"),
        (b"\xfe\xff", "it is UTF-16 text; convert it to UTF-8"),
    ];
    match head {
        [b'B', b'Z', b'h', _, b'1', b'A', b'Y', ..] => {
            Some("it is compressed by bzip2, which is not supported; compress it by gzip or zstd")
        }
        // A column could have this name: what follows then is text.
        [b'P', b'A', b'R', b'1', next, ..] if next.is_ascii_control() && !next.is_ascii_whitespace() => {
            Some("it is a Parquet file; use the source `parquet`")
        }
        _ => MAGIC.iter().find(|(magic, _)| head.starts_with(magic)).map(|(_, what)| *what),
    }
}

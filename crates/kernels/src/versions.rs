//! The versions of the libraries whose code determines computed values. A test compares them with the lock file. They are
//! part of the fingerprint of what uses them, so that a cache never serves what another version computed.

/// Library and version, sorted by name.
pub const ENGINES: &[(&str, &str)] = &[
    ("arrow", "59.3.2"),
    ("datafusion", "55.2.0"),
    ("image-webp", "0.2.4"),
    ("parquet", "59.3.2"),
    ("png", "0.18.1"),
    ("regex", "1.13.1"),
    ("xxhash-rust", "0.8.19"),
];

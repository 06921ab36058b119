//! Encodings of parts: a file format with a compression.

use std::fmt;
use std::str::FromStr;

use caju_types::{Error, did_you_mean};
use serde::{Deserialize, Serialize};

/// The file format of parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// The Arrow IPC file format. Uncompressed files need no decoding.
    Arrow,
    /// Parquet: smaller and more portable, but slower to read.
    Parquet,
}

impl Format {
    /// Every format.
    pub const ALL: [Format; 2] = [Format::Arrow, Format::Parquet];

    /// The stable name. It is also the extension of the parts' files.
    pub fn as_str(self) -> &'static str {
        match self {
            Format::Arrow => "arrow",
            Format::Parquet => "parquet",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Format {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self, Error> {
        Format::ALL.into_iter().find(|f| f.as_str() == s).ok_or_else(|| {
            let near = did_you_mean(s, Format::ALL.map(Format::as_str));
            Error::invalid(format!("unknown part format `{s}`; use arrow or parquet{near}"))
        })
    }
}

/// How the bytes of parts are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// No compression.
    None,
    /// LZ4: fast.
    Lz4,
    /// Zstandard: smaller than LZ4, but slower.
    Zstd,
    /// Snappy. Only Parquet offers it.
    Snappy,
}

impl Compression {
    /// Every compression.
    pub const ALL: [Compression; 4] =
        [Compression::None, Compression::Lz4, Compression::Zstd, Compression::Snappy];

    /// The stable name.
    pub fn as_str(self) -> &'static str {
        match self {
            Compression::None => "none",
            Compression::Lz4 => "lz4",
            Compression::Zstd => "zstd",
            Compression::Snappy => "snappy",
        }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Compression {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self, Error> {
        Compression::ALL.into_iter().find(|c| c.as_str() == s).ok_or_else(|| {
            let near = did_you_mean(s, Compression::ALL.map(Compression::as_str));
            Error::invalid(format!("unknown compression `{s}`; use none, lz4, zstd or snappy{near}"))
        })
    }
}

/// A format with one of its compressions: `arrow/none`, `arrow/lz4`, `arrow/zstd`, `parquet/none`,
/// `parquet/snappy`, `parquet/lz4` or `parquet/zstd`.
///
/// ```
/// use caju_autocache::Encoding;
/// let e: Encoding = "arrow/lz4".parse().unwrap();
/// assert_eq!(e.to_string(), "arrow/lz4");
/// assert!("arrow/snappy".parse::<Encoding>().is_err());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Encoding {
    /// The file format.
    pub format: Format,
    /// The compression in the file.
    pub compression: Compression,
}

impl Encoding {
    /// Every valid pair.
    pub const ALL: [Encoding; 7] = [
        Encoding { format: Format::Arrow, compression: Compression::None },
        Encoding { format: Format::Arrow, compression: Compression::Lz4 },
        Encoding { format: Format::Arrow, compression: Compression::Zstd },
        Encoding { format: Format::Parquet, compression: Compression::None },
        Encoding { format: Format::Parquet, compression: Compression::Snappy },
        Encoding { format: Format::Parquet, compression: Compression::Lz4 },
        Encoding { format: Format::Parquet, compression: Compression::Zstd },
    ];

    /// A format with a compression.
    ///
    /// # Errors
    /// `InvalidArgument` if the format does not offer the compression.
    pub fn new(format: Format, compression: Compression) -> Result<Self, Error> {
        let pair = Encoding { format, compression };
        if Encoding::ALL.contains(&pair) {
            return Ok(pair);
        }
        Err(Error::invalid(format!("{format} parts are not compressed with {compression}; use lz4 or zstd")))
    }

    /// The encoding that a message or an option names; none if its text is empty.
    ///
    /// # Errors
    /// `InvalidArgument` for text that is no encoding.
    pub fn optional(text: &str) -> Result<Option<Self>, Error> {
        if text.is_empty() { Ok(None) } else { text.parse().map(Some) }
    }

    /// The encoding that the planner's profiles and choices name: to the planner, formats and compressions are opaque names.
    ///
    /// # Errors
    /// `InvalidArgument` for names of no encoding.
    pub(crate) fn named(format: &str, compression: &str) -> Result<Self, Error> {
        Encoding::new(format.parse()?, compression.parse()?)
    }

    /// Whether these are the planner's names of this encoding.
    pub(crate) fn is_named(self, format: &str, compression: &str) -> bool {
        self.format.as_str() == format && self.compression.as_str() == compression
    }
}

impl Default for Encoding {
    fn default() -> Self {
        Encoding { format: Format::Arrow, compression: Compression::None }
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.format, self.compression)
    }
}

impl FromStr for Encoding {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self, Error> {
        let (format, compression) = s.split_once('/').unwrap_or((s, "none"));
        Encoding::named(format, compression)
    }
}

impl TryFrom<String> for Encoding {
    type Error = Error;

    fn try_from(s: String) -> Result<Self, Error> {
        s.parse()
    }
}

impl From<Encoding> for String {
    fn from(e: Encoding) -> String {
        e.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for e in Encoding::ALL {
            assert_eq!(e.to_string().parse::<Encoding>().unwrap(), e);
        }
        assert_eq!("parquet".parse::<Encoding>().unwrap().to_string(), "parquet/none");
        for bad in ["arrow/snappy", "arow/none", "arrow/lz5", ""] {
            assert!(bad.parse::<Encoding>().is_err(), "{bad}");
        }
        assert_eq!(Encoding::optional("").unwrap(), None);
        assert_eq!(Encoding::optional("arrow/lz4").unwrap(), Some("arrow/lz4".parse().unwrap()));
        assert!(Encoding::optional("arrow/lz5").is_err());
        assert!("arow/none".parse::<Encoding>().unwrap_err().message().contains("did you mean `arrow`"));
    }
}

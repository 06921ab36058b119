//! URLs of objects. Keys are taken literally, except that `file://` URLs are percent-decoded.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;

use caju_types::{Error, Result};

/// The schemes that [`Stores`](super::Stores) opens.
pub(super) const SCHEMES: [&str; 7] = ["file", "s3", "gs", "az", "memory", "http", "https"];

/// A URL of an object, a folder or a pattern: `scheme://authority/key`.
///
/// `file://` URLs are percent-decoded (`file:///a%20b` is the file `/a b`, as `Path.as_uri()` of Python writes it), and a
/// `%` of a local path is written as `%25`. Paths without a scheme, and keys of object stores, are literal. Paths of local
/// files are normalised: `//`, `.` and `..` are resolved by their text. `s3a` is `s3`, `gcs` is `gs`, and `abfs`, `abfss`,
/// `azure` and `adl` are `az`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StoreUrl {
    /// `file`, `s3`, ...
    pub scheme: String,
    /// Bucket, container, host or name; empty for local files.
    pub authority: String,
    /// The remainder, without a leading slash.
    pub key: String,
}

impl StoreUrl {
    /// Parses a URL or an absolute path.
    ///
    /// # Errors
    /// `InvalidArgument` for a relative path, a missing bucket, `..` in a key, or an escaped byte that is not UTF-8.
    pub fn parse(text: &str) -> Result<Self> {
        let text = text.trim();
        let Some((scheme, rest)) = text.split_once("://") else {
            if text.starts_with('/') {
                return Ok(Self::local(text));
            }
            return Err(Error::invalid(format!(
                "`{text}` is neither a URL nor an absolute path; write file:///..., s3://bucket/key or /absolute/path"
            )));
        };
        let scheme = match scheme.to_ascii_lowercase().as_str() {
            "s3a" => "s3".to_string(),
            "gcs" => "gs".to_string(),
            "abfs" | "abfss" | "azure" | "adl" => "az".to_string(),
            s => s.to_string(),
        };
        if scheme == "file" {
            let path = rest.strip_prefix("localhost").unwrap_or(rest);
            if !path.is_empty() && !path.starts_with('/') {
                return Err(Error::invalid(format!(
                    "`{text}` names a host; a local file has three slashes: file:///{path}"
                )));
            }
            return Ok(Self::local(&decoded(path).ok_or_else(|| {
                Error::invalid(format!("`{text}`: the bytes that it escapes by `%` are no UTF-8 text"))
            })?));
        }
        let (authority, key) = rest.split_once('/').unwrap_or((rest, ""));
        if authority.is_empty() && scheme != "memory" {
            return Err(Error::invalid(format!("`{text}` lacks a bucket; write {scheme}://bucket/key")));
        }
        if key.split('/').any(|part| part == "." || part == "..") {
            return Err(Error::invalid(format!("`{text}`: `.` and `..` mean nothing in an object's key")));
        }
        Ok(Self { scheme, authority: authority.to_string(), key: key.trim_matches('/').to_string() })
    }

    fn local(path: &str) -> Self {
        let mut parts: Vec<&str> = Vec::new();
        for part in path.split('/') {
            match part {
                "" | "." => {}
                ".." => {
                    parts.pop();
                }
                p => parts.push(p),
            }
        }
        Self { scheme: "file".into(), authority: String::new(), key: parts.join("/") }
    }

    /// Scheme and authority: what one store serves.
    pub fn root(&self) -> String {
        format!("{}://{}", self.scheme, self.authority)
    }

    /// Whether it is a file of this host.
    pub fn is_local(&self) -> bool {
        self.scheme == "file"
    }

    /// The path of a local file.
    pub fn local_path(&self) -> PathBuf {
        PathBuf::from(format!("/{}", self.key))
    }

    /// The URL of another key in the same store.
    #[must_use]
    pub fn with_key(&self, key: impl Into<String>) -> Self {
        Self { scheme: self.scheme.clone(), authority: self.authority.clone(), key: key.into() }
    }

    /// Whether it is `folder` itself or below it.
    pub fn is_below(&self, folder: &StoreUrl) -> bool {
        self.scheme == folder.scheme
            && self.authority == folder.authority
            && match self.key.strip_prefix(folder.key.as_str()) {
                Some(rest) => rest.is_empty() || rest.starts_with('/') || folder.key.is_empty(),
                None => false,
            }
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // `parse` decodes this.
        let key = match self.is_local() && self.key.contains('%') {
            true => Cow::Owned(self.key.replace('%', "%25")),
            false => Cow::Borrowed(self.key.as_str()),
        };
        write!(f, "{}://{}/{key}", self.scheme, self.authority)
    }
}

/// The path with its percent escapes decoded. A `%` without two hexadecimal digits is literal.
fn decoded(path: &str) -> Option<Cow<'_, str>> {
    if !path.contains('%') {
        return Some(Cow::Borrowed(path));
    }
    let digit =
        |b: Option<&u8>| b.and_then(|b| char::from(*b).to_digit(16)).and_then(|d| u8::try_from(d).ok());
    let (bytes, mut out, mut at) = (path.as_bytes(), Vec::with_capacity(path.len()), 0);
    while let Some(byte) = bytes.get(at) {
        match (byte, digit(bytes.get(at + 1)), digit(bytes.get(at + 2))) {
            (b'%', Some(high), Some(low)) => {
                out.push((high << 4) | low);
                at += 3;
            }
            _ => {
                out.push(*byte);
                at += 1;
            }
        }
    }
    String::from_utf8(out).ok().map(Cow::Owned)
}

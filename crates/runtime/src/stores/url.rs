//! URLs of objects, taken literally.

use std::fmt;
use std::path::PathBuf;

use caju_types::{Error, Result};

/// The schemes that [`Stores`](super::Stores) opens.
pub(super) const SCHEMES: [&str; 7] = ["file", "s3", "gs", "az", "memory", "http", "https"];

/// A URL of an object, a folder or a pattern: `scheme://authority/key`, nothing decoded.
///
/// Paths of local files are normalised (`//`, `.` and `..` are resolved by their text); `s3a` is `s3`,
/// `gcs` is `gs`, and `abfs`, `abfss`, `azure` and `adl` are `az`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StoreUrl {
    /// `file`, `s3`, ...
    pub scheme: String,
    /// Bucket, container, host or name; empty for local files.
    pub authority: String,
    /// The rest, without a slash in front.
    pub key: String,
}

impl StoreUrl {
    /// Parses a URL or an absolute path.
    ///
    /// # Errors
    /// `InvalidArgument` for a relative path, a missing bucket, or `..` in a key.
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
            return Ok(Self::local(path));
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

    /// Whether it is a file of this machine.
    pub fn is_local(&self) -> bool {
        self.scheme == "file"
    }

    /// The path of a local file.
    pub fn local_path(&self) -> PathBuf {
        PathBuf::from(format!("/{}", self.key))
    }

    /// The same store, another key.
    #[must_use]
    pub fn with_key(&self, key: impl Into<String>) -> Self {
        Self { scheme: self.scheme.clone(), authority: self.authority.clone(), key: key.into() }
    }

    /// Whether it is `folder` itself or lies below it.
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
        write!(f, "{}://{}/{}", self.scheme, self.authority, self.key)
    }
}

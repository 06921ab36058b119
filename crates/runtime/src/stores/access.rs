//! Access rules: the URLs that a server may read and write.

use caju_types::{Error, Result, did_you_mean};
use parking_lot::Mutex;

use super::url::{SCHEMES, StoreUrl};

/// The URLs or absolute paths that a server may use. What it may write it may read, too.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// It may read these and everything below them.
    pub read: Vec<String>,
    /// It may write these and everything below them.
    pub write: Vec<String>,
}

/// The parsed form of [`Access`], and the cache, which a server may use without an entry of its own.
#[derive(Debug)]
pub(super) struct AccessRules {
    read: Vec<StoreUrl>,
    write: Vec<StoreUrl>,
    cache: Mutex<Option<StoreUrl>>,
}

impl AccessRules {
    /// # Errors
    /// `InvalidArgument` for an entry that is not a URL or an absolute path.
    pub(super) fn new(access: &Access) -> Result<Self> {
        let urls = |entries: &[String], flag: &str| {
            let urls: Result<Vec<_>> = entries.iter().map(|u| known_url(u)).collect();
            urls.map_err(|e| e.context(flag))
        };
        Ok(Self {
            read: urls(&access.read, "--allow-read")?,
            write: urls(&access.write, "--allow-write")?,
            cache: Mutex::default(),
        })
    }

    pub(super) fn set_cache(&self, url: Option<StoreUrl>) {
        *self.cache.lock() = url;
    }

    pub(super) fn check_read(&self, url: &StoreUrl) -> Result<()> {
        if self.is_writable(url) || self.read.iter().any(|a| url.is_below(a)) {
            return Ok(());
        }
        Err(Error::permission_denied(format!(
            "{url} may not be read: it lies outside the URLs given with --allow-read ({})",
            list(&self.read)
        )))
    }

    pub(super) fn check_write(&self, url: &StoreUrl) -> Result<()> {
        if self.is_writable(url) {
            return Ok(());
        }
        Err(Error::permission_denied(format!(
            "{url} may not be written: it lies outside the URLs given with --allow-write ({})",
            list(&self.write)
        )))
    }

    fn is_writable(&self, url: &StoreUrl) -> bool {
        self.write.iter().any(|a| url.is_below(a)) || self.cache.lock().iter().any(|a| url.is_below(a))
    }
}

fn list(urls: &[StoreUrl]) -> String {
    if urls.is_empty() {
        return "none".to_owned();
    }
    urls.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Parses a URL of a known scheme. An unknown scheme is a typing error.
fn known_url(text: &str) -> Result<StoreUrl> {
    let url = StoreUrl::parse(text)?;
    if SCHEMES.contains(&url.scheme.as_str()) {
        return Ok(url);
    }
    let near = did_you_mean(&url.scheme, SCHEMES);
    Err(Error::invalid(format!("`{text}` is not a known kind of URL{near}")))
}

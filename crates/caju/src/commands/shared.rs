//! What several commands need: stores, threads and paths as the user wrote them.

use std::collections::BTreeMap;

use caju_runtime::{CpuPool, Stores};
use caju_types::{Error, Result};

/// Stores with the options that the environment holds (`AWS_*`, `GOOGLE_*`, `AZURE_*`, ...).
///
/// # Errors
/// `InvalidArgument` for an `--allow` that is not a path or URL.
pub(crate) fn stores(allow: Option<Vec<String>>) -> Result<Stores> {
    let options: BTreeMap<String, String> = std::env::vars_os()
        .filter_map(|(k, v)| Some((k.into_string().ok()?.to_lowercase(), v.into_string().ok()?)))
        // Proxies and the like are for every program; only names that a cloud owns are taken.
        .filter(|(k, _)| ["aws_", "google_", "azure_"].iter().any(|p| k.starts_with(p)) && Stores::known_option(k))
        .collect();
    Stores::new(options, allow)
}

/// A URL as it is; a path made absolute from the working folder.
///
/// # Errors
/// `FailedPrecondition` if there is no working folder.
pub(crate) fn absolute_url(text: &str) -> Result<String> {
    if text.contains("://") {
        return Ok(text.to_string());
    }
    let path = std::path::absolute(text).map_err(|e| Error::failed_precondition(format!("`{text}`: {e}")))?;
    path.to_str()
        .map(String::from)
        .ok_or_else(|| Error::invalid(format!("`{text}`: the path is not UTF-8; rename the folder")))
}

/// Threads that compute: as many as asked for, else as many as cores.
///
/// # Errors
/// `ResourceExhausted` if the system gives no threads.
pub(crate) fn cpu_pool(threads: Option<u32>) -> Result<CpuPool> {
    CpuPool::new(threads.map_or_else(cores, |n| n.max(1) as usize))
}

/// Cores that this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

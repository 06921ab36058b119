//! Which manifests say nothing any more.

use caju_types::{Fingerprint, Result};

use crate::Cache;
use crate::manifest::Manifest;
use crate::scan::Scan;
use crate::store::Listed;

/// Manifests that are kept: the one before the newest stays for readers that have just listed it.
const KEPT: usize = 2;

/// What is below the newest manifests that can be understood, and what cannot be understood above them, if there are
/// any such; nothing where there are no more than are kept.
pub(super) async fn superseded<'a>(
    cache: &Cache,
    of: Fingerprint,
    scan: &'a Scan,
) -> Result<Vec<&'a Listed>> {
    let (mut good, mut rest) = (0, Vec::new());
    if scan.manifests.len() <= KEPT {
        return Ok(rest);
    }
    for object in scan.manifests.values().rev() {
        if good < KEPT && Manifest::load(&cache.root, of, object).await?.is_some() {
            good += 1;
        } else {
            rest.push(object);
        }
    }
    if good == 0 {
        rest.clear();
    }
    Ok(rest)
}

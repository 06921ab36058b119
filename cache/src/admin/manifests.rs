//! Manifests that newer ones supersede.

use caju_types::{Fingerprint, Result};

use crate::manifest::{Manifest, RETAINED_MANIFESTS};
use crate::scan::Scan;
use crate::store::{Listed, Root};

/// The manifests that can go: those below the newest valid ones, and damaged or foreign ones above them. None if there is
/// no valid manifest, or if there are not more than are kept.
pub(super) async fn superseded<'a>(root: &Root, of: Fingerprint, scan: &'a Scan) -> Result<Vec<&'a Listed>> {
    let (mut valid, mut superseded) = (0, Vec::new());
    if scan.manifests.len() <= RETAINED_MANIFESTS {
        return Ok(superseded);
    }
    for object in scan.manifests.values().rev() {
        if valid < RETAINED_MANIFESTS && Manifest::load(root, of, object).await?.is_some() {
            valid += 1;
        } else {
            superseded.push(object);
        }
    }
    if valid == 0 {
        superseded.clear();
    }
    Ok(superseded)
}

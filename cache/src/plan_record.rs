//! Plan records below a cache root.
//!
//! `ROOT/v1/plans` has one small object per definition: the profile of its last job, and the number of jobs. The next job
//! with the same definition decides by it before its first row.

use caju_autocache::PlanRecord;
use caju_runtime::stores::store_error;
use caju_runtime::{Location, Stores};
use caju_types::{Fingerprint, Result};
use object_store::ObjectStoreExt;

use crate::record::{Record, seal};
use crate::store::read_record;

impl Record for PlanRecord {
    const NAME: &'static str = "a plan record";
    /// It has one profile, which takes some hundred bytes per stage. So pipelines of many thousand stages fit.
    const MAX_BYTES: u64 = 16 << 20;
}

fn location(stores: &Stores, root: &str, definition: Fingerprint) -> Result<Location> {
    let mut at = stores.resolve(root).map_err(|e| e.context("cache root"))?;
    let name = format!("{definition}.json");
    at.path = at.path.join(crate::layout::VERSION).join(crate::layout::PLANS).join(name);
    Ok(at)
}

/// Writes the plan record of a definition below a cache root, over an earlier one.
///
/// # Errors
/// The errors of the store.
pub async fn write_plan_record(
    record: &PlanRecord,
    stores: &Stores,
    root: &str,
    definition: Fingerprint,
) -> Result<()> {
    let at = location(stores, root, definition)?;
    at.store.put(&at.path, seal(record)?.into()).await.map_err(|e| store_error(&at.url, e))?;
    Ok(())
}

/// The plan record of a definition below a cache root; none if there is none, or it is damaged or of another version.
///
/// # Errors
/// The errors of the store.
pub async fn read_plan_record(
    stores: &Stores,
    root: &str,
    definition: Fingerprint,
) -> Result<Option<PlanRecord>> {
    let at = location(stores, root, definition)?;
    let read =
        read_record::<PlanRecord>(&at).await.map_err(|e| e.context("the plan record of the pipeline"))?;
    match read {
        None => Ok(None),
        Some(Ok(record)) => Ok(Some(record).filter(|r| r.schema == PlanRecord::SCHEMA)),
        Some(Err(why)) => {
            tracing::warn!(record = %at.url, why, "a damaged plan record is ignored");
            Ok(None)
        }
    }
}

//! What readers ask for.

use caju_client::{Balance, Consumer, LostReaders, ReadRequest, Sharing, Uneven};
use caju_pipeline::DatasetDef;
use caju_proto::v1::ProcessingMode;
use caju_types::Result;

use crate::plan::{Caching, Division};
use crate::world::World;

impl World {
    /// What every reader asks for.
    ///
    /// # Errors
    /// If the plan's definition is none.
    pub(crate) fn request(&self, reader: usize, epoch: u64) -> Result<ReadRequest> {
        let plan = self.plan();
        let def = DatasetDef::from_json(&plan.definition(reader))?;
        let shared = plan.sharing.as_ref().map(|s| s.name_of(reader));
        let (job, seed) = shared.unwrap_or_else(|| ("train".to_string(), None));
        let policy = if plan.caching == Caching::PutGet { "hint:stored" } else { "compute" };
        Ok(ReadRequest {
            job,
            epoch,
            seed,
            sharing: match plan.sharing {
                Some(_) if plan.is_relaxed(reader) => Sharing::Relaxed { trainer_id: None },
                Some(_) => Sharing::Exact { trainer_id: None },
                None => Sharing::AsJob,
            },
            policy: policy.to_string(),
            mode: if plan.division == Division::ByRow {
                ProcessingMode::Data
            } else {
                ProcessingMode::Dynamic
            },
            consumer: self.consumer(reader),
            lost_readers: LostReaders::Allow,
            ..ReadRequest::of(def)
        })
    }

    fn consumer(&self, reader: usize) -> Option<Consumer> {
        let Division::Consumers { pads } = self.plan().division else { return None };
        let (index, count) = (u32::try_from(reader).ok()?, u32::try_from(self.plan().readers).ok()?);
        let uneven = if pads { Uneven::Pad } else { Uneven::Drop };
        let balance = match (self.plan().is_in_rounds, self.plan().packs) {
            (false, _) => Balance::None,
            (true, false) => Balance::Bucket,
            (true, true) => Balance::Tokens,
        };
        Some(Consumer { uneven, balance, ..Consumer::new(index, count) })
    }
}

//! A journal that lives as long as the process: for embedded use and for tests.

use std::sync::Arc;

use caju_types::Result;
use parking_lot::Mutex;

use super::{Journal, codec};
use crate::state::Update;

/// Groups in memory, encoded as any journal encodes them. Clones share the content, so that a test can
/// "restart" a dispatcher on what the previous one wrote.
#[derive(Debug, Clone, Default)]
pub struct MemoryJournal {
    groups: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Journal for MemoryJournal {
    fn replay(&mut self) -> Result<Vec<Vec<Update>>> {
        self.groups.lock().iter().map(|g| codec::decode(g)).collect()
    }

    fn append(&mut self, groups: &[Vec<Update>]) -> Result<u64> {
        let encoded = groups.iter().map(|g| codec::encode(g)).collect::<Result<Vec<_>>>()?;
        let bytes = encoded.iter().map(|g| g.len() as u64).sum();
        self.groups.lock().extend(encoded);
        Ok(bytes)
    }

    fn replace(&mut self, group: &[Update]) -> Result<u64> {
        let encoded = codec::encode(group)?;
        let bytes = encoded.len() as u64;
        *self.groups.lock() = vec![encoded];
        Ok(bytes)
    }

    fn describe(&self) -> String {
        "in memory".to_string()
    }
}

//! A journal that lives as long as the process: for embedded use and for tests.

use std::collections::VecDeque;
use std::sync::Arc;

use caju_types::Result;
use parking_lot::Mutex;

use super::codec::{self, EncodedGroup, Encoder};
use super::{Journal, StoredGroups};
use crate::state::Update;

/// Groups in memory, encoded as any journal encodes them. Clones share the content, so that a test can
/// "restart" a dispatcher on what the previous one wrote.
#[derive(Debug, Clone, Default)]
pub struct MemoryJournal {
    records: Arc<Mutex<Records>>,
}

#[derive(Debug, Default)]
struct Records {
    /// The number of the first one.
    first: u64,
    groups: VecDeque<Arc<[u8]>>,
    encoder: Option<Encoder>,
}

impl Records {
    fn next(&self) -> u64 {
        self.first + self.groups.len() as u64
    }

    fn encode(&mut self, group: &[Update]) -> Result<Vec<u8>> {
        match &mut self.encoder {
            Some(encoder) => encoder.encode(group),
            None => self.encoder.insert(Encoder::new()?).encode(group),
        }
    }
}

impl Journal for MemoryJournal {
    fn replay(&mut self) -> Result<Vec<Vec<Update>>> {
        self.records.lock().groups.iter().map(|g| codec::decode(g)).collect()
    }

    fn append(&mut self, groups: &[Vec<Update>]) -> Result<u64> {
        let mut records = self.records.lock();
        let encode = |g: &Vec<Update>| records.encode(g).map(Arc::<[u8]>::from);
        let encoded = groups.iter().map(encode).collect::<Result<Vec<_>>>()?;
        let bytes = encoded.iter().map(|g| g.len() as u64).sum();
        records.groups.extend(encoded);
        Ok(bytes)
    }

    fn stored(&self) -> Result<Box<dyn StoredGroups>> {
        let records = self.records.lock();
        let (groups, end) = (records.groups.iter().cloned().collect(), records.next());
        Ok(Box::new(StoredInMemory { records: Arc::clone(&self.records), groups, end }))
    }

    fn describe(&self) -> String {
        "in memory".to_string()
    }
}

struct StoredInMemory {
    records: Arc<Mutex<Records>>,
    /// The records, so that they are decoded without the lock.
    groups: Vec<Arc<[u8]>>,
    /// The number after the last record.
    end: u64,
}

impl StoredInMemory {
    /// How many records from the front are meant.
    fn len(&self, records: &Records) -> usize {
        usize::try_from(self.end.saturating_sub(records.first)).unwrap_or(usize::MAX)
    }
}

impl StoredGroups for StoredInMemory {
    fn read(&mut self) -> Result<Vec<Vec<Update>>> {
        self.groups.iter().map(|g| codec::decode(g)).collect()
    }

    fn replace(&mut self, group: &EncodedGroup) -> Result<u64> {
        let mut records = self.records.lock();
        let replaced = self.len(&records).min(records.groups.len());
        drop(records.groups.drain(..replaced));
        records.groups.push_front(group.bytes().into());
        records.first = self.end.saturating_sub(1);
        Ok(group.bytes().len() as u64)
    }
}

//! Sets: parts that count only together.
//!
//! Below a cross-split stage a part holds rows of many splits, and only all parts together are the output of the stages
//! above. Every writer puts its part under a key of its own, and then announces which splits the part covers. A writer that
//! finds that the parts of one attempt cover the listing exactly once creates the set's record. One attempt wins, and the
//! parts of the others are deleted.

use std::collections::HashSet;

use caju_autocache::SplitSetDigest;
use caju_types::{Error, Result, SplitKey};
use serde::{Deserialize, Serialize};

use crate::commit::remove_part;
use crate::record::{PartMeta, Record, seal};
use crate::snapshot::Snapshot;
use crate::state::PartIndex;
use crate::store::{Created, Root};

/// The version of the format. Every record carries it.
const SCHEMA: &str = "caju.set/v1";
/// How often a writer tries to create the set's record while other processes create and delete it.
const MAX_CREATE_ATTEMPTS: usize = 16;

/// One part of a set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The key under which the part was put.
    pub part: SplitKey,
    /// The attempt that wrote it.
    pub attempt: String,
    /// The names of the splits whose rows it holds, in the order by which the part numbers them.
    pub covers: Vec<SplitName>,
    /// How many rows the split-local output of each of these has, in the same order. A stage above the hint may have dropped some of
    /// them. Empty where the writer did not know all of these numbers, and in records of older versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rows: Vec<u64>,
}

impl Member {
    /// How many rows the split-local output of the split with this number has, if that is known.
    pub fn rows_of(&self, number: u32) -> Option<u64> {
        if self.rows.len() != self.covers.len() {
            return None;
        }
        self.rows.get(usize::try_from(number).ok()?).copied()
    }
}

/// A split's name as records write it: 32 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SplitName(#[serde(with = "hex")] pub u128);

/// The record of a complete set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetRecord {
    schema: String,
    /// The attempt that won.
    pub attempt: String,
    /// What it covers.
    pub whole: SplitSetDigest,
    /// Its parts.
    pub members: Vec<Member>,
}

impl Record for SetRecord {
    const NAME: &'static str = "the record of a set";
    /// A split takes 35 bytes, and its number of rows up to ten more. So five million splits fit.
    const MAX_BYTES: u64 = 256 << 20;
}

impl SetRecord {
    /// Whether all its parts are in the index.
    pub fn is_in(&self, index: &PartIndex) -> bool {
        self.members.iter().all(|m| index.get(&m.part).is_some_and(|p| p.attempt == m.attempt))
    }
}

/// The announcement of one part of an attempt.
#[derive(Serialize, Deserialize)]
struct Announced {
    attempt: String,
    member: Member,
}

impl Record for Announced {
    const NAME: &'static str = "the announcement of a part of a set";
    /// As in the record of the set: one part may hold rows of all splits.
    const MAX_BYTES: u64 = SetRecord::MAX_BYTES;
}

/// The outcome of adding a part to a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetOutcome {
    /// Other parts are still missing.
    Open,
    /// The set is complete and counts.
    Complete,
    /// Another attempt's set counts: the part was deleted.
    Lost,
}

impl Snapshot {
    /// The recorded set; none if no set was completed. Its parts may have been evicted since: see [`SetRecord::is_in`].
    ///
    /// # Errors
    /// The errors of the store.
    pub async fn set(&self) -> Result<Option<SetRecord>> {
        let root = self.root();
        let path = root.layout.set(self.state.of);
        let Some(read) = root.read_record::<SetRecord>(&path).await? else { return Ok(None) };
        match read {
            Ok(record) if record.schema == SCHEMA => Ok(Some(record)),
            Ok(_) => Ok(None),
            Err(why) => {
                tracing::warn!(record = %root.name(&path), why, "a damaged record of a set is ignored");
                Ok(None)
            }
        }
    }

    /// Adds a committed part to an attempt at a set, and records the set if the part completes it.
    ///
    /// # Errors
    /// The errors of the store. The set then does not count, unless another part completes it.
    pub async fn add_to_set(
        &self,
        attempt: &str,
        whole: SplitSetDigest,
        member: Member,
    ) -> Result<SetOutcome> {
        let (root, of) = (self.root(), self.state.of);
        let path = root.layout.member(of, attempt, member.part);
        let announced = Announced { attempt: attempt.to_string(), member: member.clone() };
        root.put(&path, seal(&announced)?.into()).await?;
        if let Some(other) = self.other_set(attempt).await? {
            tracing::debug!(set = %of, winner = other.attempt, "another attempt completed the set first");
            self.drop_attempt(attempt).await?;
            return Ok(SetOutcome::Lost);
        }
        let members = self.members(attempt).await?;
        if SplitSetDigest::of(members.iter().flat_map(|m| &m.covers).map(|n| n.0)) != whole {
            return Ok(SetOutcome::Open);
        }
        let record = SetRecord { schema: SCHEMA.into(), attempt: attempt.to_string(), whole, members };
        if self.record(&record).await? {
            self.drop_other_attempts(&record).await?;
            Ok(SetOutcome::Complete)
        } else {
            self.drop_attempt(attempt).await?;
            Ok(SetOutcome::Lost)
        }
    }

    /// Withdraws a set of which a part was found bad. Another attempt may replace it.
    ///
    /// # Errors
    /// The errors of the store.
    pub async fn discard_set(&self, why: &str) -> Result<()> {
        tracing::warn!(set = %self.state.of, why, "a set of parts does not count any more");
        self.root().delete(&self.root().layout.set(self.state.of)).await
    }

    fn root(&self) -> &Root {
        &self.cache.ctx.root
    }

    /// The set of another attempt, if one counts.
    async fn other_set(&self, attempt: &str) -> Result<Option<SetRecord>> {
        let Some(record) = self.set().await?.filter(|r| r.attempt != attempt) else { return Ok(None) };
        Ok(record.is_in(&self.index().await?).then_some(record))
    }

    /// Creates the record. False if another attempt's set counts. A record that is damaged, or whose parts are missing, is
    /// replaced.
    async fn record(&self, record: &SetRecord) -> Result<bool> {
        let root = self.root();
        let path = root.layout.set(self.state.of);
        for _ in 0..MAX_CREATE_ATTEMPTS {
            match root.create::<SetRecord>(&path, seal(record)?.into()).await? {
                Created::Yes => return Ok(true),
                Created::Taken(_) if self.set().await?.is_some_and(|r| r.attempt == record.attempt) => {
                    return Ok(true);
                }
                Created::Taken(_) if self.other_set(&record.attempt).await?.is_some() => return Ok(false),
                Created::Taken(_) => root.delete(&path).await?,
            }
        }
        Err(Error::unavailable(format!("{}: it keeps being written and deleted by others", root.name(&path))))
    }

    /// The announced parts of an attempt.
    async fn members(&self, attempt: &str) -> Result<Vec<Member>> {
        let root = self.root();
        let mut members = Vec::new();
        for object in root.list(&root.layout.members(self.state.of)).await? {
            let ours = object.path.filename().is_some_and(|n| n.starts_with(attempt));
            if !ours {
                continue;
            }
            match root.read_record::<Announced>(&object.path).await? {
                Some(Ok(a)) if a.attempt == attempt => members.push(a.member),
                Some(Err(why)) => {
                    tracing::warn!(record = %root.name(&object.path), why, "a damaged announcement of a part is ignored");
                }
                _ => {}
            }
        }
        members.sort_by_key(|m| m.part);
        Ok(members)
    }

    /// Deletes the parts and announcements of an attempt that lost.
    async fn drop_attempt(&self, attempt: &str) -> Result<()> {
        let root = self.root();
        let index = self.index().await?;
        for member in &self.members(attempt).await? {
            if let Some(part) = index.get(&member.part).filter(|p| p.attempt == member.attempt) {
                self.delete_part(part).await?;
            }
            root.delete(&root.layout.member(self.state.of, attempt, member.part)).await?;
        }
        Ok(())
    }

    /// Deletes the parts of all other attempts, which never count once a set counts, and all announcements.
    async fn drop_other_attempts(&self, record: &SetRecord) -> Result<()> {
        let root = self.root();
        if root.conditional() {
            let ours: HashSet<SplitKey> = record.members.iter().map(|m| m.part).collect();
            for (key, part) in self.index().await?.iter() {
                if !ours.contains(key) {
                    self.delete_part(part).await?;
                }
            }
        }
        let announced = root.list(&root.layout.members(self.state.of)).await?;
        root.delete_all(announced.into_iter().map(|o| o.path).collect()).await?;
        self.state.forget();
        Ok(())
    }

    async fn delete_part(&self, part: &PartMeta) -> Result<()> {
        remove_part(self.root(), part).await?;
        self.cache.ctx.budget.free(part.bytes);
        self.state.forget();
        Ok(())
    }
}

/// 128-bit numbers as hexadecimal text: JSON readers would lose digits.
mod hex {
    use serde::{Deserialize, Deserializer, Serializer, de::Error as _};

    pub(super) fn serialize<S: Serializer>(n: &u128, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(&format!("{n:032x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<u128, D::Error> {
        let text = String::deserialize(input)?;
        u128::from_str_radix(&text, 16).map_err(D::Error::custom)
    }
}

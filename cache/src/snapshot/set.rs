//! Sets: parts that count only together.
//!
//! Behind a stage that mixes splits, a part holds rows of many splits, and only all of them together are what the
//! stages above put out. Every writer puts its part (under a key of its own) and then says which splits it covers;
//! whoever finds that the parts of one attempt cover the listing exactly once creates the set's record. One attempt
//! wins; parts of others are deleted.

use std::collections::HashSet;

use caju_autocache::Whole;
use caju_types::{Error, Result, SplitKey};
use serde::{Deserialize, Serialize};

use super::{PartIndex, Snapshot};
use crate::record::{PartMeta, seal, unseal};
use crate::store::Created;

/// The version of the format, as it stands in every record.
const SCHEMA: &str = "caju.set/v1";

/// One part of a set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The key under which the part was put.
    pub part: SplitKey,
    /// The attempt that wrote it.
    pub attempt: String,
    /// The names of the splits whose rows it holds, in the order by which the part numbers them.
    pub covers: Vec<Name>,
}

/// A split's name, as records spell it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Name(#[serde(with = "hex")] pub u128);

/// A set that is whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetRecord {
    schema: String,
    /// The attempt that won.
    pub attempt: String,
    /// What it covers.
    pub whole: Whole,
    /// Its parts.
    pub members: Vec<Member>,
}

impl SetRecord {
    /// Whether all its parts are there.
    pub fn is_in(&self, index: &PartIndex) -> bool {
        self.members.iter().all(|m| index.get(&m.part).is_some_and(|p| p.attempt == m.attempt))
    }
}

/// What a member of an attempt says of itself.
#[derive(Serialize, Deserialize)]
struct Announced {
    attempt: String,
    member: Member,
}

/// What came of adding a part to a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetOutcome {
    /// Others are still missing.
    Open,
    /// The set is whole and counts.
    Whole,
    /// Another attempt's set counts: the part was deleted.
    Lost,
}

impl Snapshot {
    /// The set, if a whole one was recorded. Its parts may be gone all the same: see [`SetRecord::is_in`].
    ///
    /// # Errors
    /// What the store says.
    pub async fn set(&self) -> Result<Option<SetRecord>> {
        let root = &self.cache.root;
        let path = root.layout.set(self.state.of);
        let Some(bytes) = root.get(&path).await? else { return Ok(None) };
        match unseal::<SetRecord>(&bytes) {
            Ok(record) if record.schema == SCHEMA => Ok(Some(record)),
            Ok(_) => Ok(None),
            Err(why) => {
                tracing::warn!(record = %root.name(&path), why, "a damaged record of a set is ignored");
                Ok(None)
            }
        }
    }

    /// Adds a committed part to an attempt at a set, and records the set if it is whole with it.
    ///
    /// # Errors
    /// What the store says; the set does not count then, unless another part completes it.
    pub async fn add_to_set(&self, attempt: &str, whole: Whole, member: Member) -> Result<SetOutcome> {
        let (root, of) = (&self.cache.root, self.state.of);
        let path = root.layout.member(of, attempt, member.part);
        let announced = Announced { attempt: attempt.to_string(), member: member.clone() };
        root.put(&path, seal(&announced)?.into()).await?;
        if let Some(other) = self.other_set(attempt).await? {
            tracing::debug!(set = %of, winner = other.attempt, "another set was faster");
            self.drop_attempt(attempt).await?;
            return Ok(SetOutcome::Lost);
        }
        let members = self.members(attempt).await?;
        if Whole::of(members.iter().flat_map(|m| &m.covers).map(|n| n.0)) != whole {
            return Ok(SetOutcome::Open);
        }
        let record = SetRecord { schema: SCHEMA.into(), attempt: attempt.to_string(), whole, members };
        if self.record(&record).await? {
            self.tidy(&record).await?;
            Ok(SetOutcome::Whole)
        } else {
            self.drop_attempt(attempt).await?;
            Ok(SetOutcome::Lost)
        }
    }

    /// Withdraws a set: one of its parts was found bad. Another set may take its place.
    ///
    /// # Errors
    /// What the store says.
    pub async fn discard_set(&self, why: &str) -> Result<()> {
        tracing::warn!(set = %self.state.of, why, "a set of parts does not count any more");
        self.cache.root.delete(&self.cache.root.layout.set(self.state.of)).await
    }

    /// A set that counts, of another attempt.
    async fn other_set(&self, attempt: &str) -> Result<Option<SetRecord>> {
        let Some(record) = self.set().await?.filter(|r| r.attempt != attempt) else { return Ok(None) };
        Ok(record.is_in(&self.index().await?).then_some(record))
    }

    /// Creates the record; false if another attempt was faster. One that is damaged, or whose parts are gone, is no
    /// obstacle.
    async fn record(&self, record: &SetRecord) -> Result<bool> {
        let root = &self.cache.root;
        let path = root.layout.set(self.state.of);
        for _ in 0..16 {
            match root.create(&path, seal(record)?.into()).await? {
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

    /// What the parts of an attempt say of themselves.
    async fn members(&self, attempt: &str) -> Result<Vec<Member>> {
        let root = &self.cache.root;
        let mut members = Vec::new();
        for object in root.list(&root.layout.members(self.state.of)).await? {
            let ours = object.path.filename().is_some_and(|n| n.starts_with(attempt));
            if !ours {
                continue;
            }
            let Some(bytes) = root.get(&object.path).await? else { continue };
            if let Some(a) = unseal::<Announced>(&bytes).ok().filter(|a| a.attempt == attempt) {
                members.push(a.member);
            }
        }
        members.sort_by_key(|m| m.part);
        Ok(members)
    }

    /// Deletes what an attempt wrote that lost, or that can never be whole.
    async fn drop_attempt(&self, attempt: &str) -> Result<()> {
        let root = &self.cache.root;
        let index = self.index().await?;
        for member in &self.members(attempt).await? {
            if let Some(part) = index.get(&member.part).filter(|p| p.attempt == member.attempt) {
                self.delete_part(part).await?;
            }
            root.delete(&root.layout.member(self.state.of, attempt, member.part)).await?;
        }
        Ok(())
    }

    /// After a set has come to count: the parts of all other attempts never will.
    async fn tidy(&self, record: &SetRecord) -> Result<()> {
        let root = &self.cache.root;
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
        crate::space::remove_part(&self.cache, part).await?;
        self.cache.space.refund(part.bytes);
        self.state.forget();
        Ok(())
    }
}

/// Numbers of 128 bits as text: JSON readers lose digits.
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

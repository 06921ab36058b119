//! The rows of an epoch that readers took, in the compact form of reader states.

mod dense;
mod forms;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use self::dense::{dense, put_dense};
use self::forms::{MAX_RANGES, MAX_ROW, bitmap, bits, put_range_bits, put_ranges, range_bits, ranges, spend};
use crate::bytes::{Input, put};
use crate::rice::{self, BitReader, BitWriter};
use crate::{Error, Result, RowRanges, format_count};

/// Bits of a split's index that count the splits of its feed; the feed's number is above them.
const POSITION_BITS: u32 = 40;

/// The index of the split at a position of a feed's order: unique in the iteration.
pub fn split_index(feed: u32, position: u64) -> u64 {
    (u64::from(feed) << POSITION_BITS) | (position & ((1 << POSITION_BITS) - 1))
}

/// The feed of a split by its index, and its position in the order of the feed.
///
/// ```
/// use caju_types::{feed_and_position, split_index};
/// assert_eq!(feed_and_position(split_index(3, 7)), (3, 7));
/// ```
pub fn feed_and_position(split: u64) -> (u32, u64) {
    let feed = u32::try_from(split >> POSITION_BITS).unwrap_or(u32::MAX);
    (feed, split & ((1 << POSITION_BITS) - 1))
}

/// The format of [`TakenRows::encode`].
const FORMAT: u8 = 1;
/// The format of [`TakenRows::encode_short`], with whole splits as bits.
const SHORT_FORMAT: u8 = 2;
/// The format of [`TakenRows::encode_dense`], in which the bits of whole splits depend on how often they occur.
const DENSE_FORMAT: u8 = 3;
/// The largest encoded set, in bytes. States of ordinary pipelines take kilobytes; one million splits that are taken in no
/// order at all take 2 MiB.
const MAX_BYTES: usize = 16 << 20;
/// Ranges from which on a set is encoded once. Of fewer ranges, both forms are made and the shorter one is taken.
const MANY_RANGES: usize = 1 << 10;
/// The same for the dense form, whose tables take some hundred bytes.
const MANY_DENSE_RANGES: usize = 1 << 15;

/// What a reader knows of the listing of a row of splits: their number so far, and the rolling hash of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// The number of splits, from the first one.
    pub count: u64,
    /// The rolling hash of these splits in order.
    pub digest: u64,
}

/// The rows of one epoch that readers took: whole splits, and rows of other splits.
///
/// A split has an index in the epoch's order, and its rows are numbered. Both depend on the dataset, the seed, the epoch
/// and the listing alone, so a set that was taken on one cluster means the same on any other.
///
/// ```
/// use caju_types::TakenRows;
/// let mut taken = TakenRows::default();
/// taken.add_whole(0);
/// taken.add_rows(1, &[(0, 40)].into_iter().collect());
/// assert_eq!(TakenRows::decode(&taken.encode()).unwrap(), taken);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakenRows {
    /// Splits of which every row is taken. Clones share them until one of them changes: a state is a clone.
    #[serde(with = "shared")]
    whole: Arc<RowRanges>,
    /// Rows of other splits.
    rows: BTreeMap<u64, RowRanges>,
    /// The numbers of rows of some of those.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    sizes: BTreeMap<u64, u64>,
    /// What was listed, per row of splits.
    listed: BTreeMap<u32, Listed>,
}

impl TakenRows {
    /// Every row of a split is taken.
    pub fn add_whole(&mut self, split: u64) {
        self.add_whole_range(split, split.saturating_add(1));
    }

    /// Every row of the splits `start..end` is taken.
    pub fn add_whole_range(&mut self, start: u64, end: u64) {
        Arc::make_mut(&mut self.whole).insert(start, end);
        let inside: Vec<u64> = self.rows.range(start..end).map(|(split, _)| *split).collect();
        for split in inside {
            self.rows.remove(&split);
            self.sizes.remove(&split);
        }
    }

    /// These rows of a split are taken.
    pub fn add_rows(&mut self, split: u64, rows: &RowRanges) {
        if !rows.is_empty() && !self.whole.contains(split) {
            self.rows.entry(split).or_default().extend(rows);
            if let Some(size) = self.sizes.get(&split).copied() {
                self.set_size(split, size);
            }
        }
    }

    /// Says how many rows a split has of which rows are taken: it is whole when another reader's state has the others.
    pub fn set_size(&mut self, split: u64, rows: u64) {
        match self.rows.get(&split).map(RowRanges::len) {
            Some(taken) if taken == rows => self.add_whole(split),
            Some(taken) if taken < rows && rows <= MAX_ROW => drop(self.sizes.insert(split, rows)),
            // No such size fits the rows.
            _ => drop(self.sizes.remove(&split)),
        }
    }

    /// Whether every row of another set of the same epoch is in this one.
    pub fn contains(&self, other: &TakenRows) -> bool {
        let mut all = self.clone();
        all.extend(other).is_ok() && all.whole == self.whole && all.rows == self.rows
    }

    /// Says what was listed. The longest listing is kept.
    pub fn set_listed(&mut self, feed: u32, listed: Listed) {
        let known = self.listed.entry(feed).or_insert(listed);
        if known.count < listed.count {
            *known = listed;
        }
    }

    /// Whether what was listed covers every split with taken rows. Where it does not, nothing shows that the files of these splits
    /// have changed since.
    pub fn is_listed(&self) -> bool {
        let covers = |split: u64| {
            let (feed, position) = feed_and_position(split);
            self.listed.get(&feed).is_some_and(|listed| position < listed.count)
        };
        self.rows.keys().all(|split| covers(*split))
            && self.whole.iter().all(|(start, end)| covers(start) && covers(end - 1))
    }

    /// Adds every row of another set of the same epoch.
    ///
    /// # Errors
    /// `InvalidArgument` if the two are of different listings.
    pub fn extend(&mut self, other: &TakenRows) -> Result<()> {
        for (feed, listed) in &other.listed {
            let known = self.listed.get(feed);
            if known.is_some_and(|k| k.count == listed.count && k.digest != listed.digest) {
                return Err(Error::invalid(
                    "the states are of different listings: the source's files changed between them",
                ));
            }
            self.set_listed(*feed, *listed);
        }
        if self.whole.is_empty() {
            self.whole = Arc::clone(&other.whole);
        } else if !other.whole.is_empty() {
            Arc::make_mut(&mut self.whole).extend(&other.whole);
        }
        self.rows.retain(|split, _| !self.whole.contains(*split));
        self.sizes.retain(|split, _| !self.whole.contains(*split));
        other.rows.iter().for_each(|(split, rows)| self.add_rows(*split, rows));
        other.sizes.iter().for_each(|(split, rows)| self.set_size(*split, *rows));
        Ok(())
    }

    /// Splits of which every row is taken, by their indexes.
    pub fn whole(&self) -> &RowRanges {
        &self.whole
    }

    /// The rows of splits of which not every row is known to be taken.
    pub fn rows(&self) -> impl Iterator<Item = (u64, &RowRanges)> {
        self.rows.iter().map(|(split, rows)| (*split, rows))
    }

    /// The taken rows of a split of which not every row is known to be taken.
    pub fn rows_of(&self, split: u64) -> Option<&RowRanges> {
        self.rows.get(&split)
    }

    /// What was listed, per row of splits.
    pub fn listed(&self) -> &BTreeMap<u32, Listed> {
        &self.listed
    }

    /// Whether no row is taken.
    pub fn is_empty(&self) -> bool {
        self.whole.is_empty() && self.rows.is_empty()
    }

    /// The set in bytes. Splits that are taken in order cost next to nothing, other ranges about two bytes each.
    pub fn encode(&self) -> Vec<u8> {
        self.encode_as(FORMAT)
    }

    /// The set in fewer bytes, for states of one reader among many: its splits are scattered among those of the others. Splits
    /// of which every eighth is taken, at random, cost 0.6 bits each. Readers and dispatchers before version 0.2 know the
    /// other form alone.
    ///
    /// ```
    /// use caju_types::TakenRows;
    /// let mut taken = TakenRows::default();
    /// (0..8_000).step_by(8).for_each(|split| taken.add_whole(split));
    /// assert!(taken.encode_short().len() < taken.encode().len() / 2);
    /// assert_eq!(TakenRows::decode(&taken.encode_short()).unwrap(), taken);
    /// ```
    pub fn encode_short(&self) -> Vec<u8> {
        let short = self.encode_as(SHORT_FORMAT);
        // Of many ranges the other form takes two bytes each at least.
        let may_be_longer =
            self.whole.num_ranges() > MANY_RANGES && 2 * self.whole.num_ranges() > short.len();
        if !self.sizes.is_empty() || may_be_longer {
            return short;
        }
        let long = self.encode_as(FORMAT);
        if long.len() <= short.len() { long } else { short }
    }

    /// The set in still fewer bytes, in about twice the time. Earlier readers and dispatchers do not know this form.
    ///
    /// ```
    /// use caju_types::TakenRows;
    /// let mut taken = TakenRows::default();
    /// for split in (0..80_000).step_by(20) {
    ///     taken.add_whole_range(split, split + 3);
    ///     taken.add_whole(split + 7 + split % 3);
    /// }
    /// assert!(taken.encode_dense().len() < taken.encode_short().len() / 2);
    /// assert_eq!(TakenRows::decode(&taken.encode_dense()).unwrap(), taken);
    /// ```
    pub fn encode_dense(&self) -> Vec<u8> {
        let dense = self.encode_as(DENSE_FORMAT);
        if self.whole.num_ranges() > MANY_DENSE_RANGES {
            return dense;
        }
        let short = self.encode_short();
        if short.len() <= dense.len() { short } else { dense }
    }

    fn encode_as(&self, format: u8) -> Vec<u8> {
        let mut out = vec![format];
        put(&mut out, self.listed.len() as u64);
        for (feed, listed) in &self.listed {
            put(&mut out, u64::from(*feed));
            put(&mut out, listed.count);
            out.extend_from_slice(&listed.digest.to_le_bytes());
        }
        match format {
            DENSE_FORMAT if !put_dense(&mut out, &self.whole) => return self.encode_as(SHORT_FORMAT),
            DENSE_FORMAT => {}
            SHORT_FORMAT => put_range_bits(&mut out, &self.whole),
            _ => put_ranges(&mut out, &self.whole),
        }
        put(&mut out, self.rows.len() as u64);
        let mut last = 0;
        for (split, rows) in &self.rows {
            put(&mut out, split - last);
            last = *split;
            let mut ranges = Vec::new();
            put_ranges(&mut ranges, rows);
            match bitmap(rows, ranges.len()) {
                Some((first, bits)) => {
                    out.push(1);
                    put(&mut out, first);
                    put(&mut out, bits.len() as u64);
                    out.extend_from_slice(&bits);
                }
                None => {
                    out.push(0);
                    out.extend_from_slice(&ranges);
                }
            }
        }
        if format != FORMAT {
            self.put_sizes(&mut out);
        }
        out
    }

    /// The numbers of rows of the splits in `rows`, each as its difference to the one before: most are equal.
    fn put_sizes(&self, out: &mut Vec<u8>) {
        let mut last = 0u64;
        let difference = |split: &u64| {
            let Some(size) = self.sizes.get(split) else { return 0 };
            let (up, down) = (size.saturating_sub(last), last.saturating_sub(*size));
            last = *size;
            // Even numbers are differences down, odd ones up; 0: the number is not known.
            1 + if down > 0 { 2 * down - 1 } else { 2 * up }
        };
        let differences: Vec<u64> = self.rows.keys().map(difference).collect();
        let sum = differences.iter().fold(0, |sum: u64, n| sum.saturating_add(*n));
        let parameter = rice::parameter(sum, differences.len() as u64);
        let mut bits = BitWriter::default();
        differences.iter().for_each(|n| bits.put_number(*n, parameter));
        let bits = bits.finish();
        put(out, u64::from(parameter));
        put(out, bits.len() as u64);
        out.extend_from_slice(&bits);
    }

    fn read_sizes(&mut self, input: &mut Input<'_>) -> Result<()> {
        let parameter = u32::try_from(input.number()?).map_err(|_| input.damaged())?;
        let len = input.count()?;
        let mut bits = BitReader::new(input.take(len)?);
        let mut last = 0u64;
        for (split, rows) in &self.rows {
            let n = bits.number(parameter).ok_or_else(|| input.damaged())?;
            let Some(difference) = n.checked_sub(1) else { continue };
            let by = difference.div_ceil(2);
            let size = if difference % 2 == 1 { last.checked_sub(by) } else { last.checked_add(by) };
            last = size.filter(|s| *s > rows.len() && *s <= MAX_ROW).ok_or_else(|| input.damaged())?;
            self.sizes.insert(*split, last);
        }
        Ok(())
    }

    /// Reads what [`TakenRows::encode`] wrote.
    ///
    /// # Errors
    /// `InvalidArgument` for anything else, and for more than a state can be.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        if bytes.len() > MAX_BYTES {
            return Err(Error::invalid(format!(
                "the taken rows of a state are {} bytes, and {} are the most",
                format_count(bytes.len() as u64),
                format_count(MAX_BYTES as u64)
            )));
        }
        let input = &mut Input::new(bytes, "the taken rows of a state");
        let format = input.byte()?;
        if !(FORMAT..=DENSE_FORMAT).contains(&format) {
            return Err(Error::invalid(format!(
                "the taken rows of a state have format {format}, and this caju knows the formats {FORMAT} to {DENSE_FORMAT}; a \
                 later one knows more"
            )));
        }
        let mut out = Self::default();
        let mut left = MAX_RANGES;
        for _ in 0..input.count()? {
            let feed = u32::try_from(input.number()?).map_err(|_| input.damaged())?;
            let count = input.number()?;
            let digest = u64::from_le_bytes(input.array()?);
            out.listed.insert(feed, Listed { count, digest });
        }
        out.whole = Arc::new(match format {
            DENSE_FORMAT => dense(input, || spend(&mut left, 1))?,
            SHORT_FORMAT => range_bits(input, &mut left)?,
            _ => ranges(input, u64::MAX, &mut left)?,
        });
        let mut split = 0u64;
        for n in 0..input.count()? {
            let step = input.number()?;
            split = split.checked_add(step).filter(|_| n == 0 || step > 0).ok_or_else(|| input.damaged())?;
            let rows = match input.byte()? {
                0 => ranges(input, MAX_ROW, &mut left)?,
                1 => bits(input, &mut left)?,
                _ => return Err(input.damaged()),
            };
            if rows.is_empty() || out.whole.contains(split) {
                return Err(input.damaged());
            }
            out.rows.insert(split, rows);
        }
        if format != FORMAT {
            out.read_sizes(input)?;
        }
        input.finish()?;
        Ok(out)
    }
}

/// A set that clones share, in journals and messages as if they did not.
mod shared {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::RowRanges;

    pub(super) fn serialize<S: Serializer>(set: &Arc<RowRanges>, out: S) -> Result<S::Ok, S::Error> {
        set.as_ref().serialize(out)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<Arc<RowRanges>, D::Error> {
        RowRanges::deserialize(input).map(Arc::new)
    }
}

#[cfg(test)]
mod tests;

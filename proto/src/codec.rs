//! The codec of the calls of `caju.v1`: prost's, with a bound on what a message becomes in memory.
//!
//! A repeated empty message takes 2 bytes on the wire and some hundred bytes of memory once it is decoded, and a number 1 byte and
//! 8. So a bound on the bytes of a message (`--message-bytes`) alone is no bound on memory. The memory that fields will take is
//! added up before anything is decoded. Which of them hold messages is known from the protocol's descriptors, and how large these
//! are from the generated types.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::LazyLock;

use prost::Message;
use prost::bytes::Buf;
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

/// The most memory that one message may take once it is decoded, as far as it does not hold texts: their bytes are those of the
/// wire. The acknowledgements of a million splits fit.
pub const MAX_DECODED_BYTES: usize = 256 << 20;

/// What a text, a byte string or a list takes beyond what it holds.
const TEXT_BYTES: usize = 64;

/// What a number in a list takes: on the wire it has at least one byte, where it is not of a fixed size.
const NUMBER_BYTES: usize = 8;

/// What an entry of a map takes beyond what it holds.
const MAP_ENTRY_BYTES: usize = 512;

/// What a run of rows takes that a word of a bit set has: the dispatcher makes ranges of them.
const RUN_BYTES: usize = 16;

/// A list that grows has up to twice the room that it needs.
const GROWTH: usize = 2;

/// Levels of messages that prost decodes.
const MAX_DEPTH: usize = 100;

/// `(message, field, what it holds)` of the whole protocol: the name of a message, `[8]` for a list of numbers of eight bytes
/// on the wire, `[]` for another list of numbers, or nothing.
const FIELDS: &[(&str, u32, &str)] = &include!(concat!(env!("OUT_DIR"), "/message_fields.rs"));

/// `(message, bytes)` of all messages but the entries of maps: the memory of a message, without what it points to.
const SIZES: &[(&str, usize)] = &include!(concat!(env!("OUT_DIR"), "/message_sizes.rs"));

/// What is known of a message.
#[derive(Debug, Default)]
struct Described {
    /// What its fields hold, by their numbers.
    fields: HashMap<u32, &'static str>,
    /// Its memory in a list, without what it points to.
    bytes: usize,
}

static MESSAGES: LazyLock<HashMap<&str, Described>> = LazyLock::new(|| {
    let mut messages: HashMap<&str, Described> = HashMap::new();
    for (message, field, held) in FIELDS {
        messages.entry(message).or_default().fields.insert(*field, held);
    }
    for (message, bytes) in SIZES {
        messages.entry(message).or_default().bytes = GROWTH * bytes;
    }
    messages
});

/// The protocol's name of a generated type that is not nested.
fn message_name<U>() -> Option<String> {
    let (path, name) = std::any::type_name::<U>().rsplit_once("::")?;
    let package = if path.ends_with("::externalscaler") { "externalscaler" } else { "caju.v1" };
    Some(format!(".{package}.{name}"))
}

/// The codec that the generated services use.
#[derive(Debug)]
pub struct BoundedCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for BoundedCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for BoundedCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = BoundedDecoder<U>;

    fn encoder(&mut self) -> ProstEncoder<T> {
        ProstCodec::<T, U>::raw_encoder(BufferSettings::default())
    }

    fn decoder(&mut self) -> BoundedDecoder<U> {
        BoundedDecoder(ProstCodec::<T, U>::raw_decoder(BufferSettings::default()))
    }
}

/// The decoder of [`BoundedCodec`].
#[derive(Debug)]
pub struct BoundedDecoder<U>(ProstDecoder<U>);

impl<U: Message + Default> Decoder for BoundedDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        // tonic gives whole messages, each in one piece.
        check_fields::<U>(message.chunk())?;
        self.0.decode(message)
    }

    fn buffer_settings(&self) -> BufferSettings {
        self.0.buffer_settings()
    }
}

/// Refuses a message of type `U` that would take more than [`MAX_DECODED_BYTES`].
///
/// # Errors
/// `ResourceExhausted`.
fn check_fields<U>(message: &[u8]) -> Result<(), Status> {
    let Some(described) = message_name::<U>().and_then(|name| MESSAGES.get(&*name)) else { return Ok(()) };
    let mut left = MAX_DECODED_BYTES;
    if let Err(Stop::TooMany) = count(message, 0, message.len(), described, &mut left, 0) {
        return Err(Status::resource_exhausted(format!(
            "the message takes more than {} MiB in memory; send it in parts",
            MAX_DECODED_BYTES >> 20
        )));
    }
    Ok(())
}

/// Why nothing more is counted.
enum Stop {
    /// There is more than is left.
    TooMany,
    /// Prost decodes nothing behind this place.
    Error,
}

/// Takes the memory of the fields of the message in `all[at..end]` from `left`, and that of those of the messages within it. As prost does, it goes on
/// behind the end of an outer message where an inner one says so: prost finds that out when it has decoded the inner one.
fn count(
    all: &[u8],
    mut at: usize,
    end: usize,
    message: &Described,
    left: &mut usize,
    depth: usize,
) -> Result<usize, Stop> {
    if depth > MAX_DEPTH {
        return Err(Stop::Error);
    }
    while at < end {
        let key = varint(all, &mut at).and_then(|key| u32::try_from(key).ok()).ok_or(Stop::Error)?;
        let held = message.fields.get(&(key >> 3)).copied();
        let length = match key & 7 {
            0 => {
                varint(all, &mut at).ok_or(Stop::Error)?;
                // Only the last one of a field that holds one number stays.
                take(left, if held == Some("[]") { GROWTH * NUMBER_BYTES } else { 1 })?;
                0
            }
            1 => {
                let word = all.get(at..at + 8).unwrap_or_default();
                let is_listed = held == Some("[8]");
                take(left, if is_listed { GROWTH * NUMBER_BYTES + runs(word) * RUN_BYTES } else { 1 })?;
                8
            }
            2 => {
                let length = varint(all, &mut at).and_then(|n| usize::try_from(n).ok()).ok_or(Stop::Error)?;
                if length > all.len() - at {
                    return Err(Stop::Error);
                }
                match held {
                    None => {}
                    Some("") => take(left, TEXT_BYTES)?,
                    Some("[8]") => {
                        let words = all.get(at..at + length).unwrap_or_default();
                        take(left, TEXT_BYTES.saturating_add(length.saturating_mul(GROWTH)))?;
                        take(left, runs(words).saturating_mul(RUN_BYTES))?;
                    }
                    Some("[]") => {
                        take(left, TEXT_BYTES.saturating_add(length.saturating_mul(GROWTH * NUMBER_BYTES)))?
                    }
                    Some(inner_message) => {
                        let described = MESSAGES.get(inner_message);
                        let entry = described.map_or(0, |d| d.bytes);
                        take(left, if entry > 0 { entry } else { MAP_ENTRY_BYTES })?;
                        if let Some(described) = described {
                            let inner = at + length;
                            if count(all, at, inner, described, left, depth + 1)? != inner {
                                return Err(Stop::Error);
                            }
                        }
                    }
                }
                length
            }
            // The beginning and the end of a group, which prost skips.
            3 | 4 => 0,
            5 => 4,
            _ => return Err(Stop::Error),
        };
        at = at.saturating_add(length);
    }
    Ok(at)
}

/// The runs of bits in words of 64.
fn runs(words: &[u8]) -> usize {
    let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
    let begins = |word: u64| (word & !(word << 1)).count_ones() as usize;
    words.chunks_exact(8).map(|bytes| begins(word(bytes))).sum()
}

fn take(left: &mut usize, units: usize) -> Result<(), Stop> {
    *left = left.checked_sub(units).ok_or(Stop::TooMany)?;
    Ok(())
}

/// The number at `at`, which moves behind it; none if the message ends in it, or it has more than ten bytes.
#[inline]
fn varint(message: &[u8], at: &mut usize) -> Option<u64> {
    let mut number = 0;
    for shift in (0..70).step_by(7) {
        let byte = *message.get(*at)?;
        *at += 1;
        number |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1;

    type Beat = v1::ClientHeartbeatRequest;

    fn is_refused<U>(parts: &[&[u8]]) -> bool {
        let refused = check_fields::<U>(&parts.concat());
        assert!(
            refused.as_ref().is_err_and(|e| e.code() == tonic::Code::ResourceExhausted) || refused.is_ok()
        );
        refused.is_err()
    }

    /// The most empty messages of a list of this type.
    fn most<U>() -> usize {
        MAX_DECODED_BYTES / (GROWTH * size_of::<U>())
    }

    /// `acknowledged` is field 10 of a heartbeat.
    #[test]
    fn messages_that_would_take_much_memory_are_refused() {
        let many = [0x52, 0].repeat(most::<v1::SplitRows>() + 1);
        assert!(is_refused::<Beat>(&[&many]));
        assert!(!is_refused::<Beat>(&[&many[2..]]));
        // Behind a group that prost skips, and before an error.
        assert!(is_refused::<Beat>(&[&[0x7b, 0x7c], &many]));
        assert!(is_refused::<Beat>(&[&many, &[0xff]]));
        // Prost decodes nothing behind an error, and skips fields that it does not know.
        assert!(!is_refused::<Beat>(&[&[0xff; 11], &many]));
        assert!(!is_refused::<v1::GetStatusRequest>(&[&many]));
        assert!(!is_refused::<Beat>(&[&[0x0a, 0x80, 0x80, 0x80, 0x7f], &many]));
    }

    /// What a reader of a million splits says of all of them at once: after a restart of the dispatcher, after the loss of a worker,
    /// and as it leaves; and what a worker says at the end of its task.
    #[test]
    fn reports_of_a_million_splits_fit() {
        const SPLITS: u64 = 1_000_000;
        let rows = |split_index| v1::SplitRows {
            split_index,
            rows: vec![v1::RowRange { start: 0, end: 1000 }],
            ..Default::default()
        };
        let all: Vec<_> = (0..SPLITS).map(rows).collect();
        let counts: Vec<_> =
            (0..SPLITS).map(|split_index| v1::SplitCount { split_index, rows: 1000 }).collect();
        let beat = Beat { acknowledged: all.clone(), sizes: counts.clone(), ..Default::default() };
        assert!(!is_refused::<Beat>(&[&beat.encode_to_vec()]));
        let lost = v1::LostTask { received: all, sizes: counts.clone(), ..Default::default() };
        let beat = Beat { lost_tasks: vec![lost.clone()], ..Default::default() };
        assert!(!is_refused::<Beat>(&[&beat.encode_to_vec()]));
        let close = v1::CloseClientRequest { received: vec![lost], ..Default::default() };
        assert!(!is_refused::<v1::CloseClientRequest>(&[&close.encode_to_vec()]));
        let finish = v1::FinishTaskRequest {
            splits_out: counts.clone(),
            splits_to_flight: counts,
            ..Default::default()
        };
        assert!(!is_refused::<v1::FinishTaskRequest>(&[&finish.encode_to_vec()]));
    }

    #[test]
    fn fields_of_messages_within_messages_are_counted() {
        let many = most::<v1::RowRange>() + 1;
        let rows = v1::SplitRows { rows: vec![v1::RowRange::default(); many], ..Default::default() };
        let beat = Beat { acknowledged: vec![rows], ..Default::default() };
        assert!(is_refused::<Beat>(&[&beat.encode_to_vec()]));
        // Prost decodes an inner message behind the end of its outer one, and reports the error afterwards.
        let many = [0x12, 0].repeat(many);
        assert!(is_refused::<v1::SplitRows>(&[&many]));
        let length = u32::try_from(many.len()).unwrap();
        let mut inner = vec![0x12];
        prost::encoding::encode_varint(u64::from(length), &mut inner);
        let outer = [&[0x32, u8::try_from(inner.len()).unwrap()][..], &inner].concat();
        assert!(Beat::decode(&*[&outer[..], &many].concat()).is_err());
        assert!(is_refused::<Beat>(&[&outer, &many]));
    }

    #[test]
    fn lists_of_numbers_are_counted_by_their_bytes() {
        let beat = |n| v1::WorkerHeartbeatRequest { tasks: vec![7; n], ..Default::default() }.encode_to_vec();
        let most = MAX_DECODED_BYTES / (GROWTH * NUMBER_BYTES);
        assert!(!is_refused::<v1::WorkerHeartbeatRequest>(&[&beat(5 << 20)]));
        assert!(is_refused::<v1::WorkerHeartbeatRequest>(&[&beat(most)]));
        let single = [0x18, 7].repeat(most + 1);
        assert!(is_refused::<v1::WorkerHeartbeatRequest>(&[&single]));
    }

    /// Shuffled rows are words of 64 bits.
    #[test]
    fn lists_of_numbers_of_fixed_sizes_are_counted_as_they_are() {
        let rows = |bits, n| v1::SplitRows { bits: vec![bits; n], ..Default::default() }.encode_to_vec();
        let most = MAX_DECODED_BYTES / (GROWTH * NUMBER_BYTES + RUN_BYTES);
        assert!(!is_refused::<v1::SplitRows>(&[&rows(7, most - 100)]));
        assert!(is_refused::<v1::SplitRows>(&[&rows(7, most)]));
        // Every second row: 32 ranges.
        let dense = 0xaaaa_aaaa_aaaa_aaaa;
        let most_dense = MAX_DECODED_BYTES / (GROWTH * NUMBER_BYTES + 32 * RUN_BYTES);
        assert!(!is_refused::<v1::SplitRows>(&[&rows(dense, most_dense - 100)]));
        assert!(is_refused::<v1::SplitRows>(&[&rows(dense, most_dense + 1)]));
        // One by one.
        let single = [0x21, 7, 0, 0, 0, 0, 0, 0, 0].repeat(most + 1);
        assert!(is_refused::<v1::SplitRows>(&[&single]));
    }

    /// Texts and byte strings are one field each, whatever they hold.
    #[test]
    fn what_texts_hold_is_not_counted() {
        for text in ["2,".repeat(4 << 20), "\n".repeat(8 << 20), "\"a/b.parquet\", ".repeat(1 << 20)] {
            let request = v1::RegisterDatasetRequest { definition_json: text, ..Default::default() };
            assert!(!is_refused::<v1::RegisterDatasetRequest>(&[&request.encode_to_vec()]));
        }
    }

    /// Every request and answer of the services is known by its name.
    #[test]
    fn generated_types_are_found() {
        for name in [
            message_name::<Beat>(),
            message_name::<v1::OpenIterationRequest>(),
            message_name::<crate::externalscaler::ScaledObjectRef>(),
        ] {
            assert!(MESSAGES.contains_key(&*name.clone().unwrap()), "{name:?}");
        }
    }
}

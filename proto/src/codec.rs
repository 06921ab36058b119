//! The codec of the calls of `caju.v1`: prost's, with a bound on what a message becomes in memory.
//!
//! A repeated empty message takes 2 bytes on the wire and some hundred bytes of memory once it is decoded, and a number 1 byte and
//! 8. So a bound on the bytes of a message (`--message-bytes`) alone is no bound on memory. Fields are counted before anything is
//! decoded. Which of them hold messages is known from the protocol's descriptors.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::LazyLock;

use prost::Message;
use prost::bytes::Buf;
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

/// The most texts, byte strings, lists and messages within one message, all levels together. A million splits fit; in
/// memory they take some hundred bytes each.
pub const MAX_FIELDS: usize = 1 << 20;

/// Numbers in lists that count as one field: bytes of a packed list, or numbers that come one by one.
const NUMBERS: usize = 16;

/// Levels of messages that prost decodes.
const MAX_DEPTH: usize = 100;

/// `(message, field, what it holds)` of the whole protocol: the name of a message, `[]` for a list of numbers, or nothing.
const FIELDS: &[(&str, u32, &str)] = &include!(concat!(env!("OUT_DIR"), "/message_fields.rs"));

/// What the fields of a message hold, by their numbers.
type Held = HashMap<u32, &'static str>;

static MESSAGES: LazyLock<HashMap<&str, Held>> = LazyLock::new(|| {
    let mut messages: HashMap<&str, Held> = HashMap::new();
    for (message, field, held) in FIELDS {
        messages.entry(message).or_default().insert(*field, held);
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

/// Refuses a message of type `U` of more than [`MAX_FIELDS`] fields.
///
/// # Errors
/// `ResourceExhausted`.
fn check_fields<U>(message: &[u8]) -> Result<(), Status> {
    let Some(fields) = message_name::<U>().and_then(|name| MESSAGES.get(&*name)) else { return Ok(()) };
    let mut left = MAX_FIELDS * NUMBERS;
    if let Err(Stop::TooMany) = count(message, 0, message.len(), fields, &mut left, 0) {
        return Err(Status::resource_exhausted(format!(
            "the message has more than {MAX_FIELDS} fields; send it in parts"
        )));
    }
    Ok(())
}

/// Why nothing more is counted.
enum Stop {
    /// There are more fields than are left.
    TooMany,
    /// Prost decodes nothing behind this place.
    Error,
}

/// Takes the fields of the message in `all[at..end]` from `left`, and those of the messages within it. As prost does, it goes on
/// behind the end of an outer message where an inner one says so: prost finds that out when it has decoded the inner one.
fn count(
    all: &[u8],
    mut at: usize,
    end: usize,
    fields: &Held,
    left: &mut usize,
    depth: usize,
) -> Result<usize, Stop> {
    if depth > MAX_DEPTH {
        return Err(Stop::Error);
    }
    while at < end {
        let key = varint(all, &mut at).and_then(|key| u32::try_from(key).ok()).ok_or(Stop::Error)?;
        let held = fields.get(&(key >> 3)).copied();
        let length = match key & 7 {
            0 => {
                varint(all, &mut at).ok_or(Stop::Error)?;
                take(left, 1)?;
                0
            }
            1 => 8,
            2 => {
                let length = varint(all, &mut at).and_then(|n| usize::try_from(n).ok()).ok_or(Stop::Error)?;
                if length > all.len() - at {
                    return Err(Stop::Error);
                }
                match held {
                    None => {}
                    Some("") => take(left, NUMBERS)?,
                    Some("[]") => take(left, NUMBERS.saturating_add(length))?,
                    Some(message) => {
                        take(left, NUMBERS)?;
                        if let Some(fields) = MESSAGES.get(message) {
                            let inner = at + length;
                            if count(all, at, inner, fields, left, depth + 1)? != inner {
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

    /// `acknowledged` is field 10 of a heartbeat.
    #[test]
    fn messages_of_very_many_fields_are_refused() {
        let many = [0x52, 0].repeat(MAX_FIELDS + 1);
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

    #[test]
    fn fields_of_messages_within_messages_are_counted() {
        let rows = v1::SplitRows { rows: vec![v1::RowRange::default(); MAX_FIELDS], ..Default::default() };
        let beat = Beat { acknowledged: vec![rows], ..Default::default() };
        assert!(is_refused::<Beat>(&[&beat.encode_to_vec()]));
        // Prost decodes an inner message behind the end of its outer one, and reports the error afterwards.
        let many = [0x12, 0].repeat(MAX_FIELDS + 1);
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
        assert!(!is_refused::<v1::WorkerHeartbeatRequest>(&[&beat(5 << 20)]));
        assert!(is_refused::<v1::WorkerHeartbeatRequest>(&[&beat(NUMBERS * MAX_FIELDS)]));
        let single = [0x18, 7].repeat(NUMBERS * MAX_FIELDS + 1);
        assert!(is_refused::<v1::WorkerHeartbeatRequest>(&[&single]));
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

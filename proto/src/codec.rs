//! The codec of all calls: prost's, with a bound on the number of fields of a message.
//!
//! A repeated empty message takes 2 bytes on the wire and some hundred bytes of memory once it is decoded. So a bound on the
//! bytes of a message (`--message-bytes`) alone is no bound on memory. Fields are counted before anything is decoded.

use std::marker::PhantomData;

use prost::Message;
use prost::bytes::Buf;
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

/// The most texts, byte strings, lists and messages within one message, all levels together. A million splits fit; in
/// memory they take some hundred bytes each.
pub const MAX_FIELDS: usize = 1 << 20;

/// Levels of messages that are counted: more than the protocol has.
const MAX_DEPTH: usize = 12;

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
        check_fields(message.chunk())?;
        self.0.decode(message)
    }

    fn buffer_settings(&self) -> BufferSettings {
        self.0.buffer_settings()
    }
}

/// Refuses a message of more than [`MAX_FIELDS`] fields.
///
/// # Errors
/// `ResourceExhausted`.
pub fn check_fields(message: &[u8]) -> Result<(), Status> {
    let mut left = MAX_FIELDS;
    if count(message, &mut left, 0).is_err() {
        return Err(Status::resource_exhausted(format!(
            "the message has more than {MAX_FIELDS} fields; send it in parts"
        )));
    }
    Ok(())
}

/// More fields than are left.
struct TooMany;

/// Takes the fields that have lengths from `left`. Whatever could be a message is counted as one: the wire does not say. What
/// cannot be decoded is counted up to there, as prost keeps what it has decoded until the error.
fn count(message: &[u8], left: &mut usize, depth: usize) -> Result<(), TooMany> {
    let mut at = 0;
    while at < message.len() {
        let Some(key) = varint(message, &mut at) else { return Ok(()) };
        let length = match key & 7 {
            0 => match varint(message, &mut at) {
                Some(_) => 0,
                None => return Ok(()),
            },
            1 => 8,
            2 => {
                *left = left.checked_sub(1).ok_or(TooMany)?;
                let Some(length) = varint(message, &mut at) else { return Ok(()) };
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                let end = at.saturating_add(length).min(message.len());
                if depth < MAX_DEPTH
                    && let Some(content) = message.get(at..end)
                {
                    count(content, left, depth + 1)?;
                }
                length
            }
            // The beginning and the end of a group.
            3 | 4 => 0,
            5 => 4,
            _ => return Ok(()),
        };
        at = at.saturating_add(length);
    }
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

    #[test]
    fn messages_of_very_many_fields_are_refused() {
        let many = [0x52, 0].repeat(MAX_FIELDS + 1);
        assert_eq!(check_fields(&many).unwrap_err().code(), tonic::Code::ResourceExhausted);
        assert!(check_fields(&many[2..]).is_ok());
        // Within a field, behind a group that prost skips, and before an error.
        let nested =
            v1::RegisterWorkerRequest { tags: vec![String::new(); MAX_FIELDS], ..Default::default() };
        assert!(check_fields(&nested.encode_to_vec()).is_ok());
        let outer = [&[0x0a, 0x80, 0x80, 0x80, 0x01][..], &many[..MAX_FIELDS * 2]].concat();
        assert!(check_fields(&outer).is_err());
        assert!(check_fields(&[&[0x7b, 0x7c][..], &many[..]].concat()).is_err());
        assert!(check_fields(&[&many[..], &[0xff]].concat()).is_err());
    }

    /// Texts and numbers are one field each, however long they are.
    #[test]
    fn long_definitions_pass() {
        let text = format!("{{\"paths\": [{}\"\"]}}", "\"a/b/c.parquet\", ".repeat(1 << 20));
        let request = v1::RegisterDatasetRequest { definition_json: text, ..Default::default() };
        let mut left = MAX_FIELDS;
        assert!(count(&request.encode_to_vec(), &mut left, 0).is_ok());
        assert!(left > MAX_FIELDS - 10, "{left}");
        let request = v1::WorkerHeartbeatRequest { tasks: vec![7; 5 << 20], ..Default::default() };
        assert!(check_fields(&request.encode_to_vec()).is_ok());
    }
}

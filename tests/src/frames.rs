//! The framed stream as a stranger writes it, so that servers are not tested by our own client.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

/// The version of the framed stream that today's workers speak.
pub const VERSION: u16 = 1;
/// The frame in which a worker refuses something.
pub const ERROR: u16 = 8;
/// The frame behind the last row of a task.
const END: u16 = 7;
/// The frame that asks for a task.
const OPEN: u16 = 1;
/// Bytes of a frame in front of its header.
const FIXED_BYTES: usize = 24;

fn varint(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push((n as u8) | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// A frame of a protocol version that asks for a task with a ticket.
pub fn open_frame(version: u16, task: u64, client: u64, ticket: &[u8]) -> Vec<u8> {
    let mut header = Vec::new();
    for (tag, value) in [(1u8, task), (2, client), (3, 1 << 26)] {
        header.push(tag << 3);
        varint(&mut header, value);
    }
    header.push(4 << 3 | 2);
    varint(&mut header, ticket.len() as u64);
    header.extend_from_slice(ticket);
    let mut frame = b"CAJU".to_vec();
    frame.extend_from_slice(&version.to_le_bytes());
    frame.extend_from_slice(&OPEN.to_le_bytes());
    frame.extend_from_slice(&u32::try_from(header.len()).unwrap().to_le_bytes());
    frame.extend_from_slice(&crc32c::crc32c(&header).to_le_bytes());
    frame.extend_from_slice(&0u64.to_le_bytes());
    frame.extend_from_slice(&header);
    frame
}

/// The kind and the header of the first frame that a worker answers.
pub fn answer(address: &str, frame: &[u8]) -> (u16, String) {
    let mut stream = open(address, frame);
    let (kind, header) = next(&mut stream);
    (kind, String::from_utf8_lossy(&header).into_owned())
}

/// Reads a task to its end, and does not acknowledge that. The connection stays open.
pub fn read_to_end(address: &str, frame: &[u8]) -> TcpStream {
    let mut stream = open(address, frame);
    while next(&mut stream).0 != END {}
    stream
}

fn open(address: &str, frame: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(frame).unwrap();
    stream
}

/// The kind and the header of the next frame.
fn next(stream: &mut TcpStream) -> (u16, Vec<u8>) {
    let mut fixed = [0u8; FIXED_BYTES];
    stream.read_exact(&mut fixed).unwrap();
    let header_bytes = u32::from_le_bytes(fixed[8..12].try_into().unwrap());
    let body_bytes = u64::from_le_bytes(fixed[16..24].try_into().unwrap());
    let mut header = vec![0u8; header_bytes as usize];
    stream.read_exact(&mut header).unwrap();
    stream.read_exact(&mut vec![0u8; usize::try_from(body_bytes).unwrap()]).unwrap();
    (u16::from_le_bytes([fixed[6], fixed[7]]), header)
}

//! The parts of a body that is ready to be written.

use arrow_buffer::Buffer;

use crate::frame::ALIGN;

/// A part of a body.
#[derive(Debug)]
pub enum Segment {
    /// Bytes of an array.
    Data(Buffer),
    /// This many zeros, fewer than [`ALIGN`].
    Zeros(usize),
}

static ZEROS: [u8; ALIGN] = [0; ALIGN];

impl Segment {
    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Segment::Data(b) => b.as_slice(),
            Segment::Zeros(n) => &ZEROS[..(*n).min(ALIGN)],
        }
    }
}

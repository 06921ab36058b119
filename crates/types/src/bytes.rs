//! Numbers of variable length in bytes, least significant group first, as protobuf writes them.

use crate::{Error, Result};

/// Appends a number: one byte for each 7 bits.
pub(crate) fn put(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(u8::try_from(n & 0x7f).unwrap_or(0) | 0x80);
        n >>= 7;
    }
    out.push(u8::try_from(n).unwrap_or(0));
}

/// Bytes from outside this process.
#[derive(Debug)]
pub(crate) struct Input<'a> {
    left: &'a [u8],
    what: &'static str,
}

impl<'a> Input<'a> {
    /// `what`: the name of the bytes in errors.
    pub(crate) fn new(bytes: &'a [u8], what: &'static str) -> Self {
        Self { left: bytes, what }
    }

    pub(crate) fn byte(&mut self) -> Result<u8> {
        let (byte, left) = self.left.split_first().ok_or_else(|| self.damaged())?;
        self.left = left;
        Ok(*byte)
    }

    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let (bytes, left) = self.left.split_at_checked(len).ok_or_else(|| self.damaged())?;
        self.left = left;
        Ok(bytes)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| self.damaged())
    }

    pub(crate) fn number(&mut self) -> Result<u64> {
        let mut n = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            n |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(n);
            }
        }
        Err(self.damaged())
    }

    /// A number of things that take at least one byte each.
    pub(crate) fn count(&mut self) -> Result<usize> {
        let n = self.number()?;
        usize::try_from(n).ok().filter(|n| *n <= self.left.len()).ok_or_else(|| self.damaged())
    }

    /// Checks that nothing is left.
    pub(crate) fn finish(&self) -> Result<()> {
        if self.left.is_empty() { Ok(()) } else { Err(self.damaged()) }
    }

    pub(crate) fn damaged(&self) -> Error {
        Error::invalid(format!("{} are damaged: they cannot be read", self.what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_every_length_are_read_again() {
        for n in (0..64).flat_map(|bit| [1u64 << bit, (1 << bit) - 1]).chain([u64::MAX]) {
            let mut out = Vec::new();
            put(&mut out, n);
            let input = &mut Input::new(&out, "numbers");
            assert_eq!(input.number().unwrap(), n);
            assert!(input.finish().is_ok());
        }
        assert!(Input::new(&[0xff; 10], "numbers").number().is_err(), "more than 64 bits");
        assert!(Input::new(&[5, 0], "numbers").count().is_err(), "more than there are bytes");
    }
}

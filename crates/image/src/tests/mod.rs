//! The image kernels against references, invariants, and hostile bytes.

mod chains;
mod hostile;
#[expect(unreachable_pub, reason = "benches/image includes the file as a public module")]
mod painted;
mod real_sizes;
mod references;

use std::path::PathBuf;

use super::*;

/// A file of `fixtures`.
fn fixture(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Uint8 pixels with their size.
#[derive(Debug, Clone, PartialEq)]
struct Pixels {
    h: u32,
    w: u32,
    data: Vec<u8>,
}

impl Pixels {
    fn input(&self) -> RowInput<'_> {
        RowInput::Pixels { data: &self.data, height: self.h, width: self.w }
    }

    fn crop(&self, y: usize, x: usize, h: usize, w: usize) -> Vec<u8> {
        (y..y + h).flat_map(|y| self.data[(y * self.w as usize + x) * 3..][..w * 3].iter().copied()).collect()
    }
}

fn chain(ops: Vec<ImageOp>, input: InputKind) -> ImageChain {
    let ops = ops.into_iter().enumerate().map(|(i, op)| (op, Some(i as u64 + 1))).collect();
    ImageChain::new(ops, input).unwrap()
}

/// Runs a uint8 chain.
fn run(c: &ImageChain, input: RowInput<'_>, key: u64) -> caju_types::Result<Pixels> {
    let mut data = Vec::new();
    let (h, w) = c.run_variable_u8(input, key, &mut Scratch::default(), &mut data)?;
    Ok(Pixels { h, w, data })
}

fn decode(bytes: &[u8]) -> caju_types::Result<Pixels> {
    run(&chain(vec![ImageOp::DECODE], InputKind::Encoded), RowInput::Encoded(bytes), 0)
}

/// The picture that the references were made from.
fn base() -> Pixels {
    decode(&fixture("rgb.png")).unwrap()
}

/// The names in `decoded.txt` with height, width and checksum.
fn decoded_fixtures() -> Vec<(String, u32, u32, u32)> {
    let text = String::from_utf8(fixture("decoded.txt")).unwrap();
    let line = |l: &str| {
        let mut f = l.split(' ');
        let mut next = || f.next().unwrap();
        let name = next().to_string();
        let (h, w) = (next().parse().unwrap(), next().parse().unwrap());
        (name, h, w, u32::from_str_radix(next(), 16).unwrap())
    };
    text.lines().map(line).collect()
}

/// CRC-32 as zlib computes it.
fn crc32(data: &[u8]) -> u32 {
    !data.iter().fold(!0u32, |crc, &b| {
        (0..8).fold(crc ^ u32::from(b), |c, _| if c & 1 == 1 { c >> 1 ^ 0xEDB8_8320 } else { c >> 1 })
    })
}

//! Mutations of seeds from a number: the same number gives the same input on every machine.

use caju_types::mix64;

/// Bytes and words that readers trip over: limits of integers, signs, quotes, the beginnings of formats.
const WORDS: [&[u8]; 20] = [
    b"\0",
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\x7f",
    b"\0\0\0\x80",
    b"\0\0\0\0\0\0\0\x80",
    b"\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"-1",
    b"9223372036854775808",
    b"2000000000",
    b"1e999",
    b"NaN",
    b"null",
    b"\"",
    b"\n",
    b"[[[[",
    b"{\"a\":",
    b"((((",
    b"*",
    b"\xef\xbb\xbf",
];

/// The longest input that a mutation makes.
const MOST_BYTES: usize = 1 << 16;

/// A generator of numbers.
#[derive(Debug)]
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0 = mix64(self.0, 0x6d75_7461_7465);
        self.0
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n.max(1) as u64).unwrap_or(0)
    }

    /// Two places in order, a short way from each other.
    fn range(&mut self, len: usize) -> std::ops::Range<usize> {
        let begin = self.below(len + 1);
        begin..(begin + self.below(17)).min(len)
    }
}

/// The `number`th mutation of a target's seeds. Two in three change 1 to 3 bytes of a seed in place, which is what
/// damages files; the rest inserts, removes, repeats and splices.
///
/// # Panics
/// If there are no seeds.
pub fn mutated(seeds: &[(String, Vec<u8>)], number: u64) -> Vec<u8> {
    let mut draws = Draws(number);
    let mut data = seeds[draws.below(seeds.len())].1.clone();
    let in_place = draws.below(3) > 0;
    for _ in 0..=draws.below(3) {
        if in_place {
            change(&mut data, &mut draws);
        } else {
            reshape(&mut data, &mut draws, seeds);
        }
    }
    data.truncate(MOST_BYTES);
    data
}

fn change(data: &mut [u8], draws: &mut Draws) {
    if data.is_empty() {
        return;
    }
    let at = draws.below(data.len());
    let bit = 1u8 << draws.below(8);
    data[at] = match draws.below(4) {
        0 => data[at] ^ bit,
        1 => draws.next().to_le_bytes()[0],
        2 => 0xff,
        _ => 0,
    };
}

fn reshape(data: &mut Vec<u8>, draws: &mut Draws, seeds: &[(String, Vec<u8>)]) {
    let at = draws.below(data.len() + 1);
    match draws.below(5) {
        0 => drop(data.drain(draws.range(data.len()))),
        1 => data.truncate(at),
        2 => {
            let word = WORDS[draws.below(WORDS.len())];
            let end = if draws.below(2) == 0 { at } else { (at + word.len()).min(data.len()) };
            data.splice(at..end, word.iter().copied());
        }
        3 => {
            let piece = data[draws.range(data.len())].to_vec();
            data.splice(at..at, piece);
        }
        _ => {
            let other = &seeds[draws.below(seeds.len())].1;
            let begin = draws.below(other.len() + 1);
            let piece = other[begin..(begin + draws.below(256)).min(other.len())].to_vec();
            data.splice(at..at, piece);
        }
    }
}

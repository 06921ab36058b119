//! Huffman decoding of coefficients.
//!
//! One look-up with the next 11 bits decodes up to two symbols. An entry holds a first coefficient whose
//! value is known from the bits of the index, and a second one whose code lies in the index while its
//! value may reach beyond; its value is then cut out of the bit buffer. Entries with one symbol leave the
//! first coefficient empty. Apart from the end of a block all of it is free of branches, and the refill of
//! the bit buffer is not on the path from one look-up to the next.

use caju_types::{Error, Result};

use super::header::HuffmanSpec;

/// Bits of the index of the AC look-up.
const AC_BITS: u32 = 11;
/// Bits of the index of the DC look-up.
const DC_BITS: u32 = 10;
/// What the end of a block adds to the position of the next coefficient.
const END: usize = 128;

/// The order of coefficients in the file; positions behind the last one map to it, for damaged data.
pub(super) static ZIGZAG: [u8; 320] = {
    const ORDER: [u8; 64] = [
        0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13,
        6, 7, 14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38,
        31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
    ];
    let mut t = [63u8; 320];
    let mut i = 0;
    while i < 64 {
        t[i] = ORDER[i];
        i += 1;
    }
    t
};

/// The codes of a table by length, for codes that the look-ups do not hold.
#[derive(Debug, Clone)]
struct Canonical {
    /// Codes of length `l`, left-aligned in 16 bits, lie below `limit[l]`.
    limit: [u32; 17],
    /// Added to a code of length `l` to find its symbol.
    offset: [i32; 17],
    symbols: Vec<u8>,
    /// Length and symbol by the next nine bits, length 0 for longer codes.
    quick: [(u8, u8); 512],
}

impl Canonical {
    fn new(spec: &HuffmanSpec<'_>) -> Result<Self> {
        let mut c =
            Self { limit: [0; 17], offset: [0; 17], symbols: spec.symbols.to_vec(), quick: [(0, 0); 512] };
        let (mut code, mut index) = (0u32, 0i32);
        for l in 1..=16usize {
            let n = u32::from(*spec.counts.get(l - 1).unwrap_or(&0));
            c.offset[l] = index - code as i32;
            code += n;
            index += n as i32;
            if code > 1 << l {
                return Err(Error::data_loss("damaged JPEG: a Huffman table has more codes than fit"));
            }
            c.limit[l] = code << (16 - l);
            code <<= 1;
        }
        if index as usize != c.symbols.len() {
            return Err(Error::data_loss("damaged JPEG: a Huffman table has missing symbols"));
        }
        for i in 0..512u32 {
            if let Some((l, s)) = c.find(i << 7)
                && l <= 9
            {
                c.quick[i as usize] = (l as u8, s);
            }
        }
        Ok(c)
    }

    /// Length and symbol of the code at the top of `next16`; `None` for no code.
    fn find(&self, next16: u32) -> Option<(u32, u8)> {
        let (l, symbol) = self.quick[(next16 >> 7 & 511) as usize];
        if l > 0 {
            return Some((u32::from(l), symbol));
        }
        let l = (1..=16usize).find(|&l| next16 < self.limit[l])?;
        let index = (next16 >> (16 - l)) as i32 + self.offset[l];
        Some((l as u32, *self.symbols.get(usize::try_from(index).ok()?)?))
    }
}

/// A table for DC differences.
#[derive(Debug, Clone)]
pub(super) struct DcTable {
    /// Low byte: bits of code and value; high byte: bits of the value. 0 for codes that are not here.
    fast: [u16; 1 << DC_BITS],
    canonical: Canonical,
}

impl DcTable {
    pub(super) fn new(spec: &HuffmanSpec<'_>) -> Result<Self> {
        let canonical = Canonical::new(spec)?;
        if canonical.symbols.iter().any(|&s| s > 15) {
            return Err(Error::data_loss("damaged JPEG: a DC Huffman table has a symbol above 15"));
        }
        let mut fast = [0; 1 << DC_BITS];
        for (i, f) in fast.iter_mut().enumerate() {
            if let Some((l, s)) = canonical.find((i as u32) << (16 - DC_BITS))
                && l <= DC_BITS
            {
                *f = (l as u16 + u16::from(s)) | (u16::from(s) << 8);
            }
        }
        Ok(Self { fast, canonical })
    }
}

/// What the next bits of the AC coefficients say.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C, align(8))]
struct Entry {
    /// Bits of everything; 0 if the look-up does not hold this code, which then moves 255 places.
    total: u8,
    /// Bits in front of the second value, and 63 less its own.
    front: u8,
    shift: u8,
    /// How far the position moves.
    advance: u8,
    /// Places of the first and of the second value, from the position.
    place1: u8,
    place2: u8,
    /// The first value.
    value: i16,
}

/// A table for AC coefficients.
#[derive(Debug, Clone)]
pub(super) struct AcTable {
    fast: Box<[Entry; 1 << AC_BITS]>,
    canonical: Canonical,
}

impl AcTable {
    pub(super) fn new(spec: &HuffmanSpec<'_>) -> Result<Self> {
        let canonical = Canonical::new(spec)?;
        // Symbols whose code lies in the index: (length, symbol), length 0 for none.
        let mut single = vec![(0u32, 0u8); 1 << AC_BITS];
        for (i, f) in single.iter_mut().enumerate() {
            if let Some((l, s)) = canonical.find((i as u32) << (16 - AC_BITS)) {
                let known = s & 15 != 0 || s == 0 || s == 0xF0;
                if l <= AC_BITS && s & 15 <= 10 && known {
                    *f = (l, s);
                }
            }
        }
        let mut fast = Box::new([Entry::default(); 1 << AC_BITS]);
        for (i, f) in fast.iter_mut().enumerate() {
            *f = entry(i as u32, &single);
        }
        Ok(Self { fast, canonical })
    }
}

/// How many coefficients a symbol covers, the end of a block as [`END`].
fn advance(symbol: u8) -> u32 {
    if symbol == 0 { END as u32 } else { u32::from(symbol >> 4) + 1 }
}

fn entry(index: u32, single: &[(u32, u8)]) -> Entry {
    let (l1, s1) = single[index as usize];
    if l1 == 0 {
        return Entry { advance: u8::MAX, shift: 63, ..Entry::default() };
    }
    let size1 = u32::from(s1 & 15);
    let (run1, total1) = (u32::from(s1 >> 4), l1 + size1);
    let left = AC_BITS.saturating_sub(total1);
    if size1 != 0 && left > 0 {
        let rest = (index << total1) & ((1 << AC_BITS) - 1);
        let (l2, s2) = single[rest as usize];
        if l2 != 0 && l2 <= left {
            let bits = (index >> left) & ((1 << size1) - 1);
            let negative = bits >> (size1 - 1) == 0;
            let value = bits as i32 - if negative { (1 << size1) - 1 } else { 0 };
            let skipped = if s2 == 0 { 0 } else { u32::from(s2 >> 4) };
            return Entry {
                total: (total1 + l2) as u8 + (s2 & 15),
                front: (total1 + l2) as u8,
                shift: 63 - (s2 & 15),
                advance: (run1 + 1 + advance(s2)) as u8,
                place1: run1 as u8,
                place2: (run1 + 1 + skipped) as u8,
                value: value as i16,
            };
        }
    }
    let place = if s1 == 0 { 0 } else { run1 as u8 };
    Entry {
        total: total1 as u8,
        front: l1 as u8,
        shift: 63 - (s1 & 15),
        advance: advance(s1) as u8,
        place1: place,
        place2: place,
        value: 0,
    }
}

/// A reader of bits, the next one at the top of `buffer`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bits<'a> {
    data: &'a [u8],
    /// The last position from which eight bytes can be read.
    last: usize,
    buffer: u64,
    /// Bits of `buffer` that count, at most 63. Those below hold what follows in the data.
    count: u32,
    /// The first byte of which no bit counts.
    next: usize,
}

impl<'a> Bits<'a> {
    /// Reads from byte `at`. Behind the last eight bytes come zeros; data shorter than that read as none.
    pub(super) fn new(data: &'a [u8], at: usize) -> Self {
        let data = if data.len() < 8 { &[0; 8] } else { data };
        Self { data, last: data.len() - 8, buffer: 0, count: 0, next: at }
    }

    /// The number of bits consumed since the first byte of the data.
    #[inline(always)]
    pub(super) fn position(&self) -> usize {
        self.next * 8 - self.count as usize
    }

    /// Goes to a bit; at least 49 bits count afterwards.
    fn seek(&mut self, bit: usize) {
        (self.buffer, self.count, self.next) = (0, 0, bit >> 3);
        self.refill();
        self.consume((bit & 7) as u32);
    }

    /// Makes at least 56 bits count.
    #[inline(always)]
    pub(super) fn refill(&mut self) {
        let word = if self.next <= self.last {
            #[allow(unsafe_code, reason = "the hottest load of the decoder; two more checks cost 10 %")]
            // SAFETY: next <= last = data.len() - 8, so eight bytes follow.
            u64::from_be_bytes(unsafe { self.data.as_ptr().add(self.next).cast::<[u8; 8]>().read() })
        } else {
            0
        };
        self.buffer |= word >> self.count;
        self.next += ((63 - self.count) >> 3) as usize;
        self.count |= 56;
    }

    #[inline(always)]
    pub(super) fn consume(&mut self, n: u32) {
        self.buffer <<= n & 63;
        self.count = self.count.wrapping_sub(n);
    }

    /// The next `n` bits (at most 15), consumed.
    #[inline(always)]
    pub(super) fn take(&mut self, n: u32) -> u32 {
        if self.count < n {
            self.refill();
        }
        let v = ((self.buffer >> 1) >> (63 - n)) as u32;
        self.consume(n);
        v
    }

    /// The next signed number of `size` bits (at most 15), consumed.
    #[inline(always)]
    pub(super) fn signed(&mut self, size: u32) -> i32 {
        if self.count < size {
            self.refill();
        }
        let value = extend(self.buffer, 63 - size);
        self.consume(size);
        value
    }

    #[inline(always)]
    fn next16(&self) -> u32 {
        (self.buffer >> 48) as u32
    }
}

/// The value of the top `63 - shift` bits as JPEG stores signed numbers: a number whose first bit is 0 is
/// meant to be smaller by the largest number of that many bits.
#[inline(always)]
fn extend(bits: u64, shift: u32) -> i32 {
    let value = (bits >> 1).wrapping_shr(shift) as i32;
    let largest = (u64::MAX >> 1).wrapping_shr(shift) as i32;
    let positive = (bits as i64 >> 63) as i32;
    value - largest + (largest & positive)
}

fn no_code() -> Error {
    Error::data_loss("damaged JPEG: the bits at one place are no code of the Huffman table")
}

impl AcTable {
    /// The next symbol alone, for progressive scans. Leaves at least 15 bits that count.
    #[inline]
    pub(super) fn symbol(&self, r: &mut Bits<'_>) -> Result<u8> {
        r.refill();
        let (l, symbol) = self.canonical.find(r.next16()).ok_or_else(no_code)?;
        r.consume(l);
        Ok(symbol)
    }
}

/// The next DC difference.
#[inline(always)]
pub(super) fn dc_difference(r: &mut Bits<'_>, table: &DcTable) -> Result<i32> {
    r.refill();
    let e = u32::from(table.fast[(r.buffer >> (64 - DC_BITS)) as usize]);
    let (total, size) = if e != 0 {
        (e & 255, e >> 8)
    } else {
        let (l, s) = table.canonical.find(r.next16()).ok_or_else(no_code)?;
        (l + u32::from(s), u32::from(s))
    };
    let value = extend(r.buffer << (total - size), 63 - size);
    r.consume(total);
    Ok(value)
}

/// Decodes the AC coefficients of a block that holds zeros; gives the position behind the last one, in the
/// file's order (1 if there is none). With `STORE` off it only skips them.
#[inline(always)]
pub(super) fn ac_block<const STORE: bool>(
    bits: &mut Bits<'_>,
    table: &AcTable,
    block: &mut [i16; 64],
) -> Result<usize> {
    // A copy of its own stays in registers.
    let mut r = *bits;
    let mut k = 1usize;
    let end = loop {
        // One refill lasts for two look-ups: 56 bits, of which each takes at most AC_BITS and a value of
        // ten, leave enough for the index of the next one.
        let e = &table.fast[(r.buffer >> (64 - AC_BITS)) as usize];
        r.refill();
        k = apply::<STORE>(&mut r, e, k, block);
        if k < 64 {
            let e = &table.fast[(r.buffer >> (64 - AC_BITS)) as usize];
            k = apply::<STORE>(&mut r, e, k, block);
            if k < 64 {
                continue;
            }
            if k == 64 || (END..END + 64).contains(&k) {
                break k % END;
            }
            (r, k) = ac_step::<STORE>(r, e, table, k, block)?;
        } else {
            if k == 64 || (END..END + 64).contains(&k) {
                break k % END;
            }
            (r, k) = ac_step::<STORE>(r, e, table, k, block)?;
        }
        if k >= 64 {
            break k % END;
        }
    };
    *bits = r;
    Ok(end)
}

/// Stores what an entry says and gives the new position.
#[inline(always)]
fn apply<const STORE: bool>(r: &mut Bits<'_>, e: &Entry, k: usize, block: &mut [i16; 64]) -> usize {
    if STORE {
        let value = extend(r.buffer.wrapping_shl(u32::from(e.front)), u32::from(e.shift));
        block[usize::from(ZIGZAG[k + usize::from(e.place1)] & 63)] = e.value;
        block[usize::from(ZIGZAG[k + usize::from(e.place2)] & 63)] = value as i16;
    }
    r.consume(u32::from(e.total));
    k + usize::from(e.advance)
}

/// One symbol, where an entry did not fit: its code is not in the look-up, or its first symbol filled the
/// block so that the second belongs to the next one, or the data are damaged. Undoes the entry, and gives
/// the next position as [`ac_block`] counts it.
#[cold]
#[inline(never)]
fn ac_step<'a, const STORE: bool>(
    mut r: Bits<'a>,
    e: &Entry,
    table: &AcTable,
    k: usize,
    block: &mut [i16; 64],
) -> Result<(Bits<'a>, usize)> {
    let k = k - usize::from(e.advance);
    r.seek(r.position() - usize::from(e.total));
    let (l, symbol) = table.canonical.find(r.next16()).ok_or_else(no_code)?;
    r.consume(l);
    let size = u32::from(symbol & 15);
    if symbol == 0 {
        return Ok((r, k + END));
    }
    let place = k + usize::from(symbol >> 4);
    if size == 0 && symbol != 0xF0 {
        return Err(Error::data_loss(format!("damaged JPEG: a block holds the symbol {symbol:#04x}")));
    }
    if place > 63 {
        return Err(Error::data_loss("damaged JPEG: a block has more than 64 coefficients"));
    }
    let value = extend(r.buffer, 63 - size);
    r.consume(size);
    if STORE {
        block[usize::from(ZIGZAG[place] & 63)] = value as i16;
    }
    Ok((r, place + 1))
}

/// Recently used tables: most files of a data set share theirs.
#[derive(Debug)]
pub(super) struct Cache<T> {
    entries: Vec<(Vec<u8>, T)>,
}

impl<T> Default for Cache<T> {
    fn default() -> Self {
        Self { entries: Vec::new() }
    }
}

impl<T> Cache<T> {
    /// Tables of one kind that are kept between scans; of more than these the newest half of `KEEP` stay. A scan names at most
    /// four, so the tables of two different files fit. The number is small because a look-up compares the tables one by one.
    const KEEP: usize = 8;

    /// The index of a table, built if it is not here.
    pub(super) fn index(
        &mut self,
        spec: &HuffmanSpec<'_>,
        build: impl FnOnce() -> Result<T>,
    ) -> Result<usize> {
        let same = |key: &[u8]| key.strip_prefix(spec.counts) == Some(spec.symbols);
        if let Some(i) = self.entries.iter().position(|(key, _)| same(key)) {
            return Ok(i);
        }
        let key = [spec.counts, spec.symbols].concat();
        self.entries.push((key, build()?));
        Ok(self.entries.len() - 1)
    }

    /// Forgets old tables; indices given before are void.
    pub(super) fn tidy(&mut self) {
        if self.entries.len() > Self::KEEP {
            self.entries.drain(..self.entries.len() - Self::KEEP / 2);
        }
    }

    pub(super) fn get(&self, i: usize) -> Result<&T> {
        let entry = self.entries.get(i).ok_or_else(|| Error::internal("a Huffman table was forgotten"))?;
        Ok(&entry.1)
    }
}

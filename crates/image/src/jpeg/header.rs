//! The segments of a JPEG file outside of the entropy-coded data (ITU-T T.81, annex B).

use caju_types::{Error, Result};

/// One colour component of a frame.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Component {
    /// Identifier that scans refer to.
    pub id: u8,
    /// Horizontal sampling factor, 1 to 4.
    pub h: u8,
    /// Vertical sampling factor, 1 to 4.
    pub v: u8,
    /// Quantisation table, 0 to 3.
    pub tq: u8,
}

/// The coding process of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Process {
    /// Baseline or extended sequential, Huffman coded (SOF0, SOF1).
    Sequential,
    /// Progressive, Huffman coded (SOF2).
    Progressive,
    /// Anything else: lossless, hierarchical or arithmetic coded. Holds the marker's low byte.
    Other(u8),
}

/// The frame header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Coding process.
    pub process: Process,
    /// Bits per sample.
    pub precision: u8,
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
    /// One to four components.
    pub components: Vec<Component>,
}

/// A Huffman table as stored: the number of codes of each length, and their symbols.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HuffmanSpec<'a> {
    /// Codes of length 1 to 16.
    pub counts: &'a [u8],
    /// Symbols, by increasing code.
    pub symbols: &'a [u8],
}

/// A scan's header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scan {
    /// (component's index in the frame, DC table, AC table).
    pub components: Vec<(usize, u8, u8)>,
    /// Spectral selection and successive approximation: start, end, high and low bit.
    pub spectral: (u8, u8, u8, u8),
    /// Where the entropy-coded bytes begin.
    pub data: usize,
}

/// What the segments said so far, apart from the frame and the scans.
#[derive(Debug, Clone, Default)]
pub struct Tables<'a> {
    /// Quantisation tables in zigzag order.
    pub quant: [Option<[u16; 64]>; 4],
    /// Those of components whose first scan has been read, by their places in the frame. A later table of the same number is for
    /// other components.
    pub quant_of_read: [Option<[u16; 64]>; 4],
    /// Huffman tables: `[class][destination]`, class 0 for DC.
    pub huffman: [[Option<HuffmanSpec<'a>>; 4]; 2],
    /// MCUs between restart markers, 0 for none.
    pub restart_interval: usize,
    /// The transform of an Adobe segment.
    pub adobe: Option<u8>,
    /// Whether a JFIF segment is present.
    pub jfif: bool,
    /// The body of an EXIF segment.
    pub exif: Option<&'a [u8]>,
}

/// Everything that precedes a scan's entropy-coded data.
#[derive(Debug, Clone)]
pub struct Header<'a> {
    /// The frame header.
    pub frame: Frame,
    /// The tables in force.
    pub tables: Tables<'a>,
    /// The scan.
    pub scan: Scan,
}

/// How the samples of the components mean colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColorSpace {
    /// One component.
    Grey,
    /// Luma and two chroma differences (JFIF).
    YCbCr,
    /// Red, green and blue, unchanged.
    Rgb,
    /// Cyan, magenta, yellow, black.
    Cmyk,
    /// YCbCr of inverted CMY, and black.
    Ycck,
}

impl<'a> Header<'a> {
    /// Reads on from `at`, behind a scan, to the next one; `false` if the image ends there.
    ///
    /// # Errors
    /// `DataLoss` if the data end early or make no sense.
    pub fn next_scan(&mut self, data: &'a [u8], at: usize) -> Result<bool> {
        let mut frame = Some(self.frame.clone());
        match segments(data, at, &mut frame, &mut self.tables, Until::Scan)? {
            Stop::Scan(scan) => self.scan = scan,
            Stop::Frame | Stop::End => return Ok(false),
        }
        Ok(true)
    }

    /// The colour space by libjpeg's rules: JFIF, else the Adobe segment, else the components' names.
    pub fn color_space(&self) -> ColorSpace {
        let c = &self.frame.components;
        match (c.len(), self.tables.adobe) {
            (1 | 2, _) => ColorSpace::Grey,
            (3, _) if self.tables.jfif => ColorSpace::YCbCr,
            (3, Some(0)) => ColorSpace::Rgb,
            (3, Some(_)) => ColorSpace::YCbCr,
            (3, None) if [c[0].id, c[1].id, c[2].id] == *b"RGB" => ColorSpace::Rgb,
            (3, None) => ColorSpace::YCbCr,
            (_, Some(2)) => ColorSpace::Ycck,
            _ => ColorSpace::Cmyk,
        }
    }
}

fn early(data: &[u8], place: &str) -> Error {
    Error::data_loss(format!(
        "JPEG data ends early: {} bytes end inside {place}; the file was cut off",
        data.len()
    ))
}

fn damaged(what: impl std::fmt::Display) -> Error {
    Error::data_loss(format!("damaged JPEG: {what}"))
}

/// What to read of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Until {
    Frame,
    Scan,
}

/// Where reading stopped.
enum Stop {
    Frame,
    Scan(Scan),
    End,
}

/// Reads up to the frame header: `(height, width, body of the EXIF segment)`.
///
/// # Errors
/// `DataLoss` if the data end early or make no sense.
pub fn parse_size(data: &[u8]) -> Result<(usize, usize, Option<&[u8]>)> {
    let (mut frame, mut tables) = (None, Tables::default());
    segments(data, 2, &mut frame, &mut tables, Until::Frame)?;
    let f = frame.ok_or_else(|| damaged("it has no frame header"))?;
    Ok((f.height, f.width, tables.exif))
}

/// Reads up to the first scan.
///
/// # Errors
/// `DataLoss` if the data end early or make no sense.
pub fn parse(data: &[u8]) -> Result<Header<'_>> {
    let (mut frame, mut tables) = (None, Tables::default());
    match (segments(data, 2, &mut frame, &mut tables, Until::Scan)?, frame) {
        (Stop::Scan(scan), Some(frame)) => Ok(Header { frame, tables, scan }),
        _ => Err(damaged("it has no scan")),
    }
}

fn segments<'a>(
    data: &'a [u8],
    mut at: usize,
    frame: &mut Option<Frame>,
    p: &mut Tables<'a>,
    until: Until,
) -> Result<Stop> {
    loop {
        // Fill bytes may precede a marker; anything else there is skipped as libjpeg does.
        while *data.get(at).ok_or_else(|| early(data, "its header"))? != 0xFF {
            at += 1;
        }
        while data.get(at) == Some(&0xFF) {
            at += 1;
        }
        let marker = *data.get(at).ok_or_else(|| early(data, "its header"))?;
        at += 1;
        match marker {
            0 | 1 | 0xD0..=0xD8 => continue,
            0xD9 => return Ok(Stop::End),
            _ => {}
        }
        let length = match data.get(at..at + 2) {
            Some(b) => usize::from(u16::from_be_bytes([b[0], b[1]])),
            None => return Err(early(data, "its header")),
        };
        if length < 2 {
            return Err(damaged(format!("segment {marker:#04x} has length {length}")));
        }
        let body = data.get(at + 2..at + length).ok_or_else(|| early(data, "its header"))?;
        at += length;
        match marker {
            0xC4 => huffman_tables(body, p)?,
            0xC0..=0xCF if marker != 0xC8 && marker != 0xCC => {
                if frame.is_some() {
                    return Err(damaged("it has two frame headers"));
                }
                *frame = Some(frame_header(marker, body)?);
                if until == Until::Frame {
                    return Ok(Stop::Frame);
                }
            }
            0xDA => {
                let frame = frame.as_ref().ok_or_else(|| damaged("a scan comes before the frame header"))?;
                return Ok(Stop::Scan(scan_header(body, frame, at)?));
            }
            0xDB => quant_tables(body, p)?,
            0xDD if body.len() >= 2 => {
                p.restart_interval = usize::from(u16::from_be_bytes([body[0], body[1]]));
            }
            0xE0 if body.starts_with(b"JFIF\0") => p.jfif = true,
            0xE1 if p.exif.is_none() => p.exif = body.strip_prefix(b"Exif\0\0"),
            0xEE if body.len() >= 12 && body.starts_with(b"Adobe") => p.adobe = Some(body[11]),
            _ => {}
        }
    }
}

fn frame_header(marker: u8, body: &[u8]) -> Result<Frame> {
    let process = match marker {
        0xC0 | 0xC1 => Process::Sequential,
        0xC2 => Process::Progressive,
        m => Process::Other(m),
    };
    if body.len() < 6 {
        return Err(damaged("its frame header is too short"));
    }
    let u16_at = |i: usize| usize::from(u16::from_be_bytes([body[i], body[i + 1]]));
    let (height, width, n) = (u16_at(1), u16_at(3), usize::from(body[5]));
    if height == 0 || width == 0 {
        return Err(damaged(format!("its frame header says {height} x {width} pixels")));
    }
    if n == 0 || n > 4 || body.len() < 6 + 3 * n {
        return Err(damaged(format!("its frame header names {n} components")));
    }
    let mut components = Vec::with_capacity(n);
    for c in body[6..6 + 3 * n].chunks_exact(3) {
        let c = Component { id: c[0], h: c[1] >> 4, v: c[1] & 15, tq: c[2] };
        if !(1..=4).contains(&c.h) || !(1..=4).contains(&c.v) || c.tq > 3 {
            return Err(damaged(format!(
                "component {} has sampling {} x {}, table {}",
                c.id, c.h, c.v, c.tq
            )));
        }
        components.push(c);
    }
    Ok(Frame { process, precision: body[0], height, width, components })
}

fn quant_tables(mut body: &[u8], p: &mut Tables<'_>) -> Result<()> {
    while let Some((&pt, rest)) = body.split_first() {
        let (wide, id) = (pt >> 4 != 0, usize::from(pt & 15));
        let size = if wide { 128 } else { 64 };
        if id > 3 || rest.len() < size {
            return Err(damaged("a quantisation table is cut off or misnumbered"));
        }
        let mut table = [0u16; 64];
        for (i, q) in table.iter_mut().enumerate() {
            *q = if wide { u16::from_be_bytes([rest[2 * i], rest[2 * i + 1]]) } else { u16::from(rest[i]) };
        }
        p.quant[id] = Some(table);
        body = &rest[size..];
    }
    Ok(())
}

fn huffman_tables<'a>(mut body: &'a [u8], p: &mut Tables<'a>) -> Result<()> {
    while let Some((&tc, rest)) = body.split_first() {
        let (class, id) = (usize::from(tc >> 4), usize::from(tc & 15));
        let counts = rest.get(..16).ok_or_else(|| damaged("a Huffman table is cut off"))?;
        let n: usize = counts.iter().map(|&c| usize::from(c)).sum();
        let symbols = rest.get(16..16 + n).ok_or_else(|| damaged("a Huffman table is cut off"))?;
        if class > 1 || id > 3 || n > 256 {
            return Err(damaged("a Huffman table is misnumbered or too long"));
        }
        p.huffman[class][id] = Some(HuffmanSpec { counts, symbols });
        body = &rest[16 + n..];
    }
    Ok(())
}

fn scan_header(body: &[u8], frame: &Frame, data: usize) -> Result<Scan> {
    let n = usize::from(*body.first().ok_or_else(|| damaged("its scan header is empty"))?);
    if n == 0 || n > 4 || body.len() < 4 + 2 * n {
        return Err(damaged(format!("its scan header names {n} components")));
    }
    let mut components = Vec::with_capacity(n);
    for c in body[1..1 + 2 * n].chunks_exact(2) {
        let index = frame.components.iter().position(|f| f.id == c[0]);
        let index = index.ok_or_else(|| damaged(format!("its scan names the unknown component {}", c[0])))?;
        let (dc, ac) = (c[1] >> 4, c[1] & 15);
        if dc > 3 || ac > 3 || components.iter().any(|&(i, _, _)| i == index) {
            return Err(damaged("its scan header repeats a component or misnumbers a table"));
        }
        components.push((index, dc, ac));
    }
    let t = &body[1 + 2 * n..];
    Ok(Scan { components, spectral: (t[0], t[1], t[2] >> 4, t[2] & 15), data })
}

//! Bar charts as SVG or PNG: one bar per option, with its predicted and, where known, its measured value.
//!
//! Charts are drawn in Rust with a font that is part of the binary, so they look the same on every machine.

use std::path::Path;
use std::sync::Once;

use caju_types::{Error, Result, format_count};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{FontStyle, register_font};

/// One row of the chart.
#[derive(Debug, Clone, Default)]
pub(crate) struct Bar {
    /// The text left of the bar.
    pub(crate) label: String,
    /// The predicted value. A row without one shows its note only.
    pub(crate) predicted: Option<f64>,
    /// The text at the end of the predicted bar.
    pub(crate) note: String,
    /// The measured value, and the text at the end of its bar.
    pub(crate) measured: Option<(f64, String)>,
    /// Whether the bar is highlighted.
    pub(crate) chosen: bool,
}

/// A chart of rates.
#[derive(Debug, Clone, Default)]
pub(crate) struct Chart {
    /// One line.
    pub(crate) title: String,
    /// A sentence or two below the title, wrapped.
    pub(crate) caption: String,
    /// What the bars measure.
    pub(crate) unit: String,
    /// The names of the upper and the lower bars. By default `predicted` and `measured`.
    pub(crate) legend: Option<[&'static str; 2]>,
    /// The rows from top to bottom. Beyond [`MAX_BARS`] the slowest are left out, and the caption says so.
    pub(crate) bars: Vec<Bar>,
}

/// The format of a picture, by the extension of its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Picture {
    /// Scalable, text stays text.
    Svg,
    /// Pixels, at twice the size for sharp screens.
    Png,
}

impl Picture {
    /// # Errors
    /// `InvalidArgument` for any other ending.
    pub(crate) fn of(path: &Path) -> Result<Self> {
        match path.extension().and_then(|e| e.to_str()).map(str::to_ascii_lowercase).as_deref() {
            Some("svg") => Ok(Self::Svg),
            Some("png") => Ok(Self::Png),
            _ => Err(Error::invalid(format!("--plot {}: the file must end in .svg or .png", path.display()))),
        }
    }
}

/// The most rows of a readable chart.
const MAX_BARS: usize = 40;
const WIDTH: i32 = 1000;
const MARGIN: i32 = 28;
const FONT: &str = "sans-serif";
/// Characters in a line of the caption.
const CAPTION_WIDTH: usize = 118;

const INK: RGBColor = RGBColor(0x22, 0x2b, 0x33);
const FAINT: RGBColor = RGBColor(0x5f, 0x6b, 0x76);
const GRID: RGBColor = RGBColor(0xdf, 0xe4, 0xe8);
const PLAIN: RGBColor = RGBColor(0x9f, 0xb3, 0xc4);
const CHOSEN: RGBColor = RGBColor(0xd9, 0x6a, 0x1f);
const MEASURED: RGBColor = RGBColor(0x45, 0x52, 0x5e);

/// The picture's bytes.
///
/// # Errors
/// `Internal` if it cannot be drawn.
pub(crate) fn draw(chart: &Chart, picture: Picture) -> Result<Vec<u8>> {
    let registered = font();
    let failed = |e: &dyn std::fmt::Display| Error::internal(format!("drawing a plot: {e}"));
    registered.map_err(|e| failed(&e))?;
    let layout = Layout::of(chart);
    match picture {
        Picture::Svg => {
            let mut out = String::new();
            let area = SVGBackend::with_string(&mut out, layout.size(1)).into_drawing_area();
            layout.paint(&area, 1).and_then(|()| area.present()).map_err(|e| failed(&e))?;
            drop(area);
            Ok(out.into_bytes())
        }
        Picture::Png => {
            let (w, h) = layout.size(2);
            let mut pixels = vec![0; w as usize * h as usize * 3];
            let area = BitMapBackend::with_buffer(&mut pixels, (w, h)).into_drawing_area();
            layout.paint(&area, 2).and_then(|()| area.present()).map_err(|e| failed(&e))?;
            drop(area);
            let mut out = Vec::new();
            let mut encoder = png::Encoder::new(&mut out, w, h);
            encoder.set_color(png::ColorType::Rgb);
            encoder.set_depth(png::BitDepth::Eight);
            encoder.set_compression(png::Compression::High);
            encoder.set_filter(png::Filter::Adaptive);
            let mut writer = encoder.write_header().map_err(|e| failed(&e))?;
            writer.write_image_data(&pixels).and_then(|()| writer.finish()).map_err(|e| failed(&e))?;
            Ok(out)
        }
    }
}

/// Registers the built-in font with the plotting library, once per process.
fn font() -> std::result::Result<(), &'static str> {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| drop(register_font(FONT, FontStyle::Normal, dejavu::sans::regular())));
    let probe = (FONT, 12).into_font().layout_box("x");
    probe.map(drop).map_err(|_| "the built-in font cannot be read")
}

/// The positions of all elements, in pixels of an SVG.
struct Layout<'a> {
    chart: &'a Chart,
    bars: Vec<&'a Bar>,
    caption: Vec<String>,
    /// Whether any bar has a measured rate.
    pairs: bool,
    /// Left end of the bars, and the longest bar's right end.
    left: i32,
    right: i32,
    top: i32,
    row: i32,
    /// The rate at the right end, and between two grid lines.
    full: f64,
    step: f64,
}

impl<'a> Layout<'a> {
    fn of(chart: &'a Chart) -> Self {
        let bars = selected_bars(&chart.bars);
        let mut caption = wrapped(&chart.caption, CAPTION_WIDTH);
        if bars.len() < chart.bars.len() {
            let left_out = format_count((chart.bars.len() - bars.len()) as u64);
            caption.push(format!("{left_out} more options are left out."));
        }
        let widest = |texts: &mut dyn Iterator<Item = &str>| texts.map(text_width).max().unwrap_or(0);
        let labels = widest(&mut bars.iter().map(|b| b.label.as_str()));
        let notes = widest(&mut bars.iter().map(|b| b.note.as_str()))
            .max(widest(&mut bars.iter().filter_map(|b| Some(b.measured.as_ref()?.1.as_str()))));
        let left = MARGIN + labels.min(330) + 12;
        let pairs = bars.iter().any(|b| b.measured.is_some());
        let fastest =
            bars.iter().flat_map(|b| b.predicted.into_iter().chain(b.measured.as_ref().map(|m| m.0)));
        let (full, step) = scale(fastest.fold(0.0, f64::max));
        let lines = i32::try_from(caption.len()).unwrap_or(0);
        Self {
            chart,
            caption,
            pairs,
            left,
            right: (WIDTH - MARGIN - notes.min(380) - 10).max(left + 160),
            top: 76 + lines * 21,
            row: if pairs { 52 } else { 36 },
            bars,
            full,
            step,
        }
    }

    fn bottom(&self) -> i32 {
        self.top + self.row * i32::try_from(self.bars.len()).unwrap_or(0)
    }

    fn size(&self, scale: i32) -> (u32, u32) {
        let legend = if self.pairs { 30 } else { 0 };
        let px = |v: i32| u32::try_from(v * scale).unwrap_or(1);
        (px(WIDTH), px(self.bottom() + 62 + legend))
    }

    #[expect(clippy::cast_possible_truncation, reason = "a share of the width")]
    fn x(&self, rate: f64) -> i32 {
        self.left + (f64::from(self.right - self.left) * (rate / self.full).clamp(0.0, 1.0)).round() as i32
    }

    fn paint<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>, scale: i32) -> Painted<B> {
        area.fill(&WHITE)?;
        let pen = Pen { area, scale };
        pen.text(&self.chart.title, (MARGIN, 34), 25, INK, HPos::Left)?;
        for (i, line) in (0..).zip(&self.caption) {
            pen.text(line, (MARGIN, 64 + i * 21), 16, FAINT, HPos::Left)?;
        }
        self.grid(&pen)?;
        for (i, bar) in (0..).zip(&self.bars) {
            self.bar(&pen, bar, self.top + i * self.row)?;
        }
        if self.pairs { self.legend(&pen) } else { Ok(()) }
    }

    fn grid<B: DrawingBackend>(&self, pen: &Pen<'_, B>) -> Painted<B> {
        let bottom = self.bottom();
        for i in 0..=20 {
            let rate = f64::from(i) * self.step;
            if rate > self.full * (1.0 + 1e-9) {
                break;
            }
            let x = self.x(rate);
            pen.rectangle((x, self.top), (x + 1, bottom), GRID)?;
            pen.text(&tick(rate), (x, bottom + 14), 15, FAINT, HPos::Center)?;
        }
        pen.text(&self.chart.unit, ((self.left + self.right) / 2, bottom + 38), 15, FAINT, HPos::Center)
    }

    fn bar<B: DrawingBackend>(&self, pen: &Pen<'_, B>, bar: &Bar, top: i32) -> Painted<B> {
        let (colour, ink) = if bar.chosen { (CHOSEN, INK) } else { (PLAIN, FAINT) };
        let middle = top + self.row / 2;
        let label = shortened(&bar.label, self.left - MARGIN - 12);
        pen.text(&label, (self.left - 12, middle), 17, INK, HPos::Right)?;
        let at = if bar.measured.is_some() { middle - 10 } else { middle };
        let half = if self.pairs { 9 } else { 11 };
        let end = bar.predicted.map_or(self.left, |rate| self.x(rate));
        pen.rectangle((self.left, at - half), (end, at + half), colour)?;
        pen.text(&bar.note, (end + 8, at), 15, ink, HPos::Left)?;
        if let Some((rate, note)) = &bar.measured {
            let end = self.x(*rate);
            pen.rectangle((self.left, middle + 4), (end, middle + 14), MEASURED)?;
            pen.text(note, (end + 8, middle + 10), 15, FAINT, HPos::Left)?;
        }
        Ok(())
    }

    fn legend<B: DrawingBackend>(&self, pen: &Pen<'_, B>) -> Painted<B> {
        let y = self.bottom() + 66;
        let mut x = self.left;
        let [upper, lower] = self.chart.legend.unwrap_or(["predicted", "measured"]);
        let chosen = if self.chart.legend.is_some() { "auto" } else { "predicted, chosen" };
        for (colour, what) in [(CHOSEN, chosen), (PLAIN, upper), (MEASURED, lower)] {
            pen.rectangle((x, y - 9), (x + 14, y + 5), colour)?;
            pen.text(what, (x + 21, y), 15, FAINT, HPos::Left)?;
            x += 21 + text_width(what) + 26;
        }
        Ok(())
    }
}

type Painted<B> =
    std::result::Result<(), DrawingAreaErrorKind<<B as plotters::prelude::DrawingBackend>::ErrorType>>;

/// Draws in units of the layout on an area of `scale` times the size.
struct Pen<'a, B: DrawingBackend> {
    area: &'a DrawingArea<B, Shift>,
    scale: i32,
}

impl<B: DrawingBackend> Pen<'_, B> {
    fn rectangle(&self, from: (i32, i32), to: (i32, i32), colour: RGBColor) -> Painted<B> {
        // The library paints its last pixel too.
        let at = |(x, y): (i32, i32), less: i32| (x * self.scale - less, y * self.scale - less);
        if to.0 <= from.0 {
            return Ok(());
        }
        self.area.draw(&Rectangle::new([at(from, 0), at(to, 1)], colour.filled()))
    }

    fn text(&self, text: &str, at: (i32, i32), size: i32, colour: RGBColor, anchor: HPos) -> Painted<B> {
        let style = TextStyle::from((FONT, size * self.scale).into_font())
            .color(&colour)
            .pos(Pos::new(anchor, VPos::Center));
        let (x, y) = (at.0 * self.scale, at.1 * self.scale);
        self.area.draw(&Text::new(text, (x, y), style))
    }
}

/// The rows in their order. Of too many: the highlighted ones, the first (computing), and the fastest.
fn selected_bars(bars: &[Bar]) -> Vec<&Bar> {
    if bars.len() <= MAX_BARS {
        return bars.iter().collect();
    }
    let mut order: Vec<usize> = (0..bars.len()).collect();
    let rate = |i: usize| bars[i].predicted.unwrap_or(0.0);
    order.sort_by(|&a, &b| {
        let first = |i: usize| i == 0 || bars[i].chosen;
        first(b).cmp(&first(a)).then(rate(b).total_cmp(&rate(a)))
    });
    order.truncate(MAX_BARS);
    order.sort_unstable();
    order.into_iter().map(|i| &bars[i]).collect()
}

/// The end of the axis and the distance of its grid lines: 1, 2 or 5 times a power of ten, for four to nine lines.
fn scale(fastest: f64) -> (f64, f64) {
    if !fastest.is_finite() || fastest <= 0.0 {
        return (1.0, 1.0);
    }
    let power = 10f64.powf((fastest / 9.0).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|k| k * power).into_iter().find(|s| fastest / s <= 9.0);
    let step = step.unwrap_or(10.0 * power);
    ((fastest / step).ceil() * step, step)
}

/// `0`, `2,500`, `0.25`, `3e12`.
fn tick(rate: f64) -> String {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below 1e9")]
    match rate {
        0.0 => "0".into(),
        r if (1.0..1e9).contains(&r) && r.fract().abs() < 1e-9 => format_count(r as u64),
        r if (1e-3..1e3).contains(&r) => format!("{}", (r * 1e6).round() / 1e6),
        r => format!("{r:.0e}"),
    }
}

/// The approximate width of a label in the built-in font. The viewer of an SVG may use another font.
fn text_width(text: &str) -> i32 {
    i32::try_from(text.chars().count()).unwrap_or(i32::MAX / 16).min(400) * 8
}

fn shortened(text: &str, width: i32) -> String {
    let most = usize::try_from(width / 8).unwrap_or(0).max(8);
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most - 1).chain(['…']).collect()
}

/// Wraps text at spaces into lines with a maximal number of characters.
fn wrapped(text: &str, most: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.len() - 1;
        let used = lines[last].chars().count();
        if used > 0 && used + 1 + word.chars().count() > most {
            lines.push(word.to_owned());
        } else {
            lines[last] += if used > 0 { " " } else { "" };
            lines[last] += word;
        }
    }
    lines.retain(|l| !l.is_empty());
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(n: usize) -> Chart {
        let bar = |i: usize| Bar {
            label: format!("hint-{i} <arrow> & \"none\""),
            predicted: (!i.is_multiple_of(7)).then_some(i as f64 * 10.0),
            note: format!("note {i}"),
            measured: i.is_multiple_of(3).then(|| (i as f64 * 9.0, "measured".into())),
            chosen: i + 1 == n,
        };
        let caption = "a word ".repeat(60);
        Chart {
            title: "Title".into(),
            caption,
            unit: "rows/s".into(),
            legend: None,
            bars: (0..n).map(bar).collect(),
        }
    }

    #[test]
    fn pictures_are_pictures() {
        for n in [0, 1, 5, 300] {
            let svg = String::from_utf8(draw(&chart(n), Picture::Svg).unwrap()).unwrap();
            assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
            assert!(!svg.contains("<arrow>"), "text is escaped");
            assert_eq!(svg.matches("note ").count(), n.min(MAX_BARS));
            let png = draw(&chart(n), Picture::Png).unwrap();
            let mut reader = png::Decoder::new(std::io::Cursor::new(png)).read_info().unwrap();
            assert_eq!(reader.output_color_type(), (png::ColorType::Rgb, png::BitDepth::Eight));
            assert_eq!(reader.info().width, 2 * WIDTH as u32);
            let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
            reader.next_frame(&mut pixels).unwrap();
            let chosen = [CHOSEN.0, CHOSEN.1, CHOSEN.2];
            assert_eq!(n > 0, pixels.chunks_exact(3).any(|p| p == chosen) || n == 1);
        }
        let svg = String::from_utf8(draw(&chart(300), Picture::Svg).unwrap()).unwrap();
        assert!(svg.contains("260 more options are left out") && svg.contains("note 299"));
    }

    #[test]
    fn every_run_gives_the_same_bytes() {
        for picture in [Picture::Svg, Picture::Png] {
            assert_eq!(draw(&chart(9), picture).unwrap(), draw(&chart(9), picture).unwrap());
        }
    }

    #[test]
    fn axes_are_round() {
        assert_eq!([scale(2557.0), scale(1.0), scale(0.0)], [(3000.0, 500.0), (1.0, 0.2), (1.0, 1.0)]);
        for fastest in [1e-9, 0.37, 9.0, 10.0, 99.0, 123_456.0, 1e12] {
            let (full, step) = scale(fastest);
            assert!(full >= fastest * (1.0 - 1e-9) && full / step <= 10.0 && full / step >= 1.0, "{fastest}");
        }
        assert_eq!([tick(0.0), tick(2500.0), tick(0.2 * 3.0), tick(2e12)], ["0", "2,500", "0.6", "2e12"]);
    }

    #[test]
    fn lines_break_at_spaces() {
        assert_eq!(wrapped("aa bb cc", 5), ["aa bb", "cc"]);
        assert_eq!(wrapped("", 5), Vec::<String>::new());
        assert_eq!(wrapped("longer than five", 5), ["longer", "than", "five"]);
    }
}

//! Prints how long our decoder and resampler take, and how many times as long others do.
//!
//!     image-bench [--rounds N] FOLDER ...
//!
//! Each folder is a set of JPEG files (`photos.py` writes some). CPU time of one thread; see RESULTS.md.

use std::path::Path;

use caju_image::jpeg::{self, Region};
use caju_image::{ImageChain, ImageOp, InputKind, RowInput, Scratch};
use fast_image_resize as fir;
use image_bench::decoders::{self, Job};
use image_bench::tasks::{OUT, TASKS, Task, Then};
use image_bench::{Outcome, report};

/// Images that one alternative decodes before it is the turn of the next.
const BLOCK: usize = 6;

struct Photo {
    bytes: Vec<u8>,
    height: usize,
    width: usize,
}

fn read(folder: &Path) -> Outcome<Vec<Photo>> {
    let mut paths: Vec<_> =
        std::fs::read_dir(folder)?.map(|e| Ok(e?.path())).collect::<std::io::Result<_>>()?;
    paths.retain(|p| p.extension().is_some_and(|e| e.eq_ignore_ascii_case("jpg")));
    paths.sort();
    let photo = |p: &std::path::PathBuf| {
        let bytes = std::fs::read(p)?;
        let (height, width, _) = jpeg::header::parse_size(&bytes)?;
        Ok(Photo { bytes, height, width })
    };
    let photos: Vec<Photo> = paths.iter().map(photo).collect::<Outcome<_>>()?;
    if photos.is_empty() { Err(format!("{} has no .jpg files", folder.display()).into()) } else { Ok(photos) }
}

/// What follows the decode, the same for every decoder.
struct Finish {
    resize: ImageChain,
    normalize: ImageChain,
    scratch: Scratch,
    bytes: Vec<u8>,
    floats: Vec<f32>,
}

impl Finish {
    fn new() -> Outcome<Self> {
        let side = u32::try_from(OUT)?;
        let resize = ImageOp::Resize { height: side, width: side };
        Ok(Self {
            resize: ImageChain::new(vec![(resize.clone(), None)], InputKind::U8)?,
            normalize: ImageChain::new(vec![(resize, None), (ImageOp::NORMALIZE, None)], InputKind::U8)?,
            scratch: Scratch::default(),
            bytes: vec![0; OUT * OUT * 3],
            floats: vec![0.0; OUT * OUT * 3],
        })
    }

    /// Runs on the first `h * w` pixels: what they show does not change the time.
    fn run(&mut self, then: Then, r: Region, pixels: &[u8]) -> Outcome<()> {
        let (height, width) = (u32::try_from(r.h)?, u32::try_from(r.w)?);
        let input = RowInput::Pixels { data: &pixels[..r.h * r.w * 3], height, width };
        match then {
            Then::Nothing => Ok(()),
            Then::Resize => Ok(self.resize.run_fixed_u8(input, 0, &mut self.scratch, &mut self.bytes)?),
            Then::Normalize => {
                Ok(self.normalize.run_fixed_f32(input, 0, &mut self.scratch, &mut self.floats)?)
            }
        }
    }
}

fn decode_rows(photos: &[Photo], rounds: usize) -> Outcome<()> {
    let mut decoders = decoders::all()?;
    let names: Vec<&str> = decoders.iter().map(|d| d.name()).collect();
    println!("| decode | {}, us/image | {} |", names[0], names[1..].join(" | "));
    println!("|---|---|{}", "---|".repeat(names.len() - 1));
    let (mut out, mut finish) = (Vec::new(), Finish::new()?);
    for task in TASKS {
        let jobs: Vec<Job> = photos.iter().enumerate().map(|(i, p)| task.job(i, p.height, p.width)).collect();
        if task.scale == 0 && jobs.iter().all(|j| j.scale == 1) {
            continue;
        }
        let scaled = jobs.iter().any(|j| j.scale > 1);
        let able: Vec<usize> = (0..decoders.len()).filter(|&d| decoders[d].scales() || !scaled).collect();
        let mut one = |a: usize, i: usize| {
            decoders[able[a]].decode(&photos[i].bytes, &jobs[i], &mut out)?;
            finish.run(task.then, jobs[i].region(), &out)
        };
        for a in 0..able.len() {
            (0..photos.len()).try_for_each(|i| one(a, i))?;
        }
        let times = report::alternate(rounds, photos.len(), BLOCK, able.len(), &mut one)?;
        let mut columns = vec![None; names.len()];
        able.iter().zip(times).for_each(|(&d, t)| columns[d] = Some(t));
        println!("{}", report::row(task.name, photos.len(), &columns));
    }
    Ok(())
}

/// Windows and whole images, decoded before, to the size of a model's input and to a shorter side of 256.
fn resize_rows(photos: &[Photo], rounds: usize) -> Outcome<()> {
    println!(
        "\n| resize | ours, us/image | fast_image_resize | worst difference | mean difference |\n|---|---|---|---|---|"
    );
    let window: &Task = TASKS.iter().find(|t| t.then == Then::Resize).ok_or("no task resizes")?;
    let mut scratch = jpeg::Scratch::default();
    for (name, whole) in [("window to 224 x 224", false), ("whole to a shorter side of 256", true)] {
        let mut sources = Vec::new();
        for (i, p) in photos.iter().enumerate() {
            let mut job = window.job(i, p.height, p.width);
            job.window = job.window.filter(|_| !whole);
            let r = job.region();
            let mut pixels = vec![0; r.h * r.w * 3];
            jpeg::decode(&p.bytes, r, 1, &mut scratch, &mut pixels)?;
            let short = r.h.min(r.w);
            let to = if whole { (256 * r.h / short, 256 * r.w / short) } else { (OUT, OUT) };
            let op = ImageOp::Resize { height: u32::try_from(to.0)?, width: u32::try_from(to.1)? };
            sources.push((r, pixels, to, ImageChain::new(vec![(op, None)], InputKind::U8)?));
        }
        let (mut ours, mut s) = (vec![0; 1 << 20], Scratch::default());
        let mut resizer = fir::Resizer::new();
        let options = fir::ResizeOptions::new()
            .resize_alg(fir::ResizeAlg::Convolution(fir::FilterType::Bilinear))
            .use_alpha(false);
        let mut theirs: Vec<fir::images::Image> = sources
            .iter()
            .map(|(_, _, to, _)| {
                Ok(fir::images::Image::new(u32::try_from(to.1)?, u32::try_from(to.0)?, fir::PixelType::U8x3))
            })
            .collect::<Outcome<_>>()?;
        let mut one = |a: usize, i: usize| -> Outcome<()> {
            let (r, pixels, to, chain) = &sources[i];
            let (height, width) = (u32::try_from(r.h)?, u32::try_from(r.w)?);
            if a == 0 {
                let input = RowInput::Pixels { data: pixels, height, width };
                chain.run_fixed_u8(input, 0, &mut s, &mut ours[..to.0 * to.1 * 3])?;
            } else {
                let source = fir::images::ImageRef::new(width, height, pixels, fir::PixelType::U8x3)?;
                resizer.resize(&source, &mut theirs[i], Some(&options))?;
            }
            Ok(())
        };
        (0..photos.len()).try_for_each(|i| one(0, i).and_then(|()| one(1, i)))?;
        let times = report::alternate(rounds, photos.len(), BLOCK, 2, &mut one)?;
        let columns: Vec<_> = times.into_iter().map(Some).collect();
        let (mut worst, mut sum, mut n) = (0, 0u64, 0u64);
        for ((r, pixels, to, chain), theirs) in sources.iter().zip(&theirs) {
            let input =
                RowInput::Pixels { data: pixels, height: u32::try_from(r.h)?, width: u32::try_from(r.w)? };
            let ours = &mut ours[..to.0 * to.1 * 3];
            chain.run_fixed_u8(input, 0, &mut s, ours)?;
            for (a, b) in ours.iter().zip(theirs.buffer()) {
                worst = worst.max(a.abs_diff(*b));
                (sum, n) = (sum + u64::from(a.abs_diff(*b)), n + 1);
            }
        }
        let row = report::row(name, photos.len(), &columns);
        println!("{row} {worst} | {:.3} |", sum as f64 / n as f64);
    }
    Ok(())
}

/// The fused chains as the product runs them, to compare with the sums above.
fn chain_rows(photos: &[Photo], rounds: usize) -> Outcome<()> {
    let side = u32::try_from(OUT)?;
    let crop = ImageOp::RandomResizedCrop {
        height: side,
        width: side,
        scale: (0.08, 1.0),
        ratio: (0.75, 4.0 / 3.0),
    };
    let chain = |ops: &[ImageOp]| {
        let ops = ops.iter().cloned().zip((1..).map(Some)).collect();
        ImageChain::new(ops, InputKind::Encoded)
    };
    let p1 = [ImageOp::DECODE, crop, ImageOp::RandomFlip { p: 0.5 }];
    let p2 = [
        ImageOp::DECODE,
        ImageOp::ResizeShorter { size: 256 },
        ImageOp::CenterCrop { height: side, width: side },
        ImageOp::NORMALIZE,
    ];
    let chains = [chain(&p1)?, chain(&p1)?.allow_scaled(true), chain(&p2)?];
    let mut finish = Finish::new()?;
    let mut one = |a: usize, i: usize| -> Outcome<()> {
        let input = RowInput::Encoded(&photos[i].bytes);
        match a {
            2 => Ok(chains[2].run_fixed_f32(input, i as u64, &mut finish.scratch, &mut finish.floats)?),
            _ => Ok(chains[a].run_fixed_u8(input, i as u64, &mut finish.scratch, &mut finish.bytes)?),
        }
    };
    (0..3).try_for_each(|a| (0..photos.len()).try_for_each(|i| one(a, i)))?;
    let times = report::alternate(rounds, photos.len(), BLOCK, 3, &mut one)?;
    println!("\n| our fused chain | us/image |\n|---|---|");
    for (name, t) in ["P1 u8", "P1 u8 with scaled decode allowed", "P2"].into_iter().zip(times) {
        println!("{}", report::row(name, photos.len(), &[Some(t)]));
    }
    Ok(())
}

fn main() -> Outcome<()> {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let mut rounds = 15;
    if args.first().is_some_and(|a| a == "--rounds") && args.len() > 1 {
        rounds = args[1].parse()?;
        args.drain(..2);
    }
    if args.is_empty() {
        return Err("usage: image-bench [--rounds N] FOLDER ...; photos.py writes folders of photos".into());
    }
    for folder in &args {
        let folder = Path::new(folder);
        let photos = read(folder)?;
        let bytes = photos.iter().map(|p| p.bytes.len()).sum::<usize>() / photos.len();
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        println!("\n## {name}: {} photos of {} kB on average, {rounds} rounds\n", photos.len(), bytes / 1000);
        decode_rows(&photos, rounds)?;
        resize_rows(&photos, rounds)?;
        chain_rows(&photos, rounds)?;
    }
    Ok(())
}

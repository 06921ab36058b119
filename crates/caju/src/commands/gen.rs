//! `caju gen`.

use std::pin::pin;
use std::time::Instant;

use caju_runtime::{CpuPool, Stores};
use caju_samples::{Format, SampleSet, StopFlag, WriteProgress};
use caju_types::{Error, ErrorKind, Result};

use super::serve::Signals;
use super::shared;
use crate::cli::{GenArgs, Global};
use crate::output;
use crate::progress::{Progress, State, done_text};

/// Generates sample data, to the exit code.
///
/// # Errors
/// As [`caju_samples::write()`].
pub(crate) async fn run(global: &Global, args: &GenArgs) -> Result<u8> {
    let mut formats: Vec<Format> = Vec::new();
    for format in args.format.iter().map(|f| Format::from(*f)) {
        if formats.contains(&format) {
            return Err(Error::invalid(format!("--format names {} twice", format.name())));
        }
        formats.push(format);
    }
    let set = SampleSet {
        kind: args.kind.into(),
        out: folder("--out", &args.out)?,
        count: args.count,
        seed: args.seed,
        formats,
        shards: args.shards,
        overwrite: args.overwrite,
    };
    generate(&set, &shared::stores()?, &shared::cpu_pool(args.cpu_threads)?, global.quiet).await
}

/// A folder argument as a URL or an absolute path.
///
/// # Errors
/// `InvalidArgument` for an empty name, and for a name that is a likely mistake: `~/x`, or a URL with one slash.
pub(crate) fn folder(flag: &str, text: &str) -> Result<String> {
    if text.trim().is_empty() {
        return Err(Error::invalid(format!("{flag}: the name is empty; name a folder, as a path or a URL")));
    }
    if text.starts_with('~') {
        return Err(Error::invalid(format!(
            "{flag} {text}: only a shell knows what `~` stands for; write the whole path, or ./{text} for a folder of \
             that name"
        )));
    }
    if let Some((scheme, rest)) = text.split_once(":/")
        && !rest.starts_with('/')
        && scheme.len() > 1
        && scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    {
        let slash = if scheme == "file" { "/" } else { "" };
        return Err(Error::invalid(format!(
            "{flag} {text}: a URL has two slashes, {scheme}://{slash}{rest}; write ./{text} for a folder of that name"
        )));
    }
    shared::absolute_url(text)
}

/// The exit code of a process that a signal ended, as in shells.
pub(crate) fn signalled(name: &str) -> u8 {
    if name == "SIGTERM" { 143 } else { 130 }
}

/// Generates with progress and a final line, to the exit code. Ctrl-C and SIGTERM stop it and remove what it wrote.
///
/// # Errors
/// As [`caju_samples::write()`].
pub(crate) async fn generate(set: &SampleSet, stores: &Stores, pool: &CpuPool, quiet: bool) -> Result<u8> {
    let (written, stop, start) = (WriteProgress::default(), StopFlag::default(), Instant::now());
    let state = || {
        let (rows, bytes) = written.get();
        State { rows, bytes, done: rows, total: Some(set.count), ..State::default() }
    };
    let mut signals = Signals::new()?;
    let progress = Progress::new(format!("gen {}", set.kind.name()), quiet);
    let mut work =
        pin!(progress.watch(Box::pin(caju_samples::write(set, stores, pool, &written, &stop)), state));
    let name = tokio::select! {
        done = &mut work => {
            done?;
            return say(set, &written, start, quiet);
        }
        name = signals.next() => name,
    };
    stop.set();
    output::note(format_args!("gen: {name}: removing what was written; a second signal ends at once"));
    tokio::select! {
        done = work => match done {
            // The signal came too late: the data is complete.
            Ok(()) => say(set, &written, start, quiet),
            Err(e) if e.kind() == ErrorKind::Cancelled => {
                output::note(format_args!("gen: {}", e.message()));
                Ok(signalled(name))
            }
            Err(e) => Err(e),
        },
        second = signals.next() => {
            let out = &set.out;
            output::note(format_args!("gen: {second}: ended at once; --overwrite removes what is left in {out}"));
            Ok(signalled(second))
        }
    }
}

fn say(set: &SampleSet, written: &WriteProgress, start: Instant, quiet: bool) -> Result<u8> {
    if !quiet {
        let (rows, bytes) = written.get();
        let names: Vec<_> = set.formats.iter().map(|f| f.name()).collect();
        output::say(format_args!(
            "{}: {} as {}, {} shard{}",
            set.out,
            done_text(rows, bytes, start.elapsed()),
            names.join(" and "),
            set.shards(),
            if set.shards() == 1 { "" } else { "s each" }
        ))?;
    }
    Ok(0)
}

//! Numbers that a worker tunes while it runs, unless they are given by hand.

use std::fmt;
use std::str::FromStr;

use clap::Args;

/// A number that is tuned, or given by hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tuned {
    /// It is tuned.
    Auto,
    /// It stays as it is.
    Given(usize),
}

impl Tuned {
    /// The number that was given by hand.
    pub(crate) fn given(self) -> Option<usize> {
        match self {
            Self::Auto => None,
            Self::Given(n) => Some(n),
        }
    }

    /// A size in bytes.
    pub(super) fn size(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let bytes = caju_types::parse_bytes(text).map_err(|e| format!("{e}; or auto"))?;
        Ok(Self::Given(usize::try_from(bytes).unwrap_or(usize::MAX)))
    }

    /// A number of at least 1.
    pub(super) fn count(text: &str) -> Result<Self, String> {
        if text == "auto" { Ok(Self::Auto) } else { count(text).map(Self::Given) }
    }
}

/// The numbers of a worker's tasks that it tunes, unless they are given.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct TunedArgs {
    /// Bytes of finished elements that each task may hold until readers take them, and that each `prefetch` may hold. `auto`: at
    /// first 64MiB, and more where both sides wait in turn
    #[arg(long, value_name = "auto|SIZE", default_value = "auto", value_parser = Tuned::size)]
    pub(crate) buffer: Tuned,
    /// The most bytes that all these queues of a worker hold together, and one element of each
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = memory)]
    pub(crate) buffer_memory: u64,
    /// Splits that each task reads concurrently. `auto`: at first one more than the CPU threads, and more while reads wait for
    /// the source's store
    #[arg(long, value_name = "auto|N", default_value = "auto", value_parser = Tuned::count)]
    pub(crate) split_readers: Tuned,
}

/// What the workers of this process compute with.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct ComputeArgs {
    /// CPU threads of all workers of this process. `auto`: at first as many as cores, and more while rows wait for something
    /// other than a core; `auto:N`: at first N. A number is not tuned
    #[arg(long, value_name = "auto|auto:N|N", default_value = "auto")]
    pub(crate) cpu_threads: CpuThreads,
    #[command(flatten)]
    pub(crate) tuned: TunedArgs,
}

/// The CPU threads of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CpuThreads {
    /// They are tuned, and there are this many at first; by default as many as cores.
    Auto(Option<usize>),
    /// They stay as many.
    Given(usize),
}

impl FromStr for CpuThreads {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("auto") {
            Some("") => Ok(Self::Auto(None)),
            Some(first) => match first.strip_prefix(':') {
                Some(first) => count(first).map(|n| Self::Auto(Some(n))),
                None => Err("expected auto, auto:N or a number".to_string()),
            },
            None => count(text).map(Self::Given),
        }
    }
}

impl fmt::Display for CpuThreads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto(None) => f.write_str("auto"),
            Self::Auto(Some(n)) => write!(f, "auto:{n}"),
            Self::Given(n) => write!(f, "{n}"),
        }
    }
}

fn memory(text: &str) -> Result<u64, String> {
    caju_types::parse_bytes(text).map_err(|e| e.to_string())
}

/// The most threads or reads of one process. Machines have fewer cores, and each thread takes megabytes.
const MAX_COUNT: usize = 4096;

fn count(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(n) if (1..=MAX_COUNT).contains(&n) => Ok(n),
        _ => Err(format!("expected auto, or a number of 1 to {MAX_COUNT}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_tuned_or_given() {
        assert_eq!(Tuned::size("auto"), Ok(Tuned::Auto));
        assert_eq!(Tuned::size("2MiB"), Ok(Tuned::Given(2 << 20)));
        assert_eq!(Tuned::count("7"), Ok(Tuned::Given(7)));
        assert!(Tuned::count("0").is_err() && Tuned::count("many").is_err() && Tuned::size("autos").is_err());
        for text in ["auto", "auto:3", "12"] {
            assert_eq!(text.parse::<CpuThreads>().unwrap().to_string(), text);
        }
        for text in ["0", "auto:0", "auto3", "auto:", "-1", ""] {
            assert!(text.parse::<CpuThreads>().is_err(), "{text}");
        }
    }
}

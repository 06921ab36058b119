//! `caju plan`: decides what is worth storing, from a measured profile.

use std::io::{ErrorKind, IsTerminal};
use std::path::Path;

use caju_planner::{Decision, PlanOption, Policy, Profile, format_rate, plan};
use caju_types::{Error, Result, format_bytes};

use crate::cli::{PlanArgs, PlanFormat};
use crate::plot::{self, Bar, Chart, Picture};
use crate::{input_file, output, report};

/// The largest file, in bytes. A profile of ten thousand stages has a few million bytes, so a larger file is no profile.
const MAX_BYTES: u64 = 64 << 20;

/// Prints the decision, and draws it with `--plot`.
///
/// # Errors
/// An unknown policy, a file that is no profile, or a plot that cannot be written.
pub(crate) fn run(args: &PlanArgs) -> Result<()> {
    if let Some(log) = &args.replay {
        return replay_log(log);
    }
    let policy: Policy = args.policy.parse()?;
    let picture = args.plot.as_deref().map(Picture::of).transpose()?;
    let profile = args.profile.as_deref().ok_or_else(|| Error::invalid("give a profile, or --replay LOG"))?;
    let profile = read_profile(profile)?;
    let decision = plan(&profile, &policy)?;
    if let (Some(path), Some(picture)) = (&args.plot, picture) {
        report::write_bytes(path, &plot::draw(&chart(&profile, &decision), picture)?, "--plot")?;
    }
    let default = if std::io::stdout().is_terminal() { PlanFormat::Text } else { PlanFormat::Json };
    match args.format.unwrap_or(default) {
        PlanFormat::Json => output::say(decision.to_json()),
        PlanFormat::Text => output::say(decision.to_text().trim_end()),
    }
}

/// Replays recorded events, and prints what follows from them and when.
///
/// # Errors
/// A file that is no log of events.
fn replay_log(path: &Path) -> Result<()> {
    let log = read_text(path, "log of events")?;
    let actions = caju_autocache::describe_replay(&log).map_err(|e| e.context(shown(path)))?;
    output::say(actions.trim_end())
}

/// The profile of a file, or of standard input for `-`.
///
/// # Errors
/// One line with the file's name and the field.
pub(super) fn read_profile(path: &Path) -> Result<Profile> {
    let text = read_text(path, "profile")?;
    Profile::from_json(&text).map_err(|e| e.context(shown(path)))
}

fn shown(path: &Path) -> String {
    if path == Path::new("-") { "standard input".into() } else { path.display().to_string() }
}

/// The text of a file, or of standard input for `-`.
///
/// # Errors
/// One line with the file's name.
fn read_text(path: &Path, what: &str) -> Result<String> {
    let bytes = if path == Path::new("-") {
        input_file::bounded(std::io::stdin().lock(), MAX_BYTES)
    } else {
        input_file::read(path, MAX_BYTES)
    };
    let bytes = bytes.map_err(|e| match e.kind() {
        ErrorKind::NotFound => Error::not_found(format!("no such {what}; check the path")),
        ErrorKind::IsADirectory => Error::invalid(format!("a folder, not a {what}")),
        ErrorKind::FileTooLarge => {
            Error::invalid(format!("more than {}: not a {what}", format_bytes(MAX_BYTES)))
        }
        _ => input_file::error(&e),
    });
    let text = bytes.and_then(|bytes| {
        String::from_utf8(bytes).map_err(|e| {
            let at = e.utf8_error().valid_up_to();
            Error::invalid(format!("byte {at} is not UTF-8; a {what} is JSON"))
        })
    });
    text.map_err(|e| e.context(shown(path)))
}

fn chart(profile: &Profile, decision: &Decision) -> Chart {
    let measured = !profile.measured.is_empty();
    let what = if measured { "Predicted and measured rate" } else { "Predicted rate" };
    Chart {
        title: format!("{what} of each option, policy {}", decision.policy),
        caption: decision.reason.clone(),
        legend: None,
        unit: "source rows per second in a steady epoch".into(),
        bars: decision.options.iter().map(|o| bar(profile, decision, o)).collect(),
    }
}

fn bar(profile: &Profile, decision: &Decision, option: &PlanOption) -> Bar {
    let chosen = decision.chosen() == Some(option);
    let mark = if chosen { ": chosen" } else { "" };
    let note = match option.rows_per_s {
        Some(rate) => format!("{} rows/s, limited by {}{mark}", format_rate(rate), option.bottleneck),
        None => format!("does not fit: {}", format_bytes(option.snapshot_bytes)),
    };
    let measured = profile.measured_rate(&option.choice).filter(|_| option.feasible);
    Bar {
        label: option.choice.to_string(),
        predicted: option.rows_per_s,
        note,
        measured: measured.map(|rate| (rate, format!("{} measured", format_rate(rate)))),
        chosen,
    }
}

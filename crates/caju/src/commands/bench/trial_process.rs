//! Runs each trial in a process of its own: the same command again, which prints its measurements as JSON.

use std::ffi::OsString;
use std::future;
use std::process::Stdio;

use caju_types::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use tokio::process::Command;

use super::trial::Trial;
use crate::output;

/// The output of a trial's process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum TrialOutput {
    Trials(Vec<Trial>),
    Failed { kind: String, message: String },
}

/// Starts a process that measures a policy in a round. Its standard error is ours.
///
/// # Errors
/// What the trial failed with, and `Unavailable` if the process could not be started or was ended.
pub(super) async fn request(command: &[OsString], policy: &str, round: u32) -> Result<Vec<Trial>> {
    let failed = |what: String| Error::unavailable(format!("the trial of `{policy}`: {what}"));
    let (program, args) = command.split_first().ok_or_else(|| failed("no program".into()))?;
    let end = args.iter().position(|a| a == "--").unwrap_or(args.len());
    let mut child = Command::new(program);
    child.args(&args[..end]).arg(format!("--trial={policy}@{round}")).args(&args[end..]);
    // The process ends at the end of its input, so also when this process is killed. It has a process group of its own:
    // Ctrl-C in a terminal would not let it remove its cache.
    child.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0).kill_on_drop(true);
    let mut process =
        child.spawn().map_err(|e| failed(format!("{} cannot be started: {e}", program.display())))?;
    let _open = process.stdin.take();
    let ended = process.wait_with_output().await.map_err(|e| failed(e.to_string()))?;
    match serde_json::from_slice(&ended.stdout) {
        Ok(TrialOutput::Trials(trials)) => Ok(trials),
        Ok(TrialOutput::Failed { kind, message }) => {
            let kind = ErrorKind::ALL.into_iter().find(|k| k.as_str() == kind);
            Err(Error::new(kind.unwrap_or(ErrorKind::Internal), message))
        }
        Err(_) if ended.status.code() == Some(1) => {
            Err(Error::internal(format!("the trial of `{policy}` failed; see above")))
        }
        Err(e) => Err(failed(format!("its process ended without a result ({}: {e})", ended.status))),
    }
}

/// The requested process: runs the trials, and prints the result or the failure.
///
/// # Errors
/// `Unavailable` if standard output cannot be written.
pub(super) async fn respond(trials: impl Future<Output = Result<Vec<Trial>>>) -> Result<()> {
    let output = match trials.await {
        Ok(trials) => TrialOutput::Trials(trials),
        Err(e) => TrialOutput::Failed { kind: e.kind().to_string(), message: e.message().to_string() },
    };
    let text = serde_json::to_string(&output).map_err(|e| Error::internal(e.to_string()))?;
    output::say(format_args!("{text}"))
}

/// Returns when the process that requested a trial has ended. Never returns if no process `requested` it.
pub(super) async fn requester_ended(requested: bool) {
    if !requested {
        return future::pending().await;
    }
    let read_to_end = || std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
    drop(caju_runtime::blocking("waiting for the end of standard input", read_to_end).await);
}

/// The error of a trial whose requester has ended.
pub(super) fn abandoned() -> Error {
    Error::cancelled("the process that requested the trial is gone")
}

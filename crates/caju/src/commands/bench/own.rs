//! Each trial in a process of its own: this command once more, which prints what it measured as JSON.

use std::ffi::OsString;
use std::future;
use std::process::Stdio;

use caju_types::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use tokio::process::Command;

use super::Trial;
use crate::output;

/// What the process of a trial says in the end.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Said {
    Trials(Vec<Trial>),
    Failed { kind: String, message: String },
}

/// Has a process measure a policy in a round; its notes go where ours go.
///
/// # Errors
/// What the trial failed with, and `Unavailable` if the process could not be started or was ended.
pub(super) async fn ask(again: &[OsString], policy: &str, round: u32) -> Result<Vec<Trial>> {
    let of = |what: String| Error::unavailable(format!("the trial of `{policy}`: {what}"));
    let (program, args) = again.split_first().ok_or_else(|| of("no program".into()))?;
    let end = args.iter().position(|a| a == "--").unwrap_or(args.len());
    let mut command = Command::new(program);
    command.args(&args[..end]).arg(format!("--trial={policy}@{round}")).args(&args[end..]);
    // It ends when its input does: also when this process is killed. What ends all that a terminal runs would not let it tidy up.
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0).kill_on_drop(true);
    let mut process =
        command.spawn().map_err(|e| of(format!("{} cannot be started: {e}", program.display())))?;
    let _open = process.stdin.take();
    let ended = process.wait_with_output().await.map_err(|e| of(e.to_string()))?;
    match serde_json::from_slice(&ended.stdout) {
        Ok(Said::Trials(trials)) => Ok(trials),
        Ok(Said::Failed { kind, message }) => {
            let kind = ErrorKind::ALL.into_iter().find(|k| k.as_str() == kind);
            Err(Error::new(kind.unwrap_or(ErrorKind::Internal), message))
        }
        Err(_) if ended.status.code() == Some(1) => {
            Err(Error::internal(format!("the trial of `{policy}` failed; see above")))
        }
        Err(e) => Err(of(format!("its process ended without a result ({}: {e})", ended.status))),
    }
}

/// The other side: measures, and prints the result or the failure.
///
/// # Errors
/// `Unavailable` if nobody can be told.
pub(super) async fn tell(trials: impl Future<Output = Result<Vec<Trial>>>) -> Result<()> {
    let said = match trials.await {
        Ok(trials) => Said::Trials(trials),
        Err(e) => Said::Failed { kind: e.kind().to_string(), message: e.message().to_string() },
    };
    let text = serde_json::to_string(&said).map_err(|e| Error::internal(e.to_string()))?;
    output::say(format_args!("{text}"))
}

/// Ends when whoever asked for a trial is gone; never if nobody `asked`.
pub(super) async fn nobody_waits(asked: bool) {
    if !asked {
        return future::pending().await;
    }
    let to_the_end = || std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
    drop(caju_runtime::blocking("waiting for whoever asked", to_the_end).await);
}

/// The failure of a trial that nobody waits for any more.
pub(super) fn abandoned() -> Error {
    Error::cancelled("nobody waits for it any more")
}

//! One worker process.

use std::ffi::OsString;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use caju_types::{Error, Result};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::oneshot;

/// How long a worker may take to end after its own bound for draining.
const KILL_AFTER: Duration = Duration::from_secs(5);
/// Settings of this process that are not meant for its workers.
const OWN_VARIABLES: [&str; 2] = ["CAJU_ADDRESS_FILE", "CAJU_ADVERTISE"];

/// A worker's process. It ends when the pipe to its standard input closes, so also when this process is killed.
pub(super) struct WorkerProcess {
    /// Killed when it is dropped, which comes before the end of its standard input: it says nothing about that.
    child: Child,
    /// Tokio closes the standard input of a child that is waited for, so it is taken out of the child.
    _stdin: Option<ChildStdin>,
}

impl WorkerProcess {
    /// Starts it. Its standard error is ours.
    ///
    /// # Errors
    /// `Unavailable` if the system starts no process.
    pub(super) fn start(line: &[OsString]) -> Result<Self> {
        let failed = |why: &str| Error::unavailable(format!("a worker process cannot be started: {why}"));
        let (program, args) = line.split_first().ok_or_else(|| failed("no program"))?;
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
        // In a process group of its own it does not get the Ctrl-C of a terminal: it gets SIGTERM when it is to drain.
        command.process_group(0).kill_on_drop(true);
        for variable in OWN_VARIABLES {
            command.env_remove(variable);
        }
        let mut child = command.spawn().map_err(|e| failed(&format!("{}: {e}", program.display())))?;
        let _stdin = child.stdin.take();
        Ok(Self { child, _stdin })
    }

    /// The process's id.
    pub(super) fn id(&self) -> u32 {
        self.child.id().unwrap_or(0)
    }

    /// Waits until it listens; its address, or none if it ends before.
    pub(super) async fn listening(&mut self) -> Option<String> {
        let stdout = self.child.stdout.as_mut()?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).await.ok()?;
        line.trim().rsplit_once(" listening on ").map(|(_, address)| address.to_owned())
    }

    /// Waits for its end. After a message on `leave` it drains, and is killed if that takes longer than `bound`.
    pub(super) async fn ended(mut self, leave: oneshot::Receiver<()>, bound: Duration) -> Result<ExitStatus> {
        let lost = |e: std::io::Error| Error::unavailable(format!("a worker process is lost: {e}"));
        tokio::select! {
            ended = self.child.wait() => return ended.map_err(lost),
            Ok(()) = leave => {}
        }
        if let Some(id) = self.child.id() {
            caju_runtime::terminate(id);
        }
        if let Ok(ended) = tokio::time::timeout(bound + KILL_AFTER, self.child.wait()).await {
            return ended.map_err(lost);
        }
        self.child.start_kill().map_err(lost)?;
        self.child.wait().await.map_err(lost)
    }
}

//! Servers that benchmarks measure: `caju dispatcher` and `caju worker`, in processes of their own.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use caju_types::{Error, Result};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

/// Ticks per second in `/proc/PID/stat`, on every Linux that caju runs on.
const TICKS_PER_S: f64 = 100.0;

/// A server that is killed when it is dropped.
pub(super) struct Server {
    child: Child,
    /// Where it listens.
    pub(super) address: String,
    /// From the start of the process until it said that it listens.
    pub(super) started_in: Duration,
}

/// Which program runs a server, and where.
#[derive(Debug, Clone, Default)]
pub(super) struct Program {
    /// Absent: this one.
    pub(super) path: Option<PathBuf>,
    /// The one core that it may use; absent: all.
    pub(super) core: Option<u32>,
}

impl Server {
    /// Starts a server and waits until it listens at a free port of this machine.
    ///
    /// # Errors
    /// `Unavailable` if it does not start.
    pub(super) async fn start(program: &Program, role: &str, args: &[OsString]) -> Result<Self> {
        let failed = |what: &str| Error::unavailable(format!("the {role} that is measured: {what}"));
        let path = match &program.path {
            Some(path) => path.clone(),
            None => std::env::current_exe().map_err(|e| failed(&e.to_string()))?,
        };
        let mut command = match program.core {
            None => Command::new(path),
            Some(core) => {
                let mut command = Command::new("taskset");
                command.args(["--cpu-list", &core.to_string()]).arg(path);
                command
            }
        };
        command.args([role, "--listen", "127.0.0.1:0"]).args(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        let begin = Instant::now();
        let mut child = command.spawn().map_err(|e| failed(&e.to_string()))?;
        let stdout = child.stdout.take().ok_or_else(|| failed("it has no output"))?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).await.map_err(|e| failed(&e.to_string()))?;
        let address = line.trim().rsplit_once(" listening on ").map(|(_, address)| address.to_string());
        let address = address.ok_or_else(|| failed("it did not start; see above"))?;
        Ok(Self { child, address, started_in: begin.elapsed() })
    }

    /// CPU time of the process so far, user and system.
    pub(super) fn cpu(&self) -> Duration {
        let stat = self.of_process("stat");
        // The name of the program, in parentheses, may have spaces.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0);
        Duration::from_secs_f64((ticks(11) + ticks(12)) / TICKS_PER_S)
    }

    /// The peak resident memory of the process, in bytes.
    pub(super) fn peak_bytes(&self) -> u64 {
        let status = self.of_process("status");
        let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
        line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
    }

    /// The cores that the process may use, as the system lists them (`0-1`); empty where it does not say.
    pub(super) fn cores(&self) -> String {
        let status = self.of_process("status");
        let line = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:"));
        line.unwrap_or_default().trim().to_string()
    }

    fn of_process(&self, file: &str) -> String {
        let pid = self.child.id().unwrap_or(0);
        std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join(file)).unwrap_or_default()
    }

    /// Ends it by SIGKILL.
    ///
    /// # Errors
    /// `Unavailable` if the system refuses.
    pub(super) async fn kill(&mut self) -> Result<()> {
        self.child.kill().await.map_err(|e| Error::unavailable(format!("a server cannot be killed: {e}")))
    }
}

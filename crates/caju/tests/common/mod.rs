//! Runs the real binary.
#![allow(dead_code, reason = "each test file uses its share")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// The longest that any process of a test may take.
pub(crate) const PROCESS_TIMEOUT: Duration = Duration::from_secs(120);

/// The binary in a folder of its own, without settings from outside.
pub(crate) fn caju(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_caju"));
    command.current_dir(dir).stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("CAJU_") {
            command.env_remove(name);
        }
    }
    command
}

/// Runs with these arguments to the end.
pub(crate) fn run(dir: &Path, args: &[&str]) -> Output {
    caju(dir).args(args).output().unwrap()
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Runs, and checks that it went well.
#[track_caller]
pub(crate) fn ok(dir: &Path, args: &[&str]) -> String {
    let output = run(dir, args);
    assert!(output.status.success(), "{args:?}: {}\n{}", output.status, stderr(&output));
    stdout(&output)
}

/// Runs, and checks the exit code; gives what standard error said.
#[track_caller]
pub(crate) fn fails(dir: &Path, args: &[&str], code: i32) -> String {
    let output = run(dir, args);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{args:?}\n{}\n{text}", stdout(&output));
    assert!(text.contains("error:"), "{text}");
    text
}

/// A server process; killed when dropped.
pub(crate) struct Server {
    child: Child,
    /// Where it listens.
    pub(crate) address: String,
    lines: mpsc::Receiver<String>,
}

impl Server {
    /// Starts `caju dispatcher` or `caju worker` and waits for its first line.
    #[track_caller]
    pub(crate) fn start(dir: &Path, what: &str, args: &[&str]) -> Self {
        let mut child = caju(dir).arg(what).args(args).stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (tx, lines) = mpsc::sync_channel(64);
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                if tx.send(line).is_err() {
                    return;
                }
            }
        });
        let first = lines.recv_timeout(PROCESS_TIMEOUT).expect("the first line on standard output");
        let address = first
            .strip_prefix(&format!("caju {what} listening on "))
            .unwrap_or_else(|| panic!("first line: {first}"))
            .to_string();
        Self { child, address, lines }
    }

    /// Sends a signal by number.
    pub(crate) fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    }

    /// Waits for the end.
    pub(crate) fn wait(mut self) -> ExitStatus {
        // Standard output ends when the process does.
        while self.lines.recv_timeout(PROCESS_TIMEOUT).is_ok() {}
        self.child.wait().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

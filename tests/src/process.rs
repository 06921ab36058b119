//! Child processes: their lines as they come, deadlines, signals, and no survivors.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::binary::caju_binary;

/// How long a test waits for anything before it fails. Debug binaries on a busy machine are slow.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(90);

/// The lines of one output of a process, as they come.
#[derive(Debug, Default)]
struct Lines {
    state: Mutex<(Vec<String>, bool)>,
    changed: Condvar,
}

impl Lines {
    fn follow(source: impl Read + Send + 'static) -> Arc<Self> {
        let lines = Arc::new(Self::default());
        let writer = Arc::clone(&lines);
        std::thread::spawn(move || {
            for line in BufReader::new(source).split(b'\n').map_while(Result::ok) {
                writer.state.lock().unwrap().0.push(String::from_utf8_lossy(&line).into_owned());
                writer.changed.notify_all();
            }
            writer.state.lock().unwrap().1 = true;
            writer.changed.notify_all();
        });
        lines
    }

    /// Waits until `done` says something about the lines and whether they ended; `None` at the deadline.
    fn wait<T>(&self, deadline: Instant, done: impl Fn(&[String], bool) -> Option<T>) -> Option<T> {
        let mut state = self.state.lock().unwrap();
        loop {
            if let Some(out) = done(&state.0, state.1) {
                return Some(out);
            }
            let left = deadline.checked_duration_since(Instant::now())?;
            state = self.changed.wait_timeout(state, left).unwrap().0;
        }
    }

    fn text(&self) -> String {
        self.state.lock().unwrap().0.join("\n")
    }
}

fn command(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(caju_binary());
    command.args(args).current_dir(folder).env_remove("CAJU_CONFIG");
    command
}

/// A running process; killed when dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    name: String,
    stdout: Arc<Lines>,
    stderr: Arc<Lines>,
}

impl Process {
    /// Starts `caju` with these arguments in a folder, with nothing on its standard input and no settings
    /// from this environment.
    pub fn caju(folder: &Path, args: &[&str]) -> Self {
        Self::start(command(folder, args), format!("caju {}", args.join(" ")))
    }

    /// The same with a standard input that lasts until [`Process::end_input`].
    pub fn caju_with_input(folder: &Path, args: &[&str]) -> Self {
        Self::start_with(command(folder, args), format!("caju {}", args.join(" ")), Stdio::piped())
    }

    /// Starts a command.
    pub fn start(command: Command, name: String) -> Self {
        Self::start_with(command, name, Stdio::null())
    }

    fn start_with(mut command: Command, name: String, stdin: Stdio) -> Self {
        command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|e| panic!("cannot start `{name}`: {e}"));
        let stdout = Lines::follow(child.stdout.take().unwrap());
        let stderr = Lines::follow(child.stderr.take().unwrap());
        Self { child, name, stdout, stderr }
    }

    /// Ends the standard input.
    pub fn end_input(&mut self) {
        drop(self.child.stdin.take());
    }

    /// The first line on standard output; fails the test if the process ends without one.
    pub fn first_line(&self) -> String {
        let first = |lines: &[String], ended: bool| match lines.first() {
            Some(line) => Some(Some(line.clone())),
            None => ended.then_some(None),
        };
        match self.stdout.wait(Instant::now() + TEST_TIMEOUT, first) {
            Some(Some(line)) => line,
            Some(None) => panic!("`{}` ended without a word: {}", self.name, self.stderr.text()),
            None => panic!("`{}` said nothing: {}", self.name, self.stderr.text()),
        }
    }

    /// The first `count` lines on standard output, or all if the process ends before.
    pub fn wait_for_lines(&self, count: usize) -> Vec<String> {
        let enough = |lines: &[String], ended: bool| {
            (ended || lines.len() >= count).then(|| lines.iter().take(count).cloned().collect())
        };
        let found = self.stdout.wait(Instant::now() + TEST_TIMEOUT, enough);
        found.unwrap_or_else(|| panic!("`{}` says too little: {}", self.name, self.stdout.text()))
    }

    /// Waits for a line on standard error that contains a text.
    pub fn wait_for_error_line(&self, text: &str) -> String {
        let found = |lines: &[String], _| lines.iter().find(|l| l.contains(text)).cloned();
        self.stderr
            .wait(Instant::now() + TEST_TIMEOUT, found)
            .unwrap_or_else(|| panic!("`{}` never said `{text}`: {}", self.name, self.stderr.text()))
    }

    /// Sends a signal by its name: `TERM`, `KILL`, `STOP`, `INT`.
    pub fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.child.id());
        let status = Command::new("sh").args(["-c", &kill]).status().unwrap();
        assert!(status.success(), "`{kill}` failed");
    }

    /// The process's id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the end.
    pub fn wait(self) -> Ended {
        self.wait_at_most(TEST_TIMEOUT)
    }

    /// Everything on standard error until now.
    pub fn errors(&self) -> String {
        self.stderr.text()
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.stdout.wait(Instant::now(), |_, ended| ended.then_some(())).is_some()
    }

    /// Waits until a killed process has ended: its ports are free then.
    pub fn wait_for_end(&self) {
        let ended = |_: &[String], ended: bool| ended.then_some(());
        assert!(
            self.stderr.wait(Instant::now() + TEST_TIMEOUT, ended).is_some(),
            "`{}` does not end",
            self.name
        );
    }

    /// Waits for the end, at most for the given time. Returns the process if it still runs.
    pub fn ended_within(self, limit: Duration) -> Result<Ended, Self> {
        let deadline = Instant::now() + limit;
        match self.stdout.wait(deadline, |_, ended| ended.then_some(())) {
            Some(()) => Ok(self.wait()),
            None => Err(self),
        }
    }

    /// Waits for the end, at most so long.
    pub fn wait_at_most(mut self, limit: Duration) -> Ended {
        let deadline = Instant::now() + limit;
        let ended = |_: &[String], ended: bool| ended.then_some(());
        // Both outputs close when the process ends, and only then.
        if self.stdout.wait(deadline, ended).and_then(|()| self.stderr.wait(deadline, ended)).is_none() {
            panic!(
                "`{}` did not end within {limit:?}\n{}\n{}",
                self.name,
                self.stdout.text(),
                self.stderr.text()
            );
        }
        let status = self.child.wait().unwrap();
        Ended {
            name: self.name.clone(),
            code: status.code(),
            stdout: self.stdout.text(),
            stderr: self.stderr.text(),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// What an ended process left.
#[derive(Debug)]
pub struct Ended {
    name: String,
    /// The exit code; absent after a signal.
    pub code: Option<i32>,
    /// Everything on standard output, without the last line break.
    pub stdout: String,
    /// Everything on standard error.
    pub stderr: String,
}

impl Ended {
    /// Fails the test unless the process ended with this code.
    #[track_caller]
    pub fn expect_code(&self, code: i32) -> &Self {
        assert_eq!(
            self.code,
            Some(code),
            "`{}` should end with code {code}\nstdout: {}\nstderr: {}",
            self.name,
            self.stdout,
            self.stderr
        );
        self
    }

    /// Fails the test unless there is exactly one line `error: ...` and it contains each of these.
    #[track_caller]
    pub fn expect_error(&self, parts: &[&str]) -> &Self {
        let errors: Vec<_> = self.stderr.lines().filter(|l| l.starts_with("error: ")).collect();
        assert_eq!(errors.len(), 1, "`{}` should give one clear error: {}", self.name, self.stderr);
        for part in parts {
            assert!(errors[0].contains(part), "`{}` should mention `{part}`: {}", self.name, errors[0]);
        }
        assert!(!self.stderr.contains("panicked"), "`{}` panicked: {}", self.name, self.stderr);
        self
    }
}

/// Runs `caju` to its end in a folder.
pub fn caju_in(folder: &Path, args: &[&str]) -> Ended {
    Process::caju(folder, args).wait()
}

/// Runs `caju` to its end in a folder of its own.
pub fn caju(args: &[&str]) -> Ended {
    let folder = tempfile::tempdir().unwrap();
    caju_in(folder.path(), args)
}

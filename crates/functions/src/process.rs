//! One Python process: starting it, calling functions in it, ending it.

use std::collections::{BTreeSet, HashMap};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use arrow::compute::concat_batches;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use arrow_array::{ArrayRef, RecordBatch, UInt64Array};
use arrow_schema::{DataType, Field, Schema};
use caju_runtime::{PrivateFolder, Thread, environment, log_failure};
use caju_types::{Error, ErrorKind, Result, budget};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::config::PoolConfig;
use crate::function::{Caller, Function, FunctionError, Output};

/// The column of the seeds.
const SEED_COLUMN: &str = "__caju_seed";
/// The prefix of the names of folders for rows.
const FOLDER_PREFIX: &str = "caju-rows-";
/// A call that takes longer than this gives rows back: those that are ready, and those that are not begun. Giving rows back
/// costs about a millisecond, and perhaps the start of another process (0.2 s to 0.5 s of one core), which then runs the others.
pub const SLOW_CALL: Duration = Duration::from_millis(100);
/// The progress mark while no row is processed.
const NO_ROW: u64 = u64::MAX;
/// The time that a process which closed its pipe may take to end. Its exit status is reported if it ends by then.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);
/// The shortest interval at which the progress mark is read. Reading it is a system call.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The longest interval at which the progress mark is read.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The numbers of processes that were started and have not ended.
pub(crate) type Started = Arc<Mutex<BTreeSet<u32>>>;

/// The answer of a process to a call.
pub(crate) enum Answer {
    /// The function's rows.
    Done(Output),
    /// The function raised an exception. The process can be used again.
    Raised(FunctionError),
    /// What the function returned takes more memory than the work on a chunk may take. The process is not used again.
    TooLarge(FunctionError),
}

#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    folder: PrivateFolder,
    /// The row that it processes.
    mark: Mark,
    /// The functions that were sent to it, by their addresses, with their numbers.
    defined: HashMap<usize, (Arc<Function>, usize)>,
    /// Whether it gives rows of slow calls back. That of an older package does not.
    gives_back: bool,
    /// Whether it reads functions from files. That of an older package does not.
    reads_files: bool,
    /// The processes of the pool, while it is one of them.
    started: Started,
}

/// A call, and which of its rows are still to be run.
pub(crate) struct Call<'a> {
    function: &'a Arc<Function>,
    batch: &'a RecordBatch,
    seeds: Option<&'a [u64]>,
    timeout: Duration,
    rows: Range<usize>,
    gave_back: bool,
}

impl<'a> Call<'a> {
    pub(crate) fn new(
        function: &'a Arc<Function>,
        batch: &'a RecordBatch,
        seeds: Option<&'a [u64]>,
        timeout: Duration,
    ) -> Self {
        Self { function, batch, seeds, timeout, rows: 0..batch.num_rows(), gave_back: false }
    }

    /// The rows that are still to be run, with their seeds.
    fn input(&self) -> Result<RecordBatch> {
        let seeds = self.seeds.and_then(|seeds| seeds.get(self.rows.clone()));
        with_seeds(&self.batch.slice(self.rows.start, self.rows.len()), seeds)
    }

    /// Rows that an attempt counts from the first one that it got, counted from the first one of the batch.
    fn in_batch(&self, rows: &Range<usize>) -> Range<usize> {
        self.rows.start + rows.start..self.rows.start + rows.end
    }

    /// What a process made of `ran`, rows of the present attempt.
    fn output(&self, path: &Path, message: &Value, ran: Range<usize>) -> Result<Output> {
        let batch = read(path, &self.function.name)?;
        let kept = message.get("rows").and_then(Value::as_array).map(|list| {
            list.iter().filter_map(|v| v.as_u64().and_then(|n| usize::try_from(n).ok())).collect::<Vec<_>>()
        });
        let is_valid = match &kept {
            None => batch.num_rows() == ran.len(),
            Some(kept) => {
                kept.len() == batch.num_rows() && kept.is_sorted() && kept.iter().all(|row| ran.contains(row))
            }
        };
        let rows = kept.map(|kept| {
            kept.iter().map(|row| u32::try_from(self.rows.start + row)).collect::<Result<_, _>>()
        });
        match (is_valid && ran.end <= self.rows.len(), rows.transpose()) {
            (true, Ok(rows)) => Ok(Output { batch, rows, ran: self.in_batch(&ran), took: took(message) }),
            _ => Err(Error::data_loss("its process answered with rows that do not match its input")),
        }
    }
}

/// The program that the interpreter runs. It removes the working folder from the module path before anything is imported,
/// as `-P` does in Python 3.11 and newer: anybody who can write to that folder could otherwise choose the code. The path of
/// the pool's settings is added once the module `caju._pool` is loaded.
const START: &str = "\
import sys
if sys.path[:1] == ['']: del sys.path[0]
import json
given = json.loads(sys.argv.pop(1))
sys.path += [p for p in given if p not in sys.path]
import caju._pool
if given: sys.path[:] = given
caju._pool.main()
";

impl Process {
    /// Starts a process.
    ///
    /// # Errors
    /// `FailedPrecondition` if Python or the package is missing.
    pub(crate) fn start(config: &PoolConfig, started: &Started) -> Result<Self> {
        let folder = folder()?;
        let why = |e: &dyn std::fmt::Display| {
            Error::failed_precondition(format!(
                "cannot start Python for user functions with `{}`: {e}; it needs an interpreter with the package caju",
                config.python
            ))
        };
        let mark = Mark::new(folder.path().join("mark"))?;
        let mut child = Command::new(&config.python)
            .args(["-c", START])
            .arg(json!(config.path).to_string())
            .arg(&mark.path)
            .env_clear()
            .envs(environment(|name| config.environment.passes(name)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| why(&e))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Error::internal("a process without pipes"));
        };
        // At most two lines are in transit: rows that are given back, and the answer to a call.
        let (send, lines) = sync_channel(2);
        // The channel closes when the thread ends, which ends the wait for a line.
        Thread::background("caju-function", log_failure, move || {
            for line in BufReader::new(output).lines() {
                let line = line.map_err(|e| Error::data_loss(format!("answers of a Python process: {e}")))?;
                if send.send(line).is_err() {
                    break;
                }
            }
            Ok(())
        })?;
        started.lock().insert(child.id());
        let (defined, started) = (HashMap::new(), Arc::clone(started));
        let mut process = Self {
            child,
            input,
            lines,
            folder,
            mark,
            defined,
            gives_back: false,
            reads_files: false,
            started,
        };
        let ready = process.answer(config.start_timeout, false, &mut || (), &|| ()).map_err(|e| why(&e))?;
        let can = |what| ready.get(what).and_then(Value::as_bool).unwrap_or(false);
        (process.gives_back, process.reads_files) = (can("gives_back"), can("reads_files"));
        Ok(process)
    }

    /// Runs the rows of a call that are left. If it takes long the caller gets rows back, and fewer are left.
    ///
    /// # Errors
    /// Errors after which the process cannot be used: it died, or it hangs. The row is the one at which it stopped.
    pub(crate) fn call(
        &mut self,
        call: &mut Call<'_>,
        caller: &mut dyn Caller,
        on_progress: &dyn Fn(),
    ) -> Result<Answer, FunctionError> {
        let number = self.define(call.function)?;
        let (path, answer_path) = (self.folder.path().join("rows"), self.folder.path().join("answer"));
        let bytes = write(&path, &call.input()?)?;
        self.mark.set_slow(false)?;
        let (rows_path, answer_at) = (path.to_string_lossy(), answer_path.to_string_lossy());
        self.send(&json!({"call": number, "rows": rows_path, "bytes": bytes, "answer": answer_at}), &[])?;
        let gives_back = self.gives_back && caller.takes_back() && !call.function.batched && !call.gave_back;
        let rows = call.rows.len();
        let first = self
            .answer(call.timeout, gives_back, &mut || caller.working(), on_progress)
            .map_err(|error| self.stopped_at(error, call, rows))?;
        let (Some(ready), Some(to)) = (number_in(&first, "ready"), number_in(&first, "to")) else {
            return self.answered(call, &first, &(0..rows), &answer_path);
        };
        // The rows that it still has to answer for.
        let owed = ready.min(rows)..to.min(rows);
        let part = self.folder.path().join("answer-part");
        let output = match (ready > 0).then(|| call.output(&part, &first, 0..owed.start)).transpose() {
            Err(e) if e.kind() == ErrorKind::ResourceExhausted => return Ok(Answer::TooLarge(e.into())),
            output => output?,
        };
        caller.given_back(output, call.rows.start + owed.end, took(&first));
        call.gave_back = true;
        let last = self.answer(call.timeout, false, &mut || (), on_progress);
        let answered = match last {
            Ok(last) => self.answered(call, &last, &owed, &answer_path),
            Err(error) => Err(self.stopped_at(error, call, rows)),
        };
        call.rows = call.in_batch(&owed);
        answered
    }

    /// The meaning of the last answer to an attempt that owes these rows.
    fn answered(
        &self,
        call: &Call<'_>,
        answer: &Value,
        owed: &Range<usize>,
        path: &Path,
    ) -> Result<Answer, FunctionError> {
        if let Some(why) = answer.get("error").and_then(Value::as_str) {
            let row = number_in(answer, "row").map(|row| call.rows.start + row);
            let error = Error::invalid(format!("function `{}` {why}", call.function.name));
            return Ok(Answer::Raised(FunctionError { row, error }));
        }
        let ran = number_in(answer, "from").unwrap_or(0)..number_in(answer, "to").unwrap_or(call.rows.len());
        if ran.start != owed.start || ran.end > owed.end {
            return Err(Error::data_loss("its process answered for rows that it does not have").into());
        }
        match call.output(path, answer, ran) {
            Err(e) if e.kind() == ErrorKind::ResourceExhausted => Ok(Answer::TooLarge(e.into())),
            output => Ok(Answer::Done(output?)),
        }
    }

    /// The error with the row at which the process stopped.
    fn stopped_at(&self, error: Error, call: &Call<'_>, rows: usize) -> FunctionError {
        let row = usize::try_from(self.mark.read()).ok().filter(|row| *row < rows);
        let batched = call.function.batched;
        let error = match (row, batched) {
            (None, true) => error.context(format!("at a batch of {rows} rows, of which this is the first")),
            _ => error,
        };
        FunctionError { row: row.map(|row| call.rows.start + row).or(batched.then_some(0)), error }
    }

    /// Sends a function, unless the process has it already. Gives its number.
    fn define(&mut self, function: &Arc<Function>) -> Result<usize> {
        let key = Arc::as_ptr(function).addr();
        if let Some((_, number)) = self.defined.get(&key) {
            return Ok(*number);
        }
        let number = self.defined.len();
        let (name, kind, batched) = (&function.name, function.kind.as_str(), function.batched);
        let mut line = json!({"define": number, "name": name, "kind": kind, "batched": batched});
        if self.reads_files {
            // The process may be busy, or stopped: a pipe takes 64 KiB, and there is no deadline for the rest.
            let path = self.folder.path().join(format!("function-{number}"));
            std::fs::write(&path, &function.payload)
                .map_err(|e| Error::exhausted(format!("{}: {e}", path.display())))?;
            line["payload_file"] = path.to_string_lossy().into();
            self.send(&line, &[])?;
        } else {
            line["payload"] = function.payload.len().into();
            self.send(&line, &function.payload)?;
        }
        self.defined.insert(key, (Arc::clone(function), number));
        Ok(number)
    }

    fn send(&mut self, line: &Value, payload: &[u8]) -> Result<()> {
        let sent = writeln!(self.input, "{line}")
            .and_then(|()| self.input.write_all(payload))
            .and_then(|()| self.input.flush());
        sent.map_err(|_| self.died())
    }

    /// Waits for an answer, for as long as the process makes progress. `gives_back`: a call that is slow is called that, and
    /// `on_working` is called when it is known to work at a row.
    fn answer(
        &mut self,
        timeout: Duration,
        mut gives_back: bool,
        on_working: &mut dyn FnMut(),
        on_progress: &dyn Fn(),
    ) -> Result<Value> {
        let interval = (timeout / 8).clamp(MIN_POLL_INTERVAL, MAX_POLL_INTERVAL);
        let (mut at, mut since) = (self.mark.read(), Instant::now());
        let began = since;
        loop {
            let wait = if gives_back { interval.min(SLOW_CALL) } else { interval };
            match self.lines.recv_timeout(wait) {
                Ok(line) => {
                    return serde_json::from_str(&line)
                        .map_err(|e| Error::data_loss(format!("its process sent an invalid answer: {e}")));
                }
                Err(RecvTimeoutError::Disconnected) => return Err(self.died()),
                Err(RecvTimeoutError::Timeout) => {}
            }
            let now = self.mark.read();
            if gives_back && now != NO_ROW && began.elapsed() >= SLOW_CALL {
                gives_back = false;
                on_working();
                self.mark.set_slow(true)?;
            }
            if now != at {
                (at, since) = (now, Instant::now());
                on_progress();
            } else if since.elapsed() >= timeout {
                return Err(Error::deadline(format!(
                    "its process hangs: it made no progress within {}",
                    caju_types::format_duration(timeout)
                )));
            }
        }
    }

    fn died(&mut self) -> Error {
        // The pipe closes before the process has ended, on a busy machine long before.
        let until = Instant::now() + EXIT_TIMEOUT;
        let status = loop {
            match self.child.try_wait() {
                Ok(None) if Instant::now() < until => std::thread::park_timeout(MIN_POLL_INTERVAL),
                Ok(status) => break status,
                Err(_) => break None,
            }
        };
        let how = status.map_or("closed its pipe".to_string(), |s| s.to_string());
        Error::exhausted(format!("its process ended ({how}); what it printed is on standard error"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The user's code may run, which reacts to nothing else.
        drop(self.child.kill());
        drop(self.child.wait());
        self.started.lock().remove(&self.child.id());
    }
}

/// The progress mark: a file of two words. The process writes the row that it processes to the first one. The second one says
/// that the call is slow.
#[derive(Debug)]
struct Mark {
    path: std::path::PathBuf,
    file: File,
    is_slow: bool,
}

impl Mark {
    fn new(path: std::path::PathBuf) -> Result<Self> {
        let words = [NO_ROW.to_ne_bytes(), 0_u64.to_ne_bytes()].concat();
        std::fs::write(&path, words)
            .and_then(|()| OpenOptions::new().read(true).write(true).open(&path))
            .map(|file| Self { path: path.clone(), file, is_slow: false })
            .map_err(|e| Error::exhausted(format!("{}: {e}", path.display())))
    }

    fn read(&self) -> u64 {
        let mut bytes = [0; 8];
        let mut file = &self.file;
        match file.seek(SeekFrom::Start(0)).and_then(|_| file.read_exact(&mut bytes)) {
            Ok(()) => u64::from_ne_bytes(bytes),
            Err(_) => NO_ROW,
        }
    }

    /// Says whether the call is slow, unless that was said last.
    fn set_slow(&mut self, is_slow: bool) -> Result<()> {
        if self.is_slow == is_slow {
            return Ok(());
        }
        let word = u64::from(is_slow).to_ne_bytes();
        self.file
            .seek(SeekFrom::Start(8))
            .and_then(|_| self.file.write_all(&word))
            .map_err(|e| Error::exhausted(format!("{}: {e}", self.path.display())))?;
        self.is_slow = is_slow;
        Ok(())
    }
}

/// How long the function took, as its process says.
fn took(message: &Value) -> Duration {
    let seconds = message.get("took").and_then(Value::as_f64).unwrap_or(0.0);
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

fn number_in(message: &Value, key: &str) -> Option<usize> {
    message.get(key).and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok())
}

/// Creates a folder for rows, in memory where the system has a folder for that.
fn folder() -> Result<PrivateFolder> {
    let (memory, files) = (std::path::Path::new("/dev/shm"), std::env::temp_dir());
    let at = if memory.is_dir() { memory } else { files.as_path() };
    PrivateFolder::new(at, FOLDER_PREFIX)
        .or_else(|_| PrivateFolder::new(&files, FOLDER_PREFIX))
        .map_err(|e| Error::exhausted(format!("a folder for rows: {e}")))
}

fn with_seeds(batch: &RecordBatch, seeds: Option<&[u64]>) -> Result<RecordBatch> {
    let Some(seeds) = seeds else { return Ok(batch.clone()) };
    let mut fields: Vec<_> = batch.schema().fields().iter().cloned().collect();
    fields.push(Arc::new(Field::new(SEED_COLUMN, DataType::UInt64, false)));
    let mut columns = batch.columns().to_vec();
    columns.push(Arc::new(UInt64Array::from_iter_values(seeds.iter().copied())) as ArrayRef);
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)
        .map_err(|e| Error::internal(format!("rows with their seeds: {e}")))
}

fn write(path: &std::path::Path, batch: &RecordBatch) -> Result<usize> {
    let failed = |e: &dyn std::fmt::Display| Error::exhausted(format!("{}: {e}", path.display()));
    let mut writer =
        StreamWriter::try_new(Vec::new(), &batch.schema()).map_err(|e| Error::internal(e.to_string()))?;
    writer.write(batch).and_then(|()| writer.finish()).map_err(|e| Error::internal(e.to_string()))?;
    let bytes = writer.into_inner().map_err(|e| Error::internal(e.to_string()))?;
    File::create(path).and_then(|mut f| f.write_all(&bytes)).map_err(|e| failed(&e))?;
    Ok(bytes.len())
}

fn read(path: &std::path::Path, function: &str) -> Result<RecordBatch> {
    let failed = |e: &dyn std::fmt::Display| Error::data_loss(format!("what `{function}` returned: {e}"));
    // The process may have more memory than the work on a chunk may take here.
    let length = std::fs::metadata(path).map_err(|e| failed(&e))?.len();
    budget::reserve(length, format_args!("what `{function}` returned"))?;
    let bytes = std::fs::read(path).map_err(|e| failed(&e))?;
    let reader = StreamReader::try_new(std::io::Cursor::new(bytes), None).map_err(|e| failed(&e))?;
    let schema = reader.schema();
    let batches = reader.collect::<Result<Vec<_>, _>>().map_err(|e| failed(&e))?;
    concat_batches(&schema, &batches).map_err(|e| failed(&e))
}

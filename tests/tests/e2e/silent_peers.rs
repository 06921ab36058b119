//! Peers that accept a connection and say nothing, or take nothing: every wait for one has a deadline that is a setting, and
//! its error names who was waited for. docs/limits.md has the list.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use caju_client::{Client, ClientConfig, ReadRequest};
use caju_pipeline::DatasetDef;
use caju_proto::v1;
use caju_proto::v1::dispatcher_client::DispatcherClient;
use caju_testkit::s3::{S3Server, ServerFault};
use caju_tests::binary::caju_binary;
use caju_tests::cluster::Server;
use caju_tests::frames::{VERSION, open_frame, read_to_end};
use caju_tests::process::{Process, TEST_TIMEOUT, caju_in};
use caju_tests::{Cluster, Pipeline};
use serde_json::json;
use tempfile::tempdir;

/// A port on which the system accepts connections, and no process answers.
fn silent() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

/// Registers a worker at a dispatcher that is only its address.
fn register(cluster: &Cluster, address: &str) {
    let url = format!("http://{}", cluster.address());
    let request = v1::RegisterWorkerRequest { address: address.to_owned(), cores: 1, ..Default::default() };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let mut client = DispatcherClient::connect(url).await.unwrap();
        client.register_worker(request).await.unwrap();
    });
}

fn numbers(rows: u64) -> Pipeline {
    Pipeline::of(json!({ "range": rows }), json!([]))
}

/// Files of ten rows of 10 ms each.
fn slow_files(files: usize) -> Pipeline {
    let mut p =
        Pipeline::of(json!({ "csv": { "path": "*.csv" } }), json!([{ "sleep": { "per_row": "10ms" } }]));
    for file in 0..files {
        p = p.with_file(&format!("{file:04}.csv"), b"id\n0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n");
    }
    p
}

/// `--connect-timeout`: each command gives up on a dispatcher that does not answer.
#[test]
fn a_silent_dispatcher_is_named_within_the_connect_timeout() {
    let (_listener, address) = silent();
    let p = numbers(10);
    for command in [&["status"][..], &["read", "pipeline.yaml"], &["worker", "--listen", "127.0.0.1:0"]] {
        let began = Instant::now();
        let more = ["--dispatcher", &address, "--connect-timeout", "500ms"];
        let ended = caju_in(p.folder(), &[command, &more].concat());
        ended.expect_code(3).expect_error(&[&address]);
        // By default they wait for 10 s.
        assert!(began.elapsed() < Duration::from_secs(8), "{command:?} took {:?}", began.elapsed());
    }
}

/// `--worker-silence`: a silent worker is lost, and the error has its address.
#[test]
fn a_silent_worker_is_named_within_the_silence() {
    let (_listener, address) = silent();
    let cluster = Cluster::start_with(0, &["--worker-timeout", "90s"], &[]);
    register(&cluster, &address);
    let p = numbers(10);
    let reader = cluster.start_read(&p, &["--worker-silence", "300ms"]);
    reader.wait_for_error_line(&format!("worker {address} was lost"));
    let ended = reader.wait_at_most(TEST_TIMEOUT);
    ended.expect_code(3).expect_error(&[&address]);
    cluster.stop();
}

/// `--dial-timeout`: a worker that cannot be connected to is lost, and its address is said.
#[test]
fn a_worker_that_is_not_there_is_named_within_the_dial_timeout() {
    let (listener, address) = silent();
    drop(listener);
    let cluster = Cluster::start_with(0, &["--worker-timeout", "90s"], &[]);
    register(&cluster, &address);
    let p = numbers(10);
    let began = Instant::now();
    let reader = cluster.start_read(&p, &["--dial-timeout", "100ms"]);
    reader.wait_for_error_line(&format!("worker {address} was lost (cannot connect"));
    reader.wait_at_most(TEST_TIMEOUT).expect_code(3).expect_error(&[&address]);
    // Ten attempts of five seconds each are what it takes by default.
    assert!(began.elapsed() < Duration::from_secs(40), "{:?}", began.elapsed());
    cluster.stop();
}

/// `--ping`: a worker that has no rows yet gives signs of life, more often than `--worker-silence` asks for.
#[test]
fn a_worker_without_rows_gives_signs_of_life() {
    let cluster = Cluster::start_with(1, &[], &["--ping", "200ms"]);
    let p = Pipeline::of(json!({ "range": 2 }), json!([{ "sleep": { "per_row": "3s" } }]));
    let reader = cluster.start_read(&p, &["--worker-silence", "2s", "--report", "read.json"]);
    let ended = reader.wait();
    ended.expect_code(0);
    assert!(!ended.stderr.contains("was lost"), "{}", ended.stderr);
    cluster.stop();
}

/// `--reader-silence`, `--buffer` and `--prefetch`: a reader that takes nothing makes a worker hold what it may and no more,
/// and its connection is closed. When it wakes up it gets everything.
#[test]
fn a_reader_that_takes_nothing_is_cut_off_and_costs_bounded_memory() {
    let bounds = ["--buffer", "256KiB", "--reader-silence", "500ms", "--log", "caju_wire=debug"];
    let cluster = Cluster::start_with(1, &["--client-timeout", "90s"], &bounds);
    let p = numbers(20_000_000);
    let reader = cluster.start_read(&p, &["--job", "train", "--report", "read.json", "--prefetch", "64MiB"]);
    cluster.wait_for_status("rows", |s| s["jobs"][0]["served"]["rows"].as_u64().filter(|rows| *rows > 0));
    reader.signal("STOP");
    // Its window and the system's buffers are full: the worker holds rows.
    let held = cluster.wait_for_status("rows that wait", |s| {
        s["workers"][0]["running"].as_array()?.first()?["buffered_bytes"].as_u64().filter(|bytes| *bytes > 0)
    });
    // One chunk may exceed the bound.
    assert!(held <= (256 << 10) + (8 << 20), "{held}");
    cluster.workers[0].process.wait_for_error_line("nothing was taken for 500ms");
    reader.signal("CONT");
    let ended = reader.wait();
    ended.expect_code(0);
    let report = caju_tests::pipeline::Report::load(&p.folder().join("read.json"));
    assert_eq!(report.rows(), [20_000_000]);
    cluster.stop();
}

/// `--linger`: a task whose reader was killed ends long before the reader is missed.
#[test]
fn a_task_that_nobody_reads_ends_after_the_linger_time() {
    let cluster =
        Cluster::start_with(1, &["--client-timeout", "90s"], &["--linger", "300ms", "--log", "info"]);
    let p = slow_files(1000);
    let reader = cluster.start_read(&p, &["--job", "train"]);
    let task = |s: &serde_json::Value| s["workers"][0]["running"].as_array().map(Vec::len);
    cluster.wait_for_status("a task", |s| (task(s)? == 1).then_some(()));
    reader.signal("KILL");
    drop(reader.wait());
    let line = cluster.workers[0].process.wait_for_error_line("had no reader");
    assert!(line.contains("for 300ms"), "{line}");
    cluster.stop();
}

/// `--dispatcher-timeout`: a reader whose dispatcher dies continues for this time, and then names the dispatcher in an
/// error.
#[test]
fn a_dispatcher_that_died_is_named_within_the_dispatcher_timeout() {
    let cluster = Cluster::start_with(1, &[], &["--dispatcher-timeout", "1s"]);
    let p = slow_files(1000);
    let reader = cluster.start_read(&p, &["--job", "train", "--dispatcher-timeout", "1s"]);
    cluster.wait_for_status("rows", |s| s["jobs"][0]["served"]["rows"].as_u64().filter(|rows| *rows > 0));
    let address = cluster.address().to_owned();
    cluster.dispatcher.process.signal("KILL");
    // 60 s are the default, and the rows take longer.
    let ended = reader.wait_at_most(Duration::from_secs(50));
    ended.expect_code(3).expect_error(&[&address]);
}

/// `--stall-timeout`: a reader with nothing left to read does not wait for ever for one without progress.
#[test]
fn an_epoch_that_does_not_end_is_given_up_after_the_stall_timeout() {
    let cluster = Cluster::start_with(1, &["--client-timeout", "90s"], &[]);
    let p = slow_files(40);
    let start =
        |more: &[&str]| -> Process { cluster.start_read(&p, &[&["--job", "train"][..], more].concat()) };
    let stuck = start(&[]);
    let waiting = start(&["--stall-timeout", "1s"]);
    cluster.wait_for_status("two readers with rows", |s| {
        let readers = s["jobs"][0]["readers"].as_array()?;
        let took = readers.iter().filter(|r| r["rows"].as_u64() > Some(0)).count();
        (took == 2).then_some(())
    });
    stuck.signal("STOP");
    let ended = waiting.wait_at_most(Duration::from_secs(80));
    ended.expect_code(3).expect_error(&["nothing to read for", cluster.address()]);
    stuck.signal("KILL");
    drop(stuck.wait());
    cluster.stop();
}

/// `--job-gc-timeout`: an epoch without readers is forgotten after this time.
#[test]
fn an_epoch_without_readers_is_forgotten_after_its_time() {
    let cluster = Cluster::start_with(1, &["--job-gc-timeout", "100ms"], &[]);
    assert_eq!(cluster.report(&numbers(10), &["--job", "train"]).rows(), [10]);
    let began = Instant::now();
    cluster.wait_for_status("no jobs", |s| s["jobs"].as_array()?.is_empty().then_some(()));
    assert!(began.elapsed() < TEST_TIMEOUT);
    cluster.stop();
}

/// `--check-interval`: what is due waits for the next check.
#[test]
fn a_dispatcher_that_seldom_checks_forgets_late() {
    let cluster = Cluster::start_with(1, &["--job-gc-timeout", "1ms", "--check-interval", "1h"], &[]);
    let folder = tempdir().unwrap();
    for job in ["one", "two"] {
        assert_eq!(cluster.report(&numbers(10), &["--job", job]).rows(), [10]);
    }
    // A dispatcher that checks at the usual interval forgets its job meanwhile.
    let usual = Cluster::start_with(1, &["--job-gc-timeout", "1ms"], &[]);
    assert_eq!(usual.report(&numbers(10), &["--job", "one"]).rows(), [10]);
    usual.wait_for_status("no jobs", |s| s["jobs"].as_array()?.is_empty().then_some(()));
    drop(usual);
    let args = ["status", "--dispatcher", cluster.address(), "--all"];
    let shown = caju_in(folder.path(), &args).stdout;
    assert!(shown.contains("one") && shown.contains("two"), "{shown}");
    drop(cluster);
}

/// `--reader-silence`: a reader that has all rows and does not acknowledge that is cut off, and named.
#[test]
fn a_reader_that_does_not_acknowledge_the_end_is_cut_off_after_the_reader_silence() {
    let cluster = Cluster::start_with(1, &["--client-timeout", "90s"], &["--reader-silence", "300ms"]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let opened = runtime.block_on(async {
        let mut rpc = DispatcherClient::connect(format!("http://{}", cluster.address())).await.unwrap();
        let definition_json = json!({ "source": { "range": 1000 }, "steps": [] }).to_string();
        let open = v1::OpenIterationRequest { definition_json, job: "train".into(), ..Default::default() };
        rpc.open_iteration(open).await.unwrap().into_inner()
    });
    let task = &opened.tasks[0];
    let frame = open_frame(VERSION, task.task_id, opened.client_id, &task.ticket);
    let mut stream = read_to_end(&task.address, &frame);
    let name = format!("reader {} did not acknowledge", stream.local_addr().unwrap());
    let line = cluster.workers[0].process.wait_for_error_line(&name);
    assert!(line.contains("within the reader silence of 300.0 ms"), "{line}");
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    // The error frame, and then the end of the connection.
    drop(stream.read_to_end(&mut Vec::new()));
    drop(cluster);
}

/// `LEAVE_TIMEOUT`: a reader that leaves does not wait for ever for a stopped dispatcher.
#[test]
fn a_reader_leaves_a_dispatcher_that_stands_still_within_its_bound() {
    let cluster = Cluster::start_with(1, &[], &[]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let took = runtime.block_on(async {
        let config = ClientConfig { dispatcher_timeout: 2 * TEST_TIMEOUT, ..ClientConfig::default() };
        let client = Client::connect(cluster.address(), config).await.unwrap();
        let definition = json!({ "source": { "range": 1000 }, "steps": [{ "batch": 10 }] });
        let def = DatasetDef::from_json_str(&definition.to_string()).unwrap();
        let mut reader = client.read(ReadRequest::of(def)).await.unwrap();
        assert!(reader.next().await.unwrap().is_some());
        cluster.dispatcher.process.signal("STOP");
        let began = Instant::now();
        reader.close().await;
        began.elapsed()
    });
    cluster.dispatcher.process.signal("CONT");
    assert!(took < TEST_TIMEOUT / 2, "{took:?}");
    cluster.stop();
}

/// `--worker-timeout`: a stopped worker is lost, and named.
#[test]
fn a_worker_that_stands_still_is_named_and_lost_after_the_worker_timeout() {
    let cluster = Cluster::start_with(2, &["--worker-timeout", "600ms"], &[]);
    let worker = &cluster.workers[0];
    worker.process.signal("STOP");
    let line = cluster.dispatcher.process.wait_for_error_line("was silent for");
    assert!(line.contains(&worker.address), "{line}");
    cluster.wait_for_status("one worker", |s| {
        let active = s["workers"].as_array()?.iter().filter(|w| w["state"] == "active").count();
        (active == 1).then_some(())
    });
    worker.process.signal("CONT");
    cluster.stop();
}

/// `--handshake-timeout`: a connection without a request is closed, and its peer is in the log. A server that waits longer
/// keeps its connection.
#[test]
fn a_connection_without_a_request_is_closed_after_the_handshake_timeout() {
    let folder = tempdir().unwrap();
    let server = |timeout: &str| {
        let args = ["--listen", "127.0.0.1:0", "--handshake-timeout", timeout, "--log", "caju_wire=debug"];
        Server::start(folder.path(), "dispatcher", &args)
    };
    let (patient, hasty) = (server("1h"), server("200ms"));
    let mut kept = TcpStream::connect(&patient.address).unwrap();
    let mut closed = TcpStream::connect(&hasty.address).unwrap();
    closed.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    assert!(matches!(closed.read(&mut [0]), Ok(0) | Err(_)), "a silent connection was sent something");
    let name = format!("{} sent no request within the handshake timeout", closed.local_addr().unwrap());
    hasty.process.wait_for_error_line(&name);
    kept.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let waits = kept.read(&mut [0]).unwrap_err().kind();
    assert!(matches!(waits, std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut), "{waits:?}");
    hasty.terminate().expect_code(0);
    drop((kept, patient));
}

/// An HTTP/2 frame.
fn http2(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A header of HPACK: a name of the static table, and a value of at most 126 bytes, not compressed.
fn header(name: &[u8], value: &str) -> Vec<u8> {
    [name, &[u8::try_from(value.len()).unwrap()], value.as_bytes()].concat()
}

/// A connection on which the headers of a call of `GetStatus` were sent.
fn asking_for_the_status(address: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    // POST over http, and the path, the authority and the type of the content.
    let headers = [
        vec![0x83, 0x86],
        header(&[0x04], "/caju.v1.Dispatcher/GetStatus"),
        header(&[0x01], "localhost"),
        header(&[0x0f, 0x10], "application/grpc"),
    ];
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    stream.write_all(&http2(4, 0, 0, &[])).unwrap();
    stream.write_all(&http2(1, 4, 1, &headers.concat())).unwrap();
    stream
}

/// `--idle-timeout`: a connection is closed when it has had no call for that long.
#[test]
fn idle_grpc_connections_are_closed() {
    let folder = tempdir().unwrap();
    let args = ["--listen", "127.0.0.1:0", "--idle-timeout", "500ms", "--handshake-timeout", "10min"];
    let server = Server::start(folder.path(), "dispatcher", &args);
    let mut stream = asking_for_the_status(&server.address);
    // An empty message, the last of the call.
    stream.write_all(&http2(0, 1, 1, &[0; 5])).unwrap();
    let mut all = Vec::new();
    let read = stream.read_to_end(&mut all);
    // By default it would stay for five minutes, which is more than the patience of this test.
    let timed_out = [std::io::ErrorKind::WouldBlock, std::io::ErrorKind::TimedOut];
    assert!(!read.is_err_and(|e| timed_out.contains(&e.kind())), "the server did not close it");
    assert!(!all.is_empty());
    server.terminate().expect_code(0);
}

/// `--request-timeout`: a call whose message does not arrive whole is answered with an error.
#[test]
fn a_request_that_does_not_arrive_is_answered_after_the_request_timeout() {
    const TIMEOUT: Duration = Duration::from_millis(300);
    let folder = tempdir().unwrap();
    let args = ["--listen", "127.0.0.1:0", "--request-timeout", "300ms"];
    let server = Server::start(folder.path(), "dispatcher", &args);
    let begin = Instant::now();
    let mut stream = asking_for_the_status(&server.address);
    // A message of 100 bytes, of which 10 arrive.
    stream.write_all(&http2(0, 0, 1, &[&[0, 0, 0, 0, 100][..], &[0; 10]].concat())).unwrap();
    loop {
        let mut fixed = [0; 9];
        stream.read_exact(&mut fixed).unwrap();
        let length = u32::from_be_bytes([0, fixed[0], fixed[1], fixed[2]]) as usize;
        stream.read_exact(&mut vec![0; length]).unwrap();
        assert_ne!(fixed[3], 7, "the connection is given up");
        // The answer's headers.
        if (fixed[3], fixed[8]) == (1, 1) {
            break;
        }
    }
    let took = begin.elapsed();
    // A minute is the default.
    assert!(TIMEOUT <= took && took < Duration::from_secs(50), "{took:?}");
    server.terminate().expect_code(0);
}

/// `--cache-wait`: a cache that does not answer holds up a status call for no longer; its size is left out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_status_call_leaves_out_the_size_of_a_cache_that_does_not_answer() {
    let short = status_of_a_silent_cache("100ms").await;
    let long = status_of_a_silent_cache("6s").await;
    assert!(short < long && long >= Duration::from_secs(6), "{short:?} and {long:?}");
}

/// `--cache-request-timeout`: a command on a cache waits for a request for this time, and names the store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_gives_up_a_silent_cache_after_the_cache_request_timeout() {
    for (command, silent) in [("ls", "GET"), ("gc", "PUT")] {
        let s3 = S3Server::start(&["bucket"]).await.unwrap();
        let folder = s3.bucket("bucket").join("cache/v1/plans");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("one.json"), "{}").unwrap();
        let env: Vec<_> = s3.options().into_iter().map(|(k, v)| (k.to_uppercase(), v)).collect();
        s3.inject(ServerFault::Silence, &[silent], 1, 0);
        let began = Instant::now();
        #[expect(clippy::disallowed_methods, reason = "a panic of a test is a panic")]
        let ended = tokio::task::spawn_blocking(move || {
            let mut caju = Command::new(caju_binary());
            caju.args(["cache", command, "--cache", "s3://bucket/cache", "--cache-request-timeout", "300ms"]);
            caju.env_remove("CAJU_CONFIG").envs(env);
            Process::start(caju, format!("caju cache {command}")).wait()
        });
        let ended = ended.await.unwrap();
        ended.expect_code(3).expect_error(&["bucket", "the store did not answer within 300.0 ms"]);
        // A minute is the default.
        assert!(began.elapsed() < Duration::from_secs(40), "{command}: {:?}", began.elapsed());
    }
}

/// How long a status call of a dispatcher takes whose cache does not answer.
async fn status_of_a_silent_cache(cache_wait: &'static str) -> Duration {
    let s3 = S3Server::start(&["bucket"]).await.unwrap();
    let env: Vec<_> = s3.options().into_iter().map(|(k, v)| (k.to_uppercase(), v)).collect();
    s3.inject(ServerFault::Silence, &["GET"], 1, 0);
    #[expect(clippy::disallowed_methods, reason = "a panic of a test is a panic")]
    let asked = tokio::task::spawn_blocking(move || {
        let folder = tempdir().unwrap();
        let mut command = Command::new(caju_binary());
        command.args(["dispatcher", "--listen", "127.0.0.1:0", "--cache", "s3://bucket/cache"]);
        command.args(["--cache-wait", cache_wait]);
        command.current_dir(folder.path()).env_remove("CAJU_CONFIG").envs(env);
        let dispatcher = Process::start(command, "caju dispatcher".to_owned());
        let address = dispatcher.first_line().rsplit(' ').next().unwrap().to_owned();
        let began = Instant::now();
        let status = caju_in(folder.path(), &["status", "--dispatcher", &address, "--format", "json"]);
        status.expect_code(0);
        let took = began.elapsed();
        (serde_json::from_str::<serde_json::Value>(&status.stdout).unwrap(), took)
    });
    let (status, took) = asked.await.unwrap();
    assert!(status["cache"].is_null() && status["cache_url"] == "s3://bucket/cache", "{status:#}");
    // A request to the store fails after a minute.
    assert!(took < Duration::from_secs(40), "{took:?}");
    assert!(s3.requests().lists + s3.requests().gets > 0, "the store was asked");
    took
}

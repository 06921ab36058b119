//! Servers under more than they can take: others are still served, nothing spins, and the log says what happens.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use caju_tests::binary::caju_binary;
use caju_tests::cluster::{Cluster, Server};
use caju_tests::http::get;
use caju_tests::pipeline::Pipeline;
use caju_tests::process::{Process, TEST_TIMEOUT, caju_in};
use serde_json::json;
use tempfile::tempdir;

/// A server that may open few files.
fn short_of_descriptors(folder: &std::path::Path, args: &str) -> Server {
    let mut command = Command::new("sh");
    let line = format!("ulimit -n 40; exec {} {args}", caju_binary().display());
    command.args(["-c", &line]).current_dir(folder);
    let process = Process::start(command, format!("caju {args}"));
    let line = process.first_line();
    let address = line.rsplit_once(' ').unwrap().1.to_owned();
    Server { process, address }
}

/// CPU time of a process so far, in hundredths of a second.
fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// Waits until a server has closed a connection that said nothing.
fn closed(mut stream: &TcpStream) {
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    let mut one = [0];
    // Reset or end: either way the connection is closed.
    assert!(matches!(stream.read(&mut one), Ok(0) | Err(_)), "a silent connection was sent something");
}

#[test]
fn a_dispatcher_out_of_descriptors_goes_on_and_says_so() {
    let folder = tempdir().unwrap();
    let server =
        short_of_descriptors(folder.path(), "dispatcher --listen 127.0.0.1:0 --handshake-timeout 3s");
    let silent: Vec<TcpStream> = (0..80).map(|_| TcpStream::connect(&server.address).unwrap()).collect();
    server.process.wait_for_error_line("no connection can be accepted");
    let before = (ticks(server.process.id()), Instant::now());
    caju_in(folder.path(), &["status", "--dispatcher", &server.address]).expect_code(0);
    for stream in &silent {
        closed(stream);
    }
    let (used, waited) = (ticks(server.process.id()) - before.0, before.1.elapsed());
    assert!(
        u128::from(used) * 10 < waited.as_millis() / 2,
        "{used} hundredths of a second within {waited:?}"
    );
    drop(silent);
    server.terminate().expect_code(0);
}

#[test]
fn silent_connections_lock_no_reader_out() {
    let cluster = Cluster::start_with(1, &[], &["--connections", "8"]);
    let silent: Vec<TcpStream> =
        (0..200).map(|_| TcpStream::connect(&cluster.workers[0].address).unwrap()).collect();
    let p = Pipeline::of(json!({ "range": 1000 }), json!([{ "batch": 10 }]));
    assert_eq!(cluster.report(&p, &[]).rows(), [1000]);
    for stream in &silent {
        closed(stream);
    }
    cluster.stop();
}

/// The address of a dispatcher's HTTP port.
fn http_address(server: &Server) -> String {
    let lines = server.process.wait_for_lines(2);
    let http = lines[1].strip_prefix("caju dispatcher serves http://").unwrap();
    http.strip_suffix("/metrics").unwrap().to_owned()
}

/// Kubernetes restarts a dispatcher whose probe waits for 5 s.
#[test]
fn silent_connections_to_the_http_port_hold_up_no_probe() {
    let folder = tempdir().unwrap();
    let args = ["--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--handshake-timeout", "1m"];
    let server = Server::start(folder.path(), "dispatcher", &args);
    let http = &http_address(&server);
    let silent: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(http).unwrap()).collect();
    // 32 are open. Those before them were closed, so the probe is not the one that is.
    closed(&silent[0]);
    let asked = Instant::now();
    assert_eq!(get(http, "GET", "/healthz").1, "ok\n");
    assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
    server.terminate().expect_code(0);
}

/// `--http-connections`: one connection more closes the oldest one, and no other.
#[test]
fn as_many_http_connections_are_open_as_are_set() {
    let folder = tempdir().unwrap();
    let args = ["--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--http-connections", "2"];
    let server =
        Server::start(folder.path(), "dispatcher", &[&args[..], &["--handshake-timeout", "1m"]].concat());
    let http = http_address(&server);
    let mut open: Vec<TcpStream> = (0..3).map(|_| TcpStream::connect(&http).unwrap()).collect();
    closed(&open[0]);
    for stream in &mut open[1..] {
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        write!(stream, "GET /healthz HTTP/1.1\r\nHost: {http}\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with("ok\n"), "{answer}");
    }
    server.terminate().expect_code(0);
}

/// What begins an HTTP/2 connection, with empty settings.
const HELLO: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

#[test]
fn the_limit_of_connections_holds_for_grpc_too() {
    let limits = ["--connections", "8", "--handshake-timeout", "10s", "--idle-timeout", "1m"];
    let cluster = Cluster::start_with(1, &[], &limits);
    let greeted = |patience: Duration| {
        let mut stream = TcpStream::connect(&cluster.workers[0].address).unwrap();
        stream.set_read_timeout(Some(patience)).unwrap();
        stream.write_all(HELLO).unwrap();
        // A server that speaks HTTP/2 says so at once.
        let answer = stream.read_exact(&mut [0; 9]);
        (stream, answer.is_ok())
    };
    let open: Vec<_> = (0..8).map(|_| greeted(Duration::from_secs(30))).collect();
    assert!(open.iter().all(|(_, is_greeted)| *is_greeted));
    let (_ninth, is_greeted) = greeted(Duration::from_secs(1));
    assert!(!is_greeted, "the ninth connection waits for a permit");
    cluster.workers[0].process.wait_for_error_line("the maximum of connections is open");
    drop(open);
    let p = Pipeline::of(json!({ "range": 1000 }), json!([{ "batch": 10 }]));
    assert_eq!(cluster.report(&p, &[]).rows(), [1000], "permits come back");
    cluster.stop();
}

#[test]
fn a_reader_beyond_the_limit_of_connections_gets_the_limit_and_its_flag() {
    let folder = tempdir().unwrap();
    let limits = ["--listen", "127.0.0.1:0", "--connections", "3", "--handshake-timeout", "1m"];
    let dispatcher = Server::start(folder.path(), "dispatcher", &limits);
    let p = Pipeline::of(json!({ "range": 10 }), json!([]));
    let open: Vec<_> = (0..3)
        .map(|_| {
            let mut stream = TcpStream::connect(&dispatcher.address).unwrap();
            stream.write_all(HELLO).unwrap();
            stream.read_exact(&mut [0; 9]).unwrap();
            stream
        })
        .collect();
    let args = ["read", "pipeline.yaml", "--dispatcher", &dispatcher.address, "--connect-timeout", "3s"];
    let refused = caju_in(p.folder(), &args);
    refused.expect_error(&["the dispatcher has 3 connections, its limit", "--connections"]);
    assert!(!refused.stderr.contains("no dispatcher at"), "{}", refused.stderr);
    drop(open);
    caju_in(folder.path(), &["status", "--dispatcher", &dispatcher.address]).expect_code(0);
    dispatcher.terminate().expect_code(0);
}

#[test]
fn long_names_are_refused_shortly() {
    let cluster = Cluster::start(1);
    let p = Pipeline::of(json!({ "range": 10 }), json!([]));
    let long = "x".repeat(100_000);
    let ended = cluster.read(&p, &["--job", &long]);
    ended.expect_code(2).expect_error(&["a job's name has 100000 bytes, and 1024 are the most"]);
    assert!(ended.stderr.len() < 2000, "{} bytes", ended.stderr.len());
    cluster.stop();
}

#[test]
fn a_dispatcher_whose_journal_cannot_be_written_ends() {
    let folder = tempdir().unwrap();
    let mut command = Command::new("sh");
    // No file may grow beyond a mebibyte: the journal's disk is full soon.
    let start = "trap '' XFSZ; ulimit -f 2048; exec \"$0\" dispatcher --listen 127.0.0.1:0 --state-dir state";
    command.args(["-c", start]).arg(caju_binary()).current_dir(folder.path());
    let process = Process::start(command, "caju dispatcher on a full disk".into());
    let address = process.first_line().rsplit_once(' ').unwrap().1.to_owned();
    let _worker = Server::start(folder.path(), "worker", &["--dispatcher", &address]);
    for i in 0..200_u64 {
        // The journal is compressed, so the texts must not repeat themselves.
        let text = |c: u64| -> String {
            let number = |k: u64| (i * 300_000 + c * 1000 + k).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (0..12).map(|k| format!("{:016x}", number(k) ^ number(k + 500).rotate_left(29))).collect()
        };
        let columns: serde_json::Map<_, _> =
            (0..300).map(|c| (format!("c{i}_{c}"), json!(format!("'{}'", text(c))))).collect();
        let p = Pipeline::of(json!({ "range": 1 }), json!([{ "map": columns }]));
        if caju_in(
            p.folder(),
            &["read", "pipeline.yaml", "--dispatcher", &address, "--connect-timeout", "1s"],
        )
        .code
            != Some(0)
        {
            break;
        }
    }
    let ended = process.wait();
    assert!(!matches!(ended.code, Some(0) | None), "{ended:?}");
    ended.expect_error(&["the journal cannot be written"]);
}

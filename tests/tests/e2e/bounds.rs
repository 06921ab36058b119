//! No length, count or size that a file or a definition brings ends a process: each is one clear error, and the other
//! jobs continue.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::ipc::CompressionType;
use arrow::ipc::writer::{FileWriter, IpcWriteOptions};
use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow_flight::FlightDescriptor;
use arrow_flight::flight_service_client::FlightServiceClient;
use caju_proto::v1;
use caju_proto::v1::dispatcher_client::DispatcherClient;
use caju_tests::files::{self, example, tfrecord};
use caju_tests::pipeline::Report;
use caju_tests::{Cluster, Pipeline, Process};
use serde_json::{Value, json};
use tonic::Status;
use tonic::transport::Channel;

/// A compressed Arrow file of 10,000 rows.
fn arrow_file(codec: CompressionType) -> Vec<u8> {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values((0..10_000).map(|i| i / 10)));
    let text: ArrayRef =
        Arc::new(StringArray::from_iter_values((0..10_000).map(|i| format!("row {}", i / 10))));
    let batch = RecordBatch::try_from_iter([("id", ids), ("text", text)]).unwrap();
    let options = IpcWriteOptions::default().try_with_compression(Some(codec)).unwrap();
    let mut writer = FileWriter::try_new_with_options(Vec::new(), &batch.schema(), options).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
    writer.into_inner().unwrap()
}

/// The most memory that a process has held so far, in bytes.
fn peak_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|l| l.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

fn range(steps: Value) -> Pipeline {
    Pipeline::of(json!({ "range": 1000 }), steps)
}

/// A worker that lives reads this.
#[track_caller]
fn still_serves(cluster: &Cluster) {
    assert_eq!(cluster.report(&range(json!([{ "batch": 10 }])), &[]).rows(), [1000]);
}

/// One changed byte in the length of a compressed buffer: half a petabyte was asked for, and every worker died in turn.
#[test]
fn a_changed_length_in_an_arrow_file_is_an_error_that_names_the_file() {
    let cluster = Cluster::start(1);
    for (codec, magic) in
        [(CompressionType::LZ4_FRAME, 0x184D_2204u32), (CompressionType::ZSTD, 0xFD2F_B528u32)]
    {
        let good = arrow_file(codec);
        let frame = good.windows(4).position(|w| w == magic.to_le_bytes()).unwrap();
        let mut bad = good.clone();
        bad[frame - 8 + 6] ^= 2;
        let p = |bytes: &[u8]| {
            Pipeline::of(json!({ "arrow": { "path": "data.arrow" } }), json!([{ "batch": 100 }]))
                .with_file("data.arrow", bytes)
        };
        cluster.read(&p(&bad), &[]).expect_code(2).expect_error(&["data.arrow", "claims to hold 56294995"]);
        assert_eq!(cluster.report(&p(&good), &[]).rows(), [10_000]);
    }
    cluster.stop();
}

/// Constants that grow were computed in the dispatcher while it bound the definition: 16 GB, or a minute of silence.
#[test]
fn a_definition_that_grows_holds_nobody_up() {
    let cluster = Cluster::start_with(1, &["--client-timeout", "5s"], &[]);
    let slow = Pipeline::of(
        json!({ "range": 20_000 }),
        json!([{ "burn": { "per_row": "100us" } }, { "batch": 100 }]),
    );
    let other = cluster.start_read(&slow, &["--report", "r.json"]);
    let rows = |s: &Value| s["jobs"].as_array()?.first()?["stages"].as_array()?.last()?["rows_out"].as_u64();
    cluster.wait_for_status("rows of the other job", |s| rows(s).filter(|n| *n > 0));
    let one_hot = range(json!([{ "map": { "s": "one_hot(7, 2000000000)" } }]));
    let padded = range(json!([{ "map": { "s": "concat(lpad('x', 1500000000), lpad('y', 1500000000))" } }]));
    let reads = [cluster.start_read(&one_hot, &[]), cluster.start_read(&padded, &[])];
    for _ in 0..3 {
        let asked = Instant::now();
        cluster.status();
        assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    }
    let [one_hot, padded] = reads.map(caju_tests::Process::wait);
    one_hot.expect_code(2).expect_error(&["steps[0].map", "`one_hot` gives values of 7.45 GiB each"]);
    padded.expect_code(2).expect_error(&["steps[0].map", "row 0", "`lpad` needs 1.40 GiB"]);
    other.wait().expect_code(0);
    assert_eq!(Report::load(&slow.folder().join("r.json")).rows(), [20_000]);
    for server in [&cluster.dispatcher, &cluster.workers[0]] {
        let peak = peak_bytes(server.process.id());
        assert!(peak < 700 << 20, "{}: {peak}", server.address);
    }
    cluster.stop();
}

/// The error of a call with a large message. On a busy machine the message may take longer than a connection may wait for one.
async fn refusal(
    rpc: &DispatcherClient<Channel>,
    call: impl AsyncFn(DispatcherClient<Channel>) -> Option<Status>,
) -> Status {
    for _ in 0..5 {
        let refused = call(rpc.clone()).await.expect("the message is refused");
        if !refused.message().contains("transport error") {
            return refused;
        }
    }
    panic!("the connection broke five times");
}

/// Messages of a few MiB made a dispatcher hold 2.1 GiB: empty messages of 2 bytes, and JSON of 2 bytes per value.
#[tokio::test(flavor = "multi_thread")]
async fn dense_messages_are_refused_before_they_take_memory() {
    let cluster = Cluster::start(1);
    let rpc = DispatcherClient::connect(format!("http://{}", cluster.address())).await.unwrap();
    let heartbeat = v1::ClientHeartbeatRequest {
        acknowledged: vec![v1::SplitRows::default(); 2 << 20],
        ..Default::default()
    };
    let refused = refusal(&rpc, async |mut rpc| rpc.client_heartbeat(heartbeat.clone()).await.err()).await;
    assert!(refused.message().contains("takes more than 256 MiB in memory"), "{refused}");
    let dense = format!("{{\"source\": {{\"range\": [{}0]}}, \"steps\": []}}", "0,".repeat(10 << 20));
    let wanted = "takes more than 256.00 MiB as JSON in memory";
    let register = v1::RegisterDatasetRequest { definition_json: dense.clone(), ..Default::default() };
    let refused = refusal(&rpc, async |mut rpc| rpc.register_dataset(register.clone()).await.err()).await;
    assert!(refused.message().contains(wanted), "{refused}");
    let open =
        v1::OpenIterationRequest { definition_json: dense.clone(), job: "j".into(), ..Default::default() };
    let refused = refusal(&rpc, async |mut rpc| rpc.open_iteration(open.clone()).await.err()).await;
    assert!(refused.message().contains(wanted), "{refused}");
    let channel =
        Channel::from_shared(format!("http://{}", cluster.address())).unwrap().connect().await.unwrap();
    let mut flight = FlightServiceClient::new(channel);
    let command = format!("{{\"pipeline\": {dense}}}");
    let many_parts = vec![String::new(); 3 << 20];
    for dense in [FlightDescriptor::new_cmd(command), FlightDescriptor::new_path(many_parts)] {
        let refused = flight.get_flight_info(dense.clone()).await.unwrap_err();
        assert!(refused.message().contains("the limit is: 4194304 bytes"), "{refused}");
        let refused = flight.get_schema(dense).await.unwrap_err();
        assert!(refused.message().contains("the limit is: 4194304 bytes"), "{refused}");
    }
    let peak = peak_bytes(cluster.dispatcher.process.id());
    assert!(peak < 700 << 20, "{peak}");
    still_serves(&cluster);
    cluster.stop();
}

/// Sizes in definitions ended workers.
#[test]
fn sizes_in_definitions_are_errors_that_name_the_stage() {
    let cluster = Cluster::start(1);
    let lists = json!({ "map": { "id": "id", "l": "make_array(id, id)" } });
    let long = json!({ "padded_batch": { "size": 100, "lengths": { "l": 2_000_000_000u64 } } });
    cluster
        .read(&range(json!([lists, long])), &[])
        .expect_code(2)
        .expect_error(&["steps[1].padded_batch", "lengths.l"]);
    for (sql, what) in [
        ("one_hot(id, 2000000000)", "`one_hot` gives values of"),
        ("repeat('x', 2000000000)", "`repeat` needs 1.86 GiB"),
        ("character_length(repeat('x', 2000000000 + id))", "`repeat` needs 1.86 GiB"),
    ] {
        let p = range(json!([{ "map": { "x": sql } }]));
        cluster.read(&p, &[]).expect_code(2).expect_error(&["steps[0].map", what]);
    }
    let resize = json!({ "map": { "x": "resize(decode_image(record), 30000, 20000)" } });
    let images = Pipeline::of(json!({ "tfrecord": "i.tfrecord" }), json!([resize]));
    let images = images.with_file("i.tfrecord", &tfrecord([b"no image"]));
    cluster
        .read(&images, &[])
        .expect_code(2)
        .expect_error(&["steps[0].map", "gives values of 1.68 GiB each"]);
    let bucket = json!({ "bucket_by_length": {
        "length": "character_length(lpad('x', 2000000000 + id))", "boundaries": [2], "batch_sizes": [2, 2]
    } });
    cluster
        .read(&range(json!([bucket])), &[])
        .expect_code(2)
        .expect_error(&["steps[0].bucket_by_length: source rows 0..1000 (row 0 of it)", "`lpad` needs"]);
    still_serves(&cluster);
    cluster.stop();
}

/// A progressive JPEG of some hundred bytes that claims 9999 x 9999 pixels: 0.9 GB were taken before the first check.
#[test]
fn a_tiny_jpeg_that_claims_much_is_an_error_of_its_row() {
    let mut jpeg = vec![0xFF, 0xD8, 0xFF, 0xDB, 0, 67, 0];
    jpeg.extend([1; 64]);
    jpeg.extend([0xFF, 0xC2, 0, 11, 8, 0x27, 0x0F, 0x27, 0x0F, 1, 1, 0x11, 0]);
    jpeg.extend([0xFF, 0xC4, 0, 20, 0, 1]);
    jpeg.extend([0; 16]);
    jpeg.extend([0xFF, 0xDA, 0, 8, 1, 1, 0, 0, 0, 0, 0, 0xFF, 0xD9]);
    let cluster = Cluster::start(1);
    let steps = json!([
        { "parse_example": { "features": { "image": "bytes", "label": "int64" } } },
        { "map": { "image": "resize(decode_image(image), 8, 8)" } },
    ]);
    let p = Pipeline::of(json!({ "tfrecord": "data.tfrecord" }), steps);
    let p = p.with_file("data.tfrecord", &tfrecord([example(&jpeg, 1)]));
    cluster.read(&p, &[]).expect_code(2).expect_error(&[
        "data.tfrecord",
        "row 0",
        "steps[1].map",
        "JPEG data ends early",
    ]);
    let peak = peak_bytes(cluster.workers[0].process.id());
    assert!(peak < 500 << 20, "{peak}");
    cluster.stop();
}

#[test]
fn integers_that_do_not_fit_are_errors() {
    let p = Pipeline::of(json!({ "range": 3 }), json!([{ "map": { "x": "id + 9223372036854775807" } }]));
    p.run(&[]).expect_code(2).expect_error(&[
        "steps[0].map",
        "row 1 of it",
        "column `x`",
        "1 + 9223372036854775807 does not fit Int64",
    ]);
}

/// Rows that are too large together are computed a few at a time; the memory of a chunk is a setting.
#[test]
fn chunks_that_swell_are_cut() {
    let wide = json!([{ "map": { "id": "id", "n": "character_length(lpad('x', 100000 + id))" } }]);
    let (small, usual) = (range(wide.clone()), range(wide));
    let small = small.report(&["--chunk-memory", "4MiB"]);
    assert_eq!(small.rows(), [1000]);
    assert_eq!(small.checksums(), usual.report(&[]).checksums());
    let one = range(json!([{ "map": { "s": "lpad('x', 2000000)" } }]));
    one.run(&["--chunk-memory", "1MiB"]).expect_code(2).expect_error(&[
        "steps[0].map",
        "row 0 of it",
        "--chunk-memory",
    ]);
}

/// A row that goes over the memory of a chunk by itself is a bad row: an error, or skipped and counted.
#[test]
fn a_row_that_is_too_large_alone_is_skipped_where_bad_rows_are() {
    // 1 for all rows but the last one.
    let steps = json!([{ "map": { "id": "id", "s": "lpad('x', 1 + (id / 999) * 2000000)" } }]);
    let with = |on_error: Value| {
        let p = json!({ "source": { "range": 1000 }, "steps": steps.clone(), "on_error": on_error });
        Pipeline::new(&p)
    };
    let small = ["--chunk-memory", "1MiB"];
    with(json!("fail")).run(&small).expect_code(2).expect_error(&[
        "steps[0].map",
        "row 999 of it",
        "--chunk-memory",
    ]);
    let report = with(json!("skip")).report(&small);
    assert_eq!((report.rows(), report.epochs("rows_skipped")), (vec![999], vec![json!(1)]));
    let roomy = with(json!("skip")).report(&[]);
    assert_eq!((roomy.rows(), roomy.epochs("rows_skipped")), (vec![1000], vec![Value::Null]));
    with(json!({ "skip": { "limit": 0 } })).run(&small).expect_code(2).expect_error(&["on_error"]);
}

#[test]
fn the_largest_record_is_a_setting() {
    let p = Pipeline::of(json!({ "csv": { "path": "t.csv" } }), json!([]));
    let p = p.with_file("t.csv", format!("a,b\n1,x\n2,{}\n", "y".repeat(3000)).as_bytes());
    assert_eq!(p.report(&[]).rows(), [2]);
    p.run(&["--max-record", "1KiB"]).expect_code(2).expect_error(&[
        "t.csv",
        "has over 1024 bytes",
        "--max-record",
    ]);
}

/// A reader needs a row group of a Parquet file as a whole, in the columns that are read.
#[test]
fn the_largest_row_group_is_a_setting() {
    let of = |columns: Value| {
        let p = Pipeline::of(json!({ "parquet": { "path": "data.parquet", "columns": columns } }), json!([]));
        let texts: Vec<String> = (0..1000).map(|i| format!("{i:0200}")).collect();
        let texts = files::strings(texts.iter().map(String::as_str));
        files::parquet(&p.folder().join("data.parquet"), vec![("id", files::ints(0..1000)), ("text", texts)]);
        p
    };
    let (both, ids) = (of(json!(["id", "text"])), of(json!(["id"])));
    assert_eq!(both.report(&[]).rows(), [1000]);
    let small = ["--row-group-memory", "64KiB"];
    both.run(&small).expect_code(3).expect_error(&[
        "data.parquet: row group 0, of 1,000 rows, has ",
        "more than the 65,536 that a reader may hold",
        "--row-group-memory",
    ]);
    assert_eq!(ids.report(&small).rows(), [1000]);
    assert_eq!(both.report(&["--row-group-memory", "1MiB"]).rows(), [1000]);
}

#[test]
fn binding_has_a_deadline() {
    // Some hundred calls of functions: more than a millisecond's work on any machine.
    let sum = vec!["regexp_count(s, '([a-z]x){1,9}')"; 60].join(" + ");
    let steps = json!([{ "map": { "s": "cast(id as varchar)" } }, { "map": { "n": sum } }]);
    let ended = range(steps).run(&["--bind-timeout", "1us"]);
    ended.expect_code(3).expect_error(&["the definition was not done within", "--bind-timeout"]);
}

/// An element above the reader's bound is refused by its length alone.
#[test]
fn an_element_above_max_frame_ends_its_reader() {
    let cluster = Cluster::start(1);
    let p = Pipeline::of(json!({ "range": 300_000 }), json!([{ "batch": 300_000 }]));
    cluster
        .read(&p, &["--max-frame", "1MiB"])
        .expect_code(3)
        .expect_error(&["more than the bound of 1048576 bytes", "--max-frame"]);
    assert_eq!(cluster.report(&p, &["--max-frame", "4MiB"]).rows(), [300_000]);
    cluster.read(&p, &["--max-frame", "1KiB"]).expect_code(2).expect_error(&["--max-frame", "at least 1MiB"]);
    still_serves(&cluster);
    cluster.stop();
}

/// A row that would take minutes is an error of its stage and row, and the other jobs continue.
#[test]
fn a_row_that_takes_too_many_steps_is_an_error() {
    let cluster = Cluster::start_with(1, &[], &["--cpu-threads", "2"]);
    let row = "levenshtein(repeat('a', 300001), repeat('b', 300000))";
    let endless = Pipeline::of(json!({ "range": 10 }), json!([{ "map": { "n": row } }]));
    cluster.read(&endless, &[]).expect_code(2).expect_error(&[
        "steps[0].map",
        "row 0 of it",
        "`levenshtein` needs 90,000,300,000 steps",
        "--chunk-steps",
    ]);
    still_serves(&cluster);
    cluster.stop();
    // Fewer steps at a time give the same rows, and `--chunk-steps` is what bounds them.
    let row = "levenshtein(concat(cast(id as varchar), repeat('a', 97)), 'abcdefghij')";
    let p = Pipeline::of(json!({ "range": 1000 }), json!([{ "map": { "n": row } }]));
    let few = p.report(&["--chunk-steps", "20000"]);
    assert_eq!((few.rows(), few.checksums()), (vec![1000], p.report(&[]).checksums()));
    p.run(&["--chunk-steps", "900"]).expect_code(2).expect_error(&["row 0 of it", "--chunk-steps"]);
}

/// Jobs with slow rows hold all threads of a worker: another job still gets its rows.
#[test]
fn jobs_with_slow_rows_do_not_stop_others() {
    // One row is most of a chunk's steps.
    let steps = ["--chunk-steps", "30000000"];
    let cluster = Cluster::start_with(1, &steps, &[&["--cpu-threads", "2"][..], &steps].concat());
    let row = "levenshtein(repeat('a', 5000), concat(repeat('b', 5000), cast(id as varchar)))";
    let slow = || Pipeline::of(json!({ "range": 1_000_000 }), json!([{ "map": { "n": row } }]));
    let pipelines = [slow(), slow()];
    let readers: Vec<_> =
        pipelines.iter().zip(["a", "b"]).map(|(p, job)| cluster.start_read(p, &["--job", job])).collect();
    cluster.wait_for_status("two jobs with tasks", |s| {
        (s["workers"][0]["tasks"].as_array()?.len() == 2).then_some(())
    });
    let quick = Pipeline::of(json!({ "range": 10 }), json!([{ "map": { "x": "id + 1" } }]));
    assert_eq!(cluster.report(&quick, &[]).rows(), [10]);
    for reader in readers {
        assert!(!reader.has_ended(), "{}", reader.errors());
    }
}

/// Each bound of what a dispatcher keeps is a flag. What is forgotten first is tested in the dispatcher's crate.
#[test]
fn what_a_dispatcher_keeps_is_bounded_by_flags() {
    let rows = |n: u64| Pipeline::of(json!({ "range": n }), json!([{ "batch": 10 }]));
    let slow = |n: u64| Pipeline::of(json!({ "range": n }), json!([{ "sleep": { "per_row": "100ms" } }]));
    for (flag, refused) in [
        ("--max-datasets", &slow(1_000_001)),
        ("--max-jobs", &slow(1_000_000)),
        ("--max-readers", &slow(1_000_000)),
    ] {
        let cluster = Cluster::start_with(1, &[flag, "1"], &[]);
        // Epochs that have ended are forgotten.
        for i in 0..3 {
            assert_eq!(cluster.report(&rows(10 + i), &["--job", &format!("over{i}")]).rows(), [10 + i]);
        }
        let reading = slow(1_000_000);
        let reader = cluster.start_read(&reading, &["--job", "reading"]);
        cluster.wait_for_status("the reader's job", |s| {
            let jobs = s["jobs"].as_array()?;
            jobs.iter().any(|j| j["job"] == "reading" && j["state"] == "running").then_some(())
        });
        cluster.read(refused, &["--job", "other"]).expect_code(3).expect_error(&[flag]);
        reader.signal("KILL");
        reader.wait_for_end();
        cluster.stop();
    }
    let small = Cluster::start_with(1, &["--max-dataset-bytes", "8KiB", "--max-name-bytes", "40"], &[]);
    assert_eq!(small.report(&rows(10), &["--job", &"j".repeat(40)]).rows(), [10]);
    small
        .read(&rows(10), &["--job", &"j".repeat(41)])
        .expect_code(2)
        .expect_error(&["--max-name-bytes", "41 bytes"]);
    let long =
        Pipeline::of(json!({ "range": 10 }), json!([{ "map": { "x": format!("'{}'", "x".repeat(9000)) } }]));
    small.read(&long, &[]).expect_code(3).expect_error(&["--max-dataset-bytes"]);
    small.stop();
    // One epoch at a time is enough for a job that reads its epochs one after another.
    let one = Cluster::start_with(1, &["--max-job-epochs", "1", "--max-worker-registrations", "1"], &[]);
    assert_eq!(one.report(&rows(10), &["--epochs", "3"]).rows(), [10; 3]);
    let second_epoch = tokio::runtime::Runtime::new().unwrap().block_on(async {
        let mut rpc = DispatcherClient::connect(format!("http://{}", one.address())).await.unwrap();
        let definition_json = json!({ "source": { "range": 1000 }, "steps": [] }).to_string();
        let open = |epoch| v1::OpenIterationRequest {
            definition_json: definition_json.clone(),
            job: "two".into(),
            epoch,
            ..Default::default()
        };
        rpc.open_iteration(open(0)).await.unwrap();
        rpc.open_iteration(open(1)).await.unwrap_err()
    });
    assert!(second_epoch.message().contains("--max-job-epochs"), "{second_epoch}");
    let args = ["worker", "--dispatcher", one.address(), "--listen", "127.0.0.1:0"];
    let second = Process::caju(one.folder(), &args);
    second.wait_for_error_line("--max-worker-registrations");
    second.signal("KILL");
    second.wait_for_end();
    one.stop();
}

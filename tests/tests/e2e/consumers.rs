//! Consumers of a job through `caju read`: the same number of elements for each.

use std::process::Command;
use std::time::{Duration, Instant};

use caju_tests::binary::caju_binary;
use caju_tests::cluster::Cluster;
use caju_tests::pipeline::{Pipeline, Report};
use caju_tests::process::Process;
use serde_json::{Value, json};

fn start(cluster: &Cluster, p: &Pipeline, index: u32, count: u32, more: &[&str]) -> (Process, String) {
    let (count, report) = (count.to_string(), format!("consumer-{index}.json"));
    let index = index.to_string();
    let mut args = vec!["--num-consumers", &count, "--consumer-index", &index, "--report", &report];
    args.extend(more);
    (cluster.start_read(p, &args), report.clone())
}

/// What each of several consumers reports.
fn read(cluster: &Cluster, p: &Pipeline, count: u32, more: &[&str]) -> Vec<Value> {
    let running: Vec<_> = (0..count).map(|index| start(cluster, p, index, count, more)).collect();
    running
        .into_iter()
        .map(|(process, report)| {
            process.wait().expect_code(0);
            serde_json::from_slice(&std::fs::read(p.folder().join(report)).unwrap()).unwrap()
        })
        .collect()
}

fn sum(reports: &[Value]) -> u128 {
    let of = |r: &Value| u128::from_str_radix(r["epochs"][0]["rows_checksum"].as_str().unwrap(), 16).unwrap();
    reports.iter().fold(0, |sum, r| sum.wrapping_add(of(r)))
}

fn field(reports: &[Value], name: &str) -> Vec<u64> {
    reports.iter().map(|r| r["epochs"][0][name].as_u64().unwrap_or(0)).collect()
}

#[test]
fn consumers_get_the_same_number_of_elements_by_drop_and_by_pad() {
    let cluster = Cluster::start(2);
    let p = Pipeline::of(json!({ "range": 10_000 }), json!([{ "shuffle": 200 }, { "batch": 64 }]));
    // 157 batches, the last one short.
    let dropped = read(&cluster, &p, 3, &["--job", "drop"]);
    assert_eq!(field(&dropped, "batches"), [52, 52, 52]);
    assert_eq!(field(&dropped, "surplus_elements"), [1, 1, 1]);
    let padded = read(&cluster, &p, 3, &["--job", "pad", "--uneven", "pad"]);
    assert_eq!(field(&padded, "batches"), [53, 53, 53]);
    let (rows, copies) = (field(&padded, "rows"), field(&padded, "padded_rows"));
    assert_eq!(rows.iter().sum::<u64>() - copies.iter().sum::<u64>(), 10_000, "every row once, and copies");
    assert!(copies.iter().sum::<u64>() > 0);
    let whole = cluster.report(&p, &[]).checksums();
    assert_eq!(sum(&padded), u128::from_str_radix(&whole[0], 16).unwrap(), "checksums leave padding out");
    let status = cluster.status();
    let job = status["jobs"].as_array().unwrap().iter().find(|j| j["job"] == "pad").unwrap();
    assert_eq!(
        (&job["num_consumers"], &job["padded_elements"], &job["state"]),
        (&json!(3), &json!(2), &json!("finished"))
    );
    cluster.stop();
}

/// Rows that take time: 1,200 elements of 50.
fn slow() -> Pipeline {
    Pipeline::of(json!({ "range": 60_000 }), json!([{ "burn": { "per_row": "50us" } }, { "batch": 50 }]))
}

/// Waits until the consumers have taken elements.
fn wait_for_elements(cluster: &Cluster) {
    cluster.wait_for_status("rows", |s| {
        let job = &s["jobs"][0];
        let rows = job["stages"].as_array()?.last()?["rows_out"].as_u64()?;
        (rows > 5_000 && job["clients"] == 2).then_some(())
    });
}

/// Both consumers of [`slow`] got equally many elements. One of them was killed and came back: the difference is what it had
/// before.
fn check_elements(p: &Pipeline, reports: [String; 2]) {
    let load = |name: String| serde_json::from_slice(&std::fs::read(p.folder().join(name)).unwrap()).unwrap();
    let reports: Vec<Value> = reports.into_iter().map(load).collect();
    let (batches, rows, copies) =
        (field(&reports, "batches"), field(&reports, "rows"), field(&reports, "padded_rows"));
    let before = batches[0] - batches[1];
    let own = (rows.iter().sum::<u64>() - copies.iter().sum::<u64>()) / 50;
    assert_eq!(own + before, 1_200, "no element is lost or comes twice: {batches:?} {rows:?} {copies:?}");
}

#[test]
fn a_consumer_that_is_killed_and_does_not_come_back_ends_the_epoch_of_the_others_by_name() {
    let cluster = Cluster::start_with(1, &["--client-timeout", "2s", "--consumer-wait", "1s"], &[]);
    let p = slow();
    let (first, _) = start(&cluster, &p, 0, 2, &["--job", "train"]);
    let (second, _) = start(&cluster, &p, 1, 2, &["--job", "train"]);
    wait_for_elements(&cluster);
    let killed = Instant::now();
    second.signal("KILL");
    let said = ["have not come within 1", "consumer 1 of 2", "is gone before the end of the epoch"];
    first.wait().expect_code(3).expect_error(&said);
    // Without `--client-timeout` the consumer is missed after a minute.
    assert!(killed.elapsed() < Duration::from_secs(50), "{:?}", killed.elapsed());
    // All start again.
    let small = Pipeline::of(json!({ "range": 1000 }), json!([{ "batch": 10 }]));
    assert_eq!(field(&read(&cluster, &small, 2, &["--job", "again"]), "batches"), [50, 50]);
    drop(second);
    cluster.stop();
}

#[test]
fn a_consumer_that_is_killed_comes_back_under_its_index_and_the_epoch_goes_on() {
    let cluster = Cluster::start_with(2, &["--client-timeout", "2s"], &[]);
    let p = slow();
    let (first, one) = start(&cluster, &p, 0, 2, &["--job", "train"]);
    let (second, _) = start(&cluster, &p, 1, 2, &["--job", "train"]);
    wait_for_elements(&cluster);
    second.signal("KILL");
    second.wait_for_end();
    cluster.wait_for_status("the wait for the consumer", |s| (s["jobs"][0]["clients"] == 1).then_some(()));
    let (back, two) = start(&cluster, &p, 1, 2, &["--job", "train"]);
    first.wait().expect_code(0);
    back.wait().expect_code(0);
    check_elements(&p, [one, two]);
    cluster.stop();
}

#[test]
fn a_consumer_that_is_killed_before_its_dispatcher_is_comes_back_and_the_epoch_goes_on() {
    let mut cluster = Cluster::start_with(2, &["--client-timeout", "2s", "--state-dir", "state"], &[]);
    let p = slow();
    let (first, one) = start(&cluster, &p, 0, 2, &["--job", "train"]);
    let (second, _) = start(&cluster, &p, 1, 2, &["--job", "train"]);
    wait_for_elements(&cluster);
    second.signal("KILL");
    second.wait_for_end();
    // Before it can miss the consumer.
    cluster.dispatcher.process.signal("KILL");
    cluster.dispatcher.process.wait_for_end();
    cluster.return_dispatcher();
    let (back, two) = start(&cluster, &p, 1, 2, &["--job", "train"]);
    first.wait().expect_code(0);
    back.wait().expect_code(0);
    check_elements(&p, [one, two]);
    cluster.stop();
}

#[test]
fn a_consumer_that_is_stopped_comes_back_with_its_state() {
    let cluster = Cluster::start(2);
    let p = slow();
    let file = p.folder().join("state.json").display().to_string();
    let (first, one) = start(&cluster, &p, 0, 2, &["--job", "train"]);
    let (second, _) = start(&cluster, &p, 1, 2, &["--job", "train", "--state", &file, "--no-checksum"]);
    wait_for_elements(&cluster);
    second.signal("TERM");
    second.wait().expect_error(&["the state is written"]);
    let state: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let (back, two) = start(&cluster, &p, 1, 2, &["--job", "train", "--state", &file, "--resume"]);
    first.wait().expect_code(0);
    back.wait().expect_code(0);
    let load = |name: String| serde_json::from_slice(&std::fs::read(p.folder().join(name)).unwrap()).unwrap();
    let reports: Vec<Value> = [one, two].into_iter().map(load).collect();
    let batches = field(&reports, "batches");
    assert_eq!(batches[0], batches[1] + state["elements"].as_u64().unwrap());
    let copies = field(&reports, "padded_rows").iter().sum::<u64>();
    let rows = field(&reports, "rows").iter().sum::<u64>() + state["rows"].as_u64().unwrap();
    assert_eq!(rows - copies, 60_000);
    cluster.stop();
}

/// The second one has come back to the epoch, which waits for the first one, before it is stopped, too.
#[test]
fn consumers_that_are_stopped_one_after_another_go_on_from_their_states() {
    let cluster = Cluster::start(2);
    let p = slow();
    let files = [0, 1].map(|index| p.folder().join(format!("state-{index}.json")).display().to_string());
    let begin = |index: u32, more: &[&str]| {
        let mut args = vec!["--job", "train", "--no-checksum", "--worker-wait", "20s", "--state"];
        args.push(&files[index as usize]);
        args.extend(more);
        start(&cluster, &p, index, 2, &args)
    };
    let (first, _) = begin(0, &[]);
    let (second, _) = begin(1, &[]);
    wait_for_elements(&cluster);
    first.signal("TERM");
    first.wait().expect_error(&["the state is written"]);
    cluster.wait_for_status("the other consumer", |s| (s["jobs"][0]["clients"] == 1).then_some(()));
    second.signal("TERM");
    second.wait().expect_error(&["the state is written"]);
    let load = |path: &str| -> Value { serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap() };
    let states = files.clone().map(|file| load(&file));
    let reports = [0, 1].map(|index| begin(index, &["--resume"])).map(|(process, report)| {
        process.wait().expect_code(0);
        load(&p.folder().join(report).display().to_string())
    });
    let totals: Vec<u64> = (field(&reports, "batches").iter().zip(&states))
        .map(|(batches, state)| batches + state["elements"].as_u64().unwrap())
        .collect();
    assert_eq!(totals, [600, 600]);
    let before: u64 = states.iter().map(|state| state["rows"].as_u64().unwrap()).sum();
    assert_eq!(field(&reports, "rows").iter().sum::<u64>() + before, 60_000);
    cluster.stop();
}

#[test]
fn a_consumer_that_does_not_come_is_waited_for_within_the_dispatchers_consumer_wait() {
    let cluster = Cluster::start_with(1, &["--consumer-wait", "500ms"], &[]);
    let p = Pipeline::of(json!({ "range": 100_000 }), json!([{ "batch": 10 }]));
    let (alone, _) = start(&cluster, &p, 1, 3, &["--job", "train"]);
    alone.wait().expect_code(3).expect_error(&["of 3 consumers", "0, 2", "--consumer-wait"]);
    for wrong in [&["--num-consumers", "2"][..], &["--consumer-index", "0"], &["--uneven", "pad"]] {
        cluster.read(&p, wrong).expect_code(2);
    }
    let beyond = cluster.read(&p, &["--job", "j", "--num-consumers", "2", "--consumer-index", "2"]);
    beyond.expect_code(2).expect_error(&["consumer_index 2"]);
    cluster.stop();
}

/// Rows with lists of 1 to 97 items.
fn with_lists(last: &Value) -> Pipeline {
    let lists = json!({ "with_columns": { "tokens": "array_repeat(id, id * 7919 % 97 + 1)" } });
    Pipeline::of(json!({ "range": 6_000 }), json!([lists, { "shuffle": 100 }, last]))
}

#[test]
fn consumers_read_in_rounds_with_balance() {
    let cluster = Cluster::start(2);
    let buckets = json!({ "bucket_by_length": {
        "length": "array_length(tokens)", "boundaries": [32, 64], "batch_sizes": 10, "drop_remainder": true } });
    let bucket = read(&cluster, &with_lists(&buckets), 3, &["--job", "bucket", "--balance", "bucket"]);
    let rounds = field(&bucket, "rounds");
    assert_eq!(rounds, [rounds[0]; 3]);
    assert_eq!(field(&bucket, "batches"), rounds);
    assert!(
        rounds[0] >= (600 - 2 * 3 - 3 * 2) / 3,
        "{rounds:?}: short batches and less than a round per class are dropped"
    );
    let waits = |r: &Value| r["epochs"][0]["consumer_wait_s"].as_f64() <= r["epochs"][0]["wait_s"].as_f64();
    assert!(bucket.iter().all(waits), "a part of the wait: {bucket:?}");
    let tokens = with_lists(&json!({ "batch": 20 }));
    let packed = read(&cluster, &tokens, 3, &["--job", "tokens", "--balance", "tokens"]);
    assert_eq!((field(&packed, "rounds"), field(&packed, "rows")), (vec![100; 3], vec![2_000; 3]));
    let whole = cluster.report(&tokens, &[]).checksums();
    assert_eq!(
        sum(&packed),
        u128::from_str_radix(&whole[0], 16).unwrap(),
        "every row once, whatever batch it is in"
    );
    let status = cluster.status();
    for (balance, rounds) in [("bucket", rounds[0]), ("tokens", 100)] {
        let job = status["jobs"].as_array().unwrap().iter().find(|j| j["job"] == balance).unwrap();
        assert_eq!((&job["balance"], &job["state"]), (&json!(balance), &json!("finished")));
        assert_eq!(job["rounds"], rounds, "its consumers have left: {job}");
    }
    let plain = read(&cluster, &tokens, 2, &["--job", "plain", "--balance", "none"]);
    assert!(plain.iter().all(|r| r["epochs"][0].get("rounds").is_none()), "{plain:?}");
    cluster.read(&tokens, &["--balance", "bucket"]).expect_code(2);
    let numbers = Pipeline::of(json!({ "range": 10 }), json!([{ "batch": 2 }]));
    let wrong = ["--job", "n", "--num-consumers", "2", "--consumer-index", "0", "--balance", "tokens"];
    cluster.read(&numbers, &wrong).expect_code(2).expect_error(&["no column is a list or a text"]);
    cluster.stop();
}

#[test]
fn consumers_in_rounds_store_an_epoch_and_read_the_next_one() {
    let cache = tempfile::tempdir().unwrap();
    let cluster = Cluster::start_with(2, &["--cache", cache.path().to_str().unwrap()], &[]);
    let lists = json!({ "with_columns": { "tokens": "array_repeat(id, id * 7919 % 97 + 1)" } });
    let buckets = json!({ "bucket_by_length": {
        "length": "array_length(tokens)", "boundaries": [32, 64], "batch_sizes": 10 } });
    let p = Pipeline::of(json!({ "range": 6_000 }), json!([lists, { "autocache": "lists" }, buckets]));
    let more =
        ["--job", "train", "--balance", "bucket", "--uneven", "pad", "--epochs", "2", "--policy", "full"];
    let reports = read(&cluster, &p, 2, &more);
    let whole = cluster.report(&p, &["--policy", "compute"]).checksums();
    for epoch in 0..2 {
        let of = |r: &Value| r["epochs"][epoch].clone();
        let rounds: Vec<u64> = reports.iter().map(|r| of(r)["rounds"].as_u64().unwrap()).collect();
        assert_eq!(rounds[0], rounds[1], "epoch {epoch}");
        let checksum =
            |r: &Value| u128::from_str_radix(of(r)["rows_checksum"].as_str().unwrap(), 16).unwrap();
        let sum = reports.iter().fold(0u128, |sum, r| sum.wrapping_add(checksum(r)));
        assert_eq!(sum, u128::from_str_radix(&whole[0], 16).unwrap(), "epoch {epoch}: every row once");
        let splits = of(&reports[0])["splits"].clone();
        let (put, get) = (splits["put"].as_u64().unwrap(), splits["get"].as_u64().unwrap());
        assert!(
            if epoch == 0 { put > 0 && get == 0 } else { put == 0 && get > 0 },
            "epoch {epoch}: {splits}"
        );
    }
    cluster.stop();
}

/// What divides evenly is neither dropped nor repeated, whatever the number of workers, ranks and the batch.
#[test]
fn det_06_what_divides_evenly_comes_exactly_once() {
    for workers in [1, 3] {
        let cluster = Cluster::start(workers);
        for (rows, batch) in [(512, 1), (512, 2), (1024, 2)] {
            let p = Pipeline::of(json!({ "range": rows }), json!([{ "batch": batch }]));
            let job = format!("{rows}-{batch}");
            let reports = read(&cluster, &p, 8, &["--job", &job]);
            assert_eq!(field(&reports, "rows"), [rows / 8; 8]);
            assert_eq!(field(&reports, "surplus_elements"), [0; 8]);
            let whole = Report::load(&{
                cluster.report(&p, &[]);
                p.folder().join("read-report.json")
            });
            assert_eq!(sum(&reports), u128::from_str_radix(&whole.checksums()[0], 16).unwrap());
        }
        cluster.stop();
    }
}

/// `--rank-from-env`: processes that carry the environment of a launcher are its consumers. Contradictions name both.
#[test]
fn consumers_take_their_rank_from_the_launcher() {
    let cluster = Cluster::start(2);
    let p = Pipeline::of(json!({ "range": 10_000 }), json!([{ "shuffle": 200 }, { "batch": 64 }]));
    let read = |job: &str, flag: &str, report: &str, variables: &[(&str, &str)]| {
        let mut command = Command::new(caju_binary());
        command.args([
            "read",
            "pipeline.yaml",
            "--dispatcher",
            cluster.address(),
            "--job",
            job,
            "--uneven",
            "pad",
        ]);
        command.args([flag, "--report", report]).current_dir(p.folder()).envs(variables.iter().copied());
        Process::start(command, format!("{variables:?}"))
    };
    for (rank, size, flag) in [
        ("SLURM_PROCID", "SLURM_NTASKS", "--rank-from-env"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "--rank-from-env=openmpi"),
    ] {
        let running = ["0", "1"].map(|i| {
            let of_launcher = [(rank, i), (size, "2"), ("RANK", "7")];
            // A variable of another launcher does not matter when this one is named.
            let variables = if flag.contains('=') { &of_launcher[..] } else { &of_launcher[..2] };
            read(rank, flag, &format!("rank-{i}.json"), variables)
        });
        for process in running {
            process.wait().expect_code(0);
        }
        let load = |i| Report::load(&p.folder().join(format!("rank-{i}.json"))).0;
        let reports = [load(0), load(1)];
        assert_eq!(field(&reports, "batches"), [79, 79]);
        assert_eq!(sum(&reports), u128::from_str_radix(&cluster.report(&p, &[]).checksums()[0], 16).unwrap());
    }
    let slurm_and_torchrun =
        [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2"), ("RANK", "1"), ("WORLD_SIZE", "4")];
    let ended = read("both", "--rank-from-env", "both.json", &slurm_and_torchrun).wait();
    ended.expect_code(2).expect_error(&["SLURM_PROCID=0 of SLURM_NTASKS=2", "RANK=1 of WORLD_SIZE=4"]);
    let ended = read("none", "--rank-from-env=pmi", "none.json", &[]).wait();
    ended.expect_code(2).expect_error(&["names no rank (PMI_RANK and PMI_SIZE)"]);
    let both =
        cluster.read(&p, &["--job", "j", "--rank-from-env", "--num-consumers", "2", "--consumer-index", "0"]);
    both.expect_code(2);
    assert!(both.stderr.contains("cannot be used with"), "{}", both.stderr);
    cluster.stop();
}

/// The batch script of docs/slurm.md, with replacements of `srun` and `scontrol` that start the processes on this
/// machine.
#[test]
fn the_batch_script_for_slurm_reads_each_row_once() {
    let p = Pipeline::of(json!({ "range": 10_000 }), json!([{ "batch": 50 }]));
    let wanted = p.report(&[]).checksums();
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/slurm.md")).unwrap();
    let script = page.split("```sh\n").nth(1).unwrap().split("```").next().unwrap();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let script =
        script.replace("7070", &free).replace("train.yaml", "pipeline.yaml").replace("/shared/caju", "cache");
    // Background servers end with the job.
    let script = format!("set -e\n{script}\nkill $(jobs -p); wait\n");
    let folder = p.folder();
    let tool = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    };
    tool("scontrol", "#!/bin/bash\necho 127.0.0.1\n");
    // `--ntasks=N` processes, by default the 4 of the job; all on one machine.
    let srun = r#"#!/bin/bash
count=4 processes=()
trap 'kill "${processes[@]}"; wait; exit 0' TERM
while [[ $1 == --* ]]; do [[ $1 == --ntasks=* ]] && count=${1#--ntasks=}; shift; done
for ((i = 0; i < count; i++)); do SLURM_PROCID=$i SLURM_NTASKS=$count "$@" & processes+=($!); done
for process in "${processes[@]}"; do wait "$process" || exit 1; done
"#;
    tool("srun", srun);
    std::os::unix::fs::symlink(caju_binary(), folder.join("caju")).unwrap();
    let mut command = Command::new("bash");
    let path = format!("{}:{}", folder.display(), std::env::var_os("PATH").unwrap().display());
    command.args(["-c", &script]).current_dir(folder).env("PATH", path);
    command.envs([("SLURM_JOB_NODELIST", "one"), ("SLURM_JOB_NUM_NODES", "2"), ("SLURM_JOB_ID", "17")]);
    Process::start(command, "the batch script".into()).wait().expect_code(0);
    let reports = [0, 1, 2, 3].map(|i| Report::load(&folder.join(format!("report-{i}.json"))).0);
    assert_eq!(field(&reports, "batches"), [50; 4]);
    assert_eq!(sum(&reports), u128::from_str_radix(&wanted[0], 16).unwrap());
}

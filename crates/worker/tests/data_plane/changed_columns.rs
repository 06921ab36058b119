//! The columns of several sources: workers use those that the dispatcher found, and readers take no others.

use std::convert::identity;
use std::iter::repeat_n;
use std::path::Path;
use std::sync::Arc;

use arrow::ipc::writer::FileWriter;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use arrow_flight::FlightDescriptor;
use arrow_schema::{DataType, Field, FieldRef, Schema, SchemaRef};
use caju_client::Client;
use caju_dispatcher::{Bound, Catalog, Definition, EngineCatalog};
use caju_kernels::{Limits, Registry};
use caju_pipeline::LearntBoundaries;
use caju_runtime::{IoCounters, IsolatedThreads, Stores};
use caju_sources::SourceContext;
use caju_types::{ErrorKind, Result};
use object_store::memory::InMemory;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStoreExt, PutPayload};
use serde_json::{Value, json};

use crate::cluster::{Cluster, TEST_TIMEOUT, range, request};
use crate::flight::connect;

type Change = fn(Bound) -> Bound;

/// The engine's catalog, with a change of what it finds.
struct Changed {
    catalog: EngineCatalog,
    change: Change,
}

#[async_trait::async_trait]
impl Catalog for Changed {
    async fn bind(&self, definition: &Definition, source_schema: Option<SchemaRef>) -> Result<Bound> {
        Ok((self.change)(self.catalog.bind(definition, source_schema).await?))
    }

    async fn with_boundaries(
        &self,
        definition: &Definition,
        learnt: &[LearntBoundaries],
    ) -> Result<Definition> {
        self.catalog.with_boundaries(definition, learnt).await
    }

    fn threads(&self) -> IsolatedThreads {
        self.catalog.threads()
    }
}

/// What a dispatcher of an earlier version finds: no columns of several sources.
fn of_earlier_version(bound: Bound) -> Bound {
    Bound { source_schema: Arc::new(Schema::empty()), ..bound }
}

/// The columns of the elements in another order than that in which workers find them.
fn reversed(bound: Bound) -> Bound {
    let fields: Vec<FieldRef> = bound.schema.fields().iter().rev().cloned().collect();
    Bound { schema: Arc::new(Schema::new(fields)), ..bound }
}

/// A cluster with one worker, which also is in the cluster's own process, and such a dispatcher.
async fn start(change: Change) -> Cluster {
    let mut cluster = start_over(Arc::new(Stores::default()), change).await;
    let list = cluster.local.clone();
    cluster.add(|c| c.local = list).await;
    cluster
}

/// A cluster without workers over these stores, and such a dispatcher.
async fn start_over(stores: Arc<Stores>, change: Change) -> Cluster {
    let registry = Registry::new(Limits::default());
    let ctx = SourceContext::new(Arc::clone(&stores), Arc::new(IoCounters::new()));
    let catalog = EngineCatalog::new(registry.clone(), ctx);
    let catalog = Arc::new(Changed { catalog, change });
    Cluster::start_on(catalog, (stores, registry), |_| {}).await
}

/// A client that reads over the network, and one in the process of the worker.
async fn clients(cluster: &Cluster) -> [Client; 2] {
    let list = cluster.local.clone();
    [cluster.client().await, cluster.client_with(|c| c.local = list).await]
}

/// Two files, of the rows 0 to 49 and 50 to 99.
fn write(folder: &Path, line: impl Fn(i64) -> String) {
    for (name, ids) in [("a", 0_i64..50), ("b", 50..100)] {
        let lines: String = ids.map(&line).collect();
        std::fs::write(folder.join(name).with_extension("jsonl"), lines).unwrap();
    }
}

fn combined(kind: &str, folder: &Path) -> Value {
    let datasets = ["a", "b"].map(|name| {
        let file = folder.join(name).with_extension("jsonl");
        json!({"source": {"json": file.to_str().unwrap()}})
    });
    match kind {
        "sample" => json!({"source": {"sample": {"datasets": datasets, "weights": [0.5, 0.5]}}}),
        _ => json!({"source": {"concatenate": datasets}}),
    }
}

/// The sorted values of a column in a new job. The column is found as Python finds it: by its position in the epoch's columns.
async fn column(client: &Client, def: &Value, job: &str, name: &str) -> Result<Vec<i64>> {
    let mut reader = client.read(request(def, job)).await?;
    let at = reader.schema().index_of(name).unwrap();
    let all = async {
        let mut values = Vec::new();
        while let Some(element) = reader.next().await? {
            let column = element.batch.column(at).as_primitive::<Int64Type>();
            values.extend_from_slice(column.values());
        }
        values.sort_unstable();
        Ok(values)
    };
    tokio::time::timeout(TEST_TIMEOUT, all).await.expect("the epoch must end")
}

/// Found by a review: the worker used the pipeline of an earlier job, whose datasets had the columns x and y, for a job whose
/// datasets had y and x by then. A user got the values of y under the name x.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_over_combined_files_that_were_rewritten_gets_the_columns_that_they_have_now() {
    let changes: [Change; 2] = [identity, of_earlier_version];
    for change in changes {
        let cluster = start(change).await;
        for (n, client) in clients(&cluster).await.iter().enumerate() {
            for kind in ["concatenate", "sample"] {
                let folder = tempfile::tempdir().unwrap();
                let def = combined(kind, folder.path());
                write(folder.path(), |id| format!("{{\"x\": {id}, \"y\": {}}}\n", id + 1000));
                let x = column(client, &def, &format!("{kind}-{n}-before"), "x").await.unwrap();
                assert!(x.into_iter().eq(0..100), "{kind}");
                write(folder.path(), |id| format!("{{\"y\": {}, \"x\": {id}}}\n", id + 2000));
                let x = column(client, &def, &format!("{kind}-{n}-x"), "x").await.unwrap();
                assert!(x.iter().copied().eq(0..100), "{kind}: {x:?}");
                let y = column(client, &def, &format!("{kind}-{n}-y"), "y").await.unwrap();
                assert!(y.iter().copied().eq(2000..2100), "{kind}: {y:?}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_with_other_columns_than_those_of_its_epoch_is_refused() {
    let cluster = start(reversed).await;
    let def = range(100, &[json!({"with_columns": {"y": "id * 2"}})]);
    for (n, client) in clients(&cluster).await.iter().enumerate() {
        let job = format!("job-{n}");
        let e = column(client, &def, &job, "y").await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::FailedPrecondition, "{e}");
        let differs = "column 0 is `id` of type Int64 instead of `y` of type Int64";
        assert!(e.message().contains(&format!("job `{job}`: worker ")), "{e}");
        assert!(e.message().contains(differs), "{e}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flight_stream_with_other_columns_than_those_of_its_epoch_is_refused() {
    let cluster = start(reversed).await;
    let def = range(100, &[json!({"with_columns": {"y": "id * 2"}})]);
    let command = json!({"pipeline": def, "job": "flight", "epoch": 0});
    let mut dispatcher = connect(&cluster.address()).await;
    let info = dispatcher.get_flight_info(FlightDescriptor::new_cmd(command.to_string())).await.unwrap();
    let mut worker = connect(cluster.workers[0].address()).await;
    let e = match worker.do_get(info.endpoint[0].ticket.clone().unwrap()).await {
        Err(e) => e.to_string(),
        Ok(_) => panic!("other columns were sent"),
    };
    assert!(e.contains("job `flight`: worker ") && e.contains("column 0 is `id` of type Int64"), "{e}");
    tokio::time::timeout(TEST_TIMEOUT, cluster.workers[0].idle()).await.expect("the task ends");
}

/// The rows of each of the Arrow files, and those of their record batches.
const FILE_ROWS: i64 = 10_240;
const BATCH_ROWS: i64 = 256;

/// The names of Arrow files with the names of their columns, which are letters.
type Files = [(&'static str, &'static str)];

/// The files of the dispatcher and of the first worker.
const FILES: &Files = &[("a", "xy"), ("b", "xy"), ("c", "uv")];
/// The same with their columns in another order.
const REVERSED: &Files = &[("a", "yx"), ("b", "yx"), ("c", "vu")];
/// The same with another column.
const OTHER: &Files = &[("a", "xz"), ("b", "xz"), ("c", "uv")];

/// The value of a column in a row.
fn value(column: &str, row: i64) -> i64 {
    i64::from(column.as_bytes()[0]) * 1_000_000 + row
}

fn arrow_file(columns: &str) -> Vec<u8> {
    let names: Vec<String> = columns.chars().map(String::from).collect();
    let fields: Vec<Field> = names.iter().map(|name| Field::new(name, DataType::Int64, false)).collect();
    let schema = Arc::new(Schema::new(fields));
    let mut writer = FileWriter::try_new(Vec::new(), &schema).unwrap();
    for start in (0..FILE_ROWS).step_by(BATCH_ROWS as usize) {
        let column = |name: &String| -> ArrayRef {
            let rows = start..start + BATCH_ROWS;
            Arc::new(Int64Array::from_iter_values(rows.map(|row| value(name, row))))
        };
        let batch = RecordBatch::try_new(Arc::clone(&schema), names.iter().map(column).collect()).unwrap();
        writer.write(&batch).unwrap();
    }
    writer.finish().unwrap();
    writer.into_inner().unwrap()
}

/// Stores of one process alone. Files of one name have the same size and e-tag in all such stores: to a worker they are the listed
/// version.
async fn stores_of(files: &Files) -> Arc<Stores> {
    let store = InMemory::new();
    for (name, columns) in files {
        let path = ObjectPath::from(format!("{name}.arrow"));
        store.put(&path, PutPayload::from(arrow_file(columns))).await.unwrap();
    }
    let stores = Stores::default();
    stores.register("memory://columns", Arc::new(store)).unwrap();
    Arc::new(stores)
}

/// Two files together. Each record batch is a split.
fn over_files(kind: &str) -> Value {
    let file = |name: &str| {
        let path = format!("memory://columns/{name}.arrow");
        json!({"source": {"arrow": {"path": path, "split": 1}}})
    };
    match kind {
        "zip" => json!({"source": {"zip": [file("a"), file("c")]}}),
        "sample" => {
            json!({"source": {"sample": {"datasets": [file("a"), file("b")], "weights": [0.5, 0.5]}}})
        }
        _ => json!({"source": {"concatenate": [file("a"), file("b")]}}),
    }
}

/// The columns of an epoch by their names, with their sorted values.
type Columns = Vec<(String, Vec<i64>)>;

/// What a reader gets whose worker leaves in mid-epoch, after another one with the files `theirs` has joined. Returns the address of
/// the other one, too.
async fn with_late_worker(kind: &str, change: Change, theirs: &Files) -> (String, Result<Columns>) {
    let mut cluster = start_over(stores_of(FILES).await, change).await;
    cluster.add(|_| {}).await;
    let client = cluster.client().await;
    let mut reader = client.read(request(&over_files(kind), "late")).await.unwrap();
    let names: Vec<String> = reader.schema().fields().iter().map(|field| field.name().clone()).collect();
    let mut columns: Columns = names.into_iter().map(|name| (name, Vec::new())).collect();
    let mut take = |batch: &RecordBatch| {
        for (column, (_, values)) in batch.columns().iter().zip(&mut columns) {
            values.extend_from_slice(column.as_primitive::<Int64Type>().values());
        }
    };
    take(&reader.next().await.unwrap().unwrap().batch);
    let theirs = stores_of(theirs).await;
    cluster.add(|c| c.stores = theirs).await;
    // The files have three times as many bytes as the queues of the worker and of the reader, so the late worker has rows to send.
    cluster.workers.remove(0).shutdown().await;
    let all = async {
        while let Some(element) = reader.next().await? {
            take(&element.batch);
        }
        Ok(())
    };
    let ended: Result<()> = tokio::time::timeout(TEST_TIMEOUT, all).await.expect("the epoch must end");
    columns.iter_mut().for_each(|(_, values)| values.sort_unstable());
    (cluster.workers[0].address().to_owned(), ended.map(|()| columns))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_joins_a_running_epoch_serves_the_columns_of_the_epoch() {
    for (kind, names, copies) in [("concatenate", "xy", 2), ("sample", "xy", 2), ("zip", "xyuv", 1)] {
        for theirs in [FILES, REVERSED] {
            let (_, columns) = with_late_worker(kind, identity, theirs).await;
            let columns = columns.unwrap();
            assert_eq!(columns.len(), names.len(), "{kind}");
            for ((name, values), want) in columns.iter().zip(names.chars()) {
                assert_eq!(*name, want.to_string(), "{kind}");
                let rows = (0..FILE_ROWS).flat_map(|row| repeat_n(value(name, row), copies));
                assert!(values.iter().copied().eq(rows), "{kind}: {name} of {} rows", values.len());
            }
        }
    }
}

/// An earlier dispatcher leaves it to each worker to find the columns. Today's says which columns there are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_joins_a_running_epoch_with_other_columns_is_refused() {
    let cases: [(Change, &Files, &str); 3] = [
        (of_earlier_version, REVERSED, "column 0 is `y` of type Int64 instead of `x` of type Int64"),
        (of_earlier_version, OTHER, "column 1 is `z` of type Int64 instead of `y` of type Int64"),
        (identity, OTHER, "differs from that of the first file of the source: it has no column `y`"),
    ];
    for kind in ["concatenate", "sample", "zip"] {
        for (n, (change, theirs, says)) in cases.into_iter().enumerate() {
            let (late, ended) = with_late_worker(kind, change, theirs).await;
            let e = ended.unwrap_err();
            assert!(e.message().contains(says), "{kind}, case {n}: {e}");
            let (wanted, names_worker) = match n {
                2 => (ErrorKind::InvalidArgument, false),
                _ => (ErrorKind::FailedPrecondition, true),
            };
            assert_eq!(e.kind(), wanted, "{kind}, case {n}: {e}");
            assert!(!names_worker || e.message().contains(&format!("job `late`: worker {late} ")), "{e}");
        }
    }
}

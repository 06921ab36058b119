//! The columns of several sources: workers use those that the dispatcher found, and readers take no others.

use std::convert::identity;
use std::path::Path;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_flight::FlightDescriptor;
use arrow_schema::{FieldRef, Schema, SchemaRef};
use caju_client::Client;
use caju_dispatcher::{Bound, Catalog, Definition, EngineCatalog};
use caju_kernels::{Limits, Registry};
use caju_pipeline::LearntBoundaries;
use caju_runtime::{IoCounters, IsolatedThreads, Stores};
use caju_sources::SourceContext;
use caju_types::{ErrorKind, Result};
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
    let (stores, registry) = (Arc::new(Stores::default()), Registry::new(Limits::default()));
    let ctx = SourceContext::new(Arc::clone(&stores), Arc::new(IoCounters::new()));
    let catalog = EngineCatalog::new(registry.clone(), ctx);
    let catalog = Arc::new(Changed { catalog, change });
    let mut cluster = Cluster::start_on(catalog, (stores, registry), |_| {}).await;
    let list = cluster.local.clone();
    cluster.add(|c| c.local = list).await;
    cluster
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

//! The names of jobs and datasets: who shares an epoch, and what is refused.

use std::collections::HashSet;

use caju_proto::v1;
use caju_types::{DatasetId, ErrorKind, JobName};
use serde_json::json;

use super::fake::{World, open_request, run};
use crate::config::DispatcherConfig;
use crate::workers::WorkerList;

#[test]
fn jobs_are_shared_by_name_and_refused_for_other_data() {
    run(async {
        let w = World::new();
        w.worker("a:1").await;
        let def = json!({"splits": 4});
        let first = w.open(&def, "j").await;
        let second = w.open(&def, "j").await;
        assert_eq!(first.iteration_id, second.iteration_id);
        assert_ne!(first.client_id, second.client_id);
        assert_eq!(w.catalog.binds.load(std::sync::atomic::Ordering::Relaxed), 1, "bound once");

        let e = w.core.epochs.open_iteration(open_request(&json!({"splits": 5}), "j")).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::AlreadyExists);
        assert!(e.message().contains(&first.fingerprint), "{e}");
        let e = w
            .core
            .epochs
            .open_iteration(open_request(&json!({"splits": 4, "path": "b"}), "j"))
            .await
            .unwrap_err();
        assert!(e.message().contains("differ in paths"), "{e}");
        let seeded = v1::OpenIterationRequest { seed: 9, has_seed: true, ..open_request(&def, "j") };
        let e = w.core.epochs.open_iteration(seeded).await.unwrap_err();
        assert!(e.message().contains("seed 0, not 9"), "{e}");
        let off =
            v1::OpenIterationRequest { mode: v1::ProcessingMode::Off.into(), ..open_request(&def, "j") };
        assert_eq!(w.core.epochs.open_iteration(off).await.unwrap_err().kind(), ErrorKind::AlreadyExists);

        let secret = first.client_secret.clone();
        let again = v1::OpenIterationRequest {
            client_id: first.client_id,
            client_secret: secret.clone(),
            ..open_request(&def, "j")
        };
        assert_eq!(w.core.epochs.open_iteration(again).await.unwrap().client_id, first.client_id);
        let next = v1::OpenIterationRequest {
            epoch: 1,
            client_id: first.client_id,
            client_secret: secret,
            ..open_request(&def, "j")
        };
        let next = w.core.epochs.open_iteration(next).await.unwrap();
        assert_ne!(next.iteration_id, first.iteration_id);
        assert_eq!(next.client_id, first.client_id);
    });
}

/// How rows are stored and read is the job's. Its number of epochs is only a plan.
#[test]
fn a_job_is_joined_under_its_own_policy_and_encoding_alone() {
    run(async {
        let w = World::with(|config| DispatcherConfig { cache_url: "memory://naming".into(), ..config });
        let def = json!({"splits": 4, "hints": ["decoded"]});
        let request = |job: &str, policy: &str, encoding: &str, epochs: u64| v1::OpenIterationRequest {
            policy: policy.into(),
            encoding: encoding.into(),
            epochs,
            ..open_request(&def, job)
        };
        let open = async |job: &str, policy: &str, encoding: &str, epochs: u64| {
            w.core.epochs.open_iteration(request(job, policy, encoding, epochs)).await
        };
        let first = open("j", "compute", "arrow/lz4", 3).await.unwrap();
        let joins =
            [("", "", 0), ("compute", "", 0), ("", "arrow/lz4", 0), ("compute", "arrow/lz4", 3), ("", "", 7)];
        for (policy, encoding, epochs) in joins {
            let joined = open("j", policy, encoding, epochs).await.unwrap();
            assert_eq!(joined.iteration_id, first.iteration_id, "{policy} {encoding} {epochs}");
        }
        let job = w.core.snapshot().jobs[&JobName("j".into())].clone();
        assert_eq!(job.spec.epochs, Some(3), "a reader that plans for 7 epochs changes nothing");

        open("k", "compute", "", 0).await.unwrap();
        let refused = [
            ("j", "auto", "", "policy `compute`, not `auto`", "leave the policy out"),
            ("j", "hint:decoded", "", "policy `compute`, not `hint:decoded`", "leave the policy out"),
            ("j", "", "parquet/zstd", "encoding `arrow/lz4`, not `parquet/zstd`", "leave the encoding out"),
            ("k", "", "arrow/lz4", "no encoding of its own, not `arrow/lz4`", "leave the encoding out"),
        ];
        for (job, policy, encoding, differ, way) in refused {
            let e = open(job, policy, encoding, 0).await.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::AlreadyExists, "{e}");
            let named = format!("job `{job}`");
            for says in [named.as_str(), differ, "take another job name", way] {
                assert!(e.message().contains(says), "{e}");
            }
        }
        assert_eq!(w.core.snapshot().jobs.len(), 2);
    });
}

/// Where shards are cut by rows `auto` and `cachew` compute. Each epoch and each reader of such a job may name one of them.
#[test]
fn a_policy_that_computes_by_row_is_that_of_its_job_for_each_reader_and_epoch() {
    run(async {
        let w = World::with(|config| DispatcherConfig {
            cache_url: "memory://by-row".into(),
            workers: WorkerList::first(2),
            ..config
        });
        for mode in [v1::ProcessingMode::Data, v1::ProcessingMode::FileOrData, v1::ProcessingMode::Hint] {
            for first in ["auto", "cachew", "compute", ""] {
                let open = async |policy: &str, epoch: u64| {
                    let request = v1::OpenIterationRequest {
                        policy: policy.into(),
                        mode: mode.into(),
                        epoch,
                        ..open_request(&json!({"source": {"range": 20}}), &format!("{mode:?}-{first}"))
                    };
                    w.core.epochs.open_iteration(request).await
                };
                for (policy, epoch) in [(first, 0), (first, 0), ("cachew", 0), (first, 1), ("auto", 1)] {
                    let opened = open(policy, epoch).await.unwrap();
                    assert_eq!(opened.policy, "compute", "{mode:?}: {policy}, epoch {epoch}");
                }
                let e = open("full", 1).await.unwrap_err();
                assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
                assert!(e.message().contains("policy `full`: with shards by"), "{e}");
            }
        }
    });
}

#[test]
fn reg_13_a_chosen_dataset_id_is_part_of_its_jobs_names() {
    run(async {
        let w = World::new();
        w.worker("a:1").await;
        let definition = json!({"splits": 4});
        for id in ["a", "b"] {
            let register =
                v1::RegisterDatasetRequest { definition_json: definition.to_string(), dataset_id: id.into() };
            w.core.datasets.register_dataset(register).await.unwrap();
        }
        let request = |id: &str, job: &str| v1::OpenIterationRequest {
            definition_json: String::new(),
            dataset_id: id.into(),
            ..open_request(&json!({}), job)
        };
        let mut iterations = HashSet::new();
        for (id, job, name) in [("a", "j", "j:a"), ("b", "j", "j:b"), ("b", "k", "k:b")] {
            let opened = w.core.epochs.open_iteration(request(id, job)).await.unwrap();
            assert_eq!(opened.job, name);
            assert!(iterations.insert(opened.iteration_id), "nothing is shared");
            let joined = w.core.epochs.open_iteration(request(id, job)).await.unwrap();
            assert_eq!(joined.iteration_id, opened.iteration_id);
            let again = v1::OpenIterationRequest { job: opened.job, ..open_request(&definition, "") };
            let again = w.core.epochs.open_iteration(again).await.unwrap();
            assert_eq!(again.iteration_id, opened.iteration_id, "a reader that opens its epoch again");
        }
        let unnamed = w.core.epochs.open_iteration(open_request(&definition, "j")).await.unwrap();
        assert_eq!(unnamed.job, "j");
        assert!(iterations.insert(unnamed.iteration_id), "a dataset without a chosen identifier");
        for id in ["a", "b"] {
            let alone = w.core.epochs.open_iteration(request(id, "")).await.unwrap();
            assert!(iterations.insert(alone.iteration_id));
        }
    });
}

#[test]
fn datasets_are_named_by_fingerprint_or_by_choice() {
    run(async {
        let w = World::new();
        let register = |def: serde_json::Value, id: &str| v1::RegisterDatasetRequest {
            definition_json: def.to_string(),
            dataset_id: id.to_string(),
        };
        let a = w.core.datasets.register_dataset(register(json!({"splits": 4}), "")).await.unwrap();
        assert_eq!(a.dataset_id, a.fingerprint);
        let b = w.core.datasets.register_dataset(register(json!({"splits": 4}), "")).await.unwrap();
        assert_eq!(b.dataset_id, a.dataset_id);
        let other_path =
            w.core.datasets.register_dataset(register(json!({"splits": 4, "path": "x"}), "")).await.unwrap();
        assert_eq!(other_path.fingerprint, a.fingerprint);
        assert_ne!(other_path.dataset_id, a.dataset_id, "the same stages over other files are other data");
        w.core.datasets.register_dataset(register(json!({"splits": 4}), "mine")).await.unwrap();
        w.core.datasets.register_dataset(register(json!({"splits": 4}), "mine")).await.unwrap();
        let e = w.core.datasets.register_dataset(register(json!({"splits": 5}), "mine")).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::AlreadyExists);
        assert!(e.message().contains(&a.fingerprint), "{e}");

        let open =
            v1::OpenIterationRequest { dataset_id: "mine".into(), job: "j".into(), ..Default::default() };
        assert_eq!(w.core.epochs.open_iteration(open).await.unwrap().fingerprint, a.fingerprint);
        let open = v1::OpenIterationRequest { dataset_id: "mime".into(), ..Default::default() };
        let e = w.core.epochs.open_iteration(open).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NotFound);
        assert!(e.message().contains("did you mean `mine`"), "{e}");
    });
}

#[test]
fn a_definition_in_other_words_is_the_same_dataset_and_the_newest_words_run() {
    run(async {
        let w = World::new();
        w.worker("a:1").await;
        let spelt = |spelling: &str| json!({"splits": 1, "spelling": spelling});
        let first = w.open(&spelt("one"), "j").await;
        let second = w.open(&spelt("two"), "j").await;
        assert_eq!(first.iteration_id, second.iteration_id);
        assert!(second.definition_json.contains("one"), "those of readers that are at it");
        let close = |client_id: u64| v1::CloseClientRequest {
            client_id,
            iteration_id: first.iteration_id,
            secret: w.client_secret(client_id, first.iteration_id),
            ..Default::default()
        };
        w.core.clients.close_client(close(first.client_id)).await.unwrap();
        w.core.clients.close_client(close(second.client_id)).await.unwrap();
        let register =
            v1::RegisterDatasetRequest { definition_json: spelt("two").to_string(), ..Default::default() };
        let id = DatasetId(w.core.datasets.register_dataset(register).await.unwrap().dataset_id);
        let known = w.core.datasets.registered_dataset(&id).await.unwrap();
        assert_eq!(known.fingerprint, first.fingerprint);
        assert!(known.definition_json.contains("two"), "nobody reads, so the newest words count");
        let e = w.core.datasets.registered_dataset(&DatasetId("other".into())).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NotFound);
    });
}

/// Functions in Python say what their code is. A job gets the rows of the functions that it sent, also while another job
/// runs functions that say the same; who names a job joins it as it is.
#[test]
fn jobs_share_a_dataset_only_if_they_sent_the_same_functions() {
    run(async {
        let world = World::new();
        let sent = |payload: &str| json!({"splits": 2, "payload": payload});
        let first = world.open(&sent("honest"), "a").await;
        let joined = world.open(&sent("another form of it"), "a").await;
        assert_eq!(joined.iteration_id, first.iteration_id);
        assert_eq!(joined.definition_json, first.definition_json);
        let apart = world.open(&sent("forged"), "b").await;
        assert!(apart.definition_json.contains("forged"));
        let same = world.open(&sent("honest"), "c").await;
        assert!(same.definition_json.contains("honest"));
        assert_eq!(world.core.snapshot().datasets.len(), 2);
    });
}

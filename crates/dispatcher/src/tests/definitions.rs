//! Definitions in the journal, among them those that this version cannot read.

use arrow_schema::Schema;
use caju_proto::v1;
use caju_types::{DatasetId, ErrorKind, Fingerprint, hash128};
use caju_wire::schema_to_ipc;
use serde_json::{Value, json};

use super::fake::{World, open_request, run};
use crate::Definition;
use crate::state::Update;

/// What an older version may have accepted.
const UNREADABLE: &str = r#"{"splits": 2, "later":"#;

fn opening(dataset: &str, job: &str) -> v1::OpenIterationRequest {
    v1::OpenIterationRequest {
        dataset_id: dataset.into(),
        definition_json: String::new(),
        ..open_request(&json!({}), job)
    }
}

async fn text_of(w: &World, dataset: &str) -> String {
    w.core.datasets.registered_dataset(&DatasetId(dataset.into())).await.unwrap().definition_json
}

/// Replaces the definition of the dataset `old` in the journal.
fn make_unreadable(update: &mut Update) {
    if let Update::DatasetRegistered { dataset } = update
        && dataset.id.0 == "old"
    {
        dataset.definition = Definition::from_text(UNREADABLE);
    }
}

#[test]
fn a_dataset_whose_definition_cannot_be_read_any_more_stays_and_fails_alone() {
    run(async {
        let mut w = World::new();
        let worker = w.worker("a:1").await;
        let definition_json = json!({"splits": 2, "path": "old"}).to_string();
        let old = v1::RegisterDatasetRequest { definition_json, dataset_id: "old".into() };
        w.core.datasets.register_dataset(old).await.unwrap();
        let open = w.core.epochs.open_iteration(opening("old", "running")).await.unwrap();
        let other = w.open(&json!({"splits": 1}), "other").await;
        w.restart_with(make_unreadable);

        assert_eq!(text_of(&w, "old").await, UNREADABLE);
        // A job that reads it has an error, and a new job is refused, with consumers or without.
        w.next(open.tasks[0].task_id, worker, 1, 1).await.unwrap_err();
        let refused = w.core.epochs.open_iteration(opening("old", "new")).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
        let consumers = v1::OpenIterationRequest {
            num_consumers: 2,
            balance: "tokens".into(),
            ..opening("old", "ranks")
        };
        let refused = w.core.epochs.open_iteration(consumers).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
        // Other jobs go on.
        let answer = w.next(other.tasks[0].task_id, worker, 1, 1).await.unwrap();
        assert_eq!(answer.splits.len(), 1);
        w.open(&json!({"splits": 3}), "third").await;
        w.restart();
        assert_eq!(text_of(&w, "old").await, UNREADABLE);
    });
}

/// An older journal does not say whether a definition is `cache_only`.
#[test]
fn a_definition_of_an_older_journal_says_itself_whether_it_is_cache_only() {
    let dataset = |definition: &str| {
        let text = json!({
            "id": "d", "fingerprint": "00000000000000000000000000000001",
            "identity": "00000000000000000000000000000002", "name": null, "definition_json": definition,
            "schema_ipc": "", "source_schema_ipc": "", "seed": null, "single_task": false, "deterministic": false,
        });
        serde_json::from_value::<crate::state::Dataset>(text).unwrap()
    };
    let definition = |more: &str| format!(r#"{{"source": {{"range": 10}}, "steps": ["autocache"]{more}}}"#);
    assert!(dataset(&definition(r#", "cache_only": true"#)).is_cache_only());
    assert!(!dataset(&definition("")).is_cache_only());
    assert!(!dataset(UNREADABLE).is_cache_only());
}

/// What an older version journaled of a dataset of several sources: no columns of these sources.
fn without_source_columns(update: &mut Update) {
    if let Update::DatasetRegistered { dataset } = update {
        dataset.source_schema_ipc = schema_to_ipc(&Schema::empty()).unwrap();
        dataset.identity = Fingerprint(1);
    }
}

#[test]
fn a_dataset_of_an_older_journal_gets_the_columns_of_its_sources_when_it_is_registered_again() {
    run(async {
        let mut w = World::new();
        let id = DatasetId("old".into());
        let columns = |w: &World| w.core.snapshot().datasets.get(&id).unwrap().source_schema_ipc.clone();
        let register = || v1::RegisterDatasetRequest {
            definition_json: json!({"splits": 2}).to_string(),
            dataset_id: "old".into(),
        };
        w.core.datasets.register_dataset(register()).await.unwrap();
        let found = columns(&w);
        w.restart_with(without_source_columns);
        assert_ne!(columns(&w), found);
        w.core.datasets.register_dataset(register()).await.unwrap();
        assert_eq!(columns(&w), found);
        w.restart();
        assert_eq!(columns(&w), found);
    });
}

/// The same, with the identity that the version before gave the dataset. The catalog of these tests names a definition by its text.
fn of_version_before(update: &mut Update) {
    without_source_columns(update);
    if let Update::DatasetRegistered { dataset } = update {
        let definition = Fingerprint(hash128(dataset.definition.text().as_bytes())).to_string();
        let parts =
            [definition.as_bytes(), dataset.schema_ipc.as_slice(), dataset.source_schema_ipc.as_slice()];
        dataset.identity = Fingerprint(hash128(&parts.concat()));
    }
}

fn registration(definition: &Value, id: &str) -> v1::RegisterDatasetRequest {
    v1::RegisterDatasetRequest { definition_json: definition.to_string(), dataset_id: id.into() }
}

/// After an upgrade a job over `concatenate`, `zip` or `sample` was refused to readers that sent the definition in another text,
/// such as one with their functions packed again. So was the chosen name of such a dataset.
#[test]
fn a_dataset_of_an_older_journal_is_found_by_its_definition_in_another_text() {
    run(async {
        let mut w = World::new();
        w.worker("a:1").await;
        let (first, other) = (json!({"splits": 2}), json!({"splits": 2, "spelling": "other"}));
        let elsewhere = json!({"splits": 2, "path": "x"});
        let opened = w.open(&first, "j").await;
        w.core.datasets.register_dataset(registration(&first, "mine")).await.unwrap();
        w.restart_with(of_version_before);

        let refused = w.core.datasets.register_dataset(registration(&elsewhere, "mine")).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::AlreadyExists, "{refused}");
        assert_eq!(w.open(&other, "j").await.iteration_id, opened.iteration_id);
        for (chosen, id) in [("", opened.fingerprint.as_str()), ("mine", "mine")] {
            let found = w.core.datasets.register_dataset(registration(&other, chosen)).await.unwrap();
            assert_eq!(found.dataset_id, id);
        }
        assert_eq!(w.core.snapshot().datasets.len(), 2, "nothing is registered twice");
        w.restart();
        w.core.datasets.register_dataset(registration(&first, "mine")).await.unwrap();
        assert_eq!(w.open(&first, "j").await.iteration_id, opened.iteration_id);
        let refused = w.core.epochs.open_iteration(open_request(&elsewhere, "j")).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::AlreadyExists, "{refused}");
    });
}

/// The build that found no dataset of an older version registered such a dataset a second time.
#[test]
fn a_dataset_with_the_columns_of_its_sources_is_found_before_one_of_an_older_journal() {
    run(async {
        let mut w = World::new();
        let definition = json!({"splits": 2, "path": "x"});
        w.core.datasets.register_dataset(registration(&json!({"splits": 2}), "")).await.unwrap();
        let found = w.core.datasets.register_dataset(registration(&definition, "")).await.unwrap();
        w.restart_with(|update| {
            if let Update::DatasetRegistered { dataset } = update
                && dataset.id.0 != found.dataset_id
            {
                dataset.definition = Definition::from(&definition);
                of_version_before(update);
            }
        });
        let other = json!({"splits": 2, "path": "x", "spelling": "other"});
        let again = w.core.datasets.register_dataset(registration(&other, "")).await.unwrap();
        assert_eq!(again.dataset_id, found.dataset_id);
        assert_eq!(w.core.snapshot().datasets.len(), 2);
    });
}

//! The engine behind the catalog: definitions as users write them.

use std::collections::BTreeMap;
use std::sync::Arc;

use caju_engine::source::SourceContext;
use caju_kernels::Registry;
use caju_runtime::{IoCounters, Stores};
use caju_types::ErrorKind;
use futures::TryStreamExt as _;
use serde_json::{Value, json};

use super::fake::run;
use crate::{Catalog, EngineCatalog, SplitShuffle};

fn catalog() -> EngineCatalog {
    let stores = Arc::new(Stores::new(BTreeMap::new(), None).unwrap());
    let sources = SourceContext::new(stores, Arc::new(IoCounters::default()));
    EngineCatalog::new(Registry::new(caju_kernels::Limits::default()), sources)
}

#[test]
fn a_definition_is_bound_and_its_splits_are_json() {
    run(async {
        let definition = json!({
            "name": "numbers",
            "source": { "range": { "start": 0, "end": 1_000_000 } },
            "steps": [ { "shuffle": { "buffer": 10, "seed": 7 } }, { "batch": { "size": 10 } } ],
        });
        let bound = catalog().bind(&definition, None).await.unwrap();
        assert_eq!(bound.name.as_deref(), Some("numbers"));
        assert_eq!(bound.shuffle, Some(SplitShuffle { seed: Some(7) }));
        assert_eq!(bound.schema.field(0).name(), "id");
        assert!(!bound.single_task && bound.skip_limit.is_none());
        let splits: Vec<String> = (bound.splits)().try_collect().await.unwrap();
        let first: Value = serde_json::from_str(&splits[0]).unwrap();
        assert!(first["key"].is_string(), "{first}");
        let again: Vec<String> = (bound.splits)().try_collect().await.unwrap();
        assert_eq!(again, splits, "a restarted dispatcher must find the same splits");

        let elsewhere = json!({
            "source": { "range": { "start": 5, "end": 1_000_000 } },
            "steps": [ { "shuffle": { "buffer": 10, "seed": 7 } }, { "batch": { "size": 10 } } ],
        });
        let schema = bound.source_schema.clone();
        let other = catalog().bind(&elsewhere, schema).await.unwrap();
        assert_ne!(other.identity, bound.identity);
    });
}

#[test]
fn errors_name_the_place() {
    run(async {
        let definition =
            json!({"source": { "range": { "end": 5 } }, "steps": [ { "suffle": { "buffer": 1 } } ]});
        let e = catalog().bind(&definition, None).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidArgument);
        assert!(e.message().contains("suffle") && e.message().contains("shuffle"), "{e}");
    });
}

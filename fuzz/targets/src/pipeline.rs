//! Pipeline files, as YAML and as JSON: read, checked, named, described, written back and bound.
//!
//! A definition that is accepted is the same after writing and reading it, and has the same fingerprint. Binding reaches
//! objects in memory only.

use caju_engine::bind;
use caju_pipeline::{DatasetDef, describe, fingerprint, identity, prefix_fingerprints, validate};

use crate::environment::{REGISTRY, block_on, context};

pub(crate) fn one(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let read = DatasetDef::from_yaml(text, None);
    if let Err(e) = DatasetDef::from_json_str(text) {
        assert!(!e.message().is_empty());
    }
    let def = match read {
        Ok(def) => def,
        Err(e) => return assert!(!e.message().is_empty()),
    };
    let again = DatasetDef::from_json(&def.to_json()).unwrap_or_else(|e| panic!("written and not read: {e}"));
    assert_eq!(again, def, "written and read");
    if validate(&def).is_err() {
        return;
    }
    describe(&def);
    // Functions or arguments that do not exist are found when a fingerprint is made.
    if let Ok(name) = fingerprint(&def, &*REGISTRY) {
        assert_eq!(fingerprint(&again, &*REGISTRY).unwrap(), name, "the fingerprint of what was read again");
        identity(&def, &*REGISTRY).unwrap();
        prefix_fingerprints(&def, &*REGISTRY).unwrap();
    }
    if let Err(e) = block_on(bind(&def, &REGISTRY, &context(), None)) {
        assert!(!e.message().is_empty());
    }
}

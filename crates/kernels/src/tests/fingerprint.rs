use caju_pipeline::Functions;

use super::*;

#[test]
fn versions_and_engines() {
    let r = registry();
    let sql = "normalize(random_crop(decode_image(image), 4, 4))";
    let mut versions = r.version(sql).unwrap();
    versions.sort();
    assert_eq!(versions, [("decode_image".into(), 1), ("normalize".into(), 1), ("random_crop".into(), 1)]);
    assert!(r.is_random(sql).unwrap());
    assert_eq!(r.engines_used(sql).unwrap(), ["image-webp", "png"]);
    assert!(!r.is_random("resize(decode_image(image), 4, 4)").unwrap());
    assert!(!r.is_random("gaussian_blur(x, 3, 1, 1)").unwrap());
    assert!(r.is_random("gaussian_blur(x, 3)").unwrap());
    assert_eq!(r.version("ln(x + 1) + ln(y)").unwrap(), [("ln".into(), 0)]);
    assert_eq!(r.engines_used("ln(x + 1)").unwrap(), ["arrow", "datafusion"]);
    assert_eq!(
        r.engines_used("hash_bucket(coalesce(a, ''), 10)").unwrap(),
        ["arrow", "datafusion", "xxhash-rust"]
    );
    assert_eq!(r.engines_used("hash_bucket(a, 10, null_as => '')").unwrap(), ["xxhash-rust"]);
    assert!(r.engines_used("\"image/encoded\"").unwrap().is_empty());
    assert_eq!(r.canonical("LN( x+1 )").unwrap(), r#"ln("x" + 1)"#);
    assert!(r.version("nope(x)").is_err());
    assert!(r.canonical("ln(").is_err());
    let known = r.engine_versions();
    for sql in [sql, "hash_bucket(a, 3)", "tokenize(lower(a), 'x')"] {
        assert!(r.engines_used(sql).unwrap().iter().all(|e| known.contains_key(e)));
    }
}

/// The versions in the fingerprint are those of the lock file.
#[test]
fn engines_are_those_of_the_lock_file() {
    let lock = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.lock")).unwrap();
    for (name, version) in crate::ENGINES {
        // All crates of DataFusion have one version.
        let name = if *name == "datafusion" { "datafusion-expr" } else { name };
        let wanted = format!("name = \"{name}\"\nversion = \"{version}\"\n");
        assert!(lock.contains(&wanted), "{name} is not {version} in Cargo.lock: change src/versions.rs");
    }
    assert!(crate::ENGINES.is_sorted());
}

/// Only our functions and DataFusion's immutable ones may be called, and no name is ambiguous.
#[test]
fn our_functions_hide_none_of_datafusions() {
    let builtins = crate::sql::Builtins::new();
    for f in crate::catalog::functions().map(|f| &f.signature) {
        assert!(!builtins.names().any(|n| n == f.name), "{} is DataFusion's too", f.name);
        assert!(f.version() > 0, "{} has no version", f.name);
    }
    for (name, _) in caju_image::VERSIONS {
        assert!(crate::catalog::find(name).is_some(), "{name} is not in the table");
    }
}

const REFERENCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/functions.md");

#[test]
fn reference_is_up_to_date() {
    let written = std::fs::read_to_string(REFERENCE).unwrap();
    assert!(
        written == crate::reference_markdown(),
        "docs/functions.md is old; its first lines say how to write it"
    );
}

#[test]
#[ignore = "writes docs/functions.md"]
fn write_reference() {
    std::fs::write(REFERENCE, crate::reference_markdown()).unwrap();
}

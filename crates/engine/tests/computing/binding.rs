//! What is refused when a definition is bound: names and types that rows may not have.

use crate::common::bound;
use caju_types::ErrorKind;

async fn refused(yaml: &str) -> String {
    let e = bound(yaml).await.map(|_| ()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
    e.message().to_owned()
}

/// The schema of each stage travels to the workers: a deeper one cannot be read there.
#[tokio::test]
async fn a_stage_whose_lists_are_nested_too_deep_is_named() {
    let stages =
        |n: usize| format!("source: {{ range: 3 }}\nsteps:\n{}", "  - map: { id: '[id]' }\n".repeat(n));
    bound(&stages(32)).await.unwrap();
    for n in [33, 200] {
        let e = refused(&stages(n)).await;
        assert!(e.starts_with("steps[32].map: the column `id` is nested deeper than 32 levels"), "{e}");
    }
    let cast =
        "source: { range: 3 }\nsteps:\n  - with_columns: { x: \"make_array(arrow_cast(null, 'LIST'))\" }";
    let e = refused(&cast.replace("LIST", &format!("{}Int8{}", "List(".repeat(32), ")".repeat(32)))).await;
    assert!(e.starts_with("steps[0].with_columns: the column `x` is nested deeper than 32 levels"), "{e}");
}

/// A stage or a part of a set would confuse such a column with its own.
#[tokio::test]
async fn columns_with_reserved_names_are_refused_wherever_they_come_from() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.csv");
    for name in ["caju.split", "caju.row", "caju.element", "__caju_key", "__caju_common_1", "__caju_seed"] {
        std::fs::write(&file, format!("{name},b\n1,2\n")).unwrap();
        let prefix = if name.starts_with('_') { "__caju" } else { "caju." };
        let reserved = format!("names that begin with `{prefix}` are reserved");
        for place in ["source: CSV", "source: { concatenate: [ { source: CSV } ] }"] {
            let e = refused(&place.replace("CSV", &format!("{{ csv: '{}' }}", file.display()))).await;
            assert!(e.contains("x.csv: the column") && e.contains(&format!("`{name}`: {reserved}")), "{e}");
        }
        for stage in
            ["with_columns: { NAME: id }", "map: { NAME: id }", "flat_map: { name: NAME, expr: '[id]' }"]
        {
            let e =
                refused(&format!("source: {{ range: 3 }}\nsteps: [ {} ]", stage.replace("NAME", name))).await;
            assert!(e.starts_with("steps[0].") && e.contains(&format!("`{name}`: {reserved}")), "{e}");
        }
    }
    bound("source: { range: 3 }\nsteps: [ with_columns: { caju_split: id, x.caju.row: id } ]").await.unwrap();
}

//! Which stages the setting `reorder` moves, and which it leaves.

use crate::common::{How, bound, splits, task};
use caju_types::Result;

/// The order, with the names of the stages, and what was said about it.
async fn order(steps: &str) -> (Vec<String>, Vec<String>, Vec<String>) {
    order_of(&format!("source: {{ range: 100 }}\nreorder: true\nsteps:\n{steps}")).await.unwrap()
}

async fn order_of(yaml: &str) -> Result<(Vec<String>, Vec<String>, Vec<String>)> {
    let pipeline = bound(yaml).await?;
    let names = pipeline.def().stage_names();
    let order = pipeline.order();
    Ok((order.stages.iter().map(|&i| names[i].clone()).collect(), order.moved.clone(), order.kept.clone()))
}

#[tokio::test]
async fn filters_go_up_and_inflation_goes_down() {
    let steps = "
  - inflate: { column: text, factor: 3 }
  - with_columns: { y: 'hash_bucket(text, 9)' }
  - burn: { per_row: 1us }
  - filter: 'id % 2 = 0'
";
    let text = "  - with_columns: { text: 'cast(id as varchar)' }";
    let (stages, moved, kept) = order(&format!("{text}{steps}")).await;
    assert_eq!(stages, ["4.filter", "3.burn", "0.with_columns", "1.inflate", "2.with_columns"]);
    assert_eq!(
        moved[0],
        "4.filter runs above 3.burn, 0.with_columns, 1.inflate, 2.with_columns: it drops rows"
    );
    assert!(moved.iter().any(|m| m == "1.inflate runs below 3.burn: it makes values longer"), "{moved:?}");
    assert!(kept.is_empty(), "{kept:?}");
    let written = order_of(&format!("source: {{ range: 100 }}\nsteps:\n{text}{steps}")).await.unwrap();
    assert!(written.0.is_sorted() && written.1.is_empty() && written.2.is_empty(), "off unless allowed");
}

#[tokio::test]
async fn stages_stay_where_rows_would_differ() {
    for (steps, want) in [
        (
            "  - with_columns: { y: 'id % 9' }\n  - filter: 'y > 3'",
            "1.filter stays below 0.with_columns: it reads `y`, which 0.with_columns computes",
        ),
        (
            // Simplified, it reads nothing. Its text names a column that is not there before.
            "  - with_columns: { y: 'id % 9' }\n  - filter: 'y is not null'",
            "1.filter stays below 0.with_columns: it reads `y`, which 0.with_columns computes",
        ),
        (
            "  - with_columns: { r: 'random_int(0, 9)' }\n  - filter: 'id > 3'",
            "1.filter stays below 0.with_columns: 0.with_columns draws by the numbers of rows, which this stage changes",
        ),
        (
            "  - flat_map: { name: y, expr: '[id, id]' }\n  - filter: 'random_int(0, 9) > 3'",
            "1.filter stays below 0.flat_map: 0.flat_map changes the numbers of rows, by which this stage draws",
        ),
        (
            "  - flat_map: { name: y, expr: '[id, id]' }\n  - filter: '100 / id > 2'",
            "1.filter stays below 0.flat_map: 0.flat_map drops rows at which this stage might fail",
        ),
        (
            "  - with_columns: { y: 'id % 9' }\n  - select: [y]",
            "1.select stays below 0.with_columns: the columns below 0.with_columns would not be the same",
        ),
    ] {
        let (stages, moved, kept) = order(steps).await;
        assert!(stages.is_sorted() && moved.is_empty(), "{steps}: {stages:?}");
        assert_eq!(kept, [want], "{steps}");
    }
}

#[tokio::test]
async fn nothing_crosses_hints_and_stages_across_splits() {
    for barrier in ["autocache", "shuffle: 10", "take: 50", "prefetch: 2", "repeat: 2"] {
        let steps = format!("  - with_columns: {{ y: 'id % 9' }}\n  - {barrier}\n  - filter: 'id > 3'");
        let (stages, moved, kept) = order(&steps).await;
        assert!(stages.is_sorted() && moved.is_empty() && kept.is_empty(), "{barrier}: {stages:?}");
    }
    let two = "
  - with_columns: { y: 'id % 9' }
  - filter: 'id > 3'
  - autocache
  - with_columns: { z: 'id % 9' }
  - filter: 'id < 90'
";
    let (stages, ..) = order(two).await;
    assert_eq!(stages, ["1.filter", "0.with_columns", "2.autocache", "4.filter", "3.with_columns"]);
}

#[tokio::test]
async fn columns_that_a_map_passes_on_are_not_in_the_way() {
    let (stages, ..) = order("  - map: { id: id, y: 'cast(id as varchar)' }\n  - filter: 'id > 3'").await;
    assert_eq!(stages, ["1.filter", "0.map"]);
    let (stages, _, kept) = order("  - map: { id: id + 1, y: id }\n  - filter: 'id > 3'").await;
    assert_eq!(stages, ["0.map", "1.filter"]);
    assert!(kept[0].contains("it reads `id`, which 0.map computes"), "{kept:?}");
}

#[tokio::test]
async fn measured_factors_decide_about_columns() {
    let yaml = |measured: &str| {
        format!(
            "source: {{ range: 100 }}\nreorder: {measured}\nsteps:\n  - with_columns: {{ a: 'id + 0' }}\n  \
             - with_columns: {{ id: 'id % 7' }}\n  - with_columns: {{ a: 'a % 7' }}\n"
        )
    };
    let (stages, ..) = order_of(&yaml("true")).await.unwrap();
    assert_eq!(stages, ["0.with_columns", "1.with_columns", "2.with_columns"]);
    let (stages, moved, _) =
        order_of(&yaml("{ measured: { 1.with_columns: 4, 2.with_columns: 0.25 } }")).await.unwrap();
    assert_eq!(stages, ["0.with_columns", "2.with_columns", "1.with_columns"]);
    assert_eq!(moved, ["2.with_columns runs above 1.with_columns: measured are 0.25 bytes out per byte in"]);
    let e = order_of(&yaml("{ measured: { 1.with_column: 4 } }")).await.unwrap_err();
    assert!(e.message().contains("did you mean `1.with_columns`?"), "{e}");
}

#[tokio::test]
async fn with_skipped_rows_nothing_moves() {
    let yaml = "source: { range: 100 }\nreorder: true\non_error: skip\nsteps:\n  \
                - with_columns: { y: 'id % 9' }\n  - filter: 'id > 3'\n";
    let (stages, _, kept) = order_of(yaml).await.unwrap();
    assert!(
        stages.is_sorted() && kept[0].starts_with("no stage is moved: under `on_error: skip`"),
        "{kept:?}"
    );
}

/// A filter below an expensive stage: the expensive stage runs for the rows that pass, and no others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expensive_stage_sees_only_rows_that_pass() {
    let mut seen = Vec::new();
    for reorder in [false, true] {
        let yaml = format!(
            "source: {{ range: 5000 }}\nreorder: {reorder}\nsteps:\n  - with_columns: {{ h: 'md5(cast(id as varchar))' }}\n  \
             - filter: 'id % 50 = 7'\n"
        );
        let pipeline = bound(&yaml).await.unwrap();
        let leases = (0u64..).zip(splits(&pipeline).await.unwrap());
        let leases = leases.map(|(i, s)| caju_engine::LeasedSplit::new(i, s)).collect();
        let mut task = task(&pipeline, leases, &How::default());
        let mut rows = 0;
        while let Some(chunk) = task.next().await {
            rows += chunk.unwrap().rows();
        }
        assert_eq!(rows, 100);
        let stats = task.stats();
        seen.push(stats.iter().find(|s| s.name == "0.with_columns").unwrap().rows_in);
    }
    assert_eq!(seen, [5000, 100]);
}

/// The filter that comes to stand behind the source is applied there, and its errors have its written place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_name_the_written_place() {
    let yaml = "source: { range: 100 }\nreorder: true\nsteps:\n  - with_columns: { y: 'id % 9' }\n  \
                - filter: '10 / (id - 50) > 3'\n";
    let e = crate::common::chunks(yaml, How::default()).await.unwrap_err();
    assert!(e.message().contains("steps[1].filter"), "{e}");
}

/// Columns of images have metadata of several keys, whose order in memory is random.
#[tokio::test]
async fn filters_pass_stages_with_images_every_time() {
    let steps = "
  - with_columns: { raw: \"arrow_cast(cast(id as varchar), 'Binary')\" }
  - with_columns: { image: 'resize_shorter(decode_image(raw), 64)' }
  - with_columns: { image: 'random_crop(image, 48, 48)' }
  - with_columns: { image: 'normalize(image)' }
  - filter: 'id < 5'
";
    // A stage that draws is not crossed by a filter.
    let without_draws = steps.replace("random_crop", "center_crop");
    for _ in 0..12 {
        let (stages, _, kept) = order(&without_draws).await;
        assert_eq!(stages[0], "4.filter", "{stages:?} {kept:?}");
        let (_, _, kept) = order(steps).await;
        assert!(kept.iter().any(|why| why.contains("draws by the numbers of rows")), "{kept:?}");
    }
    let selected = "
  - with_columns: { raw: \"arrow_cast(cast(id as varchar), 'Binary')\" }
  - with_columns: { image: 'resize_shorter(decode_image(raw), 64)' }
  - select: [image, id]
  - filter: 'id < 5'
";
    for _ in 0..12 {
        let (stages, moved, kept) = order(selected).await;
        assert_eq!(stages[0], "3.filter", "{stages:?} {moved:?} {kept:?}");
    }
}

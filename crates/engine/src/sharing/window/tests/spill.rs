//! Rows that do not fit in memory are in files until no job needs them.

use std::fs::File;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use arrow_array::types::Int8Type;
use arrow_array::{DictionaryArray, StringArray, StringViewArray, StructArray};
use arrow_schema::{DataType, Field, Fields, Schema};
use caju_types::ErrorKind;

use super::*;

/// Bytes that a file of one split has at most: rows, schema, padding.
const FILE: u64 = SPLIT + 1_000;

/// A window with space for this number of splits, and files with this number of bytes.
fn spilling(splits: u64, spill_bytes: u64, place: &Path) -> Arc<SharingWindow> {
    let settings = SharingSettings {
        window_bytes: splits * SPLIT,
        backlog_bytes: splits * SPLIT,
        lag: SharingLag::Spill,
        spill_bytes,
        wait: Duration::from_secs(60),
    };
    let folder = SpillFolder::new(Some(place), spill_bytes).unwrap();
    SharingWindow::with_spill(settings, SystemClock::shared(), folder)
}

/// Writes what has to be written, and removes what has to be removed.
async fn settle(window: &SharingWindow) {
    let folder = window.spill.as_ref().unwrap();
    window.spill_surplus(folder).await;
    folder.remove_unused();
}

/// A member computes splits, and waits as a task does.
async fn compute(window: &SharingWindow, member: &Arc<SharingMember>, splits: Range<u64>) {
    for split in splits {
        assert!(!run(member, split).await, "split {split}");
        settle(window).await;
    }
}

fn files(window: &SharingWindow) -> Vec<PathBuf> {
    let folder = window.spill.as_ref().unwrap().path();
    let all = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = all.filter(|path| path.extension().is_some_and(|e| e == "arrows")).collect();
    files.sort();
    files
}

fn bytes(files: &[PathBuf]) -> u64 {
    files.iter().map(|file| file.metadata().unwrap().len()).sum()
}

#[tokio::test]
async fn a_job_that_lags_reads_what_was_spilled() {
    let place = tempfile::tempdir().unwrap();
    let window = spilling(4, 1 << 20, place.path());
    let (ahead, behind) = (join(&window, &[(1, END)]), join(&window, &[(1, END)]));
    compute(&window, &ahead, 0..50).await;
    let usage = window.usage();
    assert!(usage.bytes <= 4 * SPLIT && usage.peak_bytes <= 4 * SPLIT, "{usage:?}");
    assert_eq!((usage.splits, usage.evicted_unread), (50, 0), "{usage:?}");
    assert_eq!((bytes(&files(&window)), usage.spilled_bytes), (usage.disk_bytes, usage.disk_bytes));
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    let all = files(&window);
    assert_eq!((mode(&all[0]), mode(all[0].parent().unwrap())), (0o600, 0o700));
    assert_eq!(behind.unread_splits(), (0..50).collect::<Vec<_>>());
    for split in 0..50 {
        assert!(run(&behind, split).await);
        settle(&window).await;
        assert!(files(&window).len() <= 49 - usize::try_from(split).unwrap(), "no job needs it any more");
    }
    let usage = window.usage();
    assert_eq!((usage.disk_bytes, usage.read_back, usage.spill_errors), (0, 47, 0), "{usage:?}");
    assert_eq!((behind.counts().window_hits, behind.counts().read_back), (50, 47));
    assert_eq!((usage.hits, usage.misses), (50, 50));
}

/// The task that writes the files is woken, and tasks wait for it.
#[tokio::test]
async fn the_writer_is_woken_when_the_window_is_nearly_full() {
    let place = tempfile::tempdir().unwrap();
    let window = spilling(8, 1 << 20, place.path());
    let (ahead, behind) = (join(&window, &[(1, END)]), join(&window, &[(1, END)]));
    let both = async {
        for split in 0..100 {
            assert!(!run(&ahead, split).await);
            window.wait_for_spill(SPLIT).await;
        }
        for split in 0..100 {
            assert!(run(&behind, split).await);
        }
        while window.usage().disk_bytes > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = window.spill() => unreachable!("it runs as long as the window"),
        () = both => {}
    }
    assert_eq!((window.usage().evicted_unread, files(&window).len()), (0, 0));
    let folder = window.spill.as_ref().unwrap().path().to_owned();
    drop((ahead, behind, window));
    assert!(!folder.exists(), "it goes with the window");
}

#[tokio::test]
async fn what_fits_neither_in_memory_nor_in_files_is_dropped() {
    let place = tempfile::tempdir().unwrap();
    let window = spilling(4, 5 * FILE, place.path());
    let (ahead, behind) = (join(&window, &[(1, END)]), join(&window, &[(1, END)]));
    for split in 0..50 {
        assert!(!run(&ahead, split).await);
        settle(&window).await;
        let usage = window.usage();
        assert!(usage.bytes <= 4 * SPLIT && bytes(&files(&window)) <= 5 * FILE, "{usage:?}");
    }
    let usage = window.usage();
    assert!(usage.evicted_unread > 30 && usage.disk_bytes > 2 * FILE && usage.spill_errors == 0, "{usage:?}");
    let mut read = 0;
    for split in 0..50 {
        read += u64::from(run(&behind, split).await);
        settle(&window).await;
    }
    assert_eq!(read + window.usage().evicted_unread, 50);
}

/// The rows of a damaged file are computed: other rows never come, and the split is not read again.
#[tokio::test]
async fn a_damaged_file_is_a_split_that_is_not_there() {
    let flip = |path: &Path, at: usize| {
        let mut bytes = std::fs::read(path).unwrap();
        let at = at % bytes.len();
        bytes[at] ^= 1;
        std::fs::write(path, bytes).unwrap();
    };
    let damages: [&dyn Fn(&Path); 5] = [
        &|path| std::fs::remove_file(path).unwrap(),
        &|path| File::options().write(true).open(path).unwrap().set_len(700).unwrap(),
        &|path| File::create(path).map(drop).unwrap(),
        &|path| flip(path, usize::MAX),
        &|path| {
            std::fs::remove_file(path).unwrap();
            std::fs::create_dir(path).unwrap();
        },
    ];
    for (case, damage) in damages.into_iter().enumerate() {
        let place = tempfile::tempdir().unwrap();
        let window = spilling(4, 1 << 20, place.path());
        let (ahead, behind) = (join(&window, &[(1, END)]), join(&window, &[(1, END)]));
        compute(&window, &ahead, 0..8).await;
        files(&window).iter().for_each(|file| damage(file));
        let mut read = begin(&behind, 0).await.read.unwrap();
        assert!(matches!(read.next().await, Next::Unavailable), "case {case}");
        drop(read);
        let mut writer = behind.take_over(of(0), 0, END).unwrap();
        writer.pass(0, &[rows()]);
        writer.finish(0);
        let late = join(&window, &[(1, END)]);
        assert!(run(&late, 0).await, "case {case}: what was computed again is shared again");
        assert_eq!((window.usage().spill_errors, behind.counts().read_back), (1, 0), "case {case}");
    }
}

/// A window of two splits has space for a third one as soon as one of them is in a file.
#[tokio::test]
async fn a_task_waits_for_space_for_its_rows() {
    let place = tempfile::tempdir().unwrap();
    let window = spilling(2, 1 << 20, place.path());
    let (ahead, behind) = (join(&window, &[(1, END)]), join(&window, &[(1, END)]));
    let computing = async {
        for split in 0..30 {
            let mut begun = begin(&ahead, split).await;
            window.wait_for_spill(SPLIT).await;
            begun.write[0].pass(0, &[rows()]);
            begun.write.remove(0).finish(0);
        }
    };
    tokio::select! {
        () = window.spill() => unreachable!("it runs as long as the window"),
        () = computing => {}
    }
    assert_eq!(behind.unread_splits(), (0..30).collect::<Vec<_>>());
    assert!(window.usage().evicted_unread == 0 && window.usage().peak_bytes <= 2 * SPLIT);
}

/// Every byte of a file is checked.
#[tokio::test]
async fn a_flipped_byte_is_never_another_row() {
    let place = tempfile::tempdir().unwrap();
    let folder = Arc::new(SpillFolder::new(Some(place.path()), 1 << 20).unwrap());
    let written = folder.write(&[rows()]).unwrap().unwrap().remove(0);
    let path = folder.path().join("0.arrows");
    let good = std::fs::read(&path).unwrap();
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        std::fs::write(&path, bad).unwrap();
        assert!(written.read().is_err(), "byte {at}");
    }
    std::fs::write(&path, good).unwrap();
    assert_eq!(written.read().unwrap(), rows());
}

/// Without a place to write to, the window is one that drops.
#[tokio::test]
async fn rows_that_cannot_be_written_are_dropped() {
    let place = tempfile::tempdir().unwrap();
    let window = spilling(4, 1 << 20, place.path());
    let (ahead, behind) = (join(&window, &[(1, END)]), join(&window, &[(1, END)]));
    std::fs::remove_dir_all(window.spill.as_ref().unwrap().path()).unwrap();
    for split in 0..20 {
        assert!(!run(&ahead, split).await);
        settle(&window).await;
        window.wait_for_spill(SPLIT).await;
    }
    let usage = window.usage();
    assert!(usage.spill_errors > 10 && usage.evicted_unread == 16 && usage.disk_bytes == 0, "{usage:?}");
    assert_eq!(behind.unread_splits(), [16, 17, 18, 19]);
}

/// A place where no folder can be is an error that names the flag; a place that is not there yet is created.
#[test]
fn a_place_for_files_is_created_or_refused() {
    let place = tempfile::tempdir().unwrap();
    let (deep, file) = (place.path().join("a/b"), place.path().join("file"));
    File::create(&file).unwrap();
    let folder = SpillFolder::new(Some(&deep), 1).unwrap();
    assert!(folder.path().starts_with(&deep) && folder.path().is_dir());
    let e = SpillFolder::new(Some(&file), 1).unwrap_err();
    assert!(e.kind() == ErrorKind::Unavailable && e.message().contains("--sharing-spill-dir"), "{e}");
}

/// Splits that are larger than the window are on disk as far as they were computed.
#[tokio::test]
async fn a_split_that_is_larger_than_the_window_is_spilled_as_it_grows() {
    let place = tempfile::tempdir().unwrap();
    let window = spilling(4, 1 << 20, place.path());
    let (ahead, behind) = (join(&window, &[(1, END)]), join(&window, &[(1, END)]));
    let mut begun = begin(&ahead, 0).await;
    let mut read = begin(&behind, 0).await.read.unwrap();
    for at in 0..30 {
        begun.write[0].pass(at * 100, &[rows()]);
        settle(&window).await;
    }
    begun.write.remove(0).finish(7);
    assert!(window.usage().peak_bytes <= 4 * SPLIT);
    for _ in 0..30 {
        assert!(matches!(read.next().await, Next::Batch(batch) if batch == rows()));
    }
    assert!(matches!(read.next().await, Next::End { skipped: 7 }));
    drop(read);
    settle(&window).await;
    assert!(files(&window).is_empty());
}

/// A write that takes long holds up each task once, for the time of the settings.
#[tokio::test]
async fn a_slow_disk_holds_nobody_up_for_long() {
    let place = tempfile::tempdir().unwrap();
    let settings = SharingSettings {
        window_bytes: 4 * SPLIT,
        backlog_bytes: 0,
        lag: SharingLag::Spill,
        spill_bytes: 1 << 20,
        wait: Duration::from_millis(20),
    };
    let folder = SpillFolder::new(Some(place.path()), 1 << 20).unwrap();
    let window = SharingWindow::with_spill(settings, SystemClock::shared(), folder);
    let (ahead, behind) = (join(&window, &[(1, END)]), join(&window, &[(1, END)]));
    let began = std::time::Instant::now();
    // Nothing writes.
    for split in 0..2_000 {
        assert!(!run(&ahead, split).await);
        window.wait_for_spill(SPLIT).await;
    }
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    assert_eq!(behind.unread_splits(), [1996, 1997, 1998, 1999]);
}

/// Batches come back as they were: slices, nulls, nested and dictionary columns, metadata, and no columns at all.
#[tokio::test]
async fn any_batch_comes_back_as_it_was() {
    let place = tempfile::tempdir().unwrap();
    let folder = Arc::new(SpillFolder::new(Some(place.path()), 1 << 20).unwrap());
    let text = StringArray::from_iter((0..40).map(|i| (i % 3 > 0).then(|| format!("row {i}"))));
    let words: DictionaryArray<Int8Type> = (0..40).map(|i| ["a", "b", "c"].get(i % 4).copied()).collect();
    let views =
        StringViewArray::from_iter((0..40).map(|i| Some(format!("a text of more than twelve bytes, {i}"))));
    let fields: Fields = vec![Field::new("inner", DataType::Utf8, true)].into();
    let nested = StructArray::new(fields.clone(), vec![Arc::new(text.clone())], None);
    let metadata = [("key".to_string(), "value".to_string())];
    let schema = Arc::new(
        Schema::new(vec![
            Field::new("text", DataType::Utf8, true).with_metadata(metadata.clone().into()),
            Field::new_dictionary("words", DataType::Int8, DataType::Utf8, true),
            Field::new("views", DataType::Utf8View, true),
            Field::new_struct("nested", fields, true),
        ])
        .with_metadata(metadata.into()),
    );
    let columns: Vec<ArrayRef> = vec![Arc::new(text), Arc::new(words), Arc::new(views), Arc::new(nested)];
    let all = RecordBatch::try_new(schema, columns).unwrap();
    let batches = [all.clone(), all.slice(3, 11), all.slice(40, 0), all.project(&[]).unwrap().slice(2, 5)];
    let written = folder.write(&batches).unwrap().unwrap();
    for (written, batch) in written.iter().zip(&batches) {
        let read = written.read().unwrap();
        assert_eq!(read, *batch);
        assert_eq!(read.num_rows(), batch.num_rows());
        assert_eq!(read.schema(), batch.schema());
    }
    drop(written);
    folder.remove_unused();
    assert!(!folder.path().join("0.arrows").exists());
}

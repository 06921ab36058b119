use arrow_array::{ArrayRef, Int64Array};
use caju_runtime::SystemClock;
use futures::FutureExt as _;

use super::super::job::MayShare;
use super::super::member::{SharingMember, SplitRoute};
use super::super::point::{END, SharingPoint};
use super::super::shared_split::Next;
use super::*;

mod spill;

/// Bytes of a split of these tests: 100 numbers.
const SPLIT: u64 = 800;

fn window(window_bytes: u64, lag: SharingLag, wait: Duration) -> Arc<SharingWindow> {
    SharingWindow::new(
        SharingSettings {
            window_bytes,
            backlog_bytes: window_bytes,
            lag,
            wait,
            ..SharingSettings::default()
        },
        SystemClock::shared(),
    )
}

fn join(window: &Arc<SharingWindow>, points: &[(u128, usize)]) -> Arc<SharingMember> {
    join_as(window, SharingJob { job: 1, epoch: 0, is_relaxed: false }, points)
}

fn join_as(window: &Arc<SharingWindow>, job: SharingJob, points: &[(u128, usize)]) -> Arc<SharingMember> {
    window.join(job, points.iter().map(|(key, place)| SharingPoint { key: *key, place: *place }).collect())
}

fn rows() -> RecordBatch {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..100));
    RecordBatch::try_from_iter([("id", ids)]).unwrap()
}

fn of(split: u64) -> SplitRef {
    SplitRef { key: u128::from(split), repetition: 0 }
}

async fn begin(member: &Arc<SharingMember>, split: u64) -> SplitRoute {
    member.begin(of(split), split, None, MayShare::Skip).await
}

/// A member computes a split, or reads it.
async fn run(member: &Arc<SharingMember>, split: u64) -> bool {
    let begun = begin(member, split).await;
    for mut writer in begun.write {
        writer.pass(0, &[rows()]);
        writer.finish(0);
    }
    let Some(mut read) = begun.read else { return false };
    assert!(matches!(read.next().await, Next::Batch(batch) if batch == rows()));
    assert!(matches!(read.next().await, Next::End { skipped: 0 }));
    true
}

#[tokio::test]
async fn the_first_one_computes_and_the_others_read() {
    let window = window(1 << 20, SharingLag::Drop, Duration::from_secs(60));
    let members = [0; 3].map(|_| join(&window, &[(1, END)]));
    let other = join(&window, &[(2, END)]);
    assert!(!run(&members[0], 7).await);
    assert_eq!(members[1].unread_splits(), [7]);
    assert!(run(&members[1], 7).await && run(&members[2], 7).await);
    assert!(members[1].unread_splits().is_empty() && other.unread_splits().is_empty());
    assert!(!run(&other, 7).await, "its rows are others");
    let usage = window.usage();
    assert_eq!((usage.hits, usage.misses, usage.bytes, usage.splits), (2, 2, 2 * SPLIT, 2));
}

/// XTR-22: the window grows to its bound and not beyond, and counts what was read of it and what was not there.
#[tokio::test]
async fn xtr_22_the_window_grows_to_its_bound() {
    let window = window(5 * SPLIT, SharingLag::Drop, Duration::from_secs(60));
    let (one, two) = (join(&window, &[(1, END)]), join(&window, &[(1, END)]));
    for split in 0..105 {
        assert!(!run(&one, split).await);
        assert_eq!(window.usage().bytes, SPLIT * (split + 1).min(5));
    }
    assert_eq!((window.usage().hits, window.usage().misses, window.usage().evicted_unread), (0, 105, 100));
    assert_eq!(two.unread_splits(), [100, 101, 102, 103, 104], "the oldest first");
    for split in 100..105 {
        assert!(run(&two, split).await);
    }
    assert!(!run(&two, 0).await, "it has left the window");
    assert_eq!((window.usage().hits, window.usage().misses), (5, 106));
    assert!(window.usage().peak_bytes <= 5 * SPLIT);
}

/// What a job that is alone computed stays within the backlog, and so does what all jobs have had. What a job has not had
/// stays within the window.
#[tokio::test]
async fn rows_that_no_job_needs_are_held_within_the_backlog() {
    let wait = Duration::from_secs(60);
    let settings = SharingSettings {
        window_bytes: 50 * SPLIT,
        backlog_bytes: 3 * SPLIT,
        lag: SharingLag::Drop,
        wait,
        ..SharingSettings::default()
    };
    let window = SharingWindow::new(settings, SystemClock::shared());
    let one = join(&window, &[(1, END)]);
    for split in 0..20 {
        run(&one, split).await;
        assert!(window.usage().bytes <= 3 * SPLIT);
    }
    let two = join(&window, &[(1, END)]);
    assert_eq!(two.unread_splits(), [17, 18, 19]);
    for split in 20..40 {
        run(&one, split).await;
    }
    assert_eq!(window.usage().bytes, 23 * SPLIT, "the second job needs them");
    for split in 17..30 {
        assert!(run(&two, split).await);
    }
    assert_eq!(window.usage().bytes, 13 * SPLIT, "ten that it needs, and the backlog");
    // Rows that are being read stay, whatever other jobs have had them.
    let mut read = begin(&two, 30).await.read.unwrap();
    for split in 31..40 {
        assert!(run(&two, split).await);
    }
    assert_eq!(window.usage().bytes, 4 * SPLIT);
    assert!(matches!(read.next().await, Next::Batch(_)) && matches!(read.next().await, Next::End { .. }));
    drop(read);
    assert_eq!((window.usage().bytes, window.usage().evicted_unread), (3 * SPLIT, 0));
    // Rows of a split that no other job needs are bounded, too.
    let mut begun = begin(&one, 50).await;
    for at in 0..10 {
        begun.write[0].pass(at * 100, &[rows()]);
    }
    two.leave();
    assert!(window.usage().bytes <= 3 * SPLIT, "{:?}", window.usage());
}

#[tokio::test]
async fn rows_that_all_have_had_leave_first() {
    let window = window(3 * SPLIT, SharingLag::Drop, Duration::from_secs(60));
    let (one, two) = (join(&window, &[(1, END)]), join(&window, &[(1, END)]));
    for split in [0, 1, 2] {
        run(&one, split).await;
    }
    run(&two, 1).await;
    run(&one, 3).await;
    assert_eq!(two.unread_splits(), [0, 2, 3]);
    assert_eq!(window.usage().evicted_unread, 0);
}

/// A late job computes what it has missed. Nobody needs these rows, and those that it still needs stay.
#[tokio::test]
async fn rows_that_nobody_needs_leave_before_those_that_a_job_needs() {
    let window = window(3 * SPLIT, SharingLag::Throttle, Duration::from_secs(600));
    let (early, late) = (join(&window, &[(1, END)]), join(&window, &[(1, END)]));
    drop(begin(&early, 9).await);
    let mut missed = begin(&late, 9).await.write;
    missed[0].pass(0, &[rows()]);
    for split in 1..=3 {
        assert!(!run(&early, split).await);
    }
    assert_eq!((window.usage().evicted_unread, late.unread_splits()), (0, vec![1, 2, 3]));
    missed[0].pass(100, &[rows()]);
    missed.remove(0).finish(0);
    assert_eq!((window.usage().bytes, late.unread_splits()), (3 * SPLIT, vec![1, 2, 3]));
}

/// Two splits that wait for the same place: when it is free, one of them begins.
#[tokio::test]
async fn a_place_that_is_free_is_for_one_split() {
    let window = window(3 * SPLIT, SharingLag::Throttle, Duration::from_secs(600));
    let (ahead, behind) = (join(&window, &[(1, END)]), join(&window, &[(1, END)]));
    for split in 0..3 {
        assert!(!run(&ahead, split).await);
    }
    let mut waiting = [3, 4].map(|split| Box::pin(begin(&ahead, split)));
    assert!(waiting.iter_mut().all(|w| w.as_mut().now_or_never().is_none()), "the window is full");
    assert!(run(&behind, 0).await);
    let mut begun: Vec<_> = waiting.iter_mut().filter_map(|w| w.as_mut().now_or_never()).collect();
    assert_eq!(begun.len(), 1);
    begun[0].write[0].pass(0, &[rows()]);
    assert_eq!((window.usage().evicted_unread, window.usage().bytes), (0, 3 * SPLIT));
}

/// A split that another task begins needs no further place.
#[tokio::test]
async fn a_split_that_another_task_begins_is_read_without_space() {
    let window = window(2 * SPLIT, SharingLag::Throttle, Duration::from_secs(600));
    let (ahead, behind) = (join(&window, &[(1, END)]), join(&window, &[(1, END)]));
    assert!(!run(&ahead, 0).await && !run(&ahead, 1).await);
    let mut waiting = Box::pin(begin(&ahead, 2));
    assert!(waiting.as_mut().now_or_never().is_none(), "the window is full");
    let computed = begin(&behind, 2).await;
    assert!(computed.read.is_none(), "nobody waits for a job that waits");
    assert!(waiting.as_mut().now_or_never().is_some_and(|begun| begun.read.is_some()));
}

/// Where another job is behind, a job waits before it begins a split, until the other one has caught up, has ended, or waits
/// itself.
#[tokio::test]
async fn a_full_window_throttles_those_who_are_ahead() {
    for leaves in [false, true] {
        let window = window(2 * SPLIT, SharingLag::Throttle, Duration::from_secs(600));
        let (ahead, behind) = (join(&window, &[(1, END)]), join(&window, &[(1, END)]));
        assert!(!run(&ahead, 0).await && !run(&ahead, 1).await);
        let mut third = Box::pin(begin(&ahead, 2));
        assert!(third.as_mut().now_or_never().is_none(), "the window is full");
        if leaves {
            behind.leave();
        } else {
            assert!(run(&behind, 0).await && run(&behind, 1).await);
        }
        assert!(third.await.read.is_none());
    }
    let window = window(4 * SPLIT, SharingLag::Throttle, Duration::from_secs(600));
    let (one, two) = (join(&window, &[(1, END)]), join(&window, &[(1, END)]));
    for split in [0, 1] {
        assert!(!run(&one, split).await && !run(&two, split + 2).await);
    }
    let mut waiting = Box::pin(begin(&one, 4));
    assert!(waiting.as_mut().now_or_never().is_none(), "the other one has not had splits 0 and 1");
    assert!(begin(&two, 5).await.read.is_none(), "nobody waits for a job that waits");
    assert!(run(&two, 0).await && run(&two, 1).await);
    assert!(waiting.await.read.is_none());
}

/// What a job that lags is reading takes space, too, until it has read it.
#[tokio::test]
async fn a_split_that_is_read_leaves_no_space_for_another_one() {
    let window = window(2 * SPLIT, SharingLag::Throttle, Duration::from_secs(600));
    let (ahead, behind) = (join(&window, &[(1, END)]), join(&window, &[(1, END)]));
    assert!(!run(&ahead, 0).await && !run(&ahead, 1).await);
    let mut read = begin(&behind, 0).await.read.unwrap();
    let mut waiting = Box::pin(begin(&ahead, 2));
    assert!(waiting.as_mut().now_or_never().is_none(), "split 0 is still read, and split 1 needed");
    assert!(matches!(read.next().await, Next::Batch(_)) && matches!(read.next().await, Next::End { .. }));
    drop(read);
    assert!(waiting.await.read.is_none());
    assert_eq!(window.usage().evicted_unread, 0);
}

/// A job that lags may wait for the others, too: at a split that none has begun, for what it computed itself and they have not
/// had. It goes on then, and they wait for it.
#[tokio::test]
async fn of_jobs_that_wait_for_each_other_the_one_that_lags_goes_on() {
    let window = window(3 * SPLIT, SharingLag::Throttle, Duration::from_secs(600));
    let (ahead, behind) = (join(&window, &[(1, END)]), join(&window, &[(1, END)]));
    assert!(!run(&ahead, 0).await && !run(&ahead, 1).await && !run(&behind, 10).await);
    // It needs two splits, and the other one needs one.
    let mut of_behind = Box::pin(begin(&behind, 11));
    assert!(of_behind.as_mut().now_or_never().is_none(), "the other one has not had split 10");
    let mut of_ahead = Box::pin(begin(&ahead, 2));
    assert!(of_ahead.as_mut().now_or_never().is_none(), "the other one has not had splits 0 and 1, and lags");
    assert!(of_behind.await.read.is_none());
    assert!(of_ahead.as_mut().now_or_never().is_none());
    assert!(run(&behind, 0).await && run(&behind, 1).await, "they are still there");
    assert!(of_ahead.await.read.is_none());
    assert_eq!(window.usage().evicted_unread, 0);
}

#[tokio::test]
async fn a_job_that_stays_behind_is_waited_for_once() {
    let window = window(2 * SPLIT, SharingLag::Throttle, Duration::from_millis(20));
    let (ahead, behind) = (join(&window, &[(1, END)]), join(&window, &[(1, END)]));
    for split in 0..50 {
        assert!(!run(&ahead, split).await);
    }
    assert_eq!(behind.unread_splits(), [48, 49]);
}

/// What the writer does not give, the reader computes itself, and gives to others.
#[tokio::test]
async fn a_reader_takes_over_when_the_writer_stops() {
    let window = window(1 << 20, SharingLag::Drop, Duration::from_millis(20));
    let (one, two, three) =
        (join(&window, &[(1, END)]), join(&window, &[(1, END)]), join(&window, &[(1, END)]));
    let mut begun = begin(&one, 0).await;
    begun.write[0].pass(0, &[rows()]);
    let mut read = begin(&two, 0).await.read.unwrap();
    assert!(matches!(read.next().await, Next::Batch(_)));
    assert!(matches!(read.next().await, Next::Unavailable), "no row came for as long as it waits");
    drop(read);
    let mut writer = two.take_over(of(0), 0, END).unwrap();
    writer.pass(0, &[rows()]);
    writer.pass(100, &[rows()]);
    writer.finish(0);
    let mut read = begin(&three, 0).await.read.unwrap();
    assert!(matches!(read.next().await, Next::Batch(_)) && matches!(read.next().await, Next::Batch(_)));
    assert!(matches!(read.next().await, Next::End { .. }));
    // A writer that breaks off leaves nothing that others wait for.
    let broken = begin(&one, 1).await;
    let mut read = begin(&two, 1).await.read.unwrap();
    drop(broken);
    assert!(matches!(read.next().await, Next::Unavailable));
}

/// The readers of one task take nothing, and those of the other could take more: it begins other splits than those that the
/// first one computes, and computes those itself when it has waited for as long as it waits for rows at all. A reader that has
/// enough goes on with the rows of the other task, so that each split is computed once.
#[tokio::test]
async fn a_job_whose_reader_is_starved_is_not_as_slow_as_the_job_that_computes() {
    let window = window(1 << 20, SharingLag::Drop, Duration::from_millis(200));
    let (slow, quick) = (join(&window, &[(1, END)]), join(&window, &[(1, END)]));
    let mut begun = begin(&slow, 0).await;
    begun.write[0].pass(0, &[rows()]);
    let full = slow.demand().output_is_full();
    quick.demand().connection_is_starved(true);
    // It is so for a moment at first.
    while !quick.unread_splits().is_empty() {
        tokio::task::yield_now().await;
    }
    quick.demand().connection_is_starved(false);
    assert_eq!(quick.unread_splits(), [0], "it can wait");
    quick.demand().connection_is_starved(true);
    drop(full);
    while quick.unread_splits().is_empty() {
        tokio::task::yield_now().await;
    }

    // A batch comes before each wait would be over.
    let mut read = begin(&quick, 0).await.read.unwrap();
    let (began, mut at) = (std::time::Instant::now(), 1);
    loop {
        let full = slow.demand().output_is_full();
        match tokio::time::timeout(Duration::from_millis(100), read.next()).await {
            Ok(Next::Batch(_)) => {}
            Ok(next) => {
                assert!(matches!(next, Next::Unavailable));
                break;
            }
            Err(_) => {
                drop(full);
                // A batch, and the reader waits again.
                begun.write[0].pass(at * 100, &[rows()]);
                at += 1;
            }
        }
        assert!(began.elapsed() < Duration::from_secs(30), "it waits for ever");
    }
    assert!(at > 1 && began.elapsed() >= Duration::from_millis(200), "it waited for less than it may");
}

/// The stages of one job below the point are slow. The other job does not have them.
#[tokio::test]
async fn a_job_is_not_as_slow_as_the_stages_of_another_one_below_the_point() {
    let window = window(1 << 20, SharingLag::Drop, Duration::from_millis(200));
    let (slow, quick) = (join(&window, &[(1, 0), (2, END)]), join(&window, &[(1, 0), (3, END)]));
    let begun = begin(&slow, 0).await;
    let held_back = slow.held_back(0).unwrap();
    held_back.set(true);
    quick.demand().connection_is_starved(true);
    // It takes a moment until they have been slow for most of the time.
    assert_eq!(quick.unread_splits(), [0]);
    while !quick.unread_splits().is_empty() {
        tokio::task::yield_now().await;
    }
    let mut read = begin(&quick, 0).await.read.unwrap();
    assert!(matches!(read.next().await, Next::Unavailable), "it computes the rows itself");
    held_back.set(false);
    drop(begun);
}

#[tokio::test]
async fn rows_go_to_the_last_point_that_each_other_job_has() {
    let window = window(1 << 20, SharingLag::Drop, Duration::from_secs(60));
    let places = |begun: &SplitRoute| begun.write.iter().map(|w| w.place).collect::<Vec<_>>();
    let one = join(&window, &[(1, 0), (2, 1), (3, END)]);
    assert_eq!(
        places(&begin(&one, 0).await),
        [0, 1, END],
        "for jobs that may come, equal or with other stages below"
    );
    let differs = join(&window, &[(1, 0), (2, 1), (4, END)]);
    assert_eq!(places(&begin(&one, 1).await), [1]);
    let equal = join(&window, &[(1, 0), (2, 1), (3, END)]);
    let begun = begin(&one, 2).await;
    assert_eq!(places(&begun), [1, END]);
    let read = begin(&differs, 2).await.read.unwrap();
    assert_eq!(read.place, 1);
    assert_eq!(begin(&equal, 2).await.read.unwrap().place, END);
    // A stored part gives the rows at a hint: rows of points above it cannot be used.
    let below = equal.begin(of(2), 2, Some(1), MayShare::Read).await;
    assert_eq!(below.read.unwrap().place, END);
    assert!(differs.begin(of(2), 2, Some(1), MayShare::Read).await.read.is_none());
}

/// The next epoch of a job reads what the last one computed, if it begins soon.
#[tokio::test]
async fn rows_stay_for_a_while_when_their_last_task_has_left() {
    for (wait, stays) in [(Duration::from_secs(600), true), (Duration::ZERO, false)] {
        let window = window(1 << 20, SharingLag::Drop, wait);
        let first = join(&window, &[(1, END)]);
        assert!(!run(&first, 7).await);
        drop(first);
        assert_eq!(window.usage().splits, u64::from(stays));
        assert_eq!(run(&join(&window, &[(1, END)]), 7).await, stays);
    }
}

/// XTR-22 and `sharing: relaxed`: rows of the same epoch that another job computed and that have left the window are skipped
/// and counted. Nothing else is.
#[tokio::test]
async fn xtr_22_a_relaxed_job_skips_what_has_left_the_window() {
    let window = window(5 * SPLIT, SharingLag::Drop, Duration::from_secs(60));
    let job = |job, epoch, is_relaxed| SharingJob { job, epoch, is_relaxed };
    let first = join_as(&window, job(1, 0, true), &[(1, END)]);
    for split in 0..20 {
        assert!(!run(&first, split).await);
    }
    let late = join_as(&window, job(2, 0, true), &[(1, END)]);
    for split in 15..20 {
        assert!(run(&late, split).await);
    }
    let begun = begin(&late, 3).await;
    assert!(begun.skipped_rows == Some(100) && begun.read.is_none() && begun.write.is_empty());
    assert_eq!(late.counts().window_rows, 500);
    // Rows that some of its readers have, and those of a split that no task has computed.
    let begun = late.begin(of(4), 4, None, MayShare::Read).await;
    assert!(begun.skipped_rows.is_none() && !run(&late, 30).await);
    for (of_job, what) in [
        (job(3, 0, false), "exact"),
        (job(4, 1, true), "another epoch"),
        (job(1, 0, true), "its own rows, computed by a task that was lost"),
    ] {
        let begun = begin(&join_as(&window, of_job, &[(1, END)]), 5).await;
        assert!(begun.skipped_rows.is_none(), "{what}");
    }
    // When no job reads this epoch any more, the split is computed again.
    drop((begun, first, late));
    assert!(begin(&join_as(&window, job(5, 0, true), &[(1, END)]), 6).await.skipped_rows.is_none());
}

/// Rows that left the window before their split was computed to its end are skipped, too, when their number is known.
#[tokio::test]
async fn a_split_that_left_early_is_skipped_when_it_has_ended() {
    let window = window(SPLIT, SharingLag::Drop, Duration::from_secs(60));
    let job = |job| SharingJob { job, epoch: 0, is_relaxed: true };
    let (one, two) = (join_as(&window, job(1), &[(1, END)]), join_as(&window, job(2), &[(1, END)]));
    let mut begun = begin(&one, 0).await;
    begun.write[0].pass(0, &[rows(), rows()]);
    assert_eq!(window.usage().bytes, 0, "it is larger than the window");
    assert!(begin(&two, 0).await.skipped_rows.is_none(), "nobody knows its rows yet");
    let three = join_as(&window, job(3), &[(1, END)]);
    begun.write.remove(0).finish(0);
    assert_eq!(begin(&three, 0).await.skipped_rows, Some(200));
}

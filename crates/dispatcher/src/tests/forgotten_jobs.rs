//! A job that is forgotten while an epoch of it is opened.

use std::pin::{Pin, pin};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use caju_proto::v1;
use caju_types::{ErrorKind, JobName, Result};
use futures::FutureExt as _;
use serde_json::json;

use super::fake::{World, open_request, run};
use crate::config::{DispatcherConfig, MemoryLimits};
use crate::journal::{Journal, MemoryJournal, StoredGroups};
use crate::state::Update;
use crate::workers::WorkerList;

/// Jobs are forgotten after this time without a reader.
const FORGET_AFTER: Duration = Duration::from_secs(600);
/// More reads of the state than an opening makes.
const MAX_READS: usize = 20;

/// How many writes have begun, and how many of them may end.
struct Writes {
    begun: u64,
    allowed: u64,
}

/// Lets writes of the journal end one by one.
struct Gate {
    writes: Mutex<Writes>,
    changed: Condvar,
}

impl Gate {
    /// A gate that is open.
    fn new() -> Arc<Self> {
        let writes = Mutex::new(Writes { begun: 0, allowed: u64::MAX });
        Arc::new(Self { writes, changed: Condvar::new() })
    }

    fn allow(&self, allowed: impl FnOnce(&Writes) -> u64) {
        let mut writes = self.writes.lock().unwrap();
        writes.allowed = allowed(&writes);
        self.changed.notify_all();
    }

    /// The number of writes that have begun.
    fn begun(&self) -> u64 {
        self.writes.lock().unwrap().begun
    }

    /// Waits while something is true of the writes. A test that fails leaves the gate closed, so the wait is bounded.
    fn wait_while(&self, is_true: impl Fn(&Writes) -> bool) {
        let writes = self.writes.lock().unwrap();
        let bound = Duration::from_secs(20);
        drop(self.changed.wait_timeout_while(writes, bound, |writes| is_true(writes)).unwrap());
    }

    /// Begins a write, and waits until it may end.
    fn pass(&self) {
        let mut writes = self.writes.lock().unwrap();
        writes.begun += 1;
        let number = writes.begun;
        drop(writes);
        self.changed.notify_all();
        self.wait_while(|writes| writes.allowed < number);
    }
}

struct Gated {
    stored: MemoryJournal,
    gate: Arc<Gate>,
}

impl Journal for Gated {
    fn replay(&mut self) -> Result<Vec<Vec<Update>>> {
        self.stored.replay()
    }

    fn append(&mut self, groups: &[Vec<Update>]) -> Result<u64> {
        self.gate.pass();
        self.stored.append(groups)
    }

    fn stored(&self) -> Result<Box<dyn StoredGroups>> {
        self.stored.stored()
    }

    fn describe(&self) -> String {
        "gated".into()
    }
}

fn name() -> JobName {
    JobName("j".into())
}

fn request(mode: v1::ProcessingMode, epoch: u64) -> v1::OpenIterationRequest {
    v1::OpenIterationRequest { epoch, mode: mode.into(), ..open_request(&json!({"splits": 2}), "j") }
}

/// A dispatcher with a job in this mode that nobody reads. All of its journal is written.
async fn idle_job(mode: v1::ProcessingMode) -> (World, Arc<Gate>) {
    let gate = Gate::new();
    let memory = MemoryLimits { forget_after: FORGET_AFTER, ..MemoryLimits::default() };
    let w = World::with_over(
        |config| DispatcherConfig { memory, workers: WorkerList::first(2), ..config },
        |stored| Box::new(Gated { stored, gate: Arc::clone(&gate) }),
    );
    let open = w.core.epochs.open_iteration(request(mode, 0)).await.unwrap();
    w.close(open.client_id, open.iteration_id, vec![]).await;
    // Its epoch is dropped.
    w.silence(Duration::from_secs(302), &[], &[]).await;
    w.core.context.commit(|_| Ok(())).await.unwrap();
    let state = w.core.snapshot();
    assert!(state.iterations.is_empty() && state.jobs.contains_key(&name()));
    (w, gate)
}

/// Whether an opening waits for the journal, once it has done what it can do now.
async fn waits(opening: Pin<&mut impl Future>) -> bool {
    tokio::select! {
        biased;
        _ = opening => false,
        () = async { for _ in 0..100 { tokio::task::yield_now().await } } => true,
    }
}

/// What is forgotten while an epoch is opened.
#[derive(Clone, Copy, PartialEq)]
enum Forgotten {
    Job,
    JobAndDataset,
}

/// Opens an epoch of an idle job, which is forgotten when the opening has read the state this many times. Returns whether it was
/// forgotten, and the answer. A job that the opening has joined is not forgotten.
async fn open_and_forget(
    mode: v1::ProcessingMode,
    forgotten: Forgotten,
    reads: usize,
) -> (bool, Result<v1::OpenIterationResponse>) {
    let (w, gate) = idle_job(mode).await;
    gate.allow(|writes| writes.begun);
    let mut opening = pin!(w.core.epochs.open_iteration(request(mode, 1)));
    for read in 0..reads {
        // What is read rests on this update, so the opening waits until it is written.
        let before = gate.begun();
        let update = Update::JobForgotten { job: JobName("of nobody".into()) };
        let step = w.core.context.commit(|txn| {
            txn.apply(update);
            Ok(())
        });
        assert!(step.now_or_never().is_none(), "the update is not written");
        if read > 0 {
            gate.allow(|writes| writes.allowed + 1);
        }
        gate.wait_while(|writes| writes.begun == before);
        assert!(waits(opening.as_mut()).await, "read {read} does not wait for the journal");
    }
    w.clock.advance(FORGET_AFTER + Duration::from_secs(100));
    w.core.liveness.check();
    let was_forgotten = !w.core.snapshot().jobs.contains_key(&name());
    if forgotten == Forgotten::JobAndDataset {
        // No job reads the dataset any more.
        w.core.liveness.check();
        assert_eq!(w.core.snapshot().datasets.is_empty(), was_forgotten, "after {reads} reads");
    }
    gate.allow(|_| u64::MAX);
    let answer = opening.await;
    if answer.is_err() {
        assert!(w.core.snapshot().jobs.is_empty(), "something is left of a job that was refused");
        w.core.epochs.open_iteration(request(mode, 1)).await.unwrap();
    }
    // The first job knows an epoch that its reader left.
    let is_new = w.core.snapshot().jobs[&name()].abandoned.is_empty();
    assert_eq!(is_new, was_forgotten, "after {reads} reads");
    (was_forgotten, answer)
}

/// The answers to openings during which the job is forgotten, by the number of reads before that. Behind the last one the opening
/// joins the job.
async fn answers(mode: v1::ProcessingMode, forgotten: Forgotten) -> Vec<Result<v1::OpenIterationResponse>> {
    let mut answers = vec![];
    for reads in 0..MAX_READS {
        let (was_forgotten, answer) = open_and_forget(mode, forgotten, reads).await;
        if !was_forgotten {
            answer.unwrap();
            return answers;
        }
        answers.push(answer);
    }
    panic!("the opening never joins the job");
}

/// What the shards of a job divide is found out before the job is made. An opening that has found a job there has not done that.
#[test]
fn a_static_job_is_made_again_or_refused_as_it_is_forgotten_before_or_after_it_is_seen() {
    run(async {
        let answers = answers(v1::ProcessingMode::File, Forgotten::Job).await;
        let says = "job `j` was forgotten while an epoch of it was opened; open it again";
        assert_refused_later(&answers, says);
    });
}

/// Asserts that the first openings were answered, and that the others may be tried again.
fn assert_refused_later(answers: &[Result<v1::OpenIterationResponse>], says: &str) {
    let made = answers.iter().take_while(|answer| answer.is_ok()).count();
    let (made, refused) = answers.split_at(made);
    assert!(!made.is_empty() && !refused.is_empty(), "{answers:?}");
    for answer in refused {
        let e = answer.as_ref().unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
        assert_eq!(e.message(), says);
    }
}

/// An opening whose definition is the one that the job reads does not bind it.
#[test]
fn an_opening_whose_job_and_dataset_are_forgotten_may_be_tried_again() {
    run(async {
        for mode in [v1::ProcessingMode::Dynamic, v1::ProcessingMode::File] {
            let answers = answers(mode, Forgotten::JobAndDataset).await;
            let says = "the dataset of job `j` was forgotten while an epoch of it was opened; open it again";
            assert_refused_later(&answers, says);
        }
    });
}

#[test]
fn a_dynamic_job_is_made_again_whenever_it_is_forgotten() {
    run(async {
        let answers = answers(v1::ProcessingMode::Dynamic, Forgotten::Job).await;
        assert!(answers.len() > 1 && answers.iter().all(Result::is_ok), "{answers:?}");
    });
}

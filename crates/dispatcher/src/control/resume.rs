//! States of readers, as they come with the opening of an epoch.

use std::collections::{BTreeMap, BTreeSet};

use caju_engine::ShardBy;
use caju_proto::v1;
use caju_types::{ClientId, Error, IterationId, JobName, Result, TakenRows};

use super::context::Context;
use super::jobs::mode_of_message;
use super::learnt_boundaries::boundaries_text;
use super::reader_calls::ReaderCalls;
use super::task_messages::listed_splits;
use super::{Txn, attempts, reattach};
use crate::state::{
    Attempt, AttemptRelation, Dataset, Failure, Iteration, Job, Mode, READERS_NOTIFIED, Resume,
    ResumedShards, State, Update,
};

/// The most readers or consumers that a message lists.
const MISSING_NAMED: usize = 8;

/// The states of a request, as one. None if it has no states.
///
/// # Errors
/// `InvalidArgument` for states that cannot be read, or that are not of one epoch.
pub(super) fn parse(request: &v1::OpenIterationRequest) -> Result<Option<Resume>> {
    let Some(first) = request.states.first() else { return Ok(None) };
    if request.flight {
        return Err(Error::invalid("an Arrow Flight reader cannot go on from a state"));
    }
    let attempt = attempts::parse(request)?;
    let mut all: Option<Resume> = None;
    for state in &request.states {
        if state.epoch != request.epoch {
            return Err(Error::invalid(format!(
                "the state is of epoch {}, and this reader reads epoch {}",
                state.epoch, request.epoch
            )));
        }
        if (&state.fingerprint, state.seed, state.mode) != (&first.fingerprint, first.seed, first.mode) {
            return Err(Error::invalid("the states are of different datasets, seeds or processing modes"));
        }
        let ids = |ids: &[u64]| ids.iter().copied().map(ClientId).collect();
        let taken = match state.taken_short.is_empty() {
            true => TakenRows::decode(&state.taken)?,
            false => TakenRows::decode(&state.taken_short)?,
        };
        let one = Resume {
            of: IterationId(state.iteration_id),
            behind: state.behind.iter().copied().map(IterationId).collect(),
            of_all: request.states_of_all,
            given: ids(&state.readers),
            needed: ids(&state.all_readers),
            at_least: num_states(request),
            num_given: if request.states_of_all { state.readers.len() as u64 } else { 1 },
            earlier: BTreeSet::new(),
            recount: false,
            reattached: request.reattached_client != 0,
            awaits_unknown: false,
            reopen_reason: String::new(),
            fallback_states: None,
            from_acknowledged: BTreeSet::new(),
            bases: caju_proto::reading_bases(&state.bases),
            latest: Some(IterationId(state.iteration_id)),
            rows: rows_of(state),
            attempt: attempt.clone().map(Box::new),
            steps: state.steps.iter().map(|s| (s.consumer, s.elements)).collect(),
            shards: shards_of(state, &taken)?,
            draws: state.draws.as_ref().map(|draws| Box::new(draws.into())),
            taken,
        };
        match &mut all {
            None => all = Some(one),
            Some(all) => all.extend(&one)?,
        }
    }
    Ok(all)
}

/// The shards of the epoch of a state; none outside the static modes. All of them are listed from the beginning.
///
/// # Errors
/// `InvalidArgument` for a state that leaves shards out.
fn shards_of(state: &v1::ReaderState, taken: &TakenRows) -> Result<Option<ResumedShards>> {
    let listed = taken.listed();
    let Some(mode) = mode_of_message(state.mode)?.filter(|mode| mode.is_static() && !listed.is_empty())
    else {
        return Ok(None);
    };
    let count = u32::try_from(listed.len()).unwrap_or(u32::MAX);
    if listed.keys().copied().ne(0..count) {
        return Err(Error::invalid(format!(
            "the state names {count} shards, and not those from 0 to {}: it is damaged; read from another state",
            count - 1
        )));
    }
    let by = match state.shard_by.as_str() {
        "" => None,
        name => Some(ShardBy::from_name(name).filter(|by| mode.may_divide(*by)).ok_or_else(|| {
            Error::invalid(format!(
                "the state's shards divide `{name}`, which those of the processing mode `{mode}` do not; read from another state"
            ))
        })?),
    };
    Ok(Some(ResumedShards { count, by }))
}

/// The rows of the only reader whose state it is, if they are known. Those of consumers have copies in them.
fn rows_of(state: &v1::ReaderState) -> BTreeMap<ClientId, u64> {
    match state.readers[..] {
        [reader] if state.rows > 0 && state.steps.is_empty() => [(ClientId(reader), state.rows)].into(),
        _ => BTreeMap::new(),
    }
}

/// The least number of states. Each consumer gives its own: there are as many as consumers, whichever of them know of each
/// other.
fn num_states(request: &v1::OpenIterationRequest) -> u64 {
    let of_consumers = request.states.iter().any(|s| !s.steps.is_empty());
    let gives_own = of_consumers && !request.states_of_all && request.reattached_client == 0;
    request.num_states.max(if gives_own { u64::from(request.num_consumers) } else { 0 })
}

/// Whether states fit what the job reads.
///
/// # Errors
/// `InvalidArgument` that says what differs, `FailedPrecondition` without the hint by which the states' rows were drawn.
pub(super) fn check(
    state: &State,
    request: &v1::OpenIterationRequest,
    job: &Job,
    dataset: &Dataset,
) -> Result<()> {
    let learnt = boundaries_text(state, &dataset.id);
    let Some(state) = request.states.first() else { return Ok(()) };
    let here = dataset.fingerprint.to_string();
    if state.fingerprint != here {
        return Err(Error::invalid(format!(
            "the state is of the dataset {}, and this reader reads {here}: a state goes on in the dataset that it was taken \
             of, in the same version{learnt}",
            state.fingerprint
        )));
    }
    if state.seed != job.spec.seed {
        return Err(Error::invalid(format!(
            "the state is of the seed {}, and this reader reads {}: read with the seed of the state",
            state.seed, job.spec.seed
        )));
    }
    let mode = mode_of_message(state.mode)?.unwrap_or(Mode::Dynamic);
    if mode != job.spec.mode {
        return Err(Error::invalid(format!(
            "the state is of the processing mode `{mode}`, and job `{}` runs in `{}`: read in the mode of the state",
            job.name, job.spec.mode
        )));
    }
    // Names of hints are no part of the fingerprint.
    let frozen_at = request.states.iter().filter_map(|s| s.draws.as_ref()).map(|draws| &draws.frozen_at);
    let unknown = |hint: &&String| !hint.is_empty() && !dataset.hints.iter().any(|h| h.name == **hint);
    if let Some(hint) = frozen_at.into_iter().find(unknown) {
        return Err(Error::failed_precondition(format!(
            "the state is of rows that were drawn as they are stored at hint `{hint}`, and the pipeline has no such hint: go on with \
             the hint under this name"
        )));
    }
    Ok(())
}

/// The readers of an iteration, to one that comes with states.
pub(super) struct Others<F> {
    pub(super) is_alive: F,
    /// Some of them have called since this reader came.
    pub(super) any_called: bool,
}

/// The iteration that a reader with these states joins; none if a new one has to be opened for it. An iteration that does
/// not go on from these states is dropped, if `may_open` lets a new one begin behind them: what its readers took since then is read
/// again.
///
/// # Errors
/// `InvalidArgument` for states that do not belong together, `FailedPrecondition` for a state that comes too late, and those of
/// `may_open`.
pub(super) fn join(
    txn: &mut Txn<'_>,
    iteration: IterationId,
    given: &Resume,
    others: Others<impl Fn(ClientId) -> bool>,
    may_open: impl FnOnce() -> Result<()>,
) -> Result<Option<IterationId>> {
    let Some(known) = txn.state.iterations.get(&iteration) else { return Ok(None) };
    // A consumer that comes back by itself is never of a later launch.
    if given.reattached
        && known.even.is_some()
        && Attempt::relation(known.attempt(), given.attempt.as_deref()) == AttemptRelation::Other
    {
        return Err(attempts::replaced(known, given.attempt.as_deref()));
    }
    if given.reattached && known.resume.is_some() {
        return reattach::join(txn, iteration, given).map(Some);
    }
    match decide_join(known, given, others) {
        JoinDecision::Join => Ok(Some(iteration)),
        JoinDecision::AddStates => reattach::add(txn, iteration, given).map(|()| Some(iteration)),
        JoinDecision::FormerAttempt => Err(attempts::replaced(known, given.attempt.as_deref())),
        JoinDecision::TooLate => Err(Error::failed_precondition(format!(
            "{} has begun from other states, without this one: its rows may come twice; read the epoch again under another \
             job name, from the states of all readers at once, or say how many states there are",
            known.describe()
        ))),
        JoinDecision::Replace => {
            may_open()?;
            end_reading(txn, iteration);
            Ok(None)
        }
    }
}

/// Ends the reading of an epoch that a reader begins again from a state.
pub(super) fn end_reading(txn: &mut Txn<'_>, iteration: IterationId) {
    let Some(known) = txn.state.iterations.get(&iteration) else { return };
    if !known.members.is_empty() {
        let error = Error::failed_precondition(format!(
            "{} was opened again from a state: this reading of it is over",
            known.describe()
        ));
        txn.apply(Update::IterationFailed { iteration, failure: Failure::from(&error) });
    }
    txn.apply(Update::IterationDropped { iteration });
}

/// How the opening of an epoch with states goes on where its iteration is there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JoinDecision {
    /// The reader joins the iteration.
    Join,
    /// The reader joins, and its states are among those that the iteration waits for.
    AddStates,
    /// The iteration began without its states.
    TooLate,
    /// The iteration is dropped, and the epoch begins again from the states of the reader.
    Replace,
    /// Another attempt has replaced the attempt of the reader.
    FormerAttempt,
}

fn decide_join(
    iteration: &Iteration,
    given: &Resume,
    Others { is_alive, any_called }: Others<impl Fn(ClientId) -> bool>,
) -> JoinDecision {
    let relation = Attempt::relation(iteration.attempt(), given.attempt.as_deref());
    if relation == AttemptRelation::Former {
        return JoinDecision::FormerAttempt;
    }
    let Some(known) = iteration.resume.as_deref().filter(|known| known.is_of_one_reading_as(given)) else {
        return JoinDecision::Replace;
    };
    let is_failed = iteration.failure.is_some() && iteration.members.is_empty();
    // The readers of a launch all name its attempt. A consumer that comes back alone is not of another launch.
    let is_of_later_launch = given.attempt.is_some() && iteration.attempt().is_none() && !known.reattached;
    if relation == AttemptRelation::Other
        || is_of_later_launch
        || relation == AttemptRelation::Same && is_failed
    {
        return JoinDecision::Replace;
    }
    // The readers of one attempt go on together, also when the others are at the end.
    let gives_same = given.of_all || is_union_of(known, given);
    if relation == AttemptRelation::Same
        && gives_same
        && !attempts::comes_again(iteration, given.attempt.as_deref(), &is_alive)
    {
        return if known.missing() > 0 && !given.of_all {
            JoinDecision::AddStates
        } else {
            JoinDecision::Join
        };
    }
    // Readers that came to the end while this one waited for their calls are of its launch.
    let have_just_ended = iteration.is_finished() && iteration.members.is_empty() && any_called;
    let has_readers = have_just_ended || iteration.own_members().any(is_alive);
    // A reader that had taken nothing is not waited for. The others have read the epoch to its end before it came.
    let had_nothing = !given.of_all && given.taken.is_empty() && !given.given.is_empty();
    if iteration.is_finished()
        && had_nothing
        && given.of != iteration.id
        && given.given.is_disjoint(&known.given)
    {
        return JoinDecision::Join;
    }
    // While states are missing, readers that gave theirs may have left: they were at their ends.
    let is_deserted = iteration.members.is_empty() && known.missing() == 0 && !have_just_ended;
    if iteration.failure.is_some() || is_deserted || given.of == iteration.id {
        return JoinDecision::Replace;
    }
    // Where readers are all silent they crashed, and this is the first one of the next attempt.
    if given.of_all {
        // All readers go back to these states.
        let is_same = known.of_all && given.given == known.given && given.taken == known.taken;
        return if is_same && has_readers { JoinDecision::Join } else { JoinDecision::Replace };
    }
    if !given.given.is_disjoint(&known.given) {
        // A reader gives its state once: this is its next attempt. But readers that loaded the states of all and have taken
        // nothing since all give the same one.
        return match is_union_of(known, given) && has_readers {
            true if known.missing() > 0 => JoinDecision::AddStates,
            true => JoinDecision::Join,
            // Nobody has got a row since a consumer gave this state, and the process that gave it was killed.
            false if known.missing() > 0 && known.has_state_of_consumer(given) => JoinDecision::Join,
            // Others of its launch came before it, so the epoch has begun behind this state, too.
            false if has_readers && is_awaited_with(iteration, given) => JoinDecision::Join,
            false => JoinDecision::Replace,
        };
    }
    match known.missing() {
        // Nothing of it would come twice.
        0 if given.taken.is_empty() || known.has_rows_of(given) => JoinDecision::Join,
        0 => JoinDecision::TooLate,
        _ => JoinDecision::AddStates,
    }
}

/// Whether the epoch has begun behind the own state that a consumer gives, and no process has read it as this consumer since: its
/// user has exactly the rows of the state.
fn is_awaited_with(iteration: &Iteration, given: &Resume) -> bool {
    let reads = |consumer: &u32| {
        let has_read = iteration.even.as_ref().is_some_and(|even| even.joined.contains(consumer));
        has_read || iteration.members.values().any(|m| m.consumer == Some(*consumer))
    };
    let known = iteration.resume.as_deref();
    known.is_some_and(|known| !known.of_all && known.has_state_of_consumer(given))
        && !given.steps.keys().any(reads)
}

/// Which readers of an epoch call, where it depends on them how a reader with these states goes on. They may have
/// been killed a moment ago, so the answer waits until each has called, or for some heartbeats.
///
/// # Errors
/// Those of the journal.
pub(super) async fn await_reader_calls(
    context: &Context,
    request: &v1::OpenIterationRequest,
    given: Option<&Resume>,
) -> Result<ReaderCalls> {
    let Some(given) = given.filter(|g| !g.reattached) else { return Ok(ReaderCalls::default()) };
    let job = JobName(request.job.clone());
    let found = context.read_durable(|state| {
        let iteration = state.find_iteration(&job, request.epoch)?;
        let is_new = iteration.opened_by(&request.request_id).is_none();
        (is_new && depends_on_readers(iteration, given))
            .then(|| (iteration.id, iteration.own_members().collect::<Vec<_>>()))
    });
    let Some((id, members)) = found.await? else { return Ok(ReaderCalls::default()) };
    Ok(context.reports.await_calls(id, &members).await)
}

/// Whether the decision differs between readers that are alive and readers that are not.
fn depends_on_readers(iteration: &Iteration, given: &Resume) -> bool {
    iteration.own_members().next().is_some()
        && decide_if(iteration, given, true) != decide_if(iteration, given, false)
}

/// The decision if all readers of the iteration are alive, or if none is.
fn decide_if(iteration: &Iteration, given: &Resume, are_alive: bool) -> JoinDecision {
    decide_join(iteration, given, Others { is_alive: |_| are_alive, any_called: false })
}

/// Whether a reader gives the union of states that were given.
fn is_union_of(known: &Resume, given: &Resume) -> bool {
    given.is_union() && given.given.is_subset(&known.given) && known.has_rows_of(given)
}

/// What the readers of an iteration have to know for their states.
pub(super) struct Facts {
    pub(super) listed: Vec<v1::ListedSplits>,
    pub(super) readers: Vec<u64>,
    /// The present readers, if they are few enough to know each other.
    pub(super) present: Vec<u64>,
    /// Those of them whose users were handed elements, or are about to be.
    pub(super) taking: Vec<u64>,
    pub(super) resumed: Vec<u8>,
    /// What users had got when the iteration, and those before it, went on.
    pub(super) bases: Vec<v1::ReadingBase>,
    /// The iterations from whose states this one goes on, and those before them.
    pub(super) readings: Vec<u64>,
    pub(super) states_missing: u64,
    /// Of which epoch, and whose they are.
    pub(super) missing_states: String,
}

impl Facts {
    pub(super) fn of(iteration: &Iteration, knows_resumed: bool, known_readers: u64) -> Self {
        let listed = iteration.feeds.iter().filter_map(|(id, feed)| listed_splits(*id, feed));
        let resume = iteration.resume.as_deref();
        let states_missing = resume.map_or(0, Resume::missing);
        let resumed = resume.filter(|_| !knows_resumed && states_missing == 0);
        let knows_readers = iteration.takers.len() as u64 == known_readers;
        let readers = iteration.takers.iter().filter(|_| !knows_readers);
        let know_each_other = iteration.members.len() <= READERS_NOTIFIED;
        let present = iteration.own_members().filter(|_| know_each_other);
        let present: Vec<ClientId> = present.collect();
        let takes = |c: &&ClientId| iteration.members.get(c).is_some_and(|m| m.takes_since > 0);
        let taking = present.iter().filter(takes);
        Self {
            listed: listed.collect(),
            readers: readers.map(|c| c.0).collect(),
            taking: taking.map(|c| c.0).collect(),
            present: present.iter().map(|c| c.0).collect(),
            bases: resumed
                .map(|_| caju_proto::reading_bases_to_messages(&iteration.bases()))
                .unwrap_or_default(),
            readings: resumed.into_iter().flat_map(Resume::readings).map(|reading| reading.0).collect(),
            resumed: resumed.map(|r| r.taken.encode()).unwrap_or_default(),
            states_missing,
            missing_states: if states_missing > 0 { missing_states(iteration) } else { String::new() },
        }
    }
}

/// Of which epoch states are missing, and whose they are, for a message.
fn missing_states(iteration: &Iteration) -> String {
    let of = iteration.describe();
    let Some(resume) = &iteration.resume else { return of };
    let count = iteration.even.as_ref().map_or(0, |even| even.consumers.count);
    let consumers: Vec<u64> = (0..count).filter(|c| !resume.steps.contains_key(c)).map(u64::from).collect();
    if !consumers.is_empty() {
        return format!("{of}, of consumer {}", listed(&consumers));
    }
    let readers: Vec<u64> = resume.missing_readers().iter().map(|c| c.0).collect();
    if readers.is_empty() {
        of
    } else {
        format!("{of}, of the reader that states name as {}", listed(&readers))
    }
}

/// The first of some numbers, and how many more there are.
fn listed(numbers: &[u64]) -> String {
    let (named, more) = numbers.split_at(numbers.len().min(MISSING_NAMED));
    let named: Vec<String> = named.iter().map(u64::to_string).collect();
    let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
    format!("{}{more}", named.join(", "))
}

/// The job's mode, as messages say it.
pub(super) fn mode_of(state: &State, iteration: &Iteration) -> v1::ProcessingMode {
    let mode = state.jobs.get(&iteration.job).map_or(iteration.mode, |j| j.spec.mode);
    caju_proto::mode_from_name(mode.as_str()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use caju_types::Listed;

    use super::*;

    #[test]
    fn a_state_says_all_its_shards_and_what_they_divide() {
        let shards = |mode: v1::ProcessingMode, feeds: &[u32], by: &str| {
            let mut taken = TakenRows::default();
            feeds.iter().for_each(|feed| taken.set_listed(*feed, Listed { count: 1, digest: 7 }));
            let state = v1::ReaderState { mode: mode.into(), shard_by: by.to_owned(), ..Default::default() };
            shards_of(&state, &taken).map_err(|e| e.message().to_owned())
        };
        let (data, either) = (v1::ProcessingMode::Data, v1::ProcessingMode::FileOrData);
        assert_eq!(shards(data, &[0, 1, 2], ""), Ok(Some(ResumedShards { count: 3, by: None })));
        let by_file = Some(ResumedShards { count: 1, by: Some(ShardBy::File) });
        assert_eq!(shards(either, &[0], "file"), Ok(by_file));
        // Slots of workers, and the only row of splits of `dynamic`, are no shards.
        assert_eq!(shards(v1::ProcessingMode::Off, &[1, 4], ""), Ok(None));
        assert_eq!(shards(v1::ProcessingMode::Dynamic, &[0], ""), Ok(None));
        assert!(shards(data, &[0, 2], "").unwrap_err().contains("not those from 0 to 1"));
        assert!(shards(data, &[0], "file").unwrap_err().contains("divide `file`"));
        assert!(shards(either, &[0], "rows").unwrap_err().contains("divide `rows`"));
    }
}

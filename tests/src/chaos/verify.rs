//! Compares what readers took of an epoch with its rows, row by row.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use super::dataset::BATCH;
use super::ledger::{self, Entry};

/// Rows that a message names.
const NAMED: usize = 3;

/// What one reader took of an epoch.
#[derive(Debug, Clone, Default)]
pub(super) struct Taken {
    /// Which reader of the job; one that is killed and its successor are the same.
    pub(super) seat: usize,
    /// It was killed, and did not continue from a checkpoint.
    pub(super) is_killed: bool,
    /// The rows of each element.
    pub(super) elements: Vec<Vec<String>>,
    /// How the epoch ended for it.
    pub(super) end: Option<End>,
}

/// The dispatcher's final report of an epoch, as a reader got it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct End {
    pub(super) rows_missing: u64,
    pub(super) rows_lost: u64,
    pub(super) is_unknown: bool,
    pub(super) surplus_elements: u64,
}

impl Taken {
    /// What a ledger says about an epoch.
    pub(super) fn of(path: &Path, epoch: u64, seat: usize, is_killed: bool) -> Self {
        let mut taken = Self { seat, is_killed, ..Self::default() };
        for entry in ledger::read(path) {
            match entry {
                Entry::Element { epoch: e, rows } if e == epoch => taken.elements.push(rows),
                Entry::End { epoch: e, rows_missing, rows_lost, is_unknown, surplus_elements }
                    if e == epoch =>
                {
                    taken.end = Some(End { rows_missing, rows_lost, is_unknown, surplus_elements });
                }
                _ => {}
            }
        }
        taken
    }

    fn rows(&self) -> impl Iterator<Item = &str> {
        self.elements.iter().flatten().map(String::as_str)
    }
}

/// What a round permits.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rules {
    /// The readers are this number of consumers, which get equally many elements; 0: they share the rows as they come.
    pub(super) consumers: usize,
    /// The dispatcher may not know what a killed reader had acknowledged.
    pub(super) forgets_acknowledgements: bool,
}

/// Checks an epoch.
///
/// - Each row that a living reader took was taken once.
/// - Each other row was taken by a killed reader. Consumers may leave out a last round.
/// - What comes again of a killed reader's rows is what it took last: what it had acknowledged does not come again.
/// - The dispatcher reports the number of rows that killed readers have alone.
/// - Consumers got equally many elements.
///
/// # Errors
/// What is wrong, with some of the rows.
pub(super) fn check(expected: &HashSet<String>, readers: &[Taken], rules: Rules) -> Result<(), String> {
    let holders = holders_of(readers);
    let alone = |row: &str| holders.get(row).is_some_and(|h| h.len() == 1);
    let is_living = |r: &usize| readers.get(*r).is_some_and(|t| !t.is_killed);
    none("rows are not of the dataset", holders.keys().filter(|row| !expected.contains(**row)))?;
    let ends = || readers.iter().filter(|t| !t.is_killed).filter_map(|t| t.end);
    let is_unknown = ends().any(|e| e.is_unknown);
    if is_unknown && rules.forgets_acknowledgements {
        // The epoch is reported as incomplete, and no number is promised.
        return Ok(());
    }
    let twice = holders.iter().filter(|(_, h)| h.iter().filter(|r| is_living(r)).count() > 1);
    none("rows were taken twice", twice.map(|(row, _)| row))?;
    let surplus = ends().map(|e| e.surplus_elements).max().unwrap_or(0);
    if surplus as usize >= rules.consumers.max(1) {
        return Err(format!("{surplus} elements were dropped for {} consumers", rules.consumers));
    }
    let missing: Vec<_> = expected.iter().filter(|row| !holders.contains_key(row.as_str())).collect();
    if missing.len() as u64 > surplus * BATCH {
        none("rows were taken by nobody", missing.iter())?;
    }
    if !rules.forgets_acknowledgements {
        for killed in readers.iter().filter(|t| t.is_killed) {
            let again = |rows: &Vec<String>| rows.iter().any(|row| !alone(row));
            let first = killed.elements.iter().position(again).unwrap_or(killed.elements.len());
            let (_, last) = killed.elements.split_at(first);
            let kept = last.iter().flatten().filter(|row| alone(row));
            none("rows of a killed reader come behind rows that came again", kept)?;
        }
    }
    if rules.consumers == 0 {
        let held = |row: &&String| holders.get(row.as_str()).is_some_and(|h| h.iter().any(is_living));
        let absent = expected.iter().filter(|row| !held(row)).count() as u64;
        let reported = ends().map(|e| (e.rows_missing, e.rows_lost)).max().unwrap_or_default();
        if reported != (0, absent) {
            return Err(format!(
                "killed readers have {absent} rows alone, and the dispatcher reports {reported:?} as missing and lost"
            ));
        }
    }
    check_evenness(readers, rules, alone)
}

/// Consumers got equally many elements. Elements of a killed one that came again do not count for it.
fn check_evenness(readers: &[Taken], rules: Rules, alone: impl Fn(&str) -> bool) -> Result<(), String> {
    let mut elements = vec![0; rules.consumers];
    for taken in readers {
        let counts = |rows: &&Vec<String>| !taken.is_killed || rows.iter().all(|row| alone(row));
        if let Some(of_consumer) = elements.get_mut(taken.seat) {
            *of_consumer += taken.elements.iter().filter(counts).count();
        }
    }
    match elements.windows(2).all(|pair| pair[0] == pair[1]) {
        true => Ok(()),
        false => Err(format!("the consumers got {elements:?} elements")),
    }
}

/// The readers that took each row; a reader that took a row twice is listed twice.
fn holders_of(readers: &[Taken]) -> HashMap<&str, Vec<usize>> {
    let mut holders: HashMap<&str, Vec<usize>> = HashMap::new();
    for (reader, taken) in readers.iter().enumerate() {
        taken.rows().for_each(|row| holders.entry(row).or_default().push(reader));
    }
    holders
}

/// An error that names some of the rows, unless there are none.
fn none<T: ToString>(what: &str, rows: impl Iterator<Item = T>) -> Result<(), String> {
    let rows: Vec<_> = rows.map(|row| row.to_string()).collect();
    match rows.is_empty() {
        true => Ok(()),
        false => Err(format!("{} {what}, such as {:?}", rows.len(), &rows[..rows.len().min(NAMED)])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dataset() -> HashSet<String> {
        (0..6).map(|n| n.to_string()).collect()
    }

    fn taken(seat: usize, is_killed: bool, elements: &[&[&str]]) -> Taken {
        let text = |rows: &&[&str]| rows.iter().map(ToString::to_string).collect();
        let end = (!is_killed).then(End::default);
        Taken { seat, is_killed, elements: elements.iter().map(text).collect(), end }
    }

    fn problem(readers: &[Taken], rules: Rules) -> String {
        check(&dataset(), readers, rules).unwrap_err()
    }

    const SHARED: Rules = Rules { consumers: 0, forgets_acknowledgements: false };
    const TWO: Rules = Rules { consumers: 2, ..SHARED };

    #[test]
    fn an_epoch_of_which_each_row_was_taken_once_passes() {
        let two = [taken(0, false, &[&["0", "1"], &["4"]]), taken(1, false, &[&["2", "3"], &["5"]])];
        check(&dataset(), &two, SHARED).unwrap();
        check(&dataset(), &two, TWO).unwrap();
    }

    #[test]
    fn rows_that_are_doubled_lost_or_foreign_are_found() {
        let whole: &[&[&str]] = &[&["0", "1", "2"], &["3", "4", "5"]];
        let said = problem(&[taken(0, false, whole), taken(1, false, &[&["3"]])], SHARED);
        assert!(said.contains("1 rows were taken twice, such as [\"3\"]"), "{said}");
        let said = problem(&[taken(0, false, &[&["0", "0"], &["1", "2", "3", "4", "5"]])], SHARED);
        assert!(said.contains("taken twice"), "{said}");
        let said = problem(&[taken(0, false, &[&["0", "1", "2", "4", "5"]])], SHARED);
        assert!(said.contains("1 rows were taken by nobody, such as [\"3\"]"), "{said}");
        let said = problem(&[taken(0, false, &[&["0", "1", "2"], &["3", "4", "5", "6"]])], SHARED);
        assert!(said.contains("not of the dataset, such as [\"6\"]"), "{said}");
        // A row that is duplicated instead of another one does not change the number of rows.
        let said = problem(&[taken(0, false, &[&["0", "1", "2"], &["3", "4", "4"]])], SHARED);
        assert!(said.contains("taken twice"), "{said}");
    }

    #[test]
    fn a_killed_reader_takes_with_it_only_rows_that_it_took_and_the_dispatcher_counts_them() {
        let killed = || taken(1, true, &[&["0"], &["1"], &["2"]]);
        let living = |lost, elements: &[&[&str]]| Taken {
            end: Some(End { rows_lost: lost, ..End::default() }),
            ..taken(0, false, elements)
        };
        // It had acknowledged two elements.
        check(&dataset(), &[killed(), living(2, &[&["2"], &["3", "4", "5"]])], SHARED).unwrap();
        let said = problem(&[killed(), living(1, &[&["2"], &["3", "4", "5"]])], SHARED);
        assert!(said.contains("have 2 rows alone"), "{said}");
        let said = problem(&[killed(), living(2, &[&["2"], &["3", "4"]])], SHARED);
        assert!(said.contains("taken by nobody"), "{said}");
        // Acknowledged rows come again, and later ones do not.
        let said = problem(&[killed(), living(2, &[&["1"], &["3", "4", "5"]])], SHARED);
        assert!(said.contains("behind rows that came again, such as [\"2\"]"), "{said}");
        let forgets = Rules { forgets_acknowledgements: true, ..SHARED };
        check(&dataset(), &[killed(), living(2, &[&["1"], &["3", "4", "5"]])], forgets).unwrap();
    }

    #[test]
    fn consumers_with_unequal_numbers_of_elements_are_found() {
        let first = taken(0, false, &[&["0", "1"], &["2", "3"]]);
        let said = problem(&[first, taken(1, false, &[&["4", "5"]])], TWO);
        assert!(said.contains("[2, 1] elements"), "{said}");
        // The second consumer was killed, and its last element came again.
        let first = taken(0, false, &[&["0", "1"], &["2"]]);
        let killed = taken(1, true, &[&["3"], &["4"]]);
        check(&dataset(), &[first, killed, taken(1, false, &[&["4", "5"]])], TWO).unwrap();
    }
}

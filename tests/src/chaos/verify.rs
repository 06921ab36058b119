//! Compares what readers took of an epoch with its rows, row by row.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use caju_client::Balance;

use super::dataset::{BATCH, MAX_ITEMS};
use super::ledger::{self, Entry, Lists};

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
    /// The lists of each element, where rows have such.
    pub(super) lists: Vec<Lists>,
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
                Entry::Element { epoch: e, rows, lists } if e == epoch => {
                    taken.elements.push(rows);
                    taken.lists.extend(lists);
                }
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
    /// What the elements of a round of consumers have in common.
    pub(super) balance: Balance,
    /// The most rounds at the end of an epoch whose batches were filled with rows of several tasks, which are not packed.
    pub(super) unpacked_rounds: usize,
    /// The classes of elements: consumers may leave out a last round of each.
    pub(super) classes: usize,
    /// The dispatcher may not know what a killed reader had acknowledged.
    pub(super) forgets_acknowledgements: bool,
}

/// Checks an epoch.
///
/// - Each row that a living reader took was taken once.
/// - Each other row was taken by a killed reader. Consumers may leave out a last round.
/// - What comes again of a killed reader's rows is what it took last: what it had acknowledged does not come again.
/// - The dispatcher reports the number of rows that killed readers have alone.
/// - Consumers got equally many elements, and no round is mixed.
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
    if surplus as usize > rules.consumers.saturating_sub(1) * rules.classes.max(1) {
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
    check_evenness(readers, rules, alone)?;
    check_rounds(readers, rules)
}

/// The n-th elements of all consumers are of one class and their lists of one length, or they have nearly equally many items.
fn check_rounds(readers: &[Taken], rules: Rules) -> Result<(), String> {
    let rounds = readers.iter().map(|taken| taken.lists.len()).max().unwrap_or(0);
    let mut uneven = Vec::new();
    for round in 0..rounds {
        let of_round: Vec<&Lists> = readers.iter().filter_map(|taken| taken.lists.get(round)).collect();
        let is_one = |lists: &&Lists| {
            let first = of_round.first().map(|first| (&first.classes, &first.lengths));
            lists.classes.len() == 1 && first == Some((&lists.classes, &lists.lengths))
        };
        if rules.balance == Balance::Bucket && !of_round.iter().all(is_one) {
            return Err(format!("round {round} is mixed: {of_round:?}"));
        }
        let items = of_round.iter().map(|lists| lists.items);
        let (least, most) = (items.clone().min().unwrap_or(0), items.max().unwrap_or(0));
        if most - least > MAX_ITEMS && round + rules.unpacked_rounds < rounds {
            uneven.push((round, least, most));
        }
    }
    match rules.balance == Balance::Tokens && !uneven.is_empty() {
        true => Err(format!("of {rounds} rounds these have unequal numbers of items: {uneven:?}")),
        false => Ok(()),
    }
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
        Taken { seat, is_killed, elements: elements.iter().map(text).collect(), lists: Vec::new(), end }
    }

    fn problem(readers: &[Taken], rules: Rules) -> String {
        check(&dataset(), readers, rules).unwrap_err()
    }

    const SHARED: Rules = Rules {
        consumers: 0,
        balance: Balance::None,
        unpacked_rounds: 0,
        classes: 1,
        forgets_acknowledgements: false,
    };
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

    #[test]
    fn mixed_rounds_are_found() {
        let of = |class, length, items| Lists { classes: [class].into(), lengths: [length].into(), items };
        let own = |seat, rows: &[&[&str]], lists: &[Lists]| Taken {
            lists: lists.to_vec(),
            ..taken(seat, false, rows)
        };
        let check_two = |balance, second: Lists| {
            let first = own(0, &[&["0", "1"], &["2"]], &[of(0, 3, 6), of(1, 5, 9)]);
            let second = own(1, &[&["3", "4"], &["5"]], &[of(0, 3, 9), second]);
            check(&dataset(), &[first, second], Rules { balance, classes: 3, ..TWO })
        };
        check_two(Balance::Bucket, of(1, 5, 100)).unwrap();
        let said = check_two(Balance::Bucket, of(2, 5, 9)).unwrap_err();
        assert!(said.contains("round 1 is mixed"), "{said}");
        let said = check_two(Balance::Bucket, of(1, 6, 9)).unwrap_err();
        assert!(said.contains("round 1 is mixed"), "{said}");
        check_two(Balance::Tokens, of(2, 6, 9 + MAX_ITEMS)).unwrap();
        let said = check_two(Balance::Tokens, of(2, 6, 10 + MAX_ITEMS)).unwrap_err();
        assert!(said.contains("unequal numbers of items: [(1, 9, 23)]"), "{said}");
        let first = own(0, &[&["0", "1"], &["2"]], &[of(0, 3, 6), of(1, 5, 90)]);
        let second = own(1, &[&["3", "4"], &["5"]], &[of(0, 3, 9), of(1, 5, 9)]);
        let rules = Rules { balance: Balance::Tokens, unpacked_rounds: 1, ..TWO };
        check(&dataset(), &[first, second], rules).unwrap();
    }
}

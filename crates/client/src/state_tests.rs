//! What a state says, its form as JSON, and the union of several.

use caju_proto::reading_bases;
use caju_types::ReadingBase;

use super::*;

fn state() -> ReaderState {
    let mut taken = TakenRows::default();
    taken.add_whole_range(0, 7);
    taken.add_rows(8, &[(3, 9)].into_iter().collect());
    ReaderState {
        fingerprint: "f".into(),
        seed: 3,
        epoch: 1,
        mode: "dynamic".into(),
        iteration: 5,
        behind: BTreeSet::new(),
        readers: [6].into(),
        all_readers: [6, 7].into(),
        elements: 4,
        rows: 40,
        exhausted: false,
        turn: 0,
        shard_by: String::new(),
        draws: None,
        taken,
        steps: BTreeMap::new(),
        bases: ReadingBases::default(),
    }
}

#[test]
fn ckp_22_a_state_passes_through_json() {
    for state in [state(), ReaderState { mode: "file_or_data".into(), shard_by: "data".into(), ..state() }] {
        assert_eq!(ReaderState::from_json(&state.to_json().unwrap()).unwrap(), state);
    }
}

#[test]
fn a_state_of_version_2_is_read_as_it_was_written() {
    let written = r#"{"version":2,"fingerprint":"f","seed":3,"epoch":1,"mode":"dynamic","iteration":5,"readers":[6],
        "all_readers":[6,7],"elements":4,"rows":40,"exhausted":false,"taken":"AQABAAcBCAABAwY="}"#;
    assert_eq!(ReaderState::from_json(written).unwrap(), state());
}

#[test]
fn a_state_says_what_its_reading_is_built_on() {
    let mut state = state();
    state
        .bases
        .insert(IterationId(5), ReadingBase { steps: [(0, 3)].into(), rows: [(ClientId(2), 30)].into() });
    let text = state.to_json().unwrap();
    assert!(text.contains(r#""bases":{"5":{"steps":{"0":3},"rows":{"2":30}}}"#), "{text}");
    assert_eq!(ReaderState::from_json(&text).unwrap(), state);
    assert_eq!(reading_bases(&state.to_proto().bases), state.bases);
}

/// What the reader took between its state and the beginning of the later reading would be missing.
#[test]
fn an_older_state_has_no_union_with_one_of_a_later_reading() {
    let later = |had: u64| {
        let mut later = ReaderState {
            iteration: 6,
            behind: [5].into(),
            readers: [8].into(),
            all_readers: [8].into(),
            ..state()
        };
        later.bases.insert(
            IterationId(6),
            ReadingBase { rows: [(ClientId(6), had)].into(), ..ReadingBase::default() },
        );
        later
    };
    for (had, fits) in [(40, true), (41, false)] {
        for both in [[state(), later(had)], [later(had), state()]] {
            let union = ReaderState::union(&both);
            assert_eq!(union.is_ok(), fits, "{union:?}");
            let message = union.map_or_else(|e| e.message().to_string(), |_| String::new());
            assert!(
                fits || message.contains("client-6 has 40 rows, and by the states of others it had 41"),
                "{message}"
            );
        }
    }
}

/// What their readers had when a later reading went on is not known any more.
#[test]
fn a_state_from_before_the_last_readings_has_no_union_with_a_present_one() {
    let mut states = vec![state()];
    for iteration in 6..=6 + ReadingBases::MAX as u64 {
        let behind = states[states.len() - 1].behind_these(BTreeSet::new());
        states.push(ReaderState { iteration, behind, readers: [iteration + 100].into(), ..state() });
    }
    let last = states[states.len() - 1].clone();
    assert!(ReaderState::union(&[states[1].clone(), last.clone()]).is_ok());
    let e = ReaderState::union(&[states[0].clone(), last]).unwrap_err();
    assert!(e.message().contains("not of one reading"), "{e}");
}

#[test]
fn ckp_30_what_is_no_state_is_refused() {
    let text = state().to_json().unwrap();
    for (from, to, said) in [
        ("\"version\":2", "\"version\":9", "version 9"),
        ("\"rows\":40", "\"rows\":39", "damaged"),
        ("\"taken\":\"AQ", "\"taken\":\"AA", "damaged"),
        ("\"checksum\":\"", "\"checksum\":\"0", "damaged"),
        ("\"epoch\":1", "\"epoch\":-1", "not a state"),
    ] {
        let changed = text.replace(from, to);
        assert_ne!(changed, text, "{from}");
        let e = ReaderState::from_json(&changed).unwrap_err();
        assert!(
            e.kind() == caju_types::ErrorKind::InvalidArgument && e.message().contains(said),
            "{said}: {e}"
        );
    }
}

/// States of earlier versions have no checksum.
#[test]
fn what_has_no_checksum_is_checked_field_by_field() {
    let text = state().to_json().unwrap();
    let (fields, _) = text.split_once(",\"checksum\"").unwrap();
    let text = format!("{fields}}}");
    assert_eq!(ReaderState::from_json(&text).unwrap(), state());
    for (from, to, said) in [
        ("\"mode\":\"dynamic\"", "\"mode\":\"often\"", "`mode` is `often`"),
        ("\"taken\":\"", "\"taken\":\"?", "`taken`"),
        ("\"taken\":\"AQ", "\"taken\":\"AA", "format 0"),
    ] {
        let e = ReaderState::from_json(&text.replace(from, to)).unwrap_err();
        assert!(e.message().contains(said), "{said}: {e}");
    }
}

#[test]
fn a_flipped_bit_of_the_rows_is_noticed() {
    let text = state().to_json().unwrap();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    let taken = STANDARD.decode(value["taken"].as_str().unwrap()).unwrap();
    for bit in 0..taken.len() * 8 {
        let mut flipped = taken.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let mut changed = value.clone();
        changed["taken"] = STANDARD.encode(flipped).into();
        // The order of the fields is another one, too.
        let e = ReaderState::from_json(&changed.to_string()).unwrap_err();
        assert!(e.message().contains("damaged"), "bit {bit}: {e}");
    }
    assert_eq!(ReaderState::from_json(&value.to_string()).unwrap(), state(), "in any order of fields");
}

#[test]
fn states_of_two_readings_have_no_union() {
    let other = ReaderState { iteration: 6, ..state() };
    assert!(ReaderState::union(&[state(), other]).is_err());
    assert!(ReaderState::union(&[]).is_err());
    let later = ReaderState {
        iteration: 6,
        behind: [5].into(),
        readers: [8].into(),
        all_readers: [8].into(),
        ..state()
    };
    for both in [[state(), later.clone()], [later, state()]] {
        let both = ReaderState::union(&both).unwrap();
        assert_eq!(
            (both.iteration, both.all_readers.len(), both.readers.len()),
            (6, 1, 2),
            "one began where it was"
        );
    }
    let mut second = ReaderState { readers: [7].into(), taken: TakenRows::default(), ..state() };
    second.taken.add_rows(7, &[(0, 1)].into_iter().collect());
    let both = ReaderState::union(&[state(), second]).unwrap();
    assert_eq!((both.readers.len(), both.rows, both.taken.rows().count()), (2, 80, 2));
}

/// Eight readers share 1,000,000 splits, and each takes several in a row: `caju bench state --readers 8` measures it.
#[test]
fn a_state_of_one_of_eight_readers_of_a_million_splits_takes_less_than_64_kib() {
    let (mut taken, mut random, mut split) = (TakenRows::default(), 1u64, 0u64);
    while split < 1_000_000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let end = split + [1, 1, 3, 3, 3, 3, 2, 6][usize::try_from((random >> 40) % 8).unwrap()];
        if random >> 61 == 0 {
            taken.add_whole_range(split, end);
        }
        split = end;
    }
    let state = ReaderState { taken, ..state() };
    // `caju bench state` measures how long it takes.
    let text = state.to_json().unwrap();
    assert!(text.len() < 60 << 10, "{} bytes", text.len());
    assert_eq!(ReaderState::from_json(&text).unwrap(), state);
}

/// Dispatchers of earlier versions read it.
#[test]
fn a_dispatcher_gets_no_form_that_came_after_it() {
    let mut taken = TakenRows::default();
    (0..4000u64).for_each(|n| {
        taken.add_whole_range(20 * n, 20 * n + [1, 3, 3, 2][usize::try_from(n * n % 4).unwrap()])
    });
    let state = ReaderState { taken, ..state() };
    let message = state.to_proto();
    assert_eq!((message.taken[0], message.taken_short[0]), (1, 2));
    let json: serde_json::Value = serde_json::from_str(&state.to_json().unwrap()).unwrap();
    assert_eq!(STANDARD.decode(json["taken"].as_str().unwrap()).unwrap()[0], 3);
}

#[test]
fn a_state_that_could_not_be_loaded_is_refused_when_it_is_taken() {
    let text = state().to_json().unwrap();
    assert!(within(text.len(), &text).is_ok());
    let e = within(text.len() - 1, &text).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::ResourceExhausted);
    assert!(e.message().contains(&format!("the state takes {} bytes", text.len())), "{e}");
}

//! Sets of taken rows: their forms, unions and sizes.

use proptest::prelude::*;

use super::*;

type Parts = (Vec<(u64, u64)>, Vec<(u64, Vec<(u64, u64)>)>, Option<(u64, u64)>);

fn parts() -> impl Strategy<Value = Parts> {
    let ranges = |most: u64, n| prop::collection::vec((0..most, 1u64..9).prop_map(|(s, n)| (s, s + n)), 0..n);
    let rows = prop::collection::vec((0u64..(3 << 40), ranges(600, 120)), 0..6);
    (ranges(1 << 42, 20), rows, prop::option::of((0u64..99, any::<u64>())))
}

fn taken((whole, rows, listed): &Parts) -> TakenRows {
    let mut out = TakenRows::default();
    for (split, rows) in rows {
        out.add_rows(*split, &rows.iter().copied().collect());
        if split % 3 > 0 {
            out.set_size(*split, 700 + split % 5);
        }
    }
    whole.iter().for_each(|(start, end)| out.add_whole_range(*start, *end));
    if let Some((count, digest)) = *listed {
        out.set_listed(0, Listed { count, digest });
    }
    out
}

proptest! {
    #[test]
    fn a_set_survives_its_encoding(parts in parts()) {
        let set = taken(&parts);
        let forced = [SHORT_FORMAT, DENSE_FORMAT].map(|format| set.encode_as(format));
        for bytes in forced.into_iter().chain([set.encode_short(), set.encode_dense()]) {
            prop_assert_eq!(&TakenRows::decode(&bytes).unwrap(), &set);
        }
        let without_sizes = TakenRows { sizes: BTreeMap::new(), ..set.clone() };
        prop_assert_eq!(&TakenRows::decode(&set.encode()).unwrap(), &without_sizes);
        prop_assert_eq!(&TakenRows::decode(&without_sizes.encode_short()).unwrap(), &without_sizes);
        prop_assert_eq!(&TakenRows::decode(&without_sizes.encode_dense()).unwrap(), &without_sizes);
    }

    #[test]
    fn a_union_has_the_rows_of_both((a, b) in (parts(), parts())) {
        let (a, b) = (taken(&a), taken(&b));
        let mut both = a.clone();
        if both.extend(&b).is_ok() {
            for set in [&a, &b] {
                let mut again = both.clone();
                again.extend(set).unwrap();
                prop_assert_eq!(&again, &both);
                prop_assert!(both.contains(set));
                prop_assert_eq!(set.contains(&both), set.whole == both.whole && set.rows == both.rows);
            }
        }
    }

    #[test]
    fn damaged_bytes_are_an_error(parts in parts(), at in any::<prop::sample::Index>(), byte: u8) {
        for format in [FORMAT, SHORT_FORMAT, DENSE_FORMAT] {
            let mut bytes = taken(&parts).encode_as(format);
            let at = at.index(bytes.len());
            bytes[at] = byte;
            drop(TakenRows::decode(&bytes));
            prop_assert!(TakenRows::decode(&bytes[..at]).is_err());
        }
    }
}

#[test]
fn ckp_33_a_state_that_is_too_large_is_refused() {
    let e = TakenRows::decode(&vec![FORMAT; MAX_BYTES + 1]).unwrap_err();
    assert!(e.kind() == crate::ErrorKind::InvalidArgument && e.message().contains("16,777,217"), "{e}");
    let mut scattered = vec![FORMAT, 0, 0, 1, 0, 1, 0];
    put(&mut scattered, 5 << 20);
    scattered.resize(scattered.len() + (5 << 20), 0b0101_0101);
    let e = TakenRows::decode(&scattered).unwrap_err();
    assert!(e.message().contains("4,194,304 ranges"), "{e}");
    let e = TakenRows::decode(&[9]).unwrap_err();
    assert!(e.message().contains("format 9"), "{e}");
}

proptest! {
    /// Rows of splits of any length, at any distance. Longer sets than the other properties have: the frequencies matter.
    #[test]
    fn many_ranges_survive_the_dense_form(ranges in prop::collection::vec((0u64..40, 1u64..12, 0u32..14), 0..2000)) {
        let (mut set, mut at) = (TakenRows::default(), 0);
        for (gap, len, more) in ranges {
            let start = at + gap + if more == 0 { gap << 20 } else { 0 };
            at = start + len;
            set.add_whole_range(start, at);
        }
        let bytes = set.encode_as(DENSE_FORMAT);
        prop_assert_eq!(&TakenRows::decode(&bytes).unwrap(), &set);
        prop_assert!(set.encode_dense().len() <= set.encode_short().len().min(bytes.len()));
    }
}

/// A reader takes each of these rows of splits with a probability of an eighth.
fn an_eighth_of_a_million(mut next_len: impl FnMut(u64) -> u64) -> TakenRows {
    let (mut taken, mut random, mut split) = (TakenRows::default(), 1u64, 0);
    while split < 1_000_000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let end = split + next_len(random >> 40);
        if random >> 61 == 0 {
            taken.add_whole_range(split, end);
        }
        split = end;
    }
    taken
}

/// No form could take less than 66.4 KiB: 0.5436 bits per split.
#[test]
fn every_eighth_of_one_million_splits_takes_little_more_than_the_entropy() {
    let taken = an_eighth_of_a_million(|_| 1);
    let bytes = taken.encode_dense();
    assert!(bytes.len() < 67 << 10, "{} bytes", bytes.len());
    assert_eq!(TakenRows::decode(&bytes).unwrap(), taken);
    assert!(taken.encode_short().len() < 75 << 10);
}

/// Where rows come from a set, in the order in which they were stored, the splits that were read are scattered over the epoch's order.
/// No form could take less than 12.2 KiB: a bit per split.
#[test]
fn any_half_of_100_000_splits_takes_little_more_than_a_bit_each() {
    let (mut taken, mut random) = (TakenRows::default(), 1u64);
    for split in 0..100_000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        if random >> 63 == 0 {
            taken.add_whole(split);
        }
    }
    let bytes = taken.encode_dense();
    assert!(bytes.len() < 14 << 10, "{} bytes", bytes.len());
    assert_eq!(TakenRows::decode(&bytes).unwrap(), taken);
}

/// Workers give several splits in a row to a reader: mostly three, with three that are read concurrently.
#[test]
fn an_eighth_of_one_million_splits_in_rows_of_several_is_less_than_64_kib_of_base64() {
    let taken =
        an_eighth_of_a_million(|random| [1, 1, 3, 3, 3, 3, 2, 6][usize::try_from(random % 8).unwrap()]);
    let bytes = taken.encode_dense();
    assert!(bytes.len() < 48 << 10, "{} bytes", bytes.len());
    assert_eq!(TakenRows::decode(&bytes).unwrap(), taken);
}

/// Few bytes do not become many ranges.
#[test]
fn ranges_of_less_than_a_bit_each_are_refused() {
    let of = |count: u64| {
        let mut bytes = vec![DENSE_FORMAT, 0];
        put(&mut bytes, count);
        for table in 0..15 {
            // Every number is 0, without a doubt.
            bytes.extend(if [0, 6].contains(&table) { &[1, 0, 0x80, 0x20][..] } else { &[0] });
        }
        bytes.extend([0, 8, 0, 0, 0, 0x80, 0, 0, 0, 0]);
        bytes.extend([0, 0, 0]);
        TakenRows::decode(&bytes)
    };
    assert_eq!(of(64).unwrap().whole().num_ranges(), 64);
    for count in [65, 4 << 20, u64::MAX] {
        assert!(of(count).unwrap_err().message().contains("damaged"), "{count}");
    }
    let mut regular = TakenRows::default();
    (0..80_000).step_by(8).for_each(|split| regular.add_whole(split));
    assert_eq!(regular.encode_as(DENSE_FORMAT)[0], SHORT_FORMAT);
}

#[test]
fn a_split_is_whole_when_the_states_of_several_readers_have_all_of_its_rows() {
    let part = |rows: (u64, u64), size: Option<u64>| {
        let mut taken = TakenRows::default();
        taken.add_rows(7, &std::iter::once(rows).collect());
        size.into_iter().for_each(|size| taken.set_size(7, size));
        TakenRows::decode(&taken.encode_short()).unwrap()
    };
    for sizes in [(Some(90), None), (None, Some(90)), (Some(90), Some(90))] {
        let (mut both, more) = (part((0, 40), sizes.0), part((40, 90), sizes.1));
        both.extend(&more).unwrap();
        assert_eq!(
            (both.whole().iter().collect::<Vec<_>>(), both.sizes.len()),
            (vec![(7, 8)], 0),
            "{sizes:?}"
        );
    }
    let mut both = part((0, 40), Some(90));
    both.extend(&part((50, 90), Some(90))).unwrap();
    assert!(both.whole().is_empty() && both.rows_of(7).is_some_and(|r| r.len() == 80));
    assert_eq!(TakenRows::decode(&both.encode_short()).unwrap(), both);
}

#[test]
fn one_million_splits_in_order_take_a_few_bytes() {
    let mut taken = TakenRows::default();
    (0..1_000_000).for_each(|split| taken.add_whole(split));
    assert!(taken.encode().len() < 16);
}

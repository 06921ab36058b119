"""How rows travel, and how datasets are mixed, by their ids in docs/conformance.md."""

from collections import Counter

import pytest

import caju as cj


def values(dataset, name="id"):
    return [int(row[name]) for row in dataset]


def batches(dataset, name="id"):
    return [[int(v) for v in batch[name]] for batch in dataset]


# ---- compression and protocol --------------------------------------------------------------------------------------


def test_xfr_01_every_compression_gives_the_rows(cluster):
    address = cluster(workers=1).dispatcher.address
    for compression in (None, "none", "auto", "AUTO", "lz4", "zstd"):
        assert sorted(values(cj.range(10).distribute(address, compression=compression))) == list(range(10))


def test_arg_06_an_unknown_compression_is_refused():
    for wrong in ("foo", 7):
        with pytest.raises(cj.InvalidPipeline, match="is not one of none, auto, lz4, zstd"):
            cj.range(10).distribute("127.0.0.1:7", compression=wrong)


def test_xfr_04_a_protocol_that_is_not_offered_is_not_found(cluster):
    address = cluster(workers=1).dispatcher.address
    for protocol in (None, "auto", "framed", "FRAMED"):
        assert sorted(values(cj.range(10).distribute(address, data_transfer_protocol=protocol))) == list(range(10))
    with pytest.raises(cj.NotFound, match="'grpc' is not available"):
        cj.range(10).distribute(address, data_transfer_protocol="grpc")
    with pytest.raises(cj.InvalidPipeline, match="must be a string"):
        cj.range(10).distribute(address, data_transfer_protocol=3)


@pytest.mark.parametrize("protocol", ["framed", "local"])
def test_xfr_02_a_protocol_that_is_named_gives_the_rows_by_definition_and_by_id(cluster, protocol):
    rows = cj.range(10).map(id="id", text="repeat('x', 1000)")

    def check(service):
        rows.register(service, "ten")
        by_definition = rows.distribute(service, data_transfer_protocol=protocol)
        for dataset in (by_definition, cj.from_dataset_id(service, "ten", data_transfer_protocol=protocol)):
            epoch = iter(dataset)
            assert sorted(int(row["id"]) for row in epoch) == list(range(10))
            stats = epoch.stats
            assert (stats.received_bytes > 10_000) == (protocol == "framed") and stats.mapped_bytes == 0, stats

    if protocol == "local":
        with cj.start_dispatcher() as dispatcher, cj.start_worker(dispatcher):
            check(dispatcher)
    else:
        check(cluster(workers=1).dispatcher.address)


# ---- a part of the rows per epoch ----------------------------------------------------------------------------------


def test_shf_03_an_epoch_of_some_rows_picks_the_same_or_others():
    fixed = cj.range(117).take(16).shuffle(117)
    assert [sorted(values(fixed)) for _ in range(3)] == [list(range(16))] * 3
    balanced = cj.range(117).shuffle(117).take(16)
    picks = [sorted(values(balanced)) for _ in range(3)]
    assert all(len(set(pick)) == 16 for pick in picks)
    assert len({tuple(pick) for pick in picks}) == 3, "another sample in each epoch"
    larger = cj.range(117).repeat(2).take(200)
    assert len(values(larger)) == 200
    with pytest.raises(cj.InvalidPipeline, match="sampling_method"):
        cj.from_yaml("source: { range: 117 }\nsteps: [ { shuffle: { buffer: 10, sampling_method: fixed } } ]")


@pytest.mark.parametrize("rows", [9867, 30_000])
@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("drop", [False, True])
def test_det_07_the_length_is_the_number_of_batches(rows, workers, shuffled, drop):
    dataset = cj.range(rows).shuffle(1000) if shuffled else cj.range(rows)
    with cj.LocalCluster(workers=workers) as cluster:
        dataset = dataset.batch(128, drop_remainder=drop).distribute(cluster)
        got = batches(dataset)
    assert len(dataset) == len(got) == (rows // 128 if drop else -(-rows // 128))
    assert sorted(map(len, got))[not drop:] == [128] * (rows // 128), "only one is short"
    values = [i for batch in got for i in batch]
    assert len(set(values)) == len(values) == (rows // 128 * 128 if drop else rows) and set(values) <= set(range(rows))


# ---- several datasets ----------------------------------------------------------------------------------------------


def streams():
    return [cj.range(start, start + 2) for start in range(0, 8, 2)]


def test_shf_04_datasets_are_taken_whole_or_several_times():
    none, once, twice, thrice = streams()
    whole = cj.concatenate(none, once, twice, thrice).with_options(deterministic=True)
    assert values(whole) == list(range(8))
    repeated = cj.concatenate(once, twice, twice, thrice, thrice, thrice).with_options(deterministic=True)
    assert values(repeated) == [2, 3, 4, 5, 4, 5, 6, 7, 6, 7, 6, 7]
    mixed = cj.sample_from_datasets([once, twice, twice, thrice, thrice, thrice], [1, 1, 1, 1, 1, 1])
    assert Counter(values(mixed)) == Counter(values(repeated))


def test_shf_04_a_dataset_may_be_repeated_where_it_is_sampled():
    mixed = cj.sample_from_datasets([cj.range(3).repeat(4), cj.range(3, 5)], [2, 1])
    assert Counter(values(mixed)) == Counter({0: 4, 1: 4, 2: 4, 3: 1, 4: 1})
    endless = cj.sample_from_datasets([cj.range(3).repeat(), cj.range(3, 5).repeat()], [1, 1]).take(100)
    counts = Counter(values(endless))
    assert sum(counts.values()) == 100 and set(counts) == set(range(5))
    with pytest.raises(cj.InvalidPipeline, match="infinite dataset"):
        cj.sample_from_datasets([cj.range(3).repeat()]).save("memory://nowhere/endless")


def test_shf_05_rows_of_datasets_that_are_not_taken_whole_come_equally_often():
    epochs = 300
    chosen = cj.range(2).repeat(2).shuffle(4, seed=3).take(3)
    counts = Counter(v for _ in range(epochs) for v in values(chosen))
    assert sum(counts.values()) == 3 * epochs
    # Three standard deviations: each epoch has one or two of a value.
    assert all(abs(count - 1.5 * epochs) < 3 * 0.5 * epochs**0.5 for count in counts.values()), counts


def test_shf_06_batches_of_one_dataset_each():
    sizes = {0: 200, 1: 301}
    parts = [cj.range(rows).map(id="id", dataset=str(k)) for k, rows in sizes.items()]
    for size in (4, 7):
        for drop in (False, True):
            pure = cj.concatenate(*parts).shuffle(64).bucket_by_length(
                "dataset", [1], size, drop_remainder=drop, pad=False
            )
            kinds = batches(pure, "dataset")
            assert all(len(set(batch)) == 1 for batch in kinds)
            whole = sum(rows // size if drop else -(-rows // size) for rows in sizes.values())
            assert len(kinds) == whole


def test_shf_07_every_batch_has_as_many_rows_of_each_dataset():
    left, right = cj.range(40).map(a="id"), cj.range(100, 140).map(b="id")
    for batch in cj.zip(left, right).batch(8):
        assert len(batch["a"]) == len(batch["b"]) == 8
    short = cj.range(100, 131).map(b="id")
    with pytest.raises(cj.InvalidPipeline):
        list(cj.zip(left, short).batch(8))

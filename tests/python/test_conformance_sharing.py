"""The behaviours of tf.data service's cross-trainer cache, each as the conformance list has it. Trainers are readers of one job
with ids of their own. An order is compared where it is promised: `deterministic`."""

import itertools

import pytest

import caju as cj

ENDLESS = cj.range(10**9).with_options(deterministic=True)


@pytest.fixture
def service():
    """A dispatcher of this process with one worker."""
    with cj.start_dispatcher() as dispatcher, cj.start_worker(dispatcher, cpu_threads=1):
        yield dispatcher


def trainer(dataset, service, name, **more):
    return iter(dataset.distribute(service, job_name="job", sharing="exact", trainer_id=name, policy="compute", **more))


def take(reader, count):
    return [int(row["id"]) for row in itertools.islice(reader, count)]


def test_xtr_01_a_second_trainer_gets_what_the_first_one_has_read(service):
    one = trainer(ENDLESS, service, "1")
    assert take(one, 10) == list(range(10))
    two = trainer(ENDLESS, service, "2")
    assert take(two, 10) == list(range(10))
    assert take(one, 10) == list(range(10, 20)), "nobody takes anything from the other one"


def test_xtr_01_also_of_a_registered_dataset(service):
    ENDLESS.register(service, "endless")
    for name in "12":
        shared = {"job_name": "job", "sharing": "exact", "trainer_id": name}
        assert take(iter(cj.from_dataset_id(service, "endless", **shared)), 10) == list(range(10))


def test_xtr_02_without_sharing_readers_divide_the_rows(service):
    def reader():
        return iter(ENDLESS.distribute(service, job_name="job", policy="compute"))

    first = reader()
    assert take(first, 10) == list(range(10))
    assert min(take(reader(), 10)) >= 10


def test_xtr_05_twenty_trainers_one_after_another_with_a_window_of_500_bytes(cluster):
    servers = cluster(0)
    servers.add_worker("--sharing-window", "500", "--sharing-backlog", "500")
    for name in range(20):
        reader = trainer(ENDLESS, servers.dispatcher.address, str(name))
        assert take(reader, 200) == list(range(200))
        reader.close()


def test_xtr_06_trainers_of_a_shuffled_dataset_get_equal_lists(service):
    shuffled = cj.range(10**6).shuffle(100).with_options(deterministic=True)
    readers = [trainer(shuffled, service, name) for name in "12"]
    first, second = (take(reader, 10) for reader in readers)
    assert first == second != sorted(first)


def test_xtr_09_with_two_workers_trainers_have_elements_in_common():
    with cj.LocalCluster(workers=2) as cluster:
        # An element of 10,000 rows, so that both workers give some of a hundred.
        readers = [trainer(cj.range(10**9).batch(10_000), cluster, name) for name in "12"]
        # In turn: a trainer that has the machine for itself computes far ahead of the other one.
        steps = list(itertools.islice(zip(*readers, strict=True), 100))
        # Rows, since jobs without an order cut them into batches of their own.
        taken = [{int(row) for element in elements for row in element["id"]} for elements in zip(*steps, strict=True)]
        assert [len(rows) for rows in taken] == [10**6, 10**6]
        assert taken[0] & taken[1]


def test_xtr_10_without_compression(cluster):
    address = cluster(1).dispatcher.address
    readers = [trainer(ENDLESS, address, name, compression=None, data_transfer_protocol="framed") for name in "12"]
    assert [take(reader, 10) for reader in readers] == [list(range(10))] * 2


def test_xtr_25_an_error_is_of_each_trainer_and_is_not_stored(service):
    # Row 5,000 divides by zero, behind good rows and before others.
    bad = cj.range(10_000).with_columns(x="1 / (id - 5000)").with_options(deterministic=True)
    for name in "12":
        reader = trainer(bad, service, name)
        assert take(reader, 3) == [0, 1, 2], "the first elements come without the error"
        with pytest.raises(cj.CajuError, match="by zero"):
            take(reader, 10_000)
    # The job is over: a job of another name is not.
    good = iter(cj.range(100).distribute(service, job_name="good", sharing="exact"))
    assert sorted(take(good, 100)) == list(range(100))

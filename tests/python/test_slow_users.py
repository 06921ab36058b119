"""Readers whose users are slow: every row was sent, and most rows wait in a reader's memory when it dies or stands still."""

import json
import signal
import subprocess
import sys
import threading
import time

import pytest

import caju as cj

PATIENCE_S = 60
ROWS = 20_000

TRAINER = """
import sys, time, caju
address, seconds, batches = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
ids = caju.range(20_000).batch(100).distribute(address, job_name="train", epochs=1, lost_readers="allow")
for n, batch in enumerate(ids):
    print(*batch["id"], flush=True)
    time.sleep(seconds if n < batches else 3600)
print("END", flush=True)
"""


class Trainer:
    """A process that takes a batch, prints it and works on it for a while."""

    def __init__(self, address, seconds, batches=10_000):
        self.process = subprocess.Popen([sys.executable, "-c", TRAINER, address, str(seconds), str(batches)],
                                        stdout=subprocess.PIPE, text=True)
        self.batches, self.ended = [], False
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        for line in self.process.stdout:
            if line.strip() == "END":
                self.ended = True
            else:
                self.batches.append([int(word) for word in line.split()])

    def kill(self):
        self.process.kill()
        self.process.wait(PATIENCE_S)
        self.thread.join(PATIENCE_S)

    def check_with(self, others):
        """Together with the rows of the others these are all rows. Those come again that it took right before it was killed,
        and had not reported: a report leaves within milliseconds, or tenths of a second on a busy machine."""
        taken = {row for batch in self.batches for row in batch}
        assert len(others) == len(set(others)) and taken | set(others) == set(range(ROWS))
        assert taken & set(others) <= {row for batch in self.batches[-8:] for row in batch}


@pytest.fixture
def trainers():
    started = []

    def start(*arguments):
        started.append(Trainer(*arguments))
        return started[-1]

    yield start
    for trainer in started:
        trainer.kill()


def wait_until(true, why):
    until = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < until, why
        threading.Event().wait(0.02)


def everything_is_sent(servers):
    jobs = servers.status()["jobs"]
    splits = jobs[0]["splits"] if jobs else {}
    return splits and splits["waiting"] == splits["leased"] == 0 and splits["sent"] > 0


def half_read(cluster, trainers, timeout):
    """A cluster and a slow trainer that has taken some batches, and has received all others."""
    servers = cluster(1, "--client-timeout", timeout)
    trainer = trainers(servers.dispatcher.address, 0.05)
    wait_until(lambda: len(trainer.batches) > 3 and everything_is_sent(servers), "the rows are not sent")
    return servers, servers.dispatcher.address, trainer


def read(address, **options):
    dataset = cj.range(ROWS).batch(100).distribute(address, job_name="train", epochs=1, **options)
    return [int(row) for batch in dataset for row in batch["id"]]


def test_a_trainer_that_is_killed_when_all_rows_were_sent_and_started_again_gets_the_rest(cluster, trainers):
    _, address, first = half_read(cluster, trainers, "2s")
    first.kill()
    first.check_with(read(address, lost_readers="allow"))


def test_the_same_without_accepting_lost_readers_is_an_error(cluster, trainers):
    _, address, first = half_read(cluster, trainers, "2s")
    first.kill()
    with pytest.raises(cj.CajuError, match="vanished after its user had taken"):
        read(address)


@pytest.mark.parametrize("sent", [signal.SIGSTOP, signal.SIGKILL])
def test_what_waits_in_a_slow_reader_goes_to_the_other_one_when_it_dies(cluster, trainers, sent):
    servers, address, slow = half_read(cluster, trainers, "3s")
    got = []
    other = threading.Thread(target=lambda: got.extend(read(address, lost_readers="allow")), daemon=True)
    other.start()
    wait_until(lambda: servers.status()["jobs"][0]["clients"] == 2, "the other one does not come")
    batches = len(slow.batches)
    wait_until(lambda: len(slow.batches) > batches + 3, "the slow one stands still")
    assert other.is_alive(), "it left while a user took rows that come back if its reader dies"
    slow.process.send_signal(sent)
    other.join(PATIENCE_S)
    assert not other.is_alive()
    slow.kill()
    slow.check_with(got)


def test_a_slow_user_and_a_fast_one_get_all_rows_and_end_together(cluster, trainers):
    servers = cluster(1)
    address = servers.dispatcher.address
    slow = trainers(address, 0.01)
    wait_until(lambda: slow.batches, "no rows")
    got = read(address)
    wait_until(lambda: slow.ended, "the slow one does not end")
    assert sorted(got + [row for batch in slow.batches for row in batch]) == list(range(ROWS))
    wait_until(lambda: servers.status()["jobs"][0]["state"] == "finished", json.dumps(servers.status()["jobs"]))


def test_the_stall_timeout_does_not_end_a_reader_that_waits_for_users_that_take_rows(caju, cluster, trainers, tmp_path):
    _, address, slow = half_read(cluster, trainers, "60s")
    definition = {"source": {"range": ROWS}, "steps": [{"batch": 100}]}
    (tmp_path / "p.json").write_text(json.dumps(definition))
    started = time.monotonic()
    done = caju("read", tmp_path / "p.json", "--dispatcher", address, "--job", "train", "--stall-timeout", "1s", "--quiet")
    assert time.monotonic() - started > 2
    assert done.returncode == 0
    wait_until(lambda: slow.ended, "the slow one does not end")


def test_reader_wait_bounds_the_wait_for_a_user_that_takes_nothing(cluster, trainers):
    servers = cluster(1, "--reader-wait", "1s")
    address = servers.dispatcher.address
    stuck = trainers(address, 0.0, 3)
    wait_until(lambda: len(stuck.batches) == 4 and everything_is_sent(servers), "the rows are not sent")
    started = time.monotonic()
    got = read(address)
    assert time.monotonic() - started > 1
    assert not set(got) & {row for batch in stuck.batches for row in batch}
    [job] = servers.status()["jobs"]
    assert (job["state"], job["clients"]) == ("running", 1), "its rows are still its own"

"""Options of the pipeline file and of the command line that other tests do not hold."""

import pytest


def test_a_source_of_files_reads_every_nth_file(caju, tmp_path):
    # Numbers of rows whose sums differ for any two sets of files.
    for n in range(7):
        (tmp_path / f"{n}.csv").write_text("x\n" + f"{n}\n" * 2**n)

    def rows(shard):
        source = {"path": str(tmp_path / "*.csv"), **({"shard": shard} if shard else {})}
        return caju.report("run", {"source": {"csv": source}}, tmp_path)["epochs"][0]["rows"]

    assert rows(None) == 2**7 - 1
    assert rows({"num_shards": 3, "index": 1}) == 2**1 + 2**4
    assert rows({"num_shards": 3, "index": 0}) == 2**0 + 2**3 + 2**6
    assert rows({"num_shards": 5, "index": 1}) == 2**1 + 2**6


@pytest.mark.parametrize("stage", ["sleep", "burn"])
def test_time_for_each_row_is_that_of_the_cpu_or_of_the_clock(caju, tmp_path, stage):
    def run(per_row):
        steps = [{stage: {"per_row": per_row}}]
        return caju.report("run", {"source": {"range": 20}, "steps": steps}, tmp_path)

    short, long = run("1us"), run("40ms")
    assert short["epochs"][0]["rows"] == long["epochs"][0]["rows"] == 20
    # Several cores share the rows; a batch of rows waits as a whole.
    assert long["epochs"][0]["wall_s"] >= 0.7 / 2
    if stage == "burn":
        assert long["cpu_s"] - short["cpu_s"] >= 0.6


def test_the_name_of_a_pipeline_is_shown_and_changes_no_fingerprint(caju, tmp_path):
    def checked(**more):
        file = tmp_path / "pipeline.yaml"
        file.write_text("source: { range: 10 }\n" + "".join(f"{key}: {value}\n" for key, value in more.items()))
        return caju("check", file).stdout

    named = checked(name="imagenet-train")
    assert "imagenet-train" in named
    fingerprint = [line for line in checked().splitlines() if "fingerprint" in line.lower()]
    assert fingerprint and fingerprint == [line for line in named.splitlines() if "fingerprint" in line.lower()]


def test_the_seed_of_a_pipeline_changes_its_draws(caju, tmp_path):
    def checksum(seed):
        steps = [{"with_columns": {"x": "uniform(0.0, 1.0)"}}]
        definition = {"source": {"range": 100}, "steps": steps, "seed": seed}
        return caju.report("run", definition, tmp_path)["epochs"][0]["rows_checksum"]

    assert checksum(1) == checksum(1) != checksum(2)


def test_a_worker_computes_on_as_many_threads_as_it_is_given(cluster):
    servers = cluster(workers=0)
    for threads in (1, 3):
        servers.start("worker", "--dispatcher", servers.dispatcher.address, "--cpu-threads", threads)
    assert [worker["cores"] for worker in servers.status()["workers"]] == [1, 3]

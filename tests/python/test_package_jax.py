"""Batches as JAX arrays. Left out where JAX is not installed."""

import os

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

# Two devices, so that the one that is chosen is not the default.
with pytest.MonkeyPatch.context() as environment:
    environment.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2")
    jax.devices()

import caju as cj  # noqa: E402


def test_batches_are_arrays_on_a_device():
    rows = cj.range(10).map(id="CAST(id AS int)", f="CAST(id AS float)", b="id > 5", s="concat('n', id)").batch(4)
    first, *_, last = list(rows.jax())
    assert isinstance(first["id"], jax.Array) and first["id"].dtype == jnp.int32
    assert first["f"].dtype == jnp.float32 and first["b"].dtype == jnp.bool_
    assert first["s"].tolist() == ["n0", "n1", "n2", "n3"] and last["id"].tolist() == [8, 9]
    assert len(rows.jax()) == 3


def test_the_device_can_be_chosen():
    images = cj.from_numpy({"x": np.ones((4, 2, 3), "f4")}).batch(4)
    devices = jax.devices("cpu")
    assert len(devices) == 2
    for device in devices:
        [batch] = images.jax(device)
        assert batch["x"].shape == (4, 2, 3) and batch["x"].devices() == {device}


def test_arrays_outlive_the_batch():
    kept = [b["x"] for b in cj.from_numpy({"x": np.arange(1000, dtype="i4")}).batch(100).jax()]
    assert int(sum(k.sum() for k in kept)) == 499500


def test_a_step_is_compiled_and_learns():
    x = np.linspace(-1, 1, 256, dtype="f4")
    data = cj.from_numpy({"x": x, "y": 3 * x + 1}).shuffle(256).batch(32, drop_remainder=True)

    @jax.jit
    def step(w, batch):
        def loss(w):
            return jnp.mean((w[0] * batch["x"] + w[1] - batch["y"]) ** 2)

        value, slope = jax.value_and_grad(loss)(w)
        return w - 0.3 * slope, value

    w, losses = jnp.zeros(2), []
    for _ in range(4):
        for batch in data.jax():
            w, value = step(w, batch)
        losses.append(float(value))
    assert losses[-1] < 0.1 * losses[0]


def test_nulls_have_no_place():
    import pyarrow as pa

    with pytest.raises(cj.InvalidPipeline, match="coalesce"):
        list(cj.from_arrow(pa.table({"a": [1, None]})).batch(2).jax())


def test_a_batch_that_could_not_be_converted_is_in_no_state():
    import pyarrow as pa

    rows = cj.from_arrow(pa.table({"id": range(6), "a": pa.array([1, 2, None, 4, 5, 6], pa.int32())}))
    rows = rows.batch(2).with_options(deterministic=True)
    epoch = iter(rows.jax())
    assert next(epoch)["id"].tolist() == [0, 1]
    with pytest.raises(cj.InvalidPipeline, match="coalesce"):
        next(epoch)
    state = epoch.state_dict()
    assert state["elements"] == 1
    again = iter(rows)
    again.load_state_dict(state)
    assert [b["id"].tolist() for b in again] == [[2, 3], [4, 5]]


def test_ragged_columns_are_lists_of_arrays():
    import pyarrow as pa

    [batch] = cj.from_arrow(pa.table({"t": pa.array([[1, 2], [3]], pa.list_(pa.int32()))})).batch(2).jax()
    assert [t.tolist() for t in batch["t"]] == [[1, 2], [3]] and all(isinstance(t, jax.Array) for t in batch["t"])

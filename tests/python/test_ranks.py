"""Ranks that frameworks know: as stand-ins here; test_package_torch.py, test_package_torch_ranks.py and test_package_jax.py
have the real ones.
"""

import sys
import types

import pytest

import caju as cj


def torch_of(rank, world_size, initialized=True):
    """A stand-in for torch whose process group has this rank."""
    return types.SimpleNamespace(distributed=types.SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: initialized, get_rank=lambda: rank,
        get_world_size=lambda: world_size,
    ))


def jax_of(rank, world_size, initialized=True):
    """A stand-in for JAX, whose devices must not be started unless it is initialised for several processes."""
    def asked(value):
        assert initialized, "this would start the devices"
        return value

    return types.SimpleNamespace(
        distributed=types.SimpleNamespace(is_initialized=lambda: initialized),
        process_index=lambda: asked(rank), process_count=lambda: asked(world_size),
    )


@pytest.fixture
def frameworks(monkeypatch):
    """Puts stand-ins in the place of torch and JAX; None: not imported."""
    def put(torch=None, jax=None):
        for name, module in (("torch", torch), ("jax", jax)):
            if module is None:
                monkeypatch.delitem(sys.modules, name, raising=False)
            else:
                monkeypatch.setitem(sys.modules, name, module)

    return put


def consumer(**arguments):
    return cj.range(3).distribute("h:1", job_name="j", **arguments)._service.consumer


@pytest.mark.parametrize("where", ["torch", "jax"])
def test_what_is_not_given_is_the_frameworks_rank(frameworks, where):
    frameworks(**{where: torch_of(2, 4) if where == "torch" else jax_of(2, 4)})
    assert consumer() is None, "nothing asks for consumers"
    assert consumer(uneven="drop") == (4, 2, "drop", "none")
    assert consumer(balance="tokens") == (4, 2, "drop", "tokens")
    assert consumer(num_consumers=4) == (4, 2, "drop", "none")
    assert consumer(consumer_index=1) == (4, 1, "drop", "none")
    assert consumer(num_consumers=2, consumer_index=0) == (2, 0, "drop", "none"), "given numbers count"
    with pytest.raises(cj.InvalidPipeline, match=r"num_consumers=2, and (torch.distributed|JAX) has 4 ranks"):
        consumer(num_consumers=2)


def test_frameworks_must_agree_and_are_not_started(frameworks):
    frameworks(torch=torch_of(1, 2), jax=jax_of(1, 2))
    assert consumer(uneven="pad") == (2, 1, "pad", "none")
    frameworks(torch=torch_of(1, 2), jax=jax_of(0, 2))
    with pytest.raises(cj.InvalidPipeline, match="torch.distributed says rank 1 of 2, JAX says 0 of 2"):
        consumer(uneven="drop")
    assert consumer(num_consumers=2, consumer_index=0) == (2, 0, "drop", "none")
    frameworks(torch=torch_of(0, 1, initialized=False), jax=jax_of(0, 1, initialized=False))
    with pytest.raises(cj.InvalidPipeline, match="neither torch.distributed nor jax.distributed is initialised"):
        consumer(uneven="drop")
    frameworks()
    with pytest.raises(cj.InvalidPipeline, match="needs consumer_index="):
        consumer(num_consumers=2)
    assert "torch" not in sys.modules and "jax" not in sys.modules, "neither is imported"


def test_processes_of_jax_that_share_no_job_are_refused(frameworks):
    frameworks(jax=jax_of(1, 2))
    rows = cj.range(12).batch(4)
    for alone in (rows, rows.distribute("h:1")):
        with pytest.raises(cj.InvalidPipeline, match="rank 1 of 2: every rank would read all rows.*job_name.*world_size=1"):
            iter(alone.jax())
    iter(rows.jax(world_size=1)).close()
    frameworks(jax=jax_of(0, 1))
    iter(rows.jax()).close()


def test_the_length_is_that_of_the_elements_of_this_rank(frameworks):
    frameworks(jax=jax_of(1, 2))
    rows = cj.range(50).batch(10)
    shared = rows.distribute("h:1", job_name="j")
    with pytest.raises(TypeError, match="whichever of the 2 readers is ready"):
        len(shared.jax())
    assert len(rows.jax()) == len(shared.jax(world_size=1)) == 5
    for uneven, elements in (("drop", 2), ("pad", 3)):
        own = rows.distribute("h:1", job_name="j", uneven=uneven)
        assert len(own) == len(own.jax()) == elements
    with pytest.raises(TypeError, match='balance="tokens".*depends on the lengths'):
        len(rows.distribute("h:1", job_name="j", balance="tokens"))

"""The rank of this process among the processes of a training job, as its framework knows it."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from ._errors import InvalidPipeline


class Rank(NamedTuple):
    """One of several processes."""

    rank: int
    world_size: int
    source: str
    """Who says so."""


def known_rank() -> Rank | None:
    """The rank that torch.distributed or JAX has given this process; None if neither of them is initialised.

    Neither is imported: what the user has not imported is not initialised.
    """
    ranks = [rank for rank in (of_torch(sys.modules.get("torch")), _of_jax(sys.modules.get("jax"))) if rank is not None]
    if len(ranks) == 2 and ranks[0][:2] != ranks[1][:2]:
        torch, jax = ranks
        raise InvalidPipeline(
            f"{torch.source} says rank {torch.rank} of {torch.world_size}, {jax.source} says {jax.rank} of {jax.world_size}; give "
            "num_consumers= and consumer_index=, or world_size=1 for a process that reads all rows"
        )
    return ranks[0] if ranks else None


def completed(rank: int | None, world_size: int | None, known: Rank | None) -> tuple[int, int]:
    """A rank and the number of ranks. What is not given is what the framework knows."""
    if known is not None:
        rank = known.rank if rank is None else rank
        world_size = known.world_size if world_size is None else world_size
    return rank or 0, world_size or 1


def check_shared(is_shared: bool, rank: int, world_size: int) -> None:
    """Raises `InvalidPipeline` for one of several ranks if they do not share the rows of one job."""
    if world_size > 1 and not is_shared:
        raise InvalidPipeline(
            f"rank {rank} of {world_size}: every rank would read all rows; share them by "
            'distribute("caju://host:7070", job_name="...") with the same name on every rank, or say world_size=1 if every rank '
            "shall read all rows of its dataset"
        )


def check_counted(has_consumers: bool, num_readers: int) -> None:
    """Raises a TypeError for one of several readers of a job that have no equal numbers of elements."""
    if num_readers > 1 and not has_consumers:
        raise TypeError(
            f"the elements of an epoch go to whichever of the {num_readers} readers is ready, so the number for each is not "
            'known; uneven="drop" or "pad" gives all equally many'
        )


def of_torch(torch: Any) -> Rank | None:
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return Rank(distributed.get_rank(), distributed.get_world_size(), "torch.distributed")


def _of_jax(jax: Any) -> Rank | None:
    # Asking for the number of processes starts JAX's devices, after which it cannot be initialised any more.
    is_initialized = getattr(getattr(jax, "distributed", None), "is_initialized", None)
    if is_initialized is None or not is_initialized():
        return None
    return Rank(jax.process_index(), jax.process_count(), "JAX")

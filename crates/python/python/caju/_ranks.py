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
    ranks = [rank for rank in (_of_torch(sys.modules.get("torch")), _of_jax(sys.modules.get("jax"))) if rank is not None]
    if len(ranks) == 2 and ranks[0][:2] != ranks[1][:2]:
        torch, jax = ranks
        raise InvalidPipeline(
            f"{torch.source} says rank {torch.rank} of {torch.world_size}, {jax.source} says {jax.rank} of {jax.world_size}; give "
            "num_consumers= and consumer_index="
        )
    return ranks[0] if ranks else None


def _of_torch(torch: Any) -> Rank | None:
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

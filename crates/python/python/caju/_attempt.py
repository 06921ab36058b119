"""The launch of a program of several processes, as its launcher names it."""

from __future__ import annotations

import os
from collections.abc import Mapping

LAUNCHERS = (
    # Name, launch, rank and number of processes. The number of restarts is not part of it: torchrun counts them per node.
    ("torchrun", "TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE"),
    ("slurm", "SLURM_JOB_ID", "SLURM_PROCID", "SLURM_NTASKS"),
)
"""Launchers, and the variables of the environment that they set for each process."""


def attempt_of_launcher(environ: Mapping[str, str] | None = None) -> tuple[str, int] | None:
    """The launch that this process belongs to, and its rank; None outside a launcher, and for a single process."""
    env = os.environ if environ is None else environ
    for name, launch, rank, size in LAUNCHERS:
        numbers = [env.get(variable, "") for variable in (rank, size)]
        if env.get(launch) and all(n.isdecimal() for n in numbers) and int(numbers[1]) > 1:
            return f"{name} {env[launch]}", int(numbers[0])
    return None


def attempt_named(name: str | None) -> tuple[str, int | None] | None:
    """The launch of a name, or else that of the launcher, and the rank of this process where it is known."""
    found = attempt_of_launcher()
    if name is None:
        return found
    return name, None if found is None else found[1]

"""Workers in the process of a reader, on the cores of its host that its trainer leaves free."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

from ._caju import available_cores
from ._cluster import WorkerServer, configured_numbers, start_worker
from ._errors import InvalidPipeline
from ._numbers import whole
from ._tuned import Tuned

MAX_CORES = 4096
"""More cores than any host has: a larger number is a mistake of the caller."""

RANKS_OF_HOST = ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
"""Variables in which torchrun, Slurm, Open MPI and MPICH give the number of training processes of a host."""

_lock = threading.Lock()
_workers: weakref.WeakValueDictionary[tuple[int, str, int, bool, Tuned], WorkerServer] = weakref.WeakValueDictionary()


def _forked() -> None:
    """In a child of a fork: another thread of the parent may have held the lock."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def cores_for(local_workers: Any) -> int:
    """The cores that `local_workers=` gives: the number itself, or those that are spare for "auto"."""
    if local_workers is None:
        return 0
    if isinstance(local_workers, str):
        if local_workers.lower() != "auto":
            raise InvalidPipeline(f"local_workers={local_workers!r} must be a number of cores, or \"auto\" for the spare ones")
        return spare_cores()
    return whole("local_workers", local_workers, 0, MAX_CORES) or 0


def spare_cores() -> int:
    """The cores of this host that a training process may use in addition to its own one.

    Those that are busy, by the load of the last minute, and at least one for each training process of the host are taken. What
    is left is divided among these processes. A process that may use a part of the host's cores alone, such as one in a container,
    counts these, and as large a part of the load.
    """
    ranks, of_host = _ranks_of_host(), _cores_of_host()
    cores = min(_bound_cores(of_host), _allowed_cores())
    try:
        busy = os.getloadavg()[0] * min(1.0, cores / of_host)
    except OSError:
        busy = 0.0
    return max(0, int(cores - max(busy, ranks)) // ranks)


def _cores_of_host() -> int:
    return os.cpu_count() or 1


def _bound_cores(of_host: int) -> int:
    """The cores to which this process is bound; those of the host if it is bound to none."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return of_host


def _allowed_cores() -> int:
    """The cores whose time this process may use, by the quota of its control group, too."""
    return available_cores()


def _ranks_of_host() -> int:
    for name in RANKS_OF_HOST:
        # Slurm also writes `2(x3)`: the number of tasks, and of how many nodes.
        digits = os.environ.get(name, "").split("(")[0]
        if digits.isascii() and digits.isdigit() and int(digits) > 0:
            return int(digits)
    return 1


def has_functions(definition: Any) -> bool:
    """Whether a definition has Python functions, which a worker must be allowed to run."""
    if isinstance(definition, dict):
        is_function = isinstance(definition.get("payload"), str) and isinstance(definition.get("code"), str)
        return is_function or any(has_functions(value) for value in definition.values())
    return isinstance(definition, list) and any(has_functions(value) for value in definition)


def local_worker(address: str, cores: int, functions: bool) -> WorkerServer | None:
    """The worker of this process for the dispatcher at an address, on a number of cores; none without cores. Datasets share it,
    and it stops with the last of them. It runs Python functions if the datasets have some. Its tasks have the numbers that
    `configure` has set.
    """
    if cores == 0:
        return None
    tuned = configured_numbers()
    key = (os.getpid(), address, cores, functions, tuned)
    with _lock:
        worker = _workers.get(key)
        if worker is None:
            given = tuned._asdict()
            worker = start_worker(address, cpu_threads=cores, allow_python=functions, local_only=True, **given)
            _workers[key] = worker
        return worker

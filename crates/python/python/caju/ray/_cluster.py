"""A dispatcher and workers as actors, for the driver."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any, NamedTuple

import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from .._cluster import url_of
from .._errors import FailedPrecondition, InvalidPipeline, Unavailable
from .._numbers import whole
from ._head import Head, HeadSettings, worker_options
from ._worker import Worker

PLACEMENTS = ("spread", "pack")
START_TIMEOUT_S = 60.0
"""How long the dispatcher's actor may take to start, in seconds. It needs a few, most of them to start a Python process."""
STOP_GRACE_S = 10.0
"""What stopping may take beyond the time for draining, in seconds: calls of actors, and their end."""


class RayWorker(NamedTuple):
    """A worker's actor."""

    state: str
    """`pending` (until it listens), `running` or `draining`."""
    address: str
    """Where readers connect; empty while it is pending."""
    node: str
    """The id of its Ray node; empty while it is pending."""
    process: int
    """Its process on that node; 0 while it is pending."""


class RayStatus(NamedTuple):
    """What runs, and what should run."""

    target: int
    """Workers that should run."""
    reason: str
    """Why; empty for a fixed number of workers."""
    workers: list[RayWorker]
    lost: int
    """Workers that died, with their node for instance, and were replaced."""
    last_failure: str
    """What the last worker that died, or did not start, said, or why workers could not be started."""


class RayCluster:
    """A dispatcher and workers as actors of a Ray cluster; see `start_cluster`.

    It may be sent to tasks and actors. `distribute` takes it, or its `address`. The actors end with `stop()`, at the end of a
    `with`, or with the driver that started them.
    """

    def __init__(self, head: Any, address: str, drain_timeout: float) -> None:
        self._head = head
        self.address = address
        """`host:port` of the dispatcher."""
        self._drain_timeout = drain_timeout

    @property
    def status(self) -> RayStatus:
        """What runs now. An error after `stop()`."""
        if self._head is None:
            raise FailedPrecondition("this cluster of caju was stopped, and has no status any more")
        target, reason, workers, lost, last_failure = ray.get(self._head.status.remote())
        return RayStatus(target, reason, [RayWorker(*worker) for worker in workers], lost, last_failure)

    def stop(self) -> None:
        """Drains the workers within the `drain_timeout` of `start_cluster`, and ends all actors. A second call does nothing."""
        if self._head is None:
            return
        head, self._head = self._head, None
        try:
            ray.get(head.stop.remote(), timeout=self._drain_timeout + STOP_GRACE_S)
        except (ray.exceptions.GetTimeoutError, ray.exceptions.RayActorError):
            pass  # the workers end with the actor that started them
        ray.kill(head)

    def __enter__(self) -> RayCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"RayCluster({self.address})"


def start_cluster(
    workers: int | str = "auto",
    *,
    min_workers: int = 1,
    max_workers: int = 100,
    worker_cpus: int = 1,
    worker_resources: Mapping[str, float] | None = None,
    placement: str | PlacementGroup = "spread",
    cache: str | os.PathLike[str] | None = None,
    state_dir: str | os.PathLike[str] | None = None,
    allow_python: bool = False,
    scaling_interval: float = 5.0,
    scale_down_after: float = 30.0,
    drain_timeout: float = 30.0,
) -> RayCluster:
    """Starts a dispatcher and workers as actors of the Ray cluster that this process is connected to (`ray.init`).

    With `workers="auto"` their number follows the dispatcher's target, between `min_workers` and `max_workers`: it is computed
    every `scaling_interval` seconds, and falls when fewer workers have been enough for `scale_down_after` seconds. The resources
    of the target are requested of Ray's autoscaler, which adds nodes where they are missing. A worker that is not needed any
    more finishes its tasks, for at most `drain_timeout` seconds. A worker that is lost, with its node for instance, is replaced.

    Each worker takes `worker_cpus` CPUs of Ray, computes on as many threads, and takes the `worker_resources` by their Ray names,
    such as `{"GPU": 1}`.
    `placement` is "spread" (over the nodes), "pack", or the placement group of the trainers: then workers are put on its
    nodes while there is room, in addition to the group's own bundles.

    The dispatcher runs on the node of this process, takes no CPU of Ray, and is not moved: its loss ends the cluster.

    There is no authentication, and the actors read and write whatever their processes may: start this only in a Ray cluster
    that is trusted, as Ray itself demands it. `cache`, `state_dir` and `allow_python` are those of `start_dispatcher`.
    """
    fixed = None if workers == "auto" else whole("workers", workers, 1, 10_000)
    least, most = whole("min_workers", min_workers, 0, 10_000), whole("max_workers", max_workers, 1, 10_000)
    cpus = whole("worker_cpus", worker_cpus, 1)
    assert least is not None and most is not None and cpus is not None
    if least > most:
        raise InvalidPipeline(f"min_workers={least} is more than max_workers={most}")
    if not isinstance(placement, PlacementGroup) and placement not in PLACEMENTS:
        raise InvalidPipeline(f"placement={placement!r} is not one of {', '.join(PLACEMENTS)}, and no placement group")
    if not scaling_interval >= 2.0:
        raise InvalidPipeline(f"scaling_interval={scaling_interval!r} must be at least 2 seconds: workers report once in a second")
    resources = dict(worker_resources or {})
    if "CPU" in resources:
        raise InvalidPipeline(f"worker_resources={resources!r}: the CPUs of a worker are worker_cpus=")
    try:
        ray.remote(**worker_options(cpus, resources))(Worker)
    except (TypeError, ValueError) as e:
        raise InvalidPipeline(f"worker_resources={resources!r}: {e}") from None
    if not ray.is_initialized():
        raise Unavailable("this process is connected to no Ray cluster: call ray.init() first")
    settings = HeadSettings(
        workers=fixed,
        min_workers=least if fixed is None else fixed,
        max_workers=most if fixed is None else fixed,
        worker_cpus=cpus,
        worker_resources=resources,
        placement=placement,
        cache=None if cache is None else url_of(cache),
        state_dir=None if state_dir is None else os.fspath(state_dir),
        allow_python=allow_python,
        scaling_interval=scaling_interval,
        scale_down_after=scale_down_after,
        drain_timeout=drain_timeout,
    )
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    # One thread runs the loop of the workers, others answer calls.
    head = ray.remote(num_cpus=0, max_concurrency=4, scheduling_strategy=here)(Head).remote(settings)
    address = ray.get(head.address.remote(), timeout=START_TIMEOUT_S)
    return RayCluster(head, address, drain_timeout)

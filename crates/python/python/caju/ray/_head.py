"""The actor with the dispatcher, and its loop that keeps as many worker actors as the target names."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import ray
from ray.autoscaler.sdk import request_resources
from ray.util.placement_group import PlacementGroup, placement_group_table
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from .._cluster import start_dispatcher
from ._worker import Worker

INTERVAL_S = 0.5
"""How often the actors are compared with the target, in seconds: it changes every few seconds at most."""
MAX_PAUSE_S = 30.0
"""The longest pause before another worker is started after workers that could not start, in seconds."""

log = logging.getLogger(__name__)


def worker_options(cpus: int, resources: Mapping[str, float]) -> dict[str, Any]:
    """The options of Ray for the actor of a worker. Ray has arguments of their own for some resources."""
    others = dict(resources)
    arguments = {"GPU": "num_gpus", "memory": "memory"}
    named = {argument: others.pop(name) for name, argument in arguments.items() if name in others}
    return {"num_cpus": cpus, "resources": others, **named}


class HeadSettings(NamedTuple):
    """The arguments of `start_cluster`, checked."""

    workers: int | None
    """Workers; None: the target."""
    min_workers: int
    max_workers: int
    worker_cpus: int
    worker_resources: dict[str, float]
    placement: str | PlacementGroup
    cache: str | None
    state_dir: str | None
    allow_python: bool
    scaling_interval: float
    scale_down_after: float
    drain_timeout: float


class Member:
    """A worker's actor, as the head knows it."""

    def __init__(self, actor: Any, node: str) -> None:
        self.actor = actor
        self.ready = actor.ready.remote()
        self.ended = actor.ended.remote()
        """Is answered when the actor ends."""
        self.drained: Any = None
        """The answer to a drain that was asked for."""
        self.address = ""
        self.node = node
        """The node that it should be on, then the node that it is on."""
        self.process = 0

    @property
    def state(self) -> str:
        if self.drained is not None:
            return "draining"
        return "running" if self.address else "pending"


class Head:
    """The dispatcher and the loop. In an actor, whose end ends the workers."""

    def __init__(self, settings: HeadSettings) -> None:
        self._settings = settings
        self._server = start_dispatcher(
            f"{ray.util.get_node_ip_address()}:0", settings.state_dir, settings.cache, settings.allow_python,
            min_workers=settings.min_workers, max_workers=settings.max_workers,
            scaling_interval=settings.scaling_interval, scale_down_after=settings.scale_down_after,
        )
        self._members: list[Member] = []
        self._requested: int | None = None
        self._lost = 0
        self._last_failure = ""
        self._failures = 0
        """Workers in a row that could not start."""
        self._not_before = 0.0
        """When the next worker may be started, in seconds of the monotonic clock."""
        self._stopping = threading.Event()
        self._stopped = threading.Event()
        self._loop = threading.Thread(target=self._run, name="caju-ray-workers", daemon=True)
        self._loop.start()

    def address(self) -> str:
        """The dispatcher's."""
        return self._server.address

    def status(self) -> tuple[int, str, list[tuple[str, str, str, int]], int, str]:
        """The fields of a `RayStatus`."""
        wanted, reason = self._wanted()
        workers = [(m.state, m.address, m.node if m.address else "", m.process) for m in list(self._members)]
        return wanted, reason, workers, self._lost, self._last_failure

    def stop(self) -> None:
        """Drains the workers, and ends the dispatcher."""
        self._stopping.set()
        self._stopped.wait(self._settings.drain_timeout + MAX_PAUSE_S)
        self._server.stop()

    def _wanted(self) -> tuple[int, str]:
        settings = self._settings
        if settings.workers is not None:
            return settings.workers, ""
        target = self._server.target
        return max(settings.min_workers, min(target.workers, settings.max_workers)), target.reason

    def _run(self) -> None:
        try:
            while not self._stopping.wait(INTERVAL_S):
                try:
                    self._step(self._wanted()[0])
                except Exception as e:  # the loop goes on, whatever failed
                    self._record_failure(e)
            self._end()
        finally:
            self._stopped.set()

    def _record_failure(self, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        if text != self._last_failure:
            log.warning("the workers are compared with the target again later: %s", text)
        self._last_failure = text

    def _step(self, wanted: int) -> None:
        """One comparison of what runs with what should run."""
        self._observe()
        staying = [m for m in self._members if m.drained is None]
        # Those that do not work yet first, and of the others the newest.
        order = sorted(reversed(staying), key=lambda m: bool(m.address))
        for member in order[: max(0, len(staying) - wanted)]:
            self._leave(member)
        if wanted != self._requested:
            resources = {"CPU": float(self._settings.worker_cpus)} | self._settings.worker_resources
            request_resources(bundles=[resources] * wanted)
            self._requested = wanted
        if time.monotonic() >= self._not_before:
            for _ in range(wanted - len(staying)):
                self._members.append(self._start())

    def _observe(self) -> None:
        """Notices workers that listen, that have drained, and that are gone."""
        for member in list(self._members):
            try:
                if not member.address and _is_answered(member.ready):
                    member.address, member.node, member.process = ray.get(member.ready)
                    self._failures = 0
                if member.drained is not None and _is_answered(member.drained):
                    ray.get(member.drained)
                    self._remove(member)
                elif _is_answered(member.ended):
                    ray.get(member.ended)
                    self._remove(member)
            except (ray.exceptions.RayActorError, ray.exceptions.RayTaskError) as e:
                self._record_loss(member, e)

    def _record_loss(self, member: Member, error: Exception) -> None:
        self._remove(member)
        if member.drained is not None:
            return
        self._lost += 1
        self._last_failure = str(error)
        log.warning("a worker of caju is gone, and another one is started: %s", error)
        if not member.address:
            self._failures += 1
            self._not_before = time.monotonic() + min(2.0**self._failures, MAX_PAUSE_S)

    def _start(self) -> Member:
        settings = self._settings
        strategy: Any = {"spread": "SPREAD", "pack": "DEFAULT"}.get(str(settings.placement))
        node = ""
        if isinstance(settings.placement, PlacementGroup):
            node = self._node_of(settings.placement)
            strategy = NodeAffinitySchedulingStrategy(node, soft=True) if node else "SPREAD"
        remote = ray.remote(
            **worker_options(settings.worker_cpus, settings.worker_resources), scheduling_strategy=strategy,
            # `ended` is never answered, and drains wait for it.
            max_concurrency=3,
        )
        return Member(remote(Worker).remote(self.address(), settings.worker_cpus, settings.allow_python), node)

    def _node_of(self, group: PlacementGroup) -> str:
        """The live node of a placement group with the fewest workers; empty if there is none."""
        live = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        nodes = [node for node in placement_group_table(group).get("bundles_to_node_id", {}).values() if node in live]
        return min(nodes, key=lambda node: sum(m.node == node for m in self._members), default="")

    def _leave(self, member: Member) -> None:
        if member.address:
            member.drained = member.actor.drain.remote(self._settings.drain_timeout)
        else:
            self._remove(member)

    def _remove(self, member: Member) -> None:
        ray.kill(member.actor)
        self._members.remove(member)

    def _end(self) -> None:
        """Drains all workers at the same time: they finish what present readers read."""
        request_resources(bundles=[])
        for member in list(self._members):
            if member.drained is None:
                self._leave(member)
        until = time.monotonic() + self._settings.drain_timeout + 1.0
        while self._members and time.monotonic() < until:
            self._observe()
            threading.Event().wait(INTERVAL_S / 5)
        for member in list(self._members):
            self._remove(member)


def _is_answered(ref: Any) -> bool:
    return bool(ray.wait([ref], timeout=0)[0])

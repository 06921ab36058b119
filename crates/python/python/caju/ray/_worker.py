"""The actor of a worker."""

from __future__ import annotations

import os
import threading

import ray

from .._cluster import start_worker


class Worker:
    """A worker in an actor, on the address of its node."""

    def __init__(self, dispatcher: str, cpu_threads: int, allow_python: bool) -> None:
        listen = f"{ray.util.get_node_ip_address()}:0"
        self._server = start_worker(dispatcher, listen, cpu_threads=cpu_threads, allow_python=allow_python)
        self._ended = threading.Event()

    def ready(self) -> tuple[str, str, int]:
        """Its address, the id of its node, and its process there."""
        return self._server.address, ray.get_runtime_context().get_node_id(), os.getpid()

    def ended(self) -> None:
        """Returns when it has drained. A caller that gets an error instead knows that the actor is gone."""
        self._ended.wait()

    def drain(self, timeout: float) -> bool:
        """Finishes its tasks, for at most `timeout` seconds, and stops."""
        try:
            return self._server.drain(timeout)
        finally:
            self._ended.set()

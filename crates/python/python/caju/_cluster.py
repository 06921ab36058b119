"""Dispatchers and workers in this process: for notebooks and tests, and behind datasets that name no service."""

from __future__ import annotations

import atexit
import operator
import os
import sys
import threading
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import _caju
from ._errors import InvalidPipeline
from ._iterator import stop_readers
from ._logging import forked, serve, sync_level, unserve

if TYPE_CHECKING:
    from typing_extensions import Self

# Threads do not survive a fork; the child has to know.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_caju.forked)
    os.register_at_fork(after_in_child=forked)
    os.register_at_fork(after_in_child=lambda: _forked())

# Of a thread's own again: starting a cluster may log, and a handler may read a dataset.
_lock = threading.RLock()
_shared: weakref.ref[LocalCluster] | None = None
_settings: dict[str, Any] = {}
_told: list[Any] = []
_ANY = 2**63 - 1
_running: weakref.WeakSet[Any] = weakref.WeakSet()


def _forked() -> None:
    """In a child: another thread of the parent's may have held the lock."""
    global _lock
    _lock = threading.RLock()


def _at_exit() -> None:
    stop_readers()
    for one in list(_running):
        one.stop()


atexit.register(_at_exit)


def at_exit(stoppable: Any) -> None:
    """Stops it when the interpreter ends, unless it is gone by then."""
    _running.add(stoppable)
    util = sys.modules.get("multiprocessing.util")
    parent = getattr(sys.modules.get("multiprocessing.process"), "parent_process", lambda: None)
    if util is not None and parent() is not None and not _told:
        # Its processes end without the interpreter's own exit hooks.
        _told.append(util.Finalize(None, _at_exit, exitpriority=10))


class _Stoppable:
    """Something that `with` stops at its end."""

    def stop(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class LocalCluster(_Stoppable):
    """A dispatcher and workers in this process, stopped at the end of a `with` or by `stop()`.

    The workers share `cpu_threads` threads, one per core by default. Rows are stored at `autocache` hints below
    `cache`, a folder or URL; without one in a private folder, which goes with the cluster.

    No port is opened: only this process can use the cluster. `listen="127.0.0.1:0"` opens one, for other processes that
    read from it; whoever reaches the port may then do what this process may, run functions included.

    >>> with LocalCluster(workers=2) as cluster:
    ...     len(list(caju.range(10).distribute(cluster)))
    10
    """

    def __init__(
        self,
        workers: int = 1,
        cpu_threads: int | None = None,
        cache: str | os.PathLike[str] | None = None,
        listen: str | None = None,
    ) -> None:
        checked(workers, cpu_threads, cache)
        if listen is not None and not isinstance(listen, str):
            raise InvalidPipeline(f"listen={listen!r} must be HOST:PORT, such as \"127.0.0.1:0\"")
        sync_level()
        self._cluster = _caju.Cluster(workers, cpu_threads, None if cache is None else url_of(cache), listen)
        at_exit(self)

    @property
    def address(self) -> str:
        """`host:port` of the dispatcher if the cluster listens; else a name that only this process can use."""
        return self._cluster.address

    @property
    def workers(self) -> list[str]:
        """The address of each worker: `host:port` if the cluster listens, else a name within this process."""
        return self._cluster.workers

    @property
    def bytes_read(self) -> int:
        """Bytes that the workers have read from sources so far."""
        return self._cluster.bytes_read

    def add_worker(self) -> str:
        """Starts one more worker; its address."""
        return self._cluster.add_worker()

    def stop(self) -> None:
        """Stops the workers and the dispatcher; what reads from them ends with `Cancelled`. Does nothing the second time."""
        stop_readers(self)
        self._cluster.stop()

    def __repr__(self) -> str:
        return f"LocalCluster({self.address}, workers={len(self.workers)})"


class DispatcherServer(_Stoppable):
    """A dispatcher in this process; see `start_dispatcher`."""

    def __init__(self, server: _caju.Dispatcher) -> None:
        self._server = server
        at_exit(self)
        serve(self)

    @property
    def address(self) -> str:
        """`host:port` that workers and datasets name."""
        return self._server.address

    def stop(self) -> None:
        """Stops it."""
        stop_readers(self)
        self._server.stop()
        unserve(self)

    def __repr__(self) -> str:
        return f"DispatcherServer({self.address})"


class WorkerServer(_Stoppable):
    """A worker in this process; see `start_worker`."""

    def __init__(self, server: _caju.Worker) -> None:
        self._server = server
        at_exit(self)
        serve(self)

    @property
    def address(self) -> str:
        """`host:port` that readers dial."""
        return self._server.address

    def drain(self, timeout: float = 30.0) -> bool:
        """Takes no new tasks, waits until the present ones are done, and stops; False if some were not in time."""
        try:
            return self._server.drain(timeout)
        finally:
            unserve(self)

    def stop(self) -> None:
        """Stops it; its tasks go to other workers."""
        self._server.stop()
        unserve(self)

    def __repr__(self) -> str:
        return f"WorkerServer({self.address})"


def start_dispatcher(
    listen: str = "127.0.0.1:0",
    state_dir: str | os.PathLike[str] | None = None,
    cache: str | os.PathLike[str] | None = None,
    allow_python: bool = False,
) -> DispatcherServer:
    """Starts a dispatcher in this process. Port 0 takes a free one; with `state_dir` it survives restarts. Rows are
    stored at `autocache` hints below `cache`, a folder or URL that the workers reach too; not at all without one.

    Nobody has to authenticate: listen on the loopback, or on a network that is trusted.
    """
    state = None if state_dir is None else os.fspath(state_dir)
    return DispatcherServer(_caju.Dispatcher(listen, state, None if cache is None else url_of(cache), allow_python))


def start_worker(
    dispatcher: Any,
    listen: str = "127.0.0.1:0",
    advertise: str | None = None,
    cpu_threads: int | None = None,
    tags: list[str] | None = None,
    allow_python: bool = False,
) -> WorkerServer:
    """Starts a worker in this process for the dispatcher at an address (or of `start_dispatcher`).

    With `allow_python` it runs functions that readers send, in processes of this interpreter: whoever reaches the
    dispatcher may then run code here.
    """
    whole("cpu_threads", cpu_threads, 1)
    return WorkerServer(_caju.Worker(address_of(dispatcher), listen, advertise, cpu_threads, tags or [], allow_python))


def address_of(service: Any) -> str:
    """The `host:port` of a service: an address as text, or anything that has one."""
    address = getattr(service, "address", service)
    if not isinstance(address, str):
        raise InvalidPipeline(
            f"the service {service!r} must be a string such as \"caju://host:7070\", or a cluster"
        )
    if not address.strip():
        raise InvalidPipeline("the address of the service must not be empty; write \"caju://host:7070\"")
    return address


def configure(
    *,
    workers: int | None = None,
    cpu_threads: int | None = None,
    cache: str | os.PathLike[str] | None = None,
) -> None:
    """Sets how datasets that name no service are computed, from the next on: workers, threads, and where rows are
    stored at `autocache` hints (a private folder by default, which goes with the process).
    """
    global _shared
    checked(workers, cpu_threads, cache)
    given = {"workers": workers, "cpu_threads": cpu_threads, "cache": cache}
    with _lock:
        _settings.update({name: value for name, value in given.items() if value is not None})
        _shared = None  # datasets that use the present one keep it


def checked(workers: Any, cpu_threads: Any, cache: Any) -> None:
    """What clusters are given."""
    whole("workers", workers, 0, 2**32 - 1)
    whole("cpu_threads", cpu_threads, 1)
    if cache is not None and not isinstance(cache, (str, os.PathLike)):
        raise InvalidPipeline(f"cache={cache!r} must be a folder or a URL")


def whole(name: str, value: Any, least: int, most: int = _ANY) -> int | None:
    """A whole number, also one of NumPy; None if none was given."""
    if value is None:
        return None
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or not least <= number <= most:
        bounded = f"a whole number from {least} to {most}"
        kind = bounded if most != _ANY else "a positive number" if least == 1 else "a whole number, 0 or more"
        raise InvalidPipeline(f"{name}={value!r} must be {kind}")
    return number


def url_of(place: str | os.PathLike[str]) -> str:
    """A URL as it is; a path made absolute."""
    text = os.fspath(place)
    return text if "://" in text else os.path.abspath(text)


def embedded() -> LocalCluster:
    """The cluster of this process, shared by the datasets that use it; it stops with the last of them."""
    global _shared
    with _lock:
        cluster = _shared() if _shared is not None else None
        if cluster is None:
            cluster = LocalCluster(**_settings)
            _shared = weakref.ref(cluster)
        return cluster

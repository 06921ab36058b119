"""Dispatchers and workers in this process: for notebooks and tests, and for datasets without a service."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _caju
from ._bounds import NAMES, Bounds, Size
from ._errors import InvalidPipeline
from ._iterator import forget_readers, stop_readers
from ._logging import forked, serve, sync_level, unserve
from ._numbers import whole
from ._tuned import NAMES as TUNED_NAMES
from ._tuned import Tuned

if TYPE_CHECKING:
    from typing_extensions import Self

# Threads do not survive a fork: the child refuses to use those of its parent.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_caju.forked)
    os.register_at_fork(after_in_child=forked)
    os.register_at_fork(after_in_child=lambda: _forked())

# Reentrant: starting a cluster may log, and a log handler may read a dataset.
_lock = threading.RLock()
_shared: weakref.ref[LocalCluster] | None = None
_settings: dict[str, Any] = {}
_finalizers: list[Any] = []
_running: weakref.WeakSet[Any] = weakref.WeakSet()


def _forked() -> None:
    """In a child of a fork: another thread of the parent may have held the lock, and the parent stops what it runs."""
    global _lock
    _lock = threading.RLock()
    _running.clear()
    forget_readers()


def _at_exit() -> None:
    stop_readers()
    for one in list(_running):
        one.stop()


atexit.register(_at_exit)


def at_exit(stoppable: Any) -> None:
    """Stops a server when the interpreter ends, unless it is gone by then."""
    _running.add(stoppable)
    util = sys.modules.get("multiprocessing.util")
    parent = getattr(sys.modules.get("multiprocessing.process"), "parent_process", lambda: None)
    if util is not None and parent() is not None and not _finalizers:
        # Processes of multiprocessing end without the exit hooks of the interpreter.
        _finalizers.append(util.Finalize(None, _at_exit, exitpriority=10))


class _Stoppable:
    """A server that the end of a `with` stops."""

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
    `cache`, a folder or URL; by default in a private folder, which is removed with the cluster.

    No port is opened: only this process can use the cluster. `listen="127.0.0.1:0"` opens a port for readers in other
    processes. Whoever reaches the port can do what this process can do, including running functions.

    `chunk_memory` (1 GiB), `max_record` (256 MiB), `row_group_memory` (2 GiB), `max_pixels` (100,000,000) and `bind_timeout`
    (10 s) bound what a pipeline or its data may ask for: the memory of a stage for one chunk of rows, the size of a record of
    a source, the size of a row group of a Parquet file in the columns that are read, the pixels of an image, and the time for
    checking and planning a pipeline. Sizes are bytes, or text such as `"64MiB"`.

    Each worker tunes numbers while it runs, unless they are given: the threads (`cpu_threads`), the splits that a task reads
    concurrently (`split_readers`), and the bytes of each queue (`buffer`), within `buffer_memory` (1 GiB) for all queues of a
    worker.

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
        *,
        chunk_memory: Size | None = None,
        max_record: Size | None = None,
        row_group_memory: Size | None = None,
        max_pixels: int | None = None,
        bind_timeout: float | None = None,
        split_readers: int | None = None,
        buffer: Size | None = None,
        buffer_memory: Size | None = None,
    ) -> None:
        checked(workers, cpu_threads, cache)
        bounds = Bounds.of(chunk_memory, max_record, row_group_memory, max_pixels, bind_timeout)
        tuned = Tuned.of(split_readers, buffer, buffer_memory)
        if listen is not None and not isinstance(listen, str):
            raise InvalidPipeline(f"listen={listen!r} must be HOST:PORT, such as \"127.0.0.1:0\"")
        sync_level()
        url = None if cache is None else url_of(cache)
        self._cluster = _caju.Cluster(workers, cpu_threads, url, listen, bounds, tuned)
        at_exit(self)

    @property
    def address(self) -> str:
        """`host:port` of the dispatcher if the cluster listens, else an address that only this process can use."""
        return self._cluster.address

    @property
    def workers(self) -> list[str]:
        """The address of each worker: `host:port` if the cluster listens, else an address within this process."""
        return self._cluster.workers

    @property
    def bytes_read(self) -> int:
        """Bytes that the workers have read from sources so far."""
        return self._cluster.bytes_read

    def add_worker(self) -> str:
        """Starts another worker. Returns its address."""
        return self._cluster.add_worker()

    def stop(self) -> None:
        """Stops the workers and the dispatcher. Open iterators end with `Cancelled`. A second call does nothing."""
        stop_readers(self)
        self._cluster.stop()

    def __repr__(self) -> str:
        # A forked child has none of the workers of its parent's cluster.
        workers = len(self.workers) if _caju.runtime_alive() else 0
        return f"LocalCluster({self.address}, workers={workers})"


class Target(NamedTuple):
    """The number of workers that should run."""

    workers: int
    reason: str
    """One sentence for a person."""


class DispatcherServer(_Stoppable):
    """A dispatcher in this process; see `start_dispatcher`."""

    def __init__(self, server: _caju.Dispatcher) -> None:
        self._server = server
        at_exit(self)
        serve(self)

    @property
    def address(self) -> str:
        """`host:port` for workers and datasets."""
        return self._server.address

    @property
    def target(self) -> Target:
        """How many workers would keep the readers busy, between `min_workers` and `max_workers`."""
        return Target(*self._server.target)

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
        """Accepts no new tasks, waits up to `timeout` seconds until the current ones are done, and stops. Returns False if some
        were not done.
        """
        try:
            return self._server.drain(timeout)
        finally:
            unserve(self)

    def stop(self) -> None:
        """Stops it. Its tasks go to other workers."""
        self._server.stop()
        unserve(self)

    def __repr__(self) -> str:
        return f"WorkerServer({self.address})"


def start_dispatcher(
    listen: str = "127.0.0.1:0",
    state_dir: str | os.PathLike[str] | None = None,
    cache: str | os.PathLike[str] | None = None,
    allow_python: bool = False,
    *,
    chunk_memory: Size | None = None,
    bind_timeout: float | None = None,
    min_workers: int = 0,
    max_workers: int = 100,
    scaling_interval: float = 5.0,
    scale_down_after: float = 30.0,
    allow_read: Sequence[str | os.PathLike[str]] | None = None,
    allow_write: Sequence[str | os.PathLike[str]] | None = None,
) -> DispatcherServer:
    """Starts a dispatcher in this process. Port 0 takes a free port. With `state_dir` it survives restarts. Rows are
    stored at `autocache` hints below `cache`, a folder or URL that the workers reach too; without one they are not stored.

    With `allow_python` it accepts pipelines with Python functions. `chunk_memory` and `bind_timeout` are those of
    `LocalCluster`, for the pipelines that it plans; workers have bounds of their own.

    The server's `target`, the number of workers that would keep the readers busy, is computed every `scaling_interval` seconds
    (0: never), between `min_workers` and `max_workers`. It falls when fewer have been enough for `scale_down_after` seconds.

    There is no authentication: listen on the loopback, or on a network that is trusted. Whoever reaches the port, other users of
    this machine included, may have all files and stores read and written that this process may read and write. With
    `allow_read` or `allow_write`, lists of folders and URLs, the server uses only these and what lies below them, and `cache`.
    What it may write it may read, too.
    """
    least, most = whole("min_workers", min_workers, 0, 10_000), whole("max_workers", max_workers, 1, 10_000)
    if least is None or most is None or least > most:
        raise InvalidPipeline(f"min_workers={min_workers!r} must be at most max_workers={max_workers!r}")
    for name, seconds in (("scaling_interval", scaling_interval), ("scale_down_after", scale_down_after)):
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds >= 0:
            raise InvalidPipeline(f"{name}={seconds!r} must be a number of seconds, 0 or more")
    scaling = (least, most, float(scaling_interval), float(scale_down_after))
    state = None if state_dir is None else os.fspath(state_dir)
    url = None if cache is None else url_of(cache)
    bounds = Bounds.of(chunk_memory, None, None, None, bind_timeout)
    allow = _allowed(allow_read, allow_write)
    return DispatcherServer(_caju.Dispatcher(listen, state, url, allow_python, bounds, scaling, allow))


def start_worker(
    dispatcher: Any,
    listen: str = "127.0.0.1:0",
    advertise: str | None = None,
    cpu_threads: int | None = None,
    tags: list[str] | None = None,
    allow_python: bool = False,
    *,
    local_only: bool = False,
    chunk_memory: Size | None = None,
    max_record: Size | None = None,
    row_group_memory: Size | None = None,
    max_pixels: int | None = None,
    bind_timeout: float | None = None,
    split_readers: int | None = None,
    buffer: Size | None = None,
    buffer_memory: Size | None = None,
    allow_read: Sequence[str | os.PathLike[str]] | None = None,
    allow_write: Sequence[str | os.PathLike[str]] | None = None,
) -> WorkerServer:
    """Starts a worker in this process for the dispatcher at an address, or for that of `start_dispatcher`.

    It listens on `listen`, and readers dial `advertise` if that is another `host:port`. It computes on `cpu_threads`
    threads, one per core by default. `tags` are labels that `caju status` shows; a worker with the tag `COLOCATED` is read
    by datasets of other processes only if their `target_workers` is "any". The bounds, and the numbers that a worker tunes
    unless they are given, are those of `LocalCluster`.

    Datasets of this process read its rows without a socket. With `local_only=True` it opens no port: only this process
    reads from it, also for a dispatcher that is elsewhere.

    With `allow_python` it runs functions that readers send, in processes of this interpreter: a program that reaches the
    dispatcher can then run code here. `allow_read` and `allow_write` are those of `start_dispatcher`: without them the worker
    reads and writes whatever this process may, for every program that reaches the dispatcher.
    """
    whole("cpu_threads", cpu_threads, 1)
    bounds = Bounds.of(chunk_memory, max_record, row_group_memory, max_pixels, bind_timeout)
    tuned = Tuned.of(split_readers, buffer, buffer_memory)
    address = address_of(dispatcher)
    if local_only:
        if advertise is not None or listen != "127.0.0.1:0":
            raise InvalidPipeline("local_only=True opens no port: leave listen= and advertise= out")
        listen = "memory://"
    allow = _allowed(allow_read, allow_write)
    server = _caju.Worker(address, listen, advertise, cpu_threads, tags or [], allow_python, bounds, tuned, allow)
    return WorkerServer(server)


def _allowed(
    read: Sequence[str | os.PathLike[str]] | None, write: Sequence[str | os.PathLike[str]] | None
) -> tuple[list[str], list[str]] | None:
    """The URLs that a server may use; None for all that its process may."""
    if read is None and write is None:
        return None
    for name, urls in (("allow_read", read), ("allow_write", write)):
        if isinstance(urls, (str, os.PathLike)):
            raise InvalidPipeline(f"{name}={urls!r} must be a list of folders and URLs")
    return [url_of(url) for url in read or []], [url_of(url) for url in write or []]


def address_of(service: Any) -> str:
    """The `host:port` of a service: text, or an object with an address."""
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
    chunk_memory: Size | None = None,
    max_record: Size | None = None,
    row_group_memory: Size | None = None,
    max_pixels: int | None = None,
    bind_timeout: float | None = None,
    split_readers: int | None = None,
    buffer: Size | None = None,
    buffer_memory: Size | None = None,
) -> None:
    """Sets how datasets without a service are computed, from the next one on: workers, threads, and where rows are
    stored at `autocache` hints (by default a private folder, which is removed with the process). Arguments that are not
    given keep their values.

    `split_readers`, `buffer` and `buffer_memory` are those of `LocalCluster`. They also hold for the workers that
    `distribute(local_workers=...)` starts in this process from then on.

    The bounds are those of `LocalCluster`. All of them except `bind_timeout` also hold where a stage is checked as it is
    added, and for `schema` and `explain()`.
    """
    global _shared
    checked(workers, cpu_threads, cache)
    bounds = Bounds.of(chunk_memory, max_record, row_group_memory, max_pixels, bind_timeout)
    tuned = Tuned.of(split_readers, buffer, buffer_memory)
    given = {"workers": workers, "cpu_threads": cpu_threads, "cache": cache} | bounds._asdict() | tuned._asdict()
    with _lock:
        _settings.update({name: value for name, value in given.items() if value is not None})
        _shared = None  # datasets that use the current cluster keep it


def configured_bounds() -> Bounds:
    """The bounds that `configure` has set."""
    return Bounds(**{name: value for name, value in _settings.items() if name in NAMES})


def configured_numbers() -> Tuned:
    """The numbers of tasks that `configure` has set."""
    return Tuned(**{name: value for name, value in _settings.items() if name in TUNED_NAMES})


def checked(workers: Any, cpu_threads: Any, cache: Any) -> None:
    """Checks arguments of clusters."""
    whole("workers", workers, 0, 2**32 - 1)
    whole("cpu_threads", cpu_threads, 1)
    if cache is not None and not isinstance(cache, (str, os.PathLike)):
        raise InvalidPipeline(f"cache={cache!r} must be a folder or a URL")


def url_of(place: str | os.PathLike[str]) -> str:
    """A URL unchanged; a path made absolute."""
    text = os.fspath(place)
    if not text.strip():
        raise InvalidPipeline("the path is empty")  # it would be the working folder
    return text if "://" in text else os.path.abspath(text)


def embedded() -> LocalCluster:
    """The cluster of this process, which the datasets without a service share. It stops with the last of them."""
    global _shared
    with _lock:
        cluster = _shared() if _shared is not None else None
        if cluster is None:
            cluster = LocalCluster(**_settings)
            _shared = weakref.ref(cluster)
        return cluster

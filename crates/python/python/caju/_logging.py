"""Log records of the extension module go to `logging`, under `caju.*`.

Threads of the extension module never wait for the interpreter to log: they append to a bounded queue. A thread that calls
caju, or waits in it, delivers the records. While servers run in this process, a thread of its own does.
"""

from __future__ import annotations

import sys
import threading
import weakref
from typing import Any

from . import _caju

INFO = 20
CHECK_INTERVAL_S = 0.5
"""How often the delivering thread checks whether servers still run, in seconds. It bounds how long it outlives them."""

# Loggers of failures that the loop over the dataset raises too, and an exception among them.
RAISED = ("caju.worker.manager", "caju.worker.starting", "caju.worker.finishing", "caju.dispatcher.control")
NOT_RAISED = "caju.dispatcher.control.planning"

_lock = threading.Lock()
_delivering = threading.local()
_served: weakref.WeakSet[Any] = weakref.WeakSet()
_thread: threading.Thread | None = None


def sync_level() -> None:
    """Gives the lowest level of caju's loggers to the extension module, which records nothing below it."""
    if "logging" not in sys.modules:
        return  # nothing is configured: warnings
    # Waits for another thread that is importing it.
    import logging

    levels = [logging.getLogger("caju").getEffectiveLevel()]
    for name, one in list(logging.root.manager.loggerDict.items()):
        if name.startswith("caju.") and isinstance(one, logging.Logger) and one.level:
            levels.append(one.level)
    _caju.log_level(min(levels))


def deliver() -> None:
    """Delivers pending records to `logging`. The extension module calls it, holding no lock."""
    if getattr(_delivering, "now", False):
        return  # a handler calls caju: records of that call are delivered afterwards
    _delivering.now = True
    try:
        _deliver()
    finally:
        _delivering.now = False


def _deliver() -> None:
    records, dropped = _caju.take_records()
    if not records and not dropped:
        return
    import logging

    for level, target, message, seconds in records:
        logger = logging.getLogger(target.replace("::", ".").replace("_", ".", 1))
        if not logger.isEnabledFor(level) or (not _served and _is_raised(logger)):
            continue
        record = logger.makeRecord(logger.name, level, "(caju)", 0, message, (), None)
        record.created = seconds
        record.msecs = float(int(seconds % 1 * 1000))
        logger.handle(record)
    if dropped:
        logging.getLogger("caju").warning("%d log records of caju were dropped: the queue of pending records was full", dropped)


def _is_raised(logger: Any) -> bool:
    """Whether a record is about a failure that the loop over the dataset raises anyway: one of the workers and the
    dispatcher of this process, which have no other readers. At level INFO and below everything is logged.
    """
    ours = logger.name.startswith(RAISED) and not logger.name.startswith(NOT_RAISED)
    return ours and not logger.isEnabledFor(INFO)


def serve(server: Any) -> None:
    """Delivers records as they arrive while the server runs; see `unserve`."""
    global _thread
    sync_level()
    with _lock:
        _served.add(server)
        if _thread is None:
            _thread = threading.Thread(target=_run, name="caju-log", daemon=True)
            _thread.start()


def unserve(server: Any) -> None:
    """Ends the delivering thread with the last server."""
    with _lock:
        _served.discard(server)
        thread = None if _served else _thread
    if thread is not None and thread is not threading.current_thread():
        _caju.wake_log()
        thread.join(5.0)
    deliver()


def forked() -> None:
    """In a child of a fork: the thread is in the parent."""
    global _lock, _thread
    _lock, _thread = threading.Lock(), None


def _run() -> None:
    global _thread
    while True:
        _caju.wait_log(CHECK_INTERVAL_S)
        deliver()
        with _lock:
            if not _served:
                _thread = None
                return

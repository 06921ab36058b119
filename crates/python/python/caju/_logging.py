"""What the extension module has to tell goes to `logging`, under `caju.*`.

Its threads never touch the interpreter for that: they leave events in a bounded list, which is emptied by whoever
calls or waits in caju, and, while servers run here, by a thread for them.
"""

from __future__ import annotations

import sys
import threading
import weakref
from typing import Any

from . import _caju

INFO = 20
PATIENCE_S = 0.5
"""How long the thread waits for events before it looks whether its servers are still there."""

RAISED = ("caju.worker.manager", "caju.dispatcher.control")
NOT_RAISED = "caju.dispatcher.control.planning"

_lock = threading.Lock()
_delivering = threading.local()
_served: weakref.WeakSet[Any] = weakref.WeakSet()
_thread: threading.Thread | None = None


def sync_level() -> None:
    """Takes over the lowest level that a logger of caju has, so that nobody makes events that nobody wants."""
    if "logging" not in sys.modules:
        return  # nobody has set anything up: warnings
    # Waits for another thread that is just importing it.
    import logging

    levels = [logging.getLogger("caju").getEffectiveLevel()]
    for name, one in list(logging.root.manager.loggerDict.items()):
        if name.startswith("caju.") and isinstance(one, logging.Logger) and one.level:
            levels.append(one.level)
    _caju.log_level(min(levels))


def deliver() -> None:
    """Hands events over to `logging`; called by the extension module, with nothing of its own locked."""
    if getattr(_delivering, "now", False):
        return  # a handler calls caju: what comes of that is told afterwards
    _delivering.now = True
    try:
        _deliver()
    finally:
        _delivering.now = False


def _deliver() -> None:
    events, lost = _caju.take_events()
    if not events and not lost:
        return
    import logging

    for level, target, message, seconds in events:
        logger = logging.getLogger(target.replace("::", ".").replace("_", ".", 1))
        if not logger.isEnabledFor(level) or (not _served and _is_raised(logger)):
            continue
        record = logger.makeRecord(logger.name, level, "(caju)", 0, message, (), None)
        record.created = seconds
        record.msecs = float(int(seconds % 1 * 1000))
        logger.handle(record)
    if lost:
        logging.getLogger("caju").warning("%d messages of caju were lost: more at once than are kept", lost)


def _is_raised(logger: Any) -> bool:
    """Whether it is about a failure that the loop over the dataset raises anyway: of workers and dispatcher in this
    process, which nobody else hears. Who asks for more than warnings gets it all.
    """
    ours = logger.name.startswith(RAISED) and not logger.name.startswith(NOT_RAISED)
    return ours and not logger.isEnabledFor(INFO)


def serve(server: Any) -> None:
    """Delivers events as they come for as long as the server lives; see `unserve`."""
    global _thread
    sync_level()
    with _lock:
        _served.add(server)
        if _thread is None:
            _thread = threading.Thread(target=_run, name="caju-log", daemon=True)
            _thread.start()


def unserve(server: Any) -> None:
    """The server was stopped; with the last one the thread ends."""
    with _lock:
        _served.discard(server)
        thread = None if _served else _thread
    if thread is not None and thread is not threading.current_thread():
        _caju.wake_events()
        thread.join(5.0)
    deliver()


def forked() -> None:
    """In a child: the thread is the parent's."""
    global _lock, _thread
    _lock, _thread = threading.Lock(), None


def _run() -> None:
    global _thread
    while True:
        _caju.wait_events(PATIENCE_S)
        deliver()
        with _lock:
            if not _served:
                _thread = None
                return

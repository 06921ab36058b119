"""Saves of the rows of a dataset under a URL of their own, and their loading."""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Any, NamedTuple

from . import _caju
from ._cluster import LocalCluster, address_of, embedded, url_of
from ._dataset import Dataset
from ._errors import CajuError, DeadlineExceeded, InvalidPipeline
from ._sources import _source

_POLL_INTERVAL_S = 0.1
"""How often `wait` asks the dispatcher, in seconds: saves take seconds, and an answer costs a fraction of a millisecond."""


_in_progress: set[Save] = set()
"""Saves that the cluster of this process runs and that nobody waits for. They keep it until they are seen to have ended."""


class SaveProgress(NamedTuple):
    """The progress of a save. Until it is finished, totals may be None."""

    state: str
    """`running`, `finished` or `failed`."""
    splits_done: int
    splits_total: int | None
    rows: int | None
    bytes: int | None
    chunks: int | None
    rows_skipped: int | None
    """Bad rows that `on_error` left out of the save."""


class Save:
    """A save in progress. The dispatcher runs it, so it continues without this object, and without this process unless the
    dispatcher is in it. The end of the process ends a save of its own.
    """

    def __init__(self, client: _caju.Client, url: str, keep: Any) -> None:
        self._client = client
        self._keep = keep
        self.url = url
        """The URL of the rows."""

    @property
    def progress(self) -> SaveProgress:
        """The current progress."""
        said = json.loads(self._client.save_status(self.url))
        if said["state"] != "running":
            _in_progress.discard(self)

        def known(name: str) -> int | None:
            return said[name] if said["state"] == "finished" else None

        total = said["splits_total"] or known("splits_total")
        totals = (known(name) for name in ("rows", "bytes", "chunks", "rows_skipped"))
        return SaveProgress(said["state"], said["splits_done"], total, *totals)

    def done(self) -> bool:
        """Whether it has ended. `wait` raises the error of a save that failed."""
        return self.progress.state != "running"

    def wait(self, timeout: float | None = None) -> SaveProgress:
        """Waits for the end, at most `timeout` seconds, and raises the error of a save that failed.

        Without a timeout this ends too: the dispatcher ends a save that makes no progress.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            now = self.progress
            if now.state == "finished":
                return now
            if now.state == "failed":
                self._client.save_failure(self.url)
            if until is not None and time.monotonic() >= until:
                raise DeadlineExceeded(
                    f"the save to {self.url} is not finished after {timeout} s: {now.splits_done} of "
                    f"{now.splits_total or '?'} splits; it goes on, wait again"
                )
            # Ctrl-C interrupts this wait.
            threading.Event().wait(_POLL_INTERVAL_S)

    def __repr__(self) -> str:
        return f"<caju.Save {self.url}>"


def _forget_ended() -> None:
    """Lets go of clusters whose saves have ended."""
    for one in list(_in_progress):
        try:
            one.progress  # noqa: B018, forgets one that has ended
        except CajuError:  # the cluster was stopped, or belongs to the process that this one was forked from
            _in_progress.discard(one)


def save(
    dataset: Dataset,
    url: str | os.PathLike[str],
    service: Any = None,
    *,
    wait: bool = True,
    encoding: str | None = None,
    chunk_bytes: int | None = None,
) -> Save:
    """See `Dataset.save`."""
    if not isinstance(dataset, Dataset):
        raise InvalidPipeline(f"{dataset!r} is not a caju.Dataset")
    if chunk_bytes is not None and (not isinstance(chunk_bytes, int) or chunk_bytes < 1):
        raise InvalidPipeline(f"chunk_bytes={chunk_bytes!r} must be a positive number of bytes")
    if encoding is not None:
        _caju.check_encoding(encoding)
    known = dataset._service
    if service is not None:
        address, keep = address_of(service), service
    elif known is not None:
        address, keep = known.address, known.keep
    else:
        keep = embedded()
        address = keep.address
    is_embedded = service is None and known is None
    client = _caju.Client(address)
    here = isinstance(keep, LocalCluster)
    definition = dataset._json() if here else dataset._whole()
    begun = client.start_save(definition, url_of(url), encoding or "", chunk_bytes or 0)
    out = Save(client, json.loads(begun)["url"], keep)
    if wait:
        out.wait()
    elif is_embedded:
        _forget_ended()
        _in_progress.add(out)
    return out


def load(url: str | os.PathLike[str], *, wait: bool = True) -> Dataset:
    """The rows of a save, in the order of the source that was saved, chunk by chunk.

    A save that is still being written is read as it grows. With `wait=False` it is `NotFound` until it is finished.
    `.shuffle(1)` permutes the chunks in each epoch.
    """
    return _source({"load": {"path": url_of(url), "wait": wait}})

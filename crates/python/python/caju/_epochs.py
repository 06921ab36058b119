"""The methods of datasets that read their epochs."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _caju
from ._attempt import attempt_named
from ._cluster import embedded
from ._errors import FailedPrecondition
from ._iterator import DatasetIterator, connected
from ._local_workers import has_functions
from ._logging import sync_level
from ._schema import Schema
from ._service import Service

if TYPE_CHECKING:
    Element = dict[str, Any]


class Restored(NamedTuple):
    """A state that was loaded: what a launch of the program that was killed since took of later epochs is read again."""

    next_epoch: int
    attempt: tuple[str, int | None] | None
    """The launch that loaded it, where that is known."""
    iteration: int
    """The iteration that goes on behind the state; 0 if the state is of an epoch's end."""

    def request(self, epoch: int) -> dict[str, Any] | None:
        """What the opening of an epoch says of it."""
        names_launch = self.attempt is not None or self.iteration > 0
        if epoch == self.next_epoch or names_launch and epoch > self.next_epoch:
            return {"restored_beginning": True, "attempt": self.attempt, "after_iteration": self.iteration}
        return None


class Epochs:
    """The epochs of a dataset: the service that computes them, the job that they belong to, and which one is next."""

    _service: Service | None
    _policy: str

    def _tree(self) -> dict[str, Any]:
        """The definition as the tree of a pipeline file."""
        raise NotImplementedError

    def _json(self) -> str:
        """The definition for this process."""
        raise NotImplementedError

    def _whole(self) -> str:
        """The definition for any process."""
        raise NotImplementedError

    @property
    def schema(self) -> Schema:
        """The columns of the elements."""
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    def _fresh(self) -> None:
        self._epochs = 0
        self._client: _caju.Client | None = None
        self._cluster: Any = None
        self._job: str | None = None
        self._restored: Restored | None = None

    def __iter__(self) -> DatasetIterator[Element]:
        row, dense = self._form()
        return self._open(lambda reader: reader.next_numpy(row, dense))

    def as_numpy_iterator(self) -> DatasetIterator[Element]:
        """The next epoch: tf.data's name for `iter(ds)`."""
        return iter(self)

    def progress(self, **bar: Any) -> Iterator[Element]:
        """The next epoch with a progress bar of tqdm, which has to be installed. `bar` are arguments for tqdm."""
        try:
            from tqdm.auto import tqdm
        except ImportError as e:
            raise FailedPrecondition(
                f"progress() shows an epoch with tqdm, which cannot be imported ({e}): pip install tqdm, or iterate over "
                "the dataset itself"
            ) from e
        return self._progress(tqdm, bar)

    def _progress(self, tqdm: Callable[..., Any], bar: dict[str, Any]) -> Iterator[Element]:
        try:
            total: int | None = len(self)
        except TypeError:
            total = None
        with iter(self) as epoch, tqdm(**{"total": total, "unit": "batch", "desc": f"epoch {epoch.epoch}"} | bar) as shown:
            for element in epoch:
                yield element
                shown.update()
                if epoch.bottleneck is not None:
                    shown.set_postfix_str(f"bottleneck {epoch.bottleneck}", refresh=False)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The rows of the next epoch as an Arrow stream, by the PyCapsule interface. The consumer reads caju's memory.

        Rows come in batches as workers send them, whatever elements they form. The epoch is opened when the first of them
        is read. An error of the epoch is an error of the consumer, with the same message. If the consumer gives a
        `requested_schema`, the columns are cast to its types.
        """
        opened: list[DatasetIterator[Any]] = []

        def open_epoch() -> _caju.Reader:
            opened.append(self._open(lambda reader: reader.next_batch()))  # alive as long as this function
            return opened[0]._last

        return _caju.epoch_stream(self._schema_of_epochs()._ipc, open_epoch, requested_schema)

    def _schema_of_epochs(self) -> Schema:
        """The columns of the elements. A service knows those of sources that only its workers reach."""
        service = self._service
        if service is None or service.is_here:
            return self.schema
        client = self._connect(service)
        return Schema(client.dataset(client.register(self._whole())[0])[1])

    def _form(self) -> tuple[bool, bool]:
        """Whether elements are single rows, and whether their lists are padded."""
        batched = padded = False
        for step in self._tree()["steps"]:
            [(name, arguments)] = step.items()
            if name in ("batch", "padded_batch", "bucket_by_length"):
                batched, padded = True, name != "batch" and arguments.get("pad", True)
            elif name == "unbatch":
                batched = padded = False
        return not batched, padded

    def _open(
        self,
        take: Callable[[_caju.Reader], Any],
        epoch: int | None = None,
        moved: Callable[[int], None] | None = None,
        num_readers: int = 0,
    ) -> DatasetIterator[Any]:
        """Opens an epoch, the next by default. `moved` is called with the epoch of a state that is loaded. `num_readers`: of
        the job, where that is known.
        """
        service = self._service or self._embedded()
        sync_level()
        if epoch is None:
            epoch, self._epochs = self._epochs, self._epochs + 1
            try:
                return self._open_epoch(service, take, epoch, moved, num_readers)
            except BaseException:
                if self._epochs == epoch + 1:
                    self._epochs = epoch  # it has not begun: the next loop is of the same epoch
                raise
        return self._open_epoch(service, take, epoch, moved, num_readers)

    def _open_epoch(
        self,
        service: Service,
        take: Callable[[_caju.Reader], Any],
        epoch: int,
        moved: Callable[[int], None] | None,
        num_readers: int,
    ) -> DatasetIterator[Any]:
        def reopen(
            at: int, states: Sequence[str], of_all: bool, attempt: str | None, exhausted: bool
        ) -> _caju.Reader | None:
            if not service.job_name:
                # Other iterators may have read epochs of this dataset's own job, and a job's epoch is read once.
                self._job = None
            if moved is None:
                self._epochs = at + 1
            else:
                moved(at)
            named = attempt_named(attempt)
            self._restored = Restored(at + 1, named, 0) if exhausted or named is not None else None
            if not states:
                return None
            # A reader that gives its own state waits for those of all others.
            wanted = 0 if of_all else num_readers
            given = {"states": states, "num_states": wanted, "states_of_all": of_all, "attempt": attempt_named(attempt)}
            reader = self._read(self._connect(service), service, at, given)
            if not exhausted:
                self._restored = Restored(at + 1, named, reader.iteration)
            return reader

        def skipped(iteration: int) -> tuple[int, list[str]] | None:
            return self._connect(service).skipped(iteration)

        restored = self._restored
        begin = None if restored is None else restored.request(epoch)
        if begin is None and service.consumer is not None:
            # Consumers say which launch they belong to whenever they open an epoch.
            begin = {"attempt": attempt_named(None) if restored is None else restored.attempt}
        try:
            reader: _caju.Reader | FailedPrecondition = self._read(self._connect(service), service, epoch, begin)
        except FailedPrecondition as e:
            if not service.job_name:
                raise
            # Another launch has read this epoch of the job. A state that is loaded now is of another one.
            reader = e
        return DatasetIterator(
            reader,
            take,
            service.keep,
            epoch,
            reopen,
            bool(service.job_name),
            skipped if self._tree().get("on_error", "fail") != "fail" else None,
        )

    def _embedded(self) -> Service:
        # The cluster lives as long as datasets that have used it, with the profiles of their jobs.
        self._cluster = self._cluster or embedded()
        return Service(self._cluster.address, self._cluster)

    def _connect(self, service: Service) -> _caju.Client:
        client = self._client
        if service.local_cores:
            service.start_local(has_functions(self._tree()))
        if client is None:
            client = self._client = _caju.Client(service.address, **service.limits._asdict())
            connected(self)
        return client

    def _read(
        self,
        client: _caju.Client,
        service: Service,
        epoch: int,
        states: Mapping[str, Any] | None = None,
    ) -> _caju.Reader:
        definition = self._json() if service.is_here else self._whole()
        request = self._request(service, epoch)
        return client.read(definition, **request, **(states or {}))

    def _request(self, service: Service, epoch: int) -> dict[str, Any]:
        if self._job is None:
            # A unique name: the epochs of this dataset are one job, which no other dataset joins.
            self._job = service.job_name or f"python-{uuid.uuid4().hex[:16]}"
        return {
            "job": self._job,
            "epoch": epoch,
            "seed": service.seed,
            "mode": service.mode,
            "policy": service.policy or self._policy,
            "encoding": service.encoding,
            "epochs": service.epochs or 0,
            "lost_readers": service.lost_readers,
            "target_workers": service.target_workers,
            "compression": service.compression,
            "data_transfer_protocol": service.data_transfer_protocol,
            "consumer": service.consumer,
            "sharing": service.sharing,
            "priority": service.precedence[0],
            "weight": service.precedence[1],
        }

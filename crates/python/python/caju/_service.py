"""Where a dataset is computed, and in which job."""

from __future__ import annotations

from typing import Any

from . import _caju
from ._cluster import LocalCluster, WorkerServer, address_of
from ._errors import InvalidPipeline, NotFound
from ._limits import ReaderLimits
from ._local_workers import cores_for, local_worker
from ._numbers import whole
from ._ranks import known_rank

MODES = ("dynamic", "off", "file", "data", "file_or_data", "hint")
SHARING = ("exact", "relaxed", "off")
"""Whether a job shares computed rows with other jobs."""
UNEVEN = ("drop", "pad")
BALANCES = ("none", "bucket", "tokens")
LOST_READERS = ("fail", "allow")
TARGETS = ("auto", "any", "local")
COMPRESSIONS = ("none", "auto", "lz4", "zstd")
PROTOCOLS = ("auto", "framed", "local")
MAX_SEED = 2**64 - 1


class Service:
    """A dispatcher's address, and the arguments of a job there."""

    __slots__ = (
        "address", "encoding", "epochs", "job_name", "keep", "lost_readers", "mode", "policy", "seed",
        "target_workers", "consumer", "sharing", "precedence", "compression", "data_transfer_protocol", "limits",
        "local_cores", "_local",
    )

    def __init__(
        self,
        address: str,
        keep: Any,
        job_name: str = "",
        epochs: int | None = None,
        mode: str = "dynamic",
        seed: int | None = None,
        policy: str = "",
        encoding: str = "",
        lost_readers: str = "fail",
        target_workers: str | None = None,
        consumer: tuple[int, int, str, str] | None = None,
        sharing: tuple[str, str | None] | None = None,
        compression: str = "none",
        data_transfer_protocol: str = "auto",
        limits: ReaderLimits = ReaderLimits(),  # noqa: B008, an immutable value
        local_cores: int = 0,
        precedence: tuple[int | None, float | None] = (None, None),
    ) -> None:
        self.address = address
        self.keep = keep
        self.job_name = job_name
        self.epochs = epochs
        self.mode = mode
        self.seed = seed
        self.policy = policy
        self.encoding = encoding
        self.lost_readers = lost_readers
        self.target_workers = target_workers
        self.consumer = consumer
        self.sharing = sharing
        self.precedence = precedence
        self.limits = limits
        self.compression = compression
        self.data_transfer_protocol = data_transfer_protocol
        self.local_cores = local_cores
        self._local: WorkerServer | None = None

    @classmethod
    def of(
        cls,
        service: Any,
        job_name: str | None,
        epochs: int | None,
        processing_mode: str,
        seed: int | None,
        policy: str | None,
        encoding: str | None,
        lost_readers: str = "fail",
        target_workers: str | None = None,
        consumer: tuple[int, int, str, str] | None = None,
        sharing: tuple[str, str | None] | None = None,
        compression: str | None = None,
        data_transfer_protocol: str | None = None,
        limits: ReaderLimits = ReaderLimits(),  # noqa: B008, an immutable value
        local_workers: int | str | None = None,
        precedence: tuple[int | None, float | None] = (None, None),
    ) -> Service:
        """The arguments of `distribute`, checked."""
        for name, text in (("job_name", job_name), ("policy", policy), ("encoding", encoding)):
            if text is not None and not isinstance(text, str):
                raise InvalidPipeline(f"{name}={text!r} must be a string")
        if encoding:
            _caju.check_encoding(encoding)
        if job_name is not None and not job_name.strip():
            raise InvalidPipeline("job_name must not be empty; leave it out to read alone")
        if processing_mode not in MODES:
            raise InvalidPipeline(
                f"processing_mode {processing_mode!r} is not one of {', '.join(MODES)}; say \"dynamic\" for each row "
                "once, \"off\" for all rows from every worker, \"file\" or \"data\" for a shard per configured worker"
            )
        if lost_readers not in LOST_READERS:
            raise InvalidPipeline(
                f"lost_readers={lost_readers!r} is not one of {', '.join(LOST_READERS)}; say \"fail\" for an error at the end of "
                "an epoch that lost a reader with rows, \"allow\" to accept it"
            )
        if target_workers is not None:
            if not isinstance(target_workers, str) or target_workers.lower() not in TARGETS:
                raise InvalidPipeline(
                    f"target_workers={target_workers!r} is not one of {', '.join(TARGETS)}; say \"local\" to read from the "
                    "workers of this process alone, \"any\" to read from all"
                )
            target_workers = target_workers.lower()
        compression, data_transfer_protocol = transfer_of(compression, data_transfer_protocol)
        epochs = whole("epochs", epochs, 1)
        seed = whole("seed", seed, 0, MAX_SEED)
        cores = cores_for(local_workers)
        if local_workers is not None and isinstance(service, LocalCluster):
            raise InvalidPipeline("the workers of a LocalCluster are in this process already: leave local_workers= out")
        address = address_of(service)
        keep = None if service is address else service
        return cls(
            address, keep, job_name or "", epochs, processing_mode, seed, policy or "", encoding or "",
            lost_readers, target_workers, consumer, sharing, compression, data_transfer_protocol, limits, cores, precedence,
        )

    def start_local(self, functions: bool) -> None:
        """Starts the worker of this process, if one was asked for and none runs. `functions`: the dataset has Python functions."""
        if self.local_cores and self._local is None:
            self._local = local_worker(self.address, self.local_cores, functions)

    @property
    def is_here(self) -> bool:
        """Whether the whole cluster is in this process."""
        return isinstance(self.keep, LocalCluster)

    def renamed(self, job_name: str) -> Service:
        """The same service with another job name."""
        out = Service.__new__(Service)
        for name in self.__slots__:
            setattr(out, name, getattr(self, name))
        out.job_name = job_name
        return out

    def __getstate__(self) -> dict[str, Any]:
        # Another process gets the address. The cluster object stays here.
        return {name: None if name in ("keep", "_local") else getattr(self, name) for name in self.__slots__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)


def transfer_of(compression: str | None, protocol: str | None) -> tuple[str, str]:
    """The names of a compression and of a data transfer protocol, checked."""
    compression = "none" if compression is None else compression
    if not isinstance(compression, str) or compression.lower() not in COMPRESSIONS:
        raise InvalidPipeline(
            f"compression={compression!r} is not one of {', '.join(COMPRESSIONS)}; say \"auto\" for lz4 from workers on other "
            "machines, None for no compression"
        )
    protocol = "auto" if protocol is None else protocol
    if not isinstance(protocol, str):
        raise InvalidPipeline(f"data_transfer_protocol={protocol!r} must be a string, one of {', '.join(PROTOCOLS)}")
    if protocol.lower() not in PROTOCOLS:
        raise NotFound(
            f"the data transfer protocol {protocol!r} is not available; there are {', '.join(PROTOCOLS)}: \"framed\" over "
            "sockets, \"local\" from workers of this process, \"auto\" takes the one that fits"
        )
    return compression.lower(), protocol.lower()


def consumers_of(
    job_name: str | None,
    num_consumers: int | None,
    consumer_index: int | None,
    uneven: str | None,
    balance: str | None,
) -> tuple[int, int, str, str] | None:
    """The number of consumers of a job, which of them this dataset is, what happens to elements that are left, and what the
    elements of a round have in common; None if the readers of the job share its elements as they come.
    """
    if num_consumers is None and consumer_index is None and uneven is None and balance is None:
        return None
    if uneven is not None and uneven not in UNEVEN:
        raise InvalidPipeline(f"uneven={uneven!r} is not one of {', '.join(UNEVEN)}")
    if balance is not None and balance not in BALANCES:
        raise InvalidPipeline(f"balance={balance!r} is not one of {', '.join(BALANCES)}")
    count = whole("num_consumers", num_consumers, 1, 2**16)
    index = whole("consumer_index", consumer_index, 0)
    if count is None or index is None:
        count, index = _completed(count, index)
    if index >= count:
        raise InvalidPipeline(f"consumer_index={index} is not one of the {count} consumers, counted from 0")
    if job_name is None:
        raise InvalidPipeline("num_consumers= needs job_name=, under which the consumers find each other")
    return count, index, uneven or "drop", balance or "none"


def _completed(count: int | None, index: int | None) -> tuple[int, int]:
    """The number of consumers and the index among them; what is not given is the rank that the framework knows."""
    rank = known_rank()
    if rank is None and count is None:
        raise InvalidPipeline(
            "consumer_index=, uneven= and balance= belong to num_consumers=, which is not given, and neither torch.distributed "
            "nor jax.distributed is initialised in this process, from which it would be taken"
        )
    if rank is None:
        raise InvalidPipeline(
            f"num_consumers={count} needs consumer_index=, from 0 to {count - 1 if count else 0}: which of them this process is. It "
            "is taken from torch.distributed or jax.distributed if one of them is initialised"
        )
    if count is not None and count != rank.world_size:
        raise InvalidPipeline(
            f"num_consumers={count}, and {rank.source} has {rank.world_size} ranks; leave num_consumers= out for one consumer per rank, "
            "or give consumer_index=, too"
        )
    return rank.world_size, rank.rank if index is None else index


def precedence_of(job_name: str | None, priority: int | None, weight: float | None) -> tuple[int | None, float | None]:
    """The priority and the weight of a job, checked; None: as the job has it."""
    given = [name for name, value in (("priority", priority), ("weight", weight)) if value is not None]
    if given and job_name is None:
        raise InvalidPipeline(f"{given[0]}= needs job_name=: it belongs to a job with a name")
    if priority is not None and (isinstance(priority, bool) or not isinstance(priority, int) or not -(2**31) <= priority < 2**31):
        raise InvalidPipeline(f"priority={priority!r} must be a whole number; jobs of a higher one are served first")
    if weight is not None and (isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0.001 <= weight <= 1e6):
        raise InvalidPipeline(f"weight={weight!r} must be a number from 0.001 to 1000000")
    return priority, None if weight is None else float(weight)


def sharing_of(
    job_name: str | None, sharing: str | None, trainer_id: str | None, consumer: tuple[int, int, str, str] | None
) -> tuple[str, str | None] | None:
    """Whether the job shares computed rows with other jobs, and which of its trainers this dataset is; None: as the job does."""
    if trainer_id is not None and (not isinstance(trainer_id, str) or not trainer_id.strip()):
        raise InvalidPipeline(f"trainer_id={trainer_id!r} must be a name that is not empty, one for each trainer of the job")
    if sharing is None:
        if trainer_id is not None:
            raise InvalidPipeline("trainer_id= belongs to sharing=\"exact\" or \"relaxed\", which is not given")
        return None
    if sharing not in SHARING:
        raise InvalidPipeline(f"sharing={sharing!r} is not one of {', '.join(SHARING)}")
    if sharing == "off" and trainer_id is not None:
        raise InvalidPipeline("trainer_id= belongs to sharing=\"exact\" or \"relaxed\", and this dataset has sharing=\"off\"")
    if sharing != "off" and job_name is None:
        raise InvalidPipeline(f"sharing=\"{sharing}\" needs job_name=: sharing requires named jobs")
    if sharing != "off" and consumer is not None:
        raise InvalidPipeline("num_consumers= and sharing= exclude each other: consumers divide one epoch, jobs that share have one each")
    return sharing, trainer_id

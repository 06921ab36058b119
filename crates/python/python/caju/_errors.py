"""Exceptions by what the caller has to do. Each is a subclass of the closest built-in exception too."""

from __future__ import annotations


class CajuError(Exception):
    """The base of the exceptions that caju raises. The message names the object, the place and what to do."""


class InvalidPipeline(CajuError, ValueError):
    """The request is wrong: fix the pipeline, the argument or the expression."""


class NotFound(CajuError, FileNotFoundError):
    """A file, a dataset or a job with this name does not exist."""


class AlreadyExists(CajuError, FileExistsError):
    """A file, a dataset or a job with this name exists and is different."""


class FailedPrecondition(CajuError, RuntimeError):
    """The system is not in the state that the call needs: for example, a file changed while it was read."""


class DataLoss(CajuError):
    """Bytes are damaged, or rows can no longer be delivered exactly once."""


class Unavailable(CajuError, ConnectionError):
    """A server or a store cannot be reached now: try again."""


class DeadlineExceeded(CajuError, TimeoutError):
    """A wait reached its deadline."""


class Cancelled(CajuError):
    """The caller, or a shutdown, stopped the work."""


class Unimplemented(CajuError, NotImplementedError):
    """A valid request that this version does not implement."""


class ResourceExhausted(CajuError):
    """A memory, disk or count bound was reached; the message names the setting."""


class NotPermitted(CajuError, PermissionError):
    """Credentials are missing, or the server may not access a path."""


class InternalError(CajuError, RuntimeError):
    """A defect of caju."""


# By the kind's name in Rust (`ErrorKind::as_str`).
BY_KIND: dict[str, type[CajuError]] = {
    "invalid argument": InvalidPipeline,
    "not found": NotFound,
    "already exists": AlreadyExists,
    "failed precondition": FailedPrecondition,
    "data loss": DataLoss,
    "unavailable": Unavailable,
    "deadline exceeded": DeadlineExceeded,
    "cancelled": Cancelled,
    "unimplemented": Unimplemented,
    "resource exhausted": ResourceExhausted,
    "permission denied": NotPermitted,
    "internal error": InternalError,
}

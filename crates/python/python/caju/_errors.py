"""Exceptions by what the caller has to do. Each is also the nearest built-in one."""

from __future__ import annotations


class CajuError(Exception):
    """Everything that caju raises on purpose. The message names the thing, the place and the way out."""


class InvalidPipeline(CajuError, ValueError):
    """The request is wrong: fix the pipeline, the argument or the expression."""


class NotFound(CajuError, FileNotFoundError):
    """A named thing does not exist: a file, a dataset, a job."""


class AlreadyExists(CajuError, FileExistsError):
    """A named thing exists already and differs."""


class FailedPrecondition(CajuError, RuntimeError):
    """The system is not in the state that the call needs: a file changed while it was read, say."""


class DataLoss(CajuError):
    """Bytes are damaged, or rows cannot be delivered exactly once any more."""


class Unavailable(CajuError, ConnectionError):
    """A peer or a store cannot be reached now: try again."""


class DeadlineExceeded(CajuError, TimeoutError):
    """A wait ended at its deadline."""


class Cancelled(CajuError):
    """The caller, or a shutdown, stopped the work."""


class Unimplemented(CajuError, NotImplementedError):
    """Understood, but not offered by this version."""


class ResourceExhausted(CajuError):
    """A memory, disk or count bound was reached; the message names the setting."""


class NotPermitted(CajuError, PermissionError):
    """Credentials are missing, or a path lies outside what the server may touch."""


class InternalError(CajuError, RuntimeError):
    """A defect of caju itself."""


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

"""The errors of the project. Each message names the object, what was expected and what was found.

Each class also derives from the built-in error that fits, so that `except ValueError` catches a bad
argument.
"""

from __future__ import annotations


class PaddleBoxError(Exception):
    """Base class of all errors that a user can act on."""


class ConfigError(PaddleBoxError, ValueError):
    """The configuration is wrong: a typo, a wrong type, or a value out of range."""


class PassError(PaddleBoxError, RuntimeError):
    """A call does not fit the state of the pass. The message names the missing call."""


class DataError(PaddleBoxError, ValueError):
    """The input cannot be trained on: for example a missing file, or too many malformed lines."""


class HistoryMissing(DataError):  # noqa: N818  # the answer to a request, which is sent again
    """A request goes on with a history of a user that is not kept. Send the whole history."""


class StoreError(PaddleBoxError, OSError):
    """The store cannot be opened, read or written."""


class CorruptionError(StoreError):
    """Bytes on disk differ from those that were written. The message names the file, and the block,
    record or offset if there is one."""


class OutOfSpaceError(StoreError):
    """The disk is full. The store stays at its last commit."""


class StoreLockedError(StoreError):
    """Another process is the store's writer."""


class TrainingError(PaddleBoxError, RuntimeError):
    """Training cannot continue, for example after a non-finite loss. The store stays at its last
    commit."""


class GuardError(TrainingError):
    """`checkpoint.guard` forbids the commit of a trained pass."""


class RankError(PaddleBoxError, RuntimeError):
    """Another rank of the job has ended or given up. The message names it."""

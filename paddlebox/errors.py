"""The errors of the project. Each message names the object, what was expected and what was found.

Every class is also the built-in error that a caller would look for, so that ``except ValueError``
around a call with a bad argument keeps working.
"""

from __future__ import annotations


class PaddleBoxError(Exception):
    """Anything that went wrong and that a user can do something about."""


class ConfigError(PaddleBoxError, ValueError):
    """A configuration that makes no sense: a typo, a wrong type, a value out of range."""


class PassError(PaddleBoxError, RuntimeError):
    """A call out of order in the life of a pass; the message says which call is missing."""


class DataError(PaddleBoxError, ValueError):
    """Input that cannot be trained on: a missing file, or too many malformed lines."""


class StoreError(PaddleBoxError, OSError):
    """The store cannot be opened, read or written."""


class CorruptionError(StoreError):
    """Bytes on disk are not those that were written; the message names file and offset."""


class OutOfSpaceError(StoreError):
    """The disk is full. The store stays at its last commit."""


class StoreLockedError(StoreError):
    """Another process is the store's writer."""


class TrainingError(PaddleBoxError, RuntimeError):
    """Training cannot go on, as with a non-finite loss. The store stays at its last commit."""


class GuardError(TrainingError):
    """A pass was trained but may not be committed: `checkpoint.guard` says so."""


class RankError(PaddleBoxError, RuntimeError):
    """Another rank of the job has ended or given up; the message names it."""

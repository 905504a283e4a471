"""Small messages between ranks over a channel, and errors that all ranks raise together.

Letters: R = ranks.
"""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import numpy as np

from paddlebox import errors
from paddlebox.errors import OutOfSpaceError, PaddleBoxError, StoreError
from paddlebox.store.group import Group

NOTHING = np.empty(0, np.uint8)
FAILURES = (PaddleBoxError, OSError, ValueError)

T = TypeVar("T")


class AllToAll(Protocol):
    """A `Channel`, or a `Group`."""

    def exchange(self, out: Sequence[np.ndarray]) -> list[np.ndarray]: ...


def send(channel: AllToAll, size: int, mine: Any, to: Sequence[int]) -> list[Any]:
    """(R) what ranks say to this one, as in JSON; None where a rank says nothing to it. Collective.
    to: the ranks that get `mine`."""
    text = np.frombuffer(json.dumps(mine).encode(), np.uint8)
    found = channel.exchange([text if one in to else NOTHING for one in range(size)])
    return [json.loads(of.tobytes()) if of.size else None for of in found]


def send_to_all(world: Group, mine: Any) -> list[Any]:
    """(R) what each rank says, as in JSON. Collective; no pass may be loaded meanwhile."""
    return send(world, world.size, mine, range(world.size))


class Attempts:
    """Makes calls until one fails. After that it makes none, but the rank goes on to exchange,
    because the other ranks count on its messages."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def make(self, call: Callable[[], T], otherwise: Any) -> T:
        """The result of the call; `otherwise` if it fails, or one before it did."""
        if self.error is None:
            try:
                return call()
            except FAILURES as error:
                self.error = error
        return cast("T", otherwise)


def together(world: Group, folder: Path, call: Callable[[], T], what: str = "") -> T:
    """Call it on every rank; an error of any rank is raised on every rank. Collective. Arguments
    and errors: as of `raise_together`."""
    attempts = Attempts()
    result = attempts.make(call, None)
    raise_together(world, attempts.error, folder, what)
    return result


def in_turns(world: Group, folder: Path, call: Callable[[], None]) -> None:
    """`together`, on one rank after another, because ranks may see the same folders."""
    attempts = Attempts()
    for rank in range(world.size):
        if rank == world.rank:
            attempts.make(call, None)
        world.wait("turn")
    raise_together(world, attempts.error, folder)


def raise_together(world: Group, error: BaseException | None, folder: Path, what: str = "") -> None:
    """Raise the error of any rank on every rank. Collective.

    Args:
        error: the error of this rank.
        folder: where this rank writes. If it is full, the error says how much is free.
        what: the beginning of the text.

    Raises: PaddleBoxError of the type of the first rank that failed. It names each of them and its
    host.
    """
    kind, text = "", ""
    if error is not None:
        kind = type(error).__name__ if isinstance(error, PaddleBoxError) else StoreError.__name__
        where = f"rank {world.rank} on {socket.gethostname()}: " if world.size > 1 else ""
        text = f"{where}{error}"
        if isinstance(error, OutOfSpaceError):
            text += f" ({shutil.disk_usage(_existing(folder)).free} bytes are free in {folder})"
    failed = [(kind, text) for kind, text in world.gather("failed", [kind, text]) if kind]
    if failed:
        text = what + "; ".join(text for _, text in failed)
        raise getattr(errors, failed[0][0], StoreError)(text) from error


def _existing(folder: Path) -> Path:
    return folder if folder.exists() else _existing(folder.parent)

"""Small messages between ranks over a channel, and errors that all ranks raise together.

Letters: R = ranks.
"""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from paddlebox import errors
from paddlebox.errors import OutOfSpaceError, PaddleBoxError, StoreError
from paddlebox.store.coordinator import Coordinator

NOTHING = np.empty(0, np.uint8)


class AllToAll(Protocol):
    """An all-to-all, as of a `Channel`."""

    def exchange(self, out: Sequence[np.ndarray]) -> list[np.ndarray]: ...


@dataclass(frozen=True)
class BeforeLoading:
    """The channel of instances, for the time in which no pass is loaded. Also for one rank."""

    world: Coordinator

    def exchange(self, out: Sequence[np.ndarray]) -> list[np.ndarray]:
        return self.world.exchange_instances(out)


def send(channel: AllToAll, size: int, mine: Any, to: Sequence[int]) -> list[Any]:
    """(R) what ranks say to this one, as in JSON; None where a rank says nothing to it. Collective.
    to: the ranks that get `mine`."""
    text = np.frombuffer(json.dumps(mine).encode(), np.uint8)
    found = channel.exchange([text if one in to else NOTHING for one in range(size)])
    return [json.loads(of.tobytes()) if of.size else None for of in found]


def send_to_all(world: Coordinator, mine: Any) -> list[Any]:
    """(R) what each rank says, as in JSON. Collective; no pass may be loaded meanwhile."""
    return send(BeforeLoading(world), world.size, mine, range(world.size))


def raise_together(
    world: Coordinator, error: BaseException | None, folder: Path, what: str = ""
) -> None:
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

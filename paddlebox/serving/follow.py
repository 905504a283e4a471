"""An export file that follows the saves of a run: each base and delta, in order, as it is done."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from paddlebox.config.save import PublishConfig
from paddlebox.errors import PaddleBoxError, StoreLockedError, TrainingError
from paddlebox.saves import donefile
from paddlebox.saves.meta import BASE, DELTA
from paddlebox.serving.gate import Gate
from paddlebox.serving.save_source import SaveSource
from paddlebox.serving.writer import MOST_DELETED, Writer, export

log = logging.getLogger("paddlebox")

# While another process writes the file, as that of a trainer which was killed a moment ago.
_LOCKED_S, _LOCKED_TRIES = 0.2, 300


@dataclass(frozen=True)
class Served:
    """A save that the file shows, or that was refused."""

    name: str
    pass_number: int
    at: float  # seconds since 1970
    seconds: float  # to bring it in
    refused: str = ""  # why; empty: it is shown


class Follower:
    """Brings what is done below `saves` into an export file, which the first base makes.

    A save that the gate refuses, or that deletes more than MOST_DELETED of the live rows, is not
    shown, and not tried again; the next one comes with all of its chain then, as a delta needs the
    one before it.
    """

    def __init__(
        self, saves: Path, path: Path, *, precision: str | None = None, gate: Gate | None = None
    ) -> None:
        self._saves, self._path, self._gate = saves, path, gate
        self._precision = precision
        self._refused: set[str] = set()

    def pending(self) -> list[str]:
        """Names of saves that are done and not in the file, oldest first."""
        names = _in_order(self._saves)
        if not self._path.exists():
            bases = {done.name for done in donefile.read(self._saves, BASE)}
            return names[max((names.index(base) for base in bases), default=0) :]
        with Writer(self._path) as writer:
            _, kept = writer.generations()
        held = kept[-1].save["name"] if kept and kept[-1].save is not None else ""
        after = names[names.index(held) + 1 :] if held in names else names[-1:]
        return [name for name in after if name not in self._refused]

    def catch_up(self) -> list[Served]:
        """Brings in what is pending.

        Raises: StoreError, CorruptionError. What was brought in before stays.
        """
        return [self._apply(name) for name in self.pending()]

    def _apply(self, name: str) -> Served:
        started = time.perf_counter()
        whole = bool(self._refused) or not self._path.exists()
        source = SaveSource(self._saves / name, whole=whole)
        number = int(source.meta["pass_number"])
        refused = ""
        try:
            if not self._path.exists():
                export(source, self._path, precision=self._precision or "float32", gate=self._gate)
            else:
                with Writer(self._path) as writer:
                    writer.apply(
                        source, gate=self._gate, after_going_back=True, most_deleted=MOST_DELETED
                    )
            self._refused.clear()
        except TrainingError as error:
            refused = str(error)
            self._refused.add(name)  # the receiver of `Served` reports it
        return Served(name, number, time.time(), time.perf_counter() - started, refused)


def follow(saves: Path, publish: PublishConfig, requests: TextIO, answers: TextIO) -> None:
    """Keeps `publish.file` up with the saves of a trainer, until `requests` ends.

    A line of `requests` means that a save may be done. A line of `answers` is a `Served` as JSON.
    """
    gate = None
    if publish.gate_files:
        gate = Gate(publish.gate_files, publish.min_auc, publish.max_copc_drift)
    follower = Follower(saves, Path(publish.file), precision=publish.precision, gate=gate)
    while requests.readline():
        _catch_up(follower, answers)
    _catch_up(follower, answers)


def _catch_up(follower: Follower, answers: TextIO) -> None:
    for _ in range(_LOCKED_TRIES):
        try:
            for served in follower.catch_up():
                print(json.dumps(asdict(served)), file=answers, flush=True)
            return
        except StoreLockedError as error:
            held = error
            time.sleep(_LOCKED_S)
        except (PaddleBoxError, OSError) as error:  # the staleness of serving tells as well
            log.error("publish: %s", error)
            return
    log.error("publish: %s", held)


def _in_order(saves: Path) -> list[str]:
    names: list[str] = []
    deltas = donefile.read(saves, DELTA)
    for base in donefile.read(saves, BASE):
        names += [base.name, *(delta.name for delta in deltas if delta.key == base.key)]
    return names

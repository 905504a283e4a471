"""Keeps an export file up to date with the saves of a run: applies each base and delta in order."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from paddlebox.config.alerts import Bounds
from paddlebox.config.arguments import AnyPath, as_path
from paddlebox.config.save import PublishConfig
from paddlebox.errors import PaddleBoxError, StoreLockedError, TrainingError
from paddlebox.saves import donefile
from paddlebox.saves.meta import BASE, DELTA
from paddlebox.serving.gate import Gate
from paddlebox.serving.save_source import SaveSource
from paddlebox.serving.writer import MOST_DELETED, Writer, export

log = logging.getLogger("paddlebox")

# Retries while another process writes the file, such as that of a trainer that was just killed.
_LOCKED_S, _LOCKED_TRIES = 0.2, 300


@dataclass(frozen=True)
class Served:
    """The result for one save: applied or refused."""

    name: str
    pass_number: int
    at: float  # seconds since 1970
    seconds: float  # duration
    refused: str = ""  # the reason; empty: the save was applied


class Follower:
    """Applies the complete saves in a folder to an export file. The first base creates the file.

    A save is refused if the gate refuses it, or if it deletes more than MOST_DELETED of the live
    rows. A refused save is not tried again. Since a delta needs the save before it, the save after
    a refused one is applied together with its whole chain.

    Args:
        saves: OUT, the folder with the donefiles.
        path: the export file.
        precision: of embedx, for a new file; None: float32.
        gate: None accepts every version.
    """

    def __init__(
        self,
        saves: AnyPath,
        path: AnyPath,
        *,
        precision: str | None = None,
        gate: Gate | None = None,
    ) -> None:
        self._saves, self._path = as_path(saves, "saves"), as_path(path, "path")
        self._gate = gate
        self._precision = precision
        self._refused: set[str] = set()

    def pending(self) -> list[str]:
        """Names of the complete saves that are not in the file, oldest first."""
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
        """Apply the pending saves. Returns one result for each.

        Raises: StoreError, CorruptionError. Saves that were applied before the error stay applied.
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
            self._refused.add(name)  # not logged here: the receiver of `Served` reports it
        return Served(name, number, time.time(), time.perf_counter() - started, refused)


def follow(
    saves: Path, publish: PublishConfig, bounds: Bounds, requests: TextIO, answers: TextIO
) -> None:
    """Apply the saves of a trainer to `publish.file` until `requests` ends.

    Args:
        saves: OUT, the folder with the donefiles.
        requests: each line means that a new save may be complete.
        answers: gets a line for each save, a `Served` as JSON.
    """
    gate = None
    if publish.gate_files:
        gate = Gate(publish.gate_files, bounds, publish.min_auc)
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
        except (PaddleBoxError, OSError) as error:  # the alert serving_lag reports it too
            log.error("publish: %s", error)
            return
    log.error("publish: %s", held)


def _in_order(saves: Path) -> list[str]:
    names: list[str] = []
    deltas = donefile.read(saves, DELTA)
    for base in donefile.read(saves, BASE):
        names += [base.name, *(delta.name for delta in deltas if delta.key == base.key)]
    return names

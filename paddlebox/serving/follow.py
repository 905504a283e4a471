"""Keeps an export file up to date with the saves of a run: applies each base and delta in order."""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TextIO

from paddlebox.config.arguments import AnyPath, as_path
from paddlebox.config.checkpoint import Bounds, PublishConfig
from paddlebox.errors import PaddleBoxError, StoreLockedError, TrainingError
from paddlebox.saves import donefile
from paddlebox.saves.meta import BASE, DELTA
from paddlebox.serving.gate import Gate
from paddlebox.serving.source import SaveSource
from paddlebox.serving.writer import MOST_FEWER, Writer, export

log = logging.getLogger("paddlebox")

# Retries while another process writes the file, such as that of a trainer that was just killed.
_LOCKED_S, _LOCKED_TRIES = 0.2, 300
_RETRY_S, _MOST_RETRY_S = 1.0, 60.0  # between two tries after another error


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

    A save is refused if the gate refuses it, or if it has fewer live rows by more than MOST_FEWER.
    It is not tried again, and the next save is applied together with its whole chain, because a
    delta needs the save before it.

    A save that cannot be read or applied is reported once, and tried again at each call until a
    later save is in the file. The rest of its chain is left out until the next base. A line of a
    donefile that cannot be read is reported once, and left out.

    saves: OUT, the folder with the donefiles. precision: of embedx in a new file; None: float32.
    """

    def __init__(
        self,
        saves: AnyPath,
        path: AnyPath,
        *,
        precision: str | None = None,
        gate: Gate | None = None,
        onnx: bool = False,
    ) -> None:
        self._saves, self.path = as_path(saves, "saves"), as_path(path, "path")
        self._gate, self._onnx = gate, onnx
        self._precision = precision
        self._refused: set[str] = set()
        self._reported: set[tuple[str, str]] = set()
        #: Whether the last `catch_up` left out a save that it should try again.
        self.failed = False

    def _pending(self, wrong: list[str]) -> list[donefile.Done]:
        """The complete saves that are not in the file, oldest first. wrong: gets messages about
        lines that cannot be read."""
        bases = donefile.read(self._saves, BASE, wrong)
        deltas = donefile.read(self._saves, DELTA, wrong)
        saves: list[donefile.Done] = []
        at = 0  # of the newest base
        for base in bases:
            at = len(saves)
            saves += [base, *(delta for delta in deltas if delta.key == base.key)]
        if not self.path.exists():
            return saves[at:]
        with Writer(self.path) as writer:
            record = writer.newest()
        newest = record.save["name"] if record is not None and record.save is not None else ""
        names = [done.name for done in saves]
        after = saves[names.index(newest) + 1 :] if newest in names else saves[-1:]
        return [done for done in after if done.name not in self._refused]

    def catch_up(self) -> list[Served]:
        """Apply the pending saves. Returns a result for each that was applied or refused, and for
        each new failure. Raises: StoreLockedError if another process writes the export file;
        StoreError or CorruptionError if it cannot be opened."""
        wrong: list[str] = []
        broken = None  # the chain of a save that failed
        pending = self._pending(wrong)
        results = [one for message in wrong for one in self.failure(self._saves, message)]
        for done in pending:
            if done.key == broken:
                continue
            try:
                results.append(self._apply(done.name))
            except StoreLockedError:
                raise
            except Exception as error:  # whatever a save causes must not stop later ones
                broken = done.key
                results += self.failure(done.name, error)
            else:
                broken = None
        self.failed = broken is not None
        return results

    def failure(self, what: str | Path, error: Exception | str) -> list[Served]:
        """The result of a failure; none if it was reported before."""
        name, reason = str(what), str(error) or type(error).__name__
        if (name, reason) in self._reported:
            return []
        self._reported.add((name, reason))
        return [Served(name, 0, time.time(), 0.0, reason)]

    def _apply(self, name: str) -> Served:
        started = time.perf_counter()
        refused, folder = "", self._saves / name
        whole = bool(self._refused) or not self.path.exists()
        source = SaveSource(folder, whole=whole)
        try:
            try:
                self._write(source)
            except (StoreLockedError, TrainingError):
                raise
            except PaddleBoxError:
                # The file may lack the save before it, whose line of the donefile was left out.
                self._write(SaveSource(folder, whole=True))
            self._refused.clear()
        except TrainingError as error:
            refused = str(error)
            self._refused.add(name)  # not logged here: the receiver of `Served` reports it
        number = int(source.meta["pass_number"])
        return Served(name, number, time.time(), time.perf_counter() - started, refused)

    def _write(self, source: SaveSource) -> None:
        if not self.path.exists():
            precision = self._precision or "float32"
            export(source, self.path, precision=precision, gate=self._gate, onnx=self._onnx)
        else:
            with Writer(self.path) as writer:
                writer.apply(
                    source,
                    gate=self._gate,
                    after_going_back=True,
                    most_fewer=MOST_FEWER,
                    onnx=self._onnx,
                )


def follow(
    saves: Path, publish: PublishConfig, bounds: Bounds, requests: TextIO, answers: TextIO
) -> None:
    """Apply the saves in a trainer's OUT to `publish.file` until `requests` ends. A line of
    `requests` means that a save may be complete; `answers` gets each `Served` as a line of JSON."""
    gate = Gate(publish.gate_files, bounds) if publish.gate_files else None
    precision, onnx = publish.precision, publish.onnx
    follower = Follower(saves, Path(publish.file), precision=precision, gate=gate, onnx=onnx)
    lines: SimpleQueue[bool] = SimpleQueue()  # True: a line; False: the end

    def read() -> None:
        try:
            while requests.readline():
                lines.put(True)
        finally:
            lines.put(False)

    threading.Thread(target=read, daemon=True).start()
    wait = None
    more = True
    while more:
        with contextlib.suppress(queue.Empty):
            more = lines.get(timeout=wait)
        failed = not _catch_up(follower, answers)
        wait = min(2 * (wait or _RETRY_S), _MOST_RETRY_S) if failed else None


def _catch_up(follower: Follower, answers: TextIO) -> bool:
    """Returns whether nothing is left to try again."""
    for _ in range(_LOCKED_TRIES):
        try:
            results, failed = follower.catch_up(), follower.failed
        except StoreLockedError as error:
            locked = error
            time.sleep(_LOCKED_S)
            continue
        except Exception as error:  # the next try may succeed
            results, failed = follower.failure(follower.path, error), True
        for served in results:
            print(json.dumps(asdict(served)), file=answers, flush=True)
        return not failed
    log.error("publish: %s", locked)
    return False

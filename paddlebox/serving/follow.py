"""Keeps an export file up to date with the saves of a run: applies each base and delta in order."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from paddlebox.config.arguments import AnyPath, as_path
from paddlebox.errors import PaddleBoxError, StoreLockedError, TrainingError
from paddlebox.saves import donefile
from paddlebox.saves.meta import BASE, DELTA, event_time, read_meta
from paddlebox.serving.gate import Gate
from paddlebox.serving.source import SaveSource
from paddlebox.serving.writer import MOST_FEWER, Writer, export


@dataclass(frozen=True)
class Served:
    """The result for one save: shown in `to`, the export file or another sink, or refused."""

    to: str
    name: str
    pass_number: int
    at: float  # seconds since 1970
    seconds: float  # duration
    refused: str = ""  # the reason; empty: the save is shown
    event_time: float = 0.0  # as `saves.meta.event_time`; 0: the save cannot be read


class Reported:
    """Failures that were reported. to: the export file or another sink."""

    def __init__(self, to: str) -> None:
        self._to = to
        self._reported: set[tuple[str, str]] = set()

    def failure(self, what: str | Path, error: Exception | str) -> list[Served]:
        """The result of a failure; none if it was reported before."""
        name, reason = str(what), str(error) or type(error).__name__
        if (name, reason) in self._reported:
            return []
        self._reported.add((name, reason))
        return [Served(self._to, name, 0, time.time(), 0.0, reason)]


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
        self.failure = Reported(str(self.path)).failure
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
        newest = self.newest()
        if newest is None:
            return saves[at:]
        names = [done.name for done in saves]
        after = saves[names.index(newest) + 1 :] if newest in names else saves[-1:]
        return [done for done in after if done.name not in self._refused]

    def newest(self) -> str | None:
        """The name of the newest save in the file; "" if that was written from something else, None
        without a file. Raises: as `catch_up`."""
        if not self.path.exists():
            return None
        with Writer(self.path) as writer:
            record = writer.newest()
        return record.save["name"] if record is not None and record.save is not None else ""

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
        number, seconds = int(source.meta["pass_number"]), time.perf_counter() - started
        newest = event_time(read_meta(folder))
        return Served(str(self.path), name, number, time.time(), seconds, refused, newest)

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

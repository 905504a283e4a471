"""Trackers: `trainer.trackers` sends the metrics of a run to experiment trackers.

Each tracker is a module of this package, which is imported only if the config names it; its
library is not a dependency of paddlebox.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from paddlebox.config import Config
from paddlebox.config.trainer import TrackerType
from paddlebox.errors import ConfigError, StoreError
from paddlebox.training.curve import Curve, Point
from paddlebox.training.hooks import Hook
from paddlebox.training.pass_line import Line, Lines
from paddlebox.training.plan import PlannedPass
from paddlebox.training.run_dir import write_json

log = logging.getLogger("paddlebox")

FILE = "trackers.json"  # in the run dir: tracker -> the id of its run
_MOST_WAITING = 1000  # values that wait for a slow server; the oldest are dropped
_END_S = 30.0  # for what is still waiting when the run ends


@dataclass(frozen=True)
class Tracked:
    """What a tracker is told about the run."""

    name: str  # of the config
    config: Mapping[str, Any]  # as in config.json
    run_dir: Path
    id: str  # of the tracker's run that goes on; "" begins one
    step: int  # samples that earlier starts have trained


class Tracker(Protocol):
    """An experiment tracker. Each method may raise any exception. All are called on one thread,
    which is not the main thread, so that no library replaces a signal handler."""

    def start(self, run: Tracked) -> str:
        """Begin a run, or go on with `run.id`. Returns the id of the run."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log finite values by name, such as test/auc. step: samples trained so far."""

    def end(self, failed: bool) -> None:
        """Called once, when nothing more is logged."""


_CLASSES = {
    TrackerType.TENSORBOARD: "TensorBoard",
    TrackerType.MLFLOW: "MLflow",
    TrackerType.WANDB: "Wandb",
    TrackerType.SWANLAB: "SwanLab",
    TrackerType.VISUALDL: "VisualDL",
}


def check_installed(config: Config) -> None:
    """Raises: ConfigError that names the package of a tracker that is not installed."""
    for named in config.trainer.trackers:
        if importlib.util.find_spec(named.value) is None:
            raise ConfigError(
                f"trainer.trackers: {named.value} is not installed: pip install {named.value}, or "
                "leave it out"
            )


def make_tracker(named: TrackerType) -> Tracker:
    module = importlib.import_module(f"{__name__}.{named.value}")
    tracker: Tracker = getattr(module, _CLASSES[named])()
    return tracker


def flat(values: Mapping[str, Any], prefix: str = "", by: str = "/") -> dict[str, Any]:
    """The values of nested dicts, named by their paths."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}{by}", by)
        else:
            found[prefix + name] = value
    return found


def values_of(line: Line) -> dict[str, float]:
    """The finite numbers to log of the line of a pass."""
    parts: dict[str, Any] = {
        "train": {"loss": line["loss"], **line["metrics"]},
        **{name: line[name] for name in ("test", "before") if name in line},
        "pass": line["pass"],
        "samples_per_s": line.get("samples_per_s"),
        "live_rows": line.get("sizes", {}).get("live_rows"),
    }
    return {
        name: float(value)
        for name, value in flat(parts).items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


class Sender:
    """Calls a tracker from a thread of its own, so that a slow server does not hold training up. A
    call that fails is a warning once."""

    def __init__(self, named: TrackerType, run: Tracked) -> None:
        self.name, self._run = named.value, run
        self._id = Future[str]()
        self._waiting = deque[tuple[Mapping[str, float], int]](maxlen=_MOST_WAITING)
        self._wake, self._ended, self._failed = threading.Event(), False, False
        self._warned = False
        self._thread = threading.Thread(
            target=self._work, args=(named,), name=f"paddlebox-{self.name}", daemon=True
        )
        self._thread.start()

    def started(self) -> str:
        """Wait until the tracker has begun. Returns the id of its run. Raises: its exception."""
        return self._id.result()

    def send(self, values: Mapping[str, float], step: int) -> None:
        self._waiting.append((values, step))
        self._wake.set()

    def end(self, failed: bool) -> None:
        self._failed, self._ended = failed, True
        self._wake.set()
        self._thread.join(_END_S)
        if self._thread.is_alive():
            log.warning(
                "trainer.trackers: %s has not taken all values %g s after the end of the run",
                self.name,
                _END_S,
            )

    def _work(self, named: TrackerType) -> None:
        try:
            tracker = make_tracker(named)
            self._id.set_result(tracker.start(self._run))
        except (Exception, SystemExit) as error:
            if self._run.id:
                self._warn(error)
            self._id.set_exception(error)
            return
        ended = False
        while not ended:
            self._wake.wait()
            self._wake.clear()
            ended = self._ended
            while self._waiting:
                self._call(tracker.log, *self._waiting.popleft())
        self._call(tracker.end, self._failed)

    def _call(self, method: Callable[..., None], *arguments: Any) -> None:
        try:
            method(*arguments)
        except Exception as error:
            self._warn(error)

    def _warn(self, error: BaseException) -> None:
        if not self._warned:
            log.warning(
                "trainer.trackers: %s failed: %s: %s; training goes on, and values may be missing "
                "there",
                self.name,
                type(error).__name__,
                error,
            )
        self._warned = True


class Trackers(Hook):
    """Sends the metrics of each pass, and the points of its curve, to the trackers of the config.
    RUN_DIR/trackers.json has the ids of their runs, with which a later start goes on.

    Args:
        lines: those of the run; they have a line before this hook sees it.
        ranks: the number of ranks. A point counts the samples of one of them.

    Entering raises ConfigError if a tracker cannot begin a run. It does not wait for one that goes
    on with a run: if that fails, perhaps because a server is down, there is a warning.
    """

    on_every_rank = False

    def __init__(self, config: Config, run_dir: Path, lines: Lines, curve: Curve, ranks: int):
        self._config, self._run_dir = config, run_dir
        self._lines, self._ranks = lines, ranks
        self._senders: list[Sender] = []
        curve.on_point = self._point

    def __enter__(self) -> Trackers:
        ids = self._stored_ids()
        for named in self._config.trainer.trackers:
            known = ids.get(named.value, "")
            config = json.loads(self._config.canonical_json())
            run = Tracked(self._config.name, config, self._run_dir, known, self._lines.samples)
            self._senders.append(sender := Sender(named, run))
            if known:
                continue
            try:
                ids[named.value] = sender.started()
            except (Exception, SystemExit) as error:
                self.close(error)
                raise ConfigError(
                    f"trainer.trackers: {named.value} failed to start: {type(error).__name__}: "
                    f"{error}; correct its settings, or leave it out"
                ) from error
            write_json(self._run_dir / FILE, ids)
        return self

    def _stored_ids(self) -> dict[str, str]:
        path = self._run_dir / FILE
        try:
            found: dict[str, str] = json.loads(path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise StoreError(
                f"{path}: expected the ids of trackers' runs, found {error}: remove the file, and "
                "the trackers begin other runs"
            ) from error
        return found

    def catch_up(self, line: Line | None, passes: int, on_any_rank: bool) -> None:
        if line is not None:
            self._send(values_of(line), self._lines.samples)

    def after_pass(self, line: Line, planned: PlannedPass) -> None:
        self._send(values_of(line), self._lines.samples)

    def _point(self, point: Point) -> None:
        samples, loss, auc = point
        values = {"curve/loss": loss, **({} if auc is None else {"curve/auc": auc})}
        self._send(values, self._lines.samples + samples * self._ranks)

    def _send(self, values: Mapping[str, float], step: int) -> None:
        for sender in self._senders:
            sender.send(values, step)

    def close(self, error: BaseException | None) -> None:
        failed = error is not None and not isinstance(error, KeyboardInterrupt)
        for sender in self._senders:
            sender.end(failed)

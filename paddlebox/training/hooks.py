"""Hooks: what a run does besides training. One class per feature. `assembly.py` lists them in the
order in which they are called, the same on every rank, because some wait for the other ranks."""

from __future__ import annotations

import copy
import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

import numpy as np

from paddlebox.config import Config, Phase
from paddlebox.config.checkpoint import AlertsConfig
from paddlebox.config.data import HoldoutConfig
from paddlebox.data.dataset import Dataset
from paddlebox.data.holdout import Rows, check_split
from paddlebox.data.pipeline import Tracer
from paddlebox.errors import StoreError, TrainingError
from paddlebox.store.files import write_durably
from paddlebox.training.batch_loop import Watcher
from paddlebox.training.callbacks import Callback
from paddlebox.training.evaluation import evaluate_files
from paddlebox.training.metrics import PassMetrics
from paddlebox.training.pass_line import Line
from paddlebox.training.plan import PlannedPass, Tests
from paddlebox.training.resume import ResumePoint
from paddlebox.training.run_dir import append_json
from paddlebox.training.runner import Runners, Training
from paddlebox.watch.watch import Watch

log = logging.getLogger("paddlebox")


class Hook:
    """Base class, whose methods do nothing. A hook is a context manager around all passes."""

    #: False: only the first rank runs it, so it must not wait for other ranks.
    on_every_rank: ClassVar[bool] = True

    def catch_up(self, line: Line | None, passes: int, on_any_rank: bool) -> None:
        """Called once, before the first pass of this start. line: that of the last committed pass,
        if an earlier start ended before it was written. passes: committed passes. on_any_rank:
        whether any rank lacks that line."""

    def waits(self, text: str) -> None:
        """Called while the run waits for the data of the next pass. text: what it waits for."""

    def holds(self) -> bool:
        """Called when a pass is open. Whether the next pass is loaded only after the commit of this
        one. Every rank returns the same."""
        return False

    def between_passes(self) -> None:
        """Called before a pass is loaded, if all passes before it are committed: before the first
        one, after `holds`, and after the run has waited for data."""

    def before_pass(self, planned: PlannedPass) -> Mapping[str, Any]:
        """Called when the files of a pass are there. Returns entries to add to its line."""
        return {}

    def pass_begins(self, planned: PlannedPass) -> None:
        """Called when a pass is open, before its first batch."""

    def watcher(self, planned: PlannedPass, samples: int, phase: Phase) -> Watcher | None:
        """Called before the batches of a pass, or of each phase of it. Returns a function to call
        after each batch, or None. samples: instances of the pass on this rank."""
        return None

    def state(self) -> Mapping[str, np.ndarray]:
        """Called when a pass is trained. Returns arrays to commit with it in the dense state, whose
        names begin with `OWN` (store/version_store.py)."""
        return {}

    def after_pass(self, line: Line, planned: PlannedPass) -> None:
        """Called when a pass has ended. It is committed, or a later commit will include it. Later
        hooks see what this hook adds to `line`."""

    def stops(self) -> str:
        """Called after `after_pass` on the first rank. Returns what ends the run after this pass,
        as text; "" if the run goes on."""
        return ""

    def failed(self, error: BaseException) -> None:
        """Called when an error ends the passes, while the rows of the open pass are still there. If
        the error came from a step, it is called again when no pass is open any more."""

    def end(self) -> None:
        """Called when all passes are trained and committed."""

    def summary(self) -> Mapping[str, Any]:
        """Called after `end`. Returns entries to add to summary.json."""
        return {}

    def close(self, error: BaseException | None) -> None:
        """Called when the run is over. error: the error that ended it early, or None."""

    def __enter__(self) -> Hook:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(error)


def run_by(rank: int, hooks: Iterable[Hook | None]) -> list[Hook]:
    """The hooks that this rank runs, in order. None stands for a hook that the config disables."""
    return [hook for hook in hooks if hook is not None and (hook.on_every_rank or rank == 0)]


class Alerts(Hook):
    """Keeps status.json up to date and, on the first rank, raises alerts. recent: the last lines of
    metrics.jsonl from earlier starts."""

    def __init__(self, config: Config, rank: int, run_dir: Path, recent: Sequence[Line]) -> None:
        of_rank = config.alerts if rank == 0 else AlertsConfig()
        self.watch = Watch(of_rank, run_dir, recent, sinks=config.publish.sinks)

    def __enter__(self) -> Alerts:
        self.watch.__enter__()
        return self

    def catch_up(self, line: Line | None, passes: int, on_any_rank: bool) -> None:
        if line is not None:
            self.watch.passed(line)

    def waits(self, text: str) -> None:
        self.watch.doing("waits", text)

    def before_pass(self, planned: PlannedPass) -> Mapping[str, Any]:
        self.watch.doing("trains", planned.hour or f"pass {planned.number}")
        return {}

    def after_pass(self, line: Line, planned: PlannedPass) -> None:
        self.watch.passed(line)

    def close(self, error: BaseException | None) -> None:
        self.watch.__exit__(type(error) if error is not None else None, error, None)


class Evaluate(Hook):
    """Evaluates passes and tests with the current rows and dense parameters. tests: what to
    evaluate after each pass."""

    def __init__(self, training: Training, tests: Tests) -> None:
        self._training, self._tests = training, tests

    def catch_up(self, line: Line | None, passes: int, on_any_rank: bool) -> None:
        if not (self._tests.files and on_any_rank):
            return
        found = self._evaluate_tests(passes)
        if line is not None:
            line["test"] = found

    def before_pass(self, planned: PlannedPass) -> Mapping[str, Any]:
        if not self._training.config.trainer.evaluates_before:
            return {}
        return {"before": self._evaluate(Tests(planned.files, Rows.TRAINED), planned.sizes)}

    def after_pass(self, line: Line, planned: PlannedPass) -> None:
        if self._tests.files:
            line["test"] = self._evaluate_tests(planned.number)

    def _evaluate_tests(self, number: int) -> dict[str, Any]:
        self._training.world.heartbeat.stage("evaluate", f"after pass {number}")
        return self._evaluate(self._tests)

    def _evaluate(self, tests: Tests, sizes: Sequence[int] = ()) -> dict[str, Any]:
        own = self._training
        own.table.exchange.finish_staging(own.dataset.wait_staged)
        runner = own.runners.of(Phase.UPDATE)
        return evaluate_files(own.config, own.slots, own.table, runner, tests, sizes=sizes)


class Holdout(Hook):
    """Checks, before the last pass of the first epoch trains, that `data.holdout` has split the
    instances."""

    def __init__(self, rule: HoldoutConfig, dataset: Dataset, point: ResumePoint) -> None:
        self._rule, self._dataset, self._lines = rule, dataset, point.lines
        passes = [planned.number for planned in point.plan if planned.epoch == 1]
        # Without the lines of all earlier passes, their counts are not known.
        self._last = passes[-1] if passes and point.lines.passes == point.passes else 0

    def pass_begins(self, planned: PlannedPass) -> None:
        stats, lines = self._dataset.stats, self._lines
        if planned.number == self._last:
            held_out = lines.held_out + (stats.held_out or 0)
            check_split(self._rule, held_out, lines.samples + stats.rows)


class MetricsFile(Hook):
    """Writes the line of each pass, including what earlier hooks added to it."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / "metrics.jsonl"

    def catch_up(self, line: Line | None, passes: int, on_any_rank: bool) -> None:
        if line is not None:
            append_json(self._path, line)

    def after_pass(self, line: Line, planned: PlannedPass) -> None:
        append_json(self._path, line)


class DeadLetters(Hook):
    """Writes the records of a stream that this rank cannot parse, before the pass is committed.
    What a pass wrote that was never committed is removed at the next start. passes: committed."""

    def __init__(self, run_dir: Path, dataset: Dataset, passes: int) -> None:
        self._path, self._dataset = run_dir / "dead_letters.jsonl", dataset
        if not self._path.is_file():
            return
        written = self._path.read_text().splitlines(keepends=True)
        kept = [line for line in written if _pass_of(line) <= passes]
        if kept != written:
            write_durably(str(self._path), "".join(kept).encode())

    def pass_begins(self, planned: PlannedPass) -> None:
        dead = self._dataset.stats.events.dead
        if dead:
            append_json(self._path, *({"pass": planned.number, **one} for one in dead))


def _pass_of(line: str) -> float:
    """The pass of a line of dead letters; infinite for a line that was not written completely."""
    try:
        return int(json.loads(line)["pass"])
    except (ValueError, LookupError, TypeError):
        return math.inf


class Callbacks(Hook):
    """Calls the callbacks of the user. callbacks: in the order of the calls."""

    on_every_rank = False

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = callbacks
        self._stopped_by = ""

    def watcher(self, planned: PlannedPass, samples: int, phase: Phase) -> Watcher | None:
        called = [
            callback
            for callback in self._callbacks
            if getattr(callback.on_batch, "__func__", None) is not Callback.on_batch
        ]
        if not called:
            return None

        def watch(batches: int, done: int, loss: float, _: PassMetrics) -> None:
            for callback in called:
                self._call(callback, "on_batch", planned, batches, done, loss)

        return watch

    def after_pass(self, line: Line, planned: PlannedPass) -> None:
        for callback in self._callbacks:
            self._call(callback, "on_pass", planned, copy.deepcopy(line))

    def stops(self) -> str:
        return self._stopped_by

    def _call(self, callback: Callback, method: str, planned: PlannedPass, *arguments: Any) -> None:
        name = f"{type(callback).__name__}.{method}"
        try:
            stop = bool(getattr(callback, method)(*arguments))
        except Exception as error:
            then = (
                "the pass is abandoned, the store stays at its last commit"
                if method == "on_batch"
                else "the pass has ended, so it is not undone"
            )
            raise TrainingError(
                f"the callback {name} raised {type(error).__name__} in pass {planned.number}: "
                f"{error}; {then}"
            ) from error
        if stop and not self._stopped_by:
            self._stopped_by = name


def following(state: Mapping[str, Any], logloss: float) -> dict[str, Any]:
    """The state after one more evaluation: the lowest logloss and the number of reductions. It is
    empty before the first evaluation."""
    lowest, reductions = state.get("lowest"), int(state.get("reductions", 0))
    if lowest is None or math.isnan(lowest) or logloss < lowest:
        return {"lowest": logloss, "reductions": reductions}
    return {"lowest": lowest, "reductions": reductions + 1}


class Plateau(Hook):
    """Divides the learning rates by 10 when evaluations stop to improve: `optimizer.schedule:
    plateau`.

    If the logloss of the evaluation after a pass is not below its lowest value so far, the rates
    of the following passes are divided by 10. The line of each pass has the state in `plateau`, and
    the commit of the pass has the state before it, so that a resumed run goes on with it. The hook
    comes after the one that evaluates.

    Args:
        rate_rows: multiplies the learning rates of all rows (`TableSet.set_rate`).
        last: the line of the last committed pass. If it is from the commit, `catch_up` follows.
    """

    def __init__(self, runners: Runners, rate_rows: Callable[[float], None], last: Line) -> None:
        self._runners, self._rate_rows = runners, rate_rows
        self._state: dict[str, Any] = last.get("plateau", {})
        self._apply()

    def before_pass(self, planned: PlannedPass) -> Mapping[str, Any]:
        return {"plateau": self._state}

    def catch_up(self, line: Line | None, passes: int, on_any_rank: bool) -> None:
        if line is not None:
            self._evaluated(line)

    def after_pass(self, line: Line, planned: PlannedPass) -> None:
        self._evaluated(line)

    def _evaluated(self, line: Line) -> None:
        logloss = line.get("test", {}).get("logloss")
        if logloss is None:  # no samples
            return
        before = self._state.get("reductions", 0)
        self._state = following(self._state, float(logloss))
        line["plateau"] = self._state
        if self._state["reductions"] > before:
            log.info(
                "logloss %.5f of the evaluation has not improved on %.5f: the learning rates are "
                "divided by 10",
                logloss,
                self._state["lowest"],
            )
        self._apply()

    def _apply(self) -> None:
        factor: float = 0.1 ** int(self._state.get("reductions", 0))
        self._runners.set_rate(factor)
        self._rate_rows(factor)


class Trace(Hook):
    """Writes the trace when the run is over, even if it failed."""

    def __init__(self, path: str) -> None:
        self.tracer, self._path = Tracer(), path

    def close(self, error: BaseException | None) -> None:
        if error is not None:
            with suppress(StoreError):  # report the error that ended the run instead
                self.tracer.write(Path(self._path))
            return
        self.tracer.write(Path(self._path))
        log.info("trace: %s, for ui.perfetto.dev", self._path)

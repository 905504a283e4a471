"""The pass loop: while a pass trains, the next pass loads and the previous pass is committed.

load and parse   |  3  |  4  |  5  |
train                  |  3  |  4  |  5  |
commit                       |  3  |  4  |  5  |
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from paddlebox.config import Config, Phase
from paddlebox.config.dates import day_of
from paddlebox.errors import GuardError
from paddlebox.training import interrupt, pass_line, resume
from paddlebox.training.batch_loop import run_pass
from paddlebox.training.hooks import Hook
from paddlebox.training.pass_line import Line
from paddlebox.training.plan import PlannedPass, repeats, repeats_source, trained_before
from paddlebox.training.resume import ResumePoint
from paddlebox.training.runner import Training, enter, seed_pass
from paddlebox.training.shares import files_of
from paddlebox.training.upcoming import Passes
from paddlebox.watch.watch import of_quality

log = logging.getLogger("paddlebox")


def check_pass(config: Config, number: int, line: Line, before: Sequence[Line]) -> None:
    """The guard (`checkpoint.guard`), which checks a trained pass before its commit. line:
    `metrics` and `before` of the pass, as in metrics.jsonl; before: earlier lines. Raises:
    GuardError if the check failed."""
    if config.checkpoint.guard.quality == "stop":
        for _, message in of_quality(config.alerts, line, before):
            raise GuardError(
                f"pass {number}: {message}: the pass is not committed, the store stays at its last "
                "commit; check the files of this pass, then start the same command again"
            )


class PassLoop:
    """Trains passes until none are left. Every rank runs it.

    Args:
        point: the resume point. The loop adds the line of each pass to `point.lines`.
        hooks: called in this order, the same on every rank.
        trained: what the run of --init-from trained, as `repeats_source` takes it.
    """

    def __init__(
        self,
        training: Training,
        passes: Passes,
        point: ResumePoint,
        hooks: Sequence[Hook],
        trained: Collection[Mapping[str, Any]] = (),
    ) -> None:
        self._training, self._passes, self._point, self._hooks = training, passes, point, hooks
        self._config, self._world = training.config, training.world
        self._table, self._dataset = training.table, training.dataset
        self._lines = point.lines
        self._repeated, self._trained = repeats(point.plan), trained
        self._warned = False
        self._trained_before = trained_before(point.plan)
        self.stopped_by = ""  # the hook that ended the run while there were passes to train
        passes.on_wait = self._waits

    def run(self) -> None:
        """Train all passes, or until a hook stops the run. After an error, that pass is abandoned
        and never committed."""
        self._dataset.rescue = self._failed
        try:
            self._catch_up()
            planned: PlannedPass | None = None
            while planned is not None or (planned := self._next_one()) is not None:
                planned = self._run_pass(planned)
                if self.stopped_by:
                    # Before the dataset is closed: ranks stage the next pass together.
                    self._table.exchange.finish_staging(self._dataset.wait_staged)
                    break
        except BaseException as error:
            self._failed(error)
            raise

    def _failed(self, error: BaseException) -> None:
        """Called before the dataset abandons a pass, and again when `run` ends by the error."""
        for hook in self._hooks:
            hook.failed(error)

    def _catch_up(self) -> None:
        """Do what an earlier start did not finish after its last commit."""
        missing = self._point.line_missing
        on_any_rank = self._world.any("line missing", missing)
        line = self._lines.last if missing else None
        for hook in self._hooks:
            hook.catch_up(line, self._point.passes, on_any_rank)

    def _preloaded(self, planned: PlannedPass | None) -> PlannedPass | None:
        """Start to load the files of a pass, if there is one."""
        if planned is not None:
            dataset, day = self._dataset, day_of(planned.date) if planned.date else 0
            files = files_of(dataset, self._config, self._world, planned.files, planned.sizes)
            dataset.preload(files, day)
        return planned

    def _next_one(self) -> PlannedPass | None:
        """Wait for the first pass, or one that did not load while the previous one trained."""
        self._table.wait_commit()
        planned = self._passes.wait()
        for hook in self._hooks if planned is not None else ():
            hook.between_passes()
        return self._preloaded(planned)

    def _waits(self, text: str) -> None:
        self._world.heartbeat.stage("load", text)
        for hook in self._hooks:
            hook.waits(text)

    def _run_pass(self, planned: PlannedPass) -> PlannedPass | None:
        """Train a pass while the next one loads. Returns the next pass, if it is loading."""
        before: Line = {}
        for hook in self._hooks:
            before |= hook.before_pass(planned)
        again = self._repeats(planned) is not None
        title = pass_line.title(planned, len(self._point.plan), again)
        begin = pass_line.StartedPass(self._table, title)
        self._world.heartbeat.stage("load", f"pass {planned.number}")
        if self._config.trainer.reset_rows:
            before |= {"resets": self._reset_rows(planned)}
        self._dataset.begin_pass()
        for hook in self._hooks:
            hook.pass_begins(planned)
        with interrupt.finishing(self._config.trainer.grace_s):
            held = any(hook.holds() for hook in self._hooks)
            following = None if held else self._preloaded(self._passes.ready())
            line = self._train(planned, following, begin, before)
            self._lines.add(line)
            for hook in self._hooks:
                hook.after_pass(line, planned)
            self.stopped_by = interrupt.stop_together(self._table, self._stops(following))
        head = self._table.head.pass_number if self._table.head is not None else 0
        # A commit begins only after all ranks have committed the one before.
        self._world.heartbeat.committed(min(head, planned.number - 1))
        return following

    def _stops(self, following: PlannedPass | None) -> str:
        """The hook that stops the run after this pass; "" if none does, or no pass is left. Ranks
        other than the first do not know it."""
        if self._world.rank > 0 or (following is None and self._passes.are_done()):
            return ""
        return next(filter(None, (hook.stops() for hook in self._hooks)), "")

    def _reset_rows(self, planned: PlannedPass) -> int:
        """Reset the rows if a pass begins an epoch, once, also if the run was killed since. Returns
        the number of resets in the store, which the line of the pass has too."""
        life, number = self._table.life, planned.number
        begins = number > 1 and self._point.plan[number - 2].epoch < planned.epoch
        if begins and life.resets == self._lines.last.get("resets", life.resets):
            life.reset_rows()
            log.info("epoch %d: the rows have the weights of new rows", planned.epoch)
        return life.resets

    def _train(
        self,
        planned: PlannedPass,
        following: PlannedPass | None,
        begin: pass_line.StartedPass,
        before: Mapping[str, Any],
    ) -> Line:
        """Train the open pass and end it. Returns its line, with `before` added."""
        config, dataset, runners = self._config, self._dataset, self._training.runners
        stats = dataset.stats
        seed_pass(config.seed, planned.number)
        if config.model.has_click_priors:
            dataset.options.repeated = planned.number in self._trained_before
            dataset.options.take_priors = runners.of(Phase.UPDATE).set_click_prior
        of_phases: dict[str, Line] = {}
        with pass_line.progress(begin.title, stats.samples) as bar:
            for phase in runners.phases:
                own = [hook.watcher(planned, stats.samples, phase) for hook in self._hooks]
                watch = pass_line.together([bar, *own])
                started = time.perf_counter()
                if config.phases:
                    enter(dataset, config, phase)
                step, metrics = runners.of(phase).train_step, config.of_phase(phase).metrics
                result = run_pass(dataset, step, watch, metrics=metrics, tasks=dataset.tasks)
                of_phases[phase.value] = {
                    "samples": result.samples,
                    "batches": result.batches,
                    "loss": result.mean_loss,
                    "seconds": time.perf_counter() - started,
                    "metrics": result.metrics,
                }
        outcome = pass_line.outcome(planned, result, stats, of_phases if config.phases else {})
        return self._end(planned, following, begin, outcome, before)

    def _end(
        self,
        planned: PlannedPass,
        following: PlannedPass | None,
        begin: pass_line.StartedPass,
        outcome: Line,
        before: Mapping[str, Any],
    ) -> Line:
        """End the trained pass, and commit it if that is due. outcome: of its steps. Returns its
        line, with `before` added."""
        dataset, stats, runners = self._dataset, self._dataset.stats, self._training.runners
        interrupt.no_deadline()
        runners.finish_pass()
        dense = runners.dense_state()
        self._check(planned, {"metrics": outcome["metrics"], **before})
        for hook in self._hooks:
            dense = {**dense, **hook.state()}
        dataset.cursor = self._cursor(planned, outcome, before)
        dataset.dense_state = lambda: dense
        self._world.heartbeat.stage("commit", f"pass {planned.number}")
        # Ranks may differ, because a signal may have reached only some of them.
        due = self._world.any("due", _is_due(self._config, planned, following))
        dataset.end_pass(commit=due)
        line = begin.line(outcome, stats, runners.dense_sent_bytes)
        pass_line.log_pass(begin.title, line)
        line |= before
        first = self._repeats(planned)
        if first is not None:
            line["repeats_pass"] = first
        return line

    def _repeats(self, planned: PlannedPass) -> int | None:
        """The earlier pass with a file of this one; 0: the run of --init-from trained the file, or
        the day; None: neither."""
        if planned.number in self._repeated:
            return self._repeated[planned.number]
        if not repeats_source(planned, self._trained):
            return None
        if not self._warned:
            log.warning(
                "pass %d trains files, a day or an hour that the run of --init-from trained: the "
                "rows already hold their clicks, so the training metrics are too good: judge the "
                "model by data.test_files",
                planned.number,
            )
        self._warned = True
        return 0

    def _check(self, planned: PlannedPass, line: Line) -> None:
        """Run the guard. If it rejects the pass, the pass is abandoned. Raises GuardError."""
        try:
            check_pass(self._config, planned.number, line, self._lines.recent)
        except GuardError:
            self._dataset.abandon_pass()
            raise

    def _cursor(
        self, planned: PlannedPass, outcome: Line, before: Mapping[str, Any]
    ) -> dict[str, Any]:
        plan, skipped = self._passes.hash_of(planned), self._point.skipped
        return resume.cursor(plan, outcome, before, skipped) | {"ranks": self._world.size}


def _is_due(config: Config, planned: PlannedPass, following: PlannedPass | None) -> bool:
    """Whether to commit the pass when it ends. If not, a later commit includes it."""
    every = config.checkpoint.every
    if following is None or interrupt.asked() or every == "pass":
        return True
    if every == "date":
        return planned.date != following.date
    return every != "never" and planned.number % every == 0

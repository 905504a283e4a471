"""Evaluation inside a run: a pass before it is trained, the test files after each pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paddlebox.config import Phase
from paddlebox.train.evaluation import evaluate_files
from paddlebox.train.hooks.hook import Hook, Line
from paddlebox.train.pass_loop import Training
from paddlebox.train.plan import PlannedPass


class Evaluate(Hook):
    """Evaluates passes and test files with the current rows and dense parameters.

    Args:
        training: the run.
        tests: files to evaluate after each pass; empty: none.
    """

    def __init__(self, training: Training, tests: Sequence[str]) -> None:
        self._training, self._tests = training, tests

    def catch_up(self, line: Line | None, passes: int, on_any_rank: bool) -> None:
        if not (self._tests and on_any_rank):
            return
        found = self._evaluate_tests(passes)
        if line is not None:
            line["test"] = found

    def before_pass(self, planned: PlannedPass) -> Mapping[str, Any]:
        if not self._training.config.trainer.evaluate_before_pass:
            return {}
        return {"before": self._evaluate(planned.files, planned.sizes)}

    def after_pass(self, line: Line, planned: PlannedPass) -> None:
        if self._tests:
            line["test"] = self._evaluate_tests(planned.number)

    def _evaluate_tests(self, number: int) -> dict[str, Any]:
        self._training.world.heartbeat.stage("evaluate", f"after pass {number}")
        return self._evaluate(self._tests)

    def _evaluate(self, files: Sequence[str], sizes: Sequence[int] = ()) -> dict[str, Any]:
        own = self._training
        own.world.finish_staging(own.dataset.wait_staged)
        runner = own.runners.of(Phase.UPDATE)
        return evaluate_files(own.config, own.slots, own.table, runner, files, sizes=sizes)

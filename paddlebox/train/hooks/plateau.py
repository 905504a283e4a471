"""Divides the learning rates by 10 when the test files stop to improve: `optimizer.schedule:
plateau`.

After each pass the run evaluates data.test_files. If their logloss is not below its lowest value so
far, the rates of the following passes are divided by 10. The line of each pass has the state in
`plateau`, and the commit of the pass has the state before it, so that a resumed run goes on with
it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

from paddlebox.train.hooks.hook import Hook, Line
from paddlebox.train.phases import Runners
from paddlebox.train.plan import PlannedPass

log = logging.getLogger("paddlebox")


def following(state: Mapping[str, Any], logloss: float) -> dict[str, Any]:
    """The state after one more evaluation: the lowest logloss and the number of reductions.

    It is empty before the first evaluation.
    """
    lowest, reductions = state.get("lowest"), int(state.get("reductions", 0))
    if lowest is None or math.isnan(lowest) or logloss < lowest:
        return {"lowest": logloss, "reductions": reductions}
    return {"lowest": lowest, "reductions": reductions + 1}


class Plateau(Hook):
    """The hook. It comes after the one that evaluates.

    Args:
        runners: the programs whose learning rates are divided.
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
                "logloss %.5f on data.test_files has not improved on %.5f: the learning rates are "
                "divided by 10",
                logloss,
                self._state["lowest"],
            )
        self._apply()

    def _apply(self) -> None:
        factor: float = 0.1 ** int(self._state.get("reductions", 0))
        self._runners.set_rate(factor)
        self._rate_rows(factor)

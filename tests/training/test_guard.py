"""What the guard lets through, and what it says of the rest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from paddlebox.config import Config
from paddlebox.errors import ConfigError, GuardError
from paddlebox.training.pass_loop import check_pass


def config(quality: str = "warn", **bounds: Any) -> Config:
    fields = {
        "name": "run",
        "data": {"format": "csv", "slots": "s.yaml", "train_files": ["a"]},
        "model": {"type": "dnn"},
        "checkpoint": {"guard": {"quality": quality}},
        "alerts": bounds,
    }
    return Config.model_validate(fields)


def check(settings: Config, line: dict[str, Any], before: Sequence[dict[str, Any]] = ()) -> None:
    check_pass(settings, 7, line, before)


def measured(**metrics: float | None) -> dict[str, Any]:
    return {"metrics": metrics}


def test_a_drop_does_not_stop_a_run_by_default() -> None:
    check(config(max_auc_drop=0.01), measured(auc=0.5), [measured(auc=0.75)])


def test_without_a_bound_there_is_nothing_to_stop_for() -> None:
    with pytest.raises(ConfigError, match=r"stop needs alerts\.max_auc_drop or alerts\.copc"):
        config("stop")


@pytest.mark.parametrize(
    ("auc", "before", "stops"),
    [
        (0.625, [0.75], False),
        (0.5, [0.75], True),
        (0.75, [0.5], False),
        (None, [0.75], False),  # one class alone has no AUC
        (-0.5, [0.75], False),  # as older runs have it
        (0.5, [-0.5], False),
        (0.5, [], False),  # the first pass
        (0.5, [0.5, 0.625], False),  # compared with the mean
        (0.5, [0.75, 0.75, 0.5], True),
    ],
)
def test_an_auc_that_drops_too_far(auc: float | None, before: list[float], stops: bool) -> None:
    arguments = measured(auc=auc), [measured(auc=one) for one in before]
    check(config(max_auc_drop=0.125), *arguments)
    if not stops:
        check(config("stop", max_auc_drop=0.125), *arguments)
        return
    told = r"pass 7: AUC 0\.5.* below .* at most 0\.125 \(alerts\.max_auc_drop\): the pass is not"
    with pytest.raises(GuardError, match=told):
        check(config("stop", max_auc_drop=0.125), *arguments)


@pytest.mark.parametrize(
    ("copc", "stops"), [(1.25, False), (0.75, False), (1.5, True), (0.5, True), (math.inf, True)]
)
def test_a_copc_that_drifts_too_far(copc: float, stops: bool) -> None:
    guard = config("stop", copc=[0.75, 1.25])
    if not stops:
        check(guard, measured(copc=copc))
        return
    with pytest.raises(GuardError, match=r"COPC .*, expected 0\.75 to 1\.25 \(alerts\.copc"):
        check(guard, measured(copc=copc))


def test_the_evaluation_before_a_pass_counts_where_there_is_one() -> None:
    line = {"before": {"copc": 1.5}, "metrics": {"copc": 1.0}}
    with pytest.raises(GuardError, match=r"COPC 1\.5"):
        check(config("stop", copc=[0, 1.25]), line)

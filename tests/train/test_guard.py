"""What the guard lets through, and what it says of the rest."""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest

from paddlebox.config import GuardConfig
from paddlebox.errors import GuardError
from paddlebox.train.guard import check_pass

GOOD = {"w": np.ones(4, np.float32), "step": np.ones((), np.float32)}
BAD = {"w": np.array([1, np.nan, np.inf, 2], np.float32)}


def guard(**fields: object) -> GuardConfig:
    return GuardConfig.model_validate(fields)


def check(settings, dense=GOOD, metrics=None, before=None):
    check_pass(settings, 7, dense, metrics or {}, before or {})


def test_dense_state_that_is_not_finite_stops_by_default():
    check(guard())
    with pytest.raises(GuardError, match="pass 7: 2 of 4 values of w are not finite, expected 0"):
        check(guard(), BAD)
    check(guard(non_finite="off"), BAD)


def test_a_warning_lets_the_pass_through(caplog):
    with caplog.at_level(logging.WARNING, "paddlebox"):
        check(guard(non_finite="warn"), BAD)
        check(guard(max_auc_drop=0.01, action="warn"), GOOD, {"auc": 0.5}, {"auc": 0.75})
    assert [record.message.count("committed nevertheless") for record in caplog.records] == [1, 1]


@pytest.mark.parametrize(
    ("bound", "auc", "before", "stops"),
    [
        (0.0, 0.5, 0.75, False),  # off
        (0.25, 0.5, 0.75, False),
        (0.125, 0.5, 0.75, True),
        (0.125, 0.75, 0.5, False),
        (0.125, None, 0.75, False),  # one class alone has no AUC
        (0.125, -0.5, 0.75, False),  # as older runs have it
        (0.125, 0.5, -0.5, False),
        (0.125, 0.5, None, False),  # the first pass
    ],
)
def test_an_auc_that_drops_too_far(bound, auc, before, stops):
    arguments = GOOD, {"auc": auc}, {} if before is None else {"auc": before}
    if not stops:
        check(guard(max_auc_drop=bound), *arguments)
        return
    with pytest.raises(GuardError, match=r"0\.250000 below .* at most 0\.125 .*max_auc_drop"):
        check(guard(max_auc_drop=bound), *arguments)


@pytest.mark.parametrize(
    ("copc", "stops"), [(1.25, False), (0.75, False), (1.5, True), (0.5, True), (math.inf, True)]
)
def test_a_copc_that_drifts_too_far(copc, stops):
    check(guard(), GOOD, {"copc": copc})
    if not stops:
        check(guard(max_copc_drift=0.25), GOOD, {"copc": copc})
        return
    with pytest.raises(GuardError, match=r"away from 1, expected at most 0\.25 .*max_copc_drift"):
        check(guard(max_copc_drift=0.25), GOOD, {"copc": copc})


def test_large_inputs_are_named_where_dense_state_is_not_finite():
    large = {"age": (-2e4, "a.csv:7"), "price": (5e12, "a.csv:3")}
    named = r"dense slot 'price' holds 5e\+12 \(a\.csv:3\): try clip or log1p in slots.yaml"
    with pytest.raises(GuardError, match=named) as error:
        check_pass(guard(), 7, BAD, {}, {}, large)
    assert "learning_rate" not in str(error.value)

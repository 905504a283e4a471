"""Losses inside groups: the formulas in float64, weights, and what a batch of any order gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from paddlebox import ops
from paddlebox.nn.group_losses import jrc_loss, listwise_loss, pairwise_loss

paddle = ops.paddle

LOSSES: dict[str, Callable[..., Any]] = {
    "pairwise": pairwise_loss,
    "listwise": listwise_loss,
    "jrc": jrc_loss,
}
B, GROUPS = 40, 7


def expected(name: str, z: np.ndarray, y: np.ndarray, group: np.ndarray, w: np.ndarray) -> float:
    """The loss by its formula, one instance after another. All arrays: (B) float64."""
    total = 0.0
    for i in range(len(z)):
        its = group == group[i]

        share = float(np.log(np.sum(w[its] * np.exp(z[its] - z[i]))))
        if name == "pairwise":
            lower = its & (y < y[i])
            if w[lower].sum() > 0:
                each = np.log1p(np.exp(z[lower] - z[i]))
                total += w[i] * float(np.average(each, weights=w[lower]))
        elif name == "listwise":
            total += w[i] * y[i] * share
        else:
            entropy = float(np.log1p(np.exp(z[i])) - y[i] * z[i])
            total += w[i] * (0.5 * entropy + 0.5 * y[i] * share)
    return total / len(z)


def instances(seed: int = 1) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(seed)
    z, y = random.normal(0, 2, B), (random.random(B) < 0.4).astype(np.float64)
    return z, y, random.integers(0, GROUPS, B), random.integers(1, 4, B).astype(np.float64)


def computed(
    name: str, z: np.ndarray, y: np.ndarray, group: np.ndarray, w: np.ndarray | None = None
) -> tuple[float, np.ndarray]:
    """The loss, and B times its gradient, as the push has it."""
    paddle.disable_static()
    logits = paddle.to_tensor(z.reshape(-1, 1).astype(np.float32), stop_gradient=False)
    columns = [y.astype(np.float32), group.astype(np.int32)]
    columns += [] if w is None else [w.astype(np.float32)]
    loss = LOSSES[name](logits, *(paddle.to_tensor(one.reshape(-1, 1)) for one in columns))
    loss.backward()
    return float(loss), np.asarray(logits.grad.numpy()).reshape(-1) * len(z)


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_its_formula(name: str) -> None:
    z, y, group, w = instances()
    assert computed(name, z, y, group)[0] == pytest.approx(
        expected(name, z, y, group, np.ones(B)), rel=1e-5
    )
    assert computed(name, z, y, group, w)[0] == pytest.approx(
        expected(name, z, y, group, w), rel=1e-5
    )


@pytest.mark.parametrize("name", LOSSES)
def test_the_gradient_is_that_of_the_formula(name: str) -> None:
    z, y, group, w = instances()
    found = computed(name, z, y, group, w)[1]
    for at in range(0, B, 7):
        moved = [z.copy(), z.copy()]
        moved[0][at] -= 1e-5
        moved[1][at] += 1e-5
        low, high = (expected(name, one, y, group, w) for one in moved)
        assert found[at] == pytest.approx(B * (high - low) / 2e-5, abs=2e-4)


@pytest.mark.parametrize("name", LOSSES)
def test_weight_2_is_the_instance_twice(name: str) -> None:
    z, y, group, w = instances()
    twice = np.repeat(np.arange(B), w.astype(int))
    loss, gradient = computed(name, z, y, group, w)
    repeated = computed(name, z[twice], y[twice], group[twice])
    assert loss * B == pytest.approx(repeated[0] * len(twice), rel=1e-5)
    summed = np.bincount(twice, repeated[1])
    assert gradient == pytest.approx(summed, abs=1e-5)


@pytest.mark.parametrize("name", LOSSES)
def test_nothing_is_infinite_or_undefined(name: str) -> None:
    z = np.array([500.0, -500.0, 0.0, 0.0])
    y, group = np.array([0.0, 1.0, 0.0, 1.0]), np.array([0, 0, 1, 2])
    for w in (None, np.array([1.0, 0, 1, 0]), np.zeros(4)):
        loss, gradient = computed(name, z, y, group, w)
        assert np.isfinite(loss)
        assert np.isfinite(gradient).all()
    assert not gradient.any()


def test_a_click_far_below_the_others_has_the_full_gradient() -> None:
    z, y, group = np.array([-300.0, 300.0]), np.array([1.0, 0.0]), np.zeros(2)
    loss, gradient = computed("listwise", z, y, group)
    assert loss == pytest.approx(300)
    assert gradient == pytest.approx([-1, 1])
    assert computed("jrc", z, y, group)[1] == pytest.approx([-1, 1])


def test_jrc_ranks_clicks_with_the_whole_logit_and_only_clicks() -> None:
    z, group = np.array([1.0, -0.5, 0.25]), np.zeros(3)
    probability, share = 1 / (1 + np.exp(-z)), np.exp(z) / np.exp(z).sum()
    y = np.array([0.0, 1.0, 0.0])
    assert computed("jrc", z, y, group)[1] == pytest.approx(
        (probability - y) / 2 + (share - y) / 2, abs=1e-6
    )
    none = np.zeros(3)
    assert computed("jrc", z, none, group)[1] == pytest.approx(probability / 2, abs=1e-6)


def test_only_the_own_group_counts() -> None:
    z, y, group, _ = instances()
    for name in ("pairwise", "listwise"):
        alone = np.arange(B)
        assert computed(name, z, y, alone)[0] == pytest.approx(0, abs=1e-6)
        assert computed(name, z, y, group)[0] > 0.01

"""The features of click priors, and where a model gets them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paddlebox.config import Config
from paddlebox.config.fields import click_cells, click_slots
from paddlebox.errors import ConfigError
from paddlebox.training.opening import read_slots
from tests.support.configs import make_config, make_slots

PRIOR = np.array([[0.25, 0.5], [4.0, 2.0]], np.float32)  # the rate and strength of two slots


def logit(p: float) -> float:
    return float(np.log(p / (1 - p)))


@pytest.mark.parametrize(("dense", "lengths"), [(3, 2), (0, 0)])
def test_the_features_come_between_dense_features_and_lengths(dense: int, lengths: int) -> None:
    from paddlebox import ops
    from paddlebox.models.click_prior import CLICK_PRIOR, ClickPrior

    paddle = ops.paddle
    paddle.disable_static()
    got: list[Any] = []
    with paddle.utils.unique_name.guard():
        layer = ClickPrior(lambda *inputs: got.append(inputs), dense, 2)
    assert [p.name for p in layer.parameters()] == [CLICK_PRIOR]
    layer.prior.set_value(PRIOR)
    others = np.arange(2 * (dense + lengths), dtype=np.float32).reshape(2, -1)
    counts = np.array([[12, 0, 5, 0], [0, 6, 0, 6]], np.float32)  # shows, then clicks
    fed = paddle.to_tensor(np.concatenate([others, counts], axis=1))
    layer("ids", "offsets", "show_click", "plan", fed, "more")
    ids, offsets, show_click, plan, found, more = got[0]
    assert (ids, offsets, show_click, plan, more) == (
        "ids", "offsets", "show_click", "plan", "more",
    )  # fmt: skip
    np.testing.assert_array_equal(found.numpy()[:, :dense], others[:, :dense])
    np.testing.assert_array_equal(found.numpy()[:, dense + 4 :], others[:, dense:])
    features = [
        [logit(6 / 16) - logit(1 / 4), 0, 12 / 16, 0],  # never shown: nothing is known
        [0, logit(7 / 8), 0, 6 / 8],
    ]
    np.testing.assert_allclose(found.numpy()[:, dense : dense + 4], features, atol=1e-6)


@pytest.mark.parametrize(("program", "averaging"), [("dygraph", 0.9), ("pir", 0.9), ("pir", 0.0)])
def test_a_slot_without_an_estimate_keeps_its_prior(program: str, averaging: float) -> None:
    from paddlebox.models.click_prior import CLICK_PRIOR
    from paddlebox.training.runner import build_runner

    config = make_config(
        model={"type": "lr", "click_prior": True, "slots": ["user", "item"]},
        trainer={"program": program},
        optimizer={"averaging": averaging},
    )
    runner = build_runner(config, SLOTS)
    runner.set_click_prior(PRIOR)
    more = np.array([[np.nan, 0.125], [np.nan, 8.0]], np.float32)
    runner.set_click_prior(more)
    held = {name: a for name, a in runner.dense_state().items() if name.startswith(CLICK_PRIOR)}
    assert len(held) == (2 if averaging else 1)
    for prior in held.values():
        np.testing.assert_array_equal(prior, np.where(np.isnan(more), PRIOR, more))


SLOTS = make_slots(
    click="label",
    age="dense",
    user="sparse",
    history={"max_length": 3},
    item="sparse",
)


def test_slots_that_a_model_pools_have_click_priors() -> None:
    def found(**model: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
        config = make_config(model=model)
        return click_slots(config.model, SLOTS), click_cells(config.model, SLOTS)

    history = {"history": {"history": "item"}}
    assert found(type="dnn") == ((), ())
    assert found(type="dnn", click_prior=True) == ((0, 1, 2), (0, 1, 2))
    assert found(type="lr", click_prior=True, slots=["item"]) == ((2,), (2,))
    assert found(type="din", click_prior=True, **history) == ((0, 2), (0, 4))


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        ({"extra_tables": {"wide": {}}}, "does not work together with extra_tables"),
        ({"data": {"sequences": {"user": "u"}}}, "does not work together with data.sequences"),
        ({"data": {"negative_rate": 0.5}}, "does not work together with data.negative_rate"),
        (
            {"checkpoint": {"partial_recovery": True}, "ranks": {"staleness": 1}},
            "does not work together with checkpoint.partial_recovery",
        ),
        (
            {"model": {"type": "dssm", "user": ["user"], "item": ["item"], "click_prior": True}},
            "a tower reads only its own slots",
        ),
    ],
)
def test_what_click_priors_do_not_work_with_is_an_error(
    sections: dict[str, Any], told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        make_config(**{"model": {"type": "dnn", "click_prior": True}, **sections})


def test_click_priors_need_instances_that_count_once() -> None:
    config: Config = make_config(model={"type": "dnn", "click_prior": True})
    slots = make_slots(click="label", user="sparse", often="weight")
    told = "model.click_prior does not work together with slot 'often' of type weight"
    with pytest.raises(ConfigError, match=told):
        read_slots(config, slots)

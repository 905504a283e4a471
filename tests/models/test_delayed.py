"""The loss of a label that may come late: its formula, and that it learns what complete labels
would teach."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paddlebox import ops
from paddlebox.errors import ConfigError
from paddlebox.models import create_model
from paddlebox.training.opening import read_slots
from paddlebox.training.program import loss_and_logits
from tests.support.configs import make_config, make_slots

paddle = ops.paddle
TASKS = ("click", "buy")


@pytest.fixture(autouse=True)
def dygraph() -> None:
    paddle.disable_static()


def make(kind: str = "shared_bottom", **model: Any) -> Any:
    config = make_config(
        model={"type": kind, "delayed_task": "buy", "task_weights": [1, 3], "tower": [3], **model}
    )
    return create_model(config.model, slots=2, embedx_dim=2, dense_width=1, tasks=TASKS)


def tensor(array: Any, grad: bool = False) -> Any:
    return paddle.to_tensor(np.asarray(array, np.float32), stop_gradient=not grad)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-x)))


def to_come(logits: np.ndarray) -> np.ndarray:
    p, late_share = sigmoid(logits[:, 1]), sigmoid(logits[:, 2])
    return np.asarray(p * late_share / (1 - p * (1 - late_share)))


def formula(
    logits: np.ndarray,
    labels: np.ndarray,
    late: np.ndarray,
    weights: np.ndarray,
    coming: np.ndarray,
) -> float:
    """The table in docs/models_tasks.md. coming: c of each instance."""
    total = 0.0
    for row, (click, buy), again, weight, c in zip(
        logits, labels, late, weights, coming, strict=True
    ):
        q, p, share = sigmoid(row)
        loss = 0.0 if again else -(click * np.log(q) + (1 - click) * np.log(1 - q))
        if again:
            loss -= 3 * (0.5 * row[1] + np.log(share))
        elif buy:
            loss -= 3 * (np.log(p) + np.log(1 - share))
        else:
            loss -= 3 * (0.5 * c * np.log(p) + (1 - 0.5 * c) * np.log(1 - p))
        total += weight * loss
    return total / len(logits)


LOGITS = np.array([[0.3, -1.0, 0.5], [1.2, 0.4, -0.7], [-0.6, 2.0, 0.1], [0.2, -0.3, 1.5]])
LABELS = np.array([[1, 0], [1, 1], [0, 0], [1, 1]])
AGAIN = np.array([0, 0, 0, 1])
WEIGHTS = np.array([1.0, 2.0, 0.5, 3.0])


def test_the_loss_and_its_gradient_are_those_of_the_formula() -> None:
    model, c = make(), to_come(LOGITS)
    logits = tensor(LOGITS, grad=True)
    mask, late = tensor(WEIGHTS[:, None]), tensor(AGAIN[:, None])
    loss = model.loss(logits, tensor(LABELS), mask=mask, late=late)
    assert float(loss) == pytest.approx(formula(LOGITS, LABELS, AGAIN, WEIGHTS, c), rel=1e-5)
    loss.backward()
    found = logits.grad.numpy()
    for at in np.ndindex(LOGITS.shape):
        step = np.zeros_like(LOGITS)
        step[at] = 1e-5
        sides = [formula(LOGITS + s * step, LABELS, AGAIN, WEIGHTS, c) for s in (1, -1)]
        assert found[at] == pytest.approx((sides[0] - sides[1]) / 2e-5, abs=1e-5), at


def test_a_late_line_raises_no_prediction_that_is_almost_1() -> None:
    logits = tensor([[0.0, 9.0, 0.0], [0.0, 9.5, 0.0]], grad=True)
    one = tensor(np.ones((2, 2)))
    make().loss(logits, one, late=tensor([[1], [1]])).backward()
    assert logits.grad.numpy()[:, 1].tolist() == [-0.75, 0.0]  # -1/2 * 3 of 2 instances


def test_esmm_expects_no_conversion_without_a_click() -> None:
    model, labels = make("esmm"), np.array([[1, 0], [0, 0], [1, 0]])
    scores, share = LOGITS[:3, :2].copy(), sigmoid(LOGITS[:3, 2:])
    scores[:, 1] = scores[:, 0] - 1.0  # pCTCVR is lower than pCTR
    found = model.to_come(tensor(scores), tensor(share), tensor(labels)).numpy()
    p, late = sigmoid(scores[:, 1]) / sigmoid(scores[:, 0]), share[:, 0]
    expected = labels[:, 0] * p * late / (1 - p * (1 - late))
    np.testing.assert_allclose(found[:, 0], expected, rtol=1e-5)


def test_it_learns_the_probabilities_of_complete_labels() -> None:
    # Of 1000 instances 300 convert, 120 of them late. So there are 180 positive lines in time, 820
    # that are negative so far, and 120 late lines.
    lines = [([0, 1], 0)] * 180 + [([0, 0], 0)] * 820 + [([0, 1], 1)] * 120
    labels = tensor([label for label, _ in lines])
    late = tensor([[mark] for _, mark in lines])
    model = make(task_weights=[1, 1])
    scores = paddle.create_parameter([1, 3], "float32")
    scores.set_value(np.zeros((1, 3), np.float32))
    optimizer = paddle.optimizer.Adam(0.05, parameters=[scores])
    for _ in range(400):
        loss = model.loss(paddle.tile(scores, [len(lines), 1]), labels, late=late)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
    _, p, share = sigmoid(scores.numpy()[0])
    assert p == pytest.approx(0.3, abs=2e-3)
    assert share == pytest.approx(0.4, abs=2e-3)


@pytest.mark.parametrize("kind", ["shared_bottom", "mmoe", "ple", "esmm"])
def test_each_model_has_one_more_output_that_no_prediction_shows(kind: str) -> None:
    config = make_config(model={"type": kind, "delayed_task": "buy", "hidden": [4]})
    model = create_model(config.model, slots=2, embedx_dim=2, dense_width=1, tasks=TASKS)
    random = np.random.default_rng(1)
    pooled = tensor(random.normal(0, 1, (4, 2 * model.sparse.width + 1)))
    model.sparse.forward = lambda *_: pooled
    inputs = dict.fromkeys(("box_ids", "box_offsets", "box_show_click", "box_plan", "box_dense"))
    inputs["box_show_click"] = tensor(np.ones((4, 2)))
    labels = {"box_label": tensor(LABELS), "box_late": tensor(AGAIN[:, None])}
    learned = model(*inputs.values()).numpy()
    loss, logits = loss_and_logits(config, model, {**inputs, **labels}, train=True)
    assert learned.shape == (4, 3)
    assert logits.numpy().tolist() == learned[:, :2].tolist()
    loss.backward()
    untrained = [
        name
        for name, p in model.named_parameters()
        if p.grad is None or not np.abs(p.grad.numpy()).sum()
    ]
    assert untrained == ["sparse.anchor"]  # forward is replaced


def test_without_a_delayed_task_late_lines_have_no_loss() -> None:
    config = make_config(model={"type": "shared_bottom", "hidden": [4]})
    model = create_model(config.model, slots=2, embedx_dim=2, dense_width=1, tasks=TASKS)
    model.forward = lambda *_: tensor(LOGITS[:, :2])
    inputs = dict.fromkeys(("box_ids", "box_offsets", "box_show_click", "box_plan", "box_dense"))
    labels = {"box_label": tensor(LABELS), "box_late": tensor(AGAIN[:, None])}
    loss, _ = loss_and_logits(config, model, {**inputs, **labels}, train=True)
    p = sigmoid(LOGITS[:3, :2])
    expected = -(LABELS[:3] * np.log(p) + (1 - LABELS[:3]) * np.log(1 - p)).sum() / 4
    assert float(loss) == pytest.approx(expected, rel=1e-5)


def test_an_evaluation_has_the_loss_of_complete_labels() -> None:
    config = make_config(model={"type": "shared_bottom", "hidden": [4], "delayed_task": "buy"})
    model = create_model(config.model, slots=2, embedx_dim=2, dense_width=1, tasks=TASKS)
    model.forward = lambda *_: tensor(LOGITS)
    inputs = dict.fromkeys(("box_ids", "box_offsets", "box_show_click", "box_plan", "box_dense"))
    labels = {"box_label": tensor(LABELS), "box_late": tensor(AGAIN[:, None])}
    loss, _ = loss_and_logits(config, model, {**inputs, **labels}, train=False)
    p = sigmoid(LOGITS[:3, :2])
    expected = -(LABELS[:3] * np.log(p) + (1 - LABELS[:3]) * np.log(1 - p)).sum() / 4
    assert float(loss) == pytest.approx(expected, rel=1e-5)


def test_the_show_of_a_late_line_is_minus_its_weight_in_training_only() -> None:
    config = make_config(model={"type": "shared_bottom", "hidden": [4], "delayed_task": "buy"})
    model = create_model(config.model, slots=2, embedx_dim=2, dense_width=1, tasks=TASKS)
    seen = []

    def forward(ids: Any, offsets: Any, show_click: Any, plan: Any, dense: Any) -> Any:
        seen.append(show_click.numpy().tolist())
        return tensor(LOGITS, grad=True)

    model.forward = forward
    names = ("box_ids", "box_offsets", "box_plan", "box_dense")
    inputs = {
        **dict.fromkeys(names),
        "box_show_click": tensor([[1, 1, 0], [2, 1, 2], [0.5, 0, 0], [0, 0, 3]]),
        "box_label": tensor(LABELS),
        "box_late": tensor(AGAIN[:, None]),
        "box_weight": tensor(WEIGHTS[:, None]),
    }
    for train in (True, False):
        loss_and_logits(config, model, inputs, train=train)
    trained, evaluated = seen
    assert trained == [[1, 1, 0], [2, 1, 2], [0.5, 0, 0], [-3, 0, 3]]
    assert evaluated == inputs["box_show_click"].numpy().tolist()


def test_a_delayed_task_that_is_no_label_is_refused() -> None:
    with pytest.raises(ConfigError, match="delayed_task: expected a label, click or buy, found"):
        make(delayed_task="bye")


@pytest.mark.parametrize(
    ("task", "sections", "expected"),
    [
        ("buy", {}, ""),
        (
            "click",
            {},
            "delayed_task: expected 'buy', the label that slot 'again'",
        ),
        ("buy", {"data": {"negative_rate": 0.5}}, "data.negative_rate does not work together with"),
    ],
)
def test_configs_that_contradict_the_slots_are_refused(
    task: str, sections: dict[str, Any], expected: str
) -> None:
    slots = make_slots(
        click="label", buy="label", again={"type": "late", "of": "buy"}, item="sparse"
    )
    model = {"type": "shared_bottom", "delayed_task": task}
    config = make_config(model=model, **sections)
    if not expected:
        assert read_slots(config, slots) is slots
        return
    with pytest.raises(ConfigError, match=expected):
        read_slots(config, slots)

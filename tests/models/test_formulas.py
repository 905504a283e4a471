"""Each model of sequences, several tasks or two towers against its paper's formula, in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from paddlebox import ops
from paddlebox.config.fields import fields_of
from paddlebox.models import create_model
from tests.support.configs import make_config, make_slots

paddle = ops.paddle

B, D, L = 5, 3, 4
E = 1 + D
SLOTS = make_slots(
    click="label",
    buy="label",
    age={"type": "dense", "dim": 2},
    user="sparse",
    history={"max_length": L},
    item="sparse",
)


class Pulled(paddle.nn.Layer):  # type: ignore[misc, name-defined]
    """Stands where a model pulls, as in an export, and gives chosen numbers."""

    def __init__(self, pulled: Any, values: np.ndarray) -> None:
        super().__init__()
        self.embedx_dim, self.width, self.values = pulled.embedx_dim, pulled.width, values

    def forward(self, *inputs: Any) -> Any:
        pooled = paddle.to_tensor(self.values.astype(np.float32))
        if len(inputs) == 5:  # the dense features behind the slots, as the kernel writes them
            return paddle.concat([pooled.reshape([len(self.values), -1]), inputs[4]], axis=1)
        return pooled


class Case:
    """A model with random parameters, its inputs, and its parameters in float64 by name."""

    def __init__(self, tasks: int = 1, items: Sequence[int] = (), /, **model: Any) -> None:
        """items: (B) the ids of the slot item, for a model that reads ids; the others have none."""
        paddle.disable_static()
        random = np.random.default_rng(3)
        config = make_config(model={"hidden": [6], "use_cvm": False, **model}).model
        fields = fields_of(SLOTS, config.sequences)
        self.model = create_model(
            config,
            slots=3,
            embedx_dim=D,
            dense_width=2,
            tasks=SLOTS.tasks[:tasks],
            fields=fields,
        )
        self.p = {}
        for name, parameter in self.model.named_parameters():
            if "norm._" not in name and "norm.weight" not in name and "norm.bias" not in name:
                parameter.set_value(random.normal(0, 0.5, parameter.shape).astype(np.float32))
            self.p[name] = parameter.numpy().astype(np.float64)
        cells = fields.cell_count if config.sequences else 3
        self.pooled = random.normal(0, 1, (B, cells, self.model.sparse.width))
        self.lengths = np.array([0, 1, L, 2, L])
        self.age = random.normal(0, 1, (B, 2))
        dense = self.age
        if config.sequences:
            start, _ = fields.cells["history"]
            for row, length in enumerate(self.lengths):
                self.pooled[row, start + length : start + L] = 0
            dense = np.concatenate([dense, self.lengths[:, None]], axis=1)
        self.labels = random.integers(0, 2, (B, tasks)).astype(np.float32)
        # What was set, not its rounding: the reference reads the same numbers.
        self.pooled = self.pooled.astype(np.float32).astype(np.float64)
        self.age = self.age.astype(np.float32).astype(np.float64)
        self.model.sparse = Pulled(self.model.sparse, self.pooled)
        self.dense = dense.astype(np.float32)
        ids = offsets = None
        if items:
            ids = paddle.to_tensor(np.array(items, np.int32))
            before = np.repeat(np.arange(B, dtype=np.int32), 3)
            offsets = paddle.to_tensor(np.append(before, np.int32(B)))
        self.logits = self.model(ids, offsets, None, None, paddle.to_tensor(self.dense))

    def evaluated(self) -> np.ndarray:
        """The logits, computed again."""
        return self.model(None, None, None, None, paddle.to_tensor(self.dense)).numpy()

    def loss(self) -> float:
        return float(self.model.loss(self.logits, paddle.to_tensor(self.labels)))

    @property
    def features(self) -> np.ndarray:
        """What a network over all pooled slots reads."""
        return np.concatenate([self.pooled.reshape(B, -1), self.age], axis=1)

    def linear(self, name: str, x: np.ndarray) -> np.ndarray:
        out = x @ self.p[f"{name}.weight"]
        return out + self.p[f"{name}.bias"] if f"{name}.bias" in self.p else out

    def tower(self, name: str, x: np.ndarray) -> np.ndarray:
        number = 0
        while f"{name}.layers.{number}.weight" in self.p:
            x = np.maximum(self.linear(f"{name}.layers.{number}", x), 0)
            number += 1
        return x

    def mlp(self, name: str, x: np.ndarray) -> np.ndarray:
        return self.linear(f"{name}.output", self.tower(name, x))

    def agrees(self, expected: np.ndarray) -> None:
        np.testing.assert_allclose(self.logits.numpy(), expected, rtol=2e-5, atol=2e-5)

    # Of sequences: user, then L places of history, then the item.

    @property
    def history(self) -> np.ndarray:
        return self.pooled[:, 1 : 1 + L]

    @property
    def item(self) -> np.ndarray:
        return self.pooled[:, 1 + L]

    @property
    def mask(self) -> np.ndarray:
        return (np.arange(L) < self.lengths[:, None]).astype(float)

    @property
    def others(self) -> np.ndarray:
        return np.concatenate([self.pooled[:, 0], self.item, self.age], axis=1)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def masked_softmax(x: np.ndarray, mask: np.ndarray) -> np.ndarray:
    e = np.exp(x) * mask
    return e / np.maximum(e.sum(axis=-1, keepdims=True), 1e-300)


def cross_entropy(labels: np.ndarray, p: np.ndarray) -> np.ndarray:
    return -(labels * np.log(p) + (1 - labels) * np.log(1 - p)).mean(axis=0)


def gated(case: Case, name: str, x: np.ndarray, experts: list[np.ndarray]) -> np.ndarray:
    weights = softmax(case.linear(f"{name}.select", x))
    return sum(weights[:, e : e + 1] * known for e, known in enumerate(experts))


def test_shared_bottom() -> None:
    case = Case(2, type="shared_bottom", tower=[4], task_weights=[1.0, 0.25])
    shared = case.tower("bottom", case.features)
    logits = np.concatenate([case.mlp(f"towers.{t}", shared) for t in range(2)], axis=1)
    case.agrees(logits)
    each = cross_entropy(case.labels, sigmoid(logits))
    assert case.loss() == pytest.approx(each[0] + 0.25 * each[1], rel=1e-5)


def test_mmoe() -> None:
    case = Case(2, type="mmoe", tower=[4], experts=3)
    known = [case.tower(f"experts.{e}", case.features) for e in range(3)]
    each = [case.mlp(f"towers.{t}", gated(case, f"gates.{t}", case.features, known))
            for t in range(2)]  # fmt: skip
    case.agrees(np.concatenate(each, axis=1))


def test_ple() -> None:
    case = Case(2, type="ple", tower=[4], layers=2, experts=2, task_experts=1)
    of_task, of_all = [case.features] * 2, case.features
    for level in range(2):
        at = f"levels.{level}"
        shared = [case.tower(f"{at}.shared.{e}", of_all) for e in range(2)]
        own = [case.tower(f"{at}.own.{t}.0", of_task[t]) for t in range(2)]
        mixed = [gated(case, f"{at}.gates.{t}", of_task[t], [own[t], *shared]) for t in range(2)]
        if level == 0:
            of_all = gated(case, f"{at}.shared_gate", of_all, [*own, *shared])
        of_task = mixed
    case.agrees(np.concatenate([case.mlp(f"towers.{t}", of_task[t]) for t in range(2)], axis=1))


def test_esmm() -> None:
    case = Case(2, type="esmm")
    ctr, cvr = (sigmoid(case.mlp(name, case.features)) for name in ("ctr", "cvr"))
    both = np.concatenate([ctr, ctr * cvr], axis=1)
    np.testing.assert_allclose(sigmoid(case.logits.numpy().astype(float)), both, rtol=1e-5)
    case.labels[:] = [[0, 1], [1, 1], [1, 0], [0, 0], [1, 1]]
    bought = case.labels * [[1, 0]] + case.labels[:, :1] * case.labels * [[0, 1]]
    assert case.loss() == pytest.approx(cross_entropy(bought, both).sum(), rel=1e-5)


def test_esmm_keeps_its_logit_where_a_product_of_probabilities_would_be_0_or_1() -> None:
    from paddlebox.models.esmm import logit_of_product

    paddle.disable_static()
    a, b = np.array([[-80, 80, 0, -80], [-90, 90, 0, 90]], np.float32)
    found = logit_of_product(paddle.to_tensor(a), paddle.to_tensor(b)).numpy()
    np.testing.assert_allclose(found, [-170, 80, np.log(1 / 3), -80], rtol=1e-6)


def test_aitm() -> None:
    case = Case(2, type="aitm", tower=[4], output_dim=3)
    known = [case.tower(f"networks.{t}", case.features) for t in range(2)]
    units = [case.tower("hand_on.0", known[0]), known[1]]
    scores = [
        (case.linear("transfers.0.query", u) * case.linear("transfers.0.key", u)).sum(1) / 3**0.5
        for u in units
    ]
    weights = softmax(np.stack(scores, axis=1))
    known[1] = sum(
        weights[:, i : i + 1] * case.linear("transfers.0.value", u) for i, u in enumerate(units)
    )
    logits = np.concatenate([case.mlp(f"towers.{t}", known[t]) for t in range(2)], axis=1)
    case.agrees(logits)
    p = sigmoid(logits)
    expected = cross_entropy(case.labels, p).sum() + 0.6 * np.maximum(p[:, 1] - p[:, 0], 0).mean()
    assert case.loss() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("activation", ["dice", "sigmoid", "relu"])
@pytest.mark.parametrize("normalised", [False, True])
def test_din(activation: str, normalised: bool) -> None:
    case = Case(
        1,
        type="din",
        history={"history": "item"},
        attention_hidden=[5],
        activation=activation,
        softmax=normalised,
    )
    asked = np.repeat(case.item[:, None], L, axis=1)
    parts = [asked, case.history, asked - case.history, asked * case.history]
    x = case.linear("attention.layers.0.linear", np.concatenate(parts, axis=2))
    if activation == "dice":
        rows = x[case.mask > 0]  # no means over empty places
        p = sigmoid((x - rows.mean(0)) / np.sqrt(rows.var(0) + 1e-8))
        x = x * (p + (1 - p) * case.p["attention.layers.0.dice.alpha"])
    else:
        x = sigmoid(x) if activation == "sigmoid" else np.maximum(x, 0)
    scores = case.linear("attention.output", x)[:, :, 0]
    weights = masked_softmax(scores, case.mask) if normalised else scores * case.mask
    interest = (weights[:, :, None] * case.history).sum(1)
    case.agrees(case.mlp("mlp", np.concatenate([case.others, interest], axis=1)))


@pytest.mark.parametrize("model", ["din", "bst", "hstu"])
def test_a_batch_without_any_history_trains(model: str) -> None:
    case = Case(1, type=model, history={"history": "item"})
    case.dense[:, -1] = 0
    logits = case.model(None, None, None, None, paddle.to_tensor(case.dense))
    paddle.mean(logits * paddle.to_tensor(case.labels)).backward()
    for name, parameter in case.model.named_parameters():
        assert np.isfinite(parameter.numpy()).all(), name
        assert parameter.grad is None or np.isfinite(parameter.grad.numpy()).all(), name


def gru(case: Case, name: str, x: np.ndarray, attention: np.ndarray | None = None) -> np.ndarray:
    every, states = case.linear(f"{name}.of_input", x), np.zeros((B, L + 1, E))
    for place in reversed(range(L)):
        h, given = states[:, place + 1], every[:, place]
        gates = sigmoid(given[:, : 2 * E] + h @ case.p[f"{name}.of_gates.weight"])
        u, r = gates[:, :E], gates[:, E:]
        c = np.tanh(given[:, 2 * E :] + r * (h @ case.p[f"{name}.of_state.weight"]))
        if attention is not None:
            u = attention[:, place : place + 1] * u
        there = case.mask[:, place : place + 1]
        states[:, place] = there * ((1 - u) * h + u * c) + (1 - there) * h
    return states[:, :L]


def test_dien() -> None:
    case = Case(1, type="dien", history={"history": "item"}, auxiliary=0.5)
    states = gru(case, "interests", case.history)
    scores = (states * case.linear("asked", case.item)[:, None]).sum(2)
    evolved = gru(case, "evolution", states, masked_softmax(scores, case.mask))[:, 0]
    logits = case.mlp("mlp", np.concatenate([case.others, evolved], axis=1))
    case.agrees(logits)
    after, before = case.history[:, :-1], np.roll(case.history[:, :-1], 1, axis=0)
    there = case.mask[:, 1:]
    other = there * np.roll(case.mask[:, :-1], 1, axis=0)
    done = np.log(sigmoid((states[:, 1:] * after).sum(2))) * there
    not_done = np.log(1 - sigmoid((states[:, 1:] * before).sum(2))) * other
    expected = cross_entropy(case.labels, sigmoid(logits)).sum() - 0.5 * (done + not_done).mean()
    assert case.loss() == pytest.approx(expected, rel=1e-5)
    case.model.eval()
    assert case.loss() == pytest.approx(cross_entropy(case.labels, sigmoid(logits)).sum(), rel=1e-5)


def test_bst() -> None:
    case = Case(1, type="bst", history={"history": "item"}, heads=2, head_dim=3)

    def norm(name: str, x: np.ndarray) -> np.ndarray:
        scaled = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return scaled * case.p[f"{name}.weight"] + case.p[f"{name}.bias"]

    x = np.concatenate([case.history, case.item[:, None]], axis=1) + case.p["positions"]
    seen = np.concatenate([case.mask, np.ones((B, 1))], axis=1)
    heads = []
    query, key, value = (case.linear(f"blocks.0.{part}", x) for part in ("query", "key", "value"))
    for head in range(2):
        at = slice(3 * head, 3 * head + 3)
        scores = query[:, :, at] @ key[:, :, at].transpose(0, 2, 1) / 3**0.5
        heads.append(masked_softmax(scores, seen[:, None]) @ value[:, :, at])
    y = norm("blocks.0.norms.0", x + case.linear("blocks.0.output", np.concatenate(heads, axis=2)))
    wide = case.linear("blocks.0.widen", y)
    wide = np.where(wide > 0, wide, 0.01 * wide)
    out = norm("blocks.0.norms.1", y + case.linear("blocks.0.narrow", wide)) * seen[:, :, None]
    case.agrees(case.mlp("mlp", np.concatenate([case.others, out.reshape(B, -1)], axis=1)))


@pytest.mark.parametrize("use_cvm", [False, True])
@pytest.mark.parametrize("loss", ["click", "in_batch", "sampled_softmax"])
def test_dssm(loss: str, use_cvm: bool) -> None:
    towers = {"user": ["user", "history", "age"], "item": ["item"]}
    corrected = loss == "sampled_softmax"
    items = [7, 9, 7, 8, 9] if corrected else ()
    case = Case(1, items, type="dssm", output_dim=4, loss=loss, use_cvm=use_cvm, **towers)

    def vector(name: str, x: np.ndarray) -> np.ndarray:
        out = case.linear(f"{name}.output", case.tower(f"{name}.stack", x))
        return out / np.sqrt((out**2).sum(1, keepdims=True))

    read = case.pooled if use_cvm else case.pooled[:, :, -E:]
    user = np.concatenate([read[:, 0], read[:, 1], case.age], axis=1)
    u, v = vector("user", user), vector("item", read[:, 2])
    own = 10.0 * (u * v).sum(1, keepdims=True)
    if loss == "click":
        logits = own + case.p["bias"]
        case.agrees(logits)
        expected = cross_entropy(case.labels, sigmoid(logits)).sum()
    else:
        case.agrees(own)
        scores = 10.0 * u @ v.T
        if corrected:  # the first column of a slot with counts is log(1 + show)
            scores -= case.pooled[:, 2, 0]
            equal = np.equal.outer(items, items) & ~np.eye(B, dtype=bool)
            scores[equal] = -np.inf  # an item is no negative of itself
        odds = np.exp(scores)
        shares = np.diag(odds)[:, None] / odds.sum(1, keepdims=True)
        expected = (case.labels * -np.log(shares)).mean()
    assert case.loss() == pytest.approx(expected, rel=1e-5)


def test_what_is_masked_is_no_negative_and_has_no_loss() -> None:
    towers = {"user": ["user", "history", "age"], "item": ["item"]}
    case = Case(1, range(1, 6), type="dssm", output_dim=4, loss="sampled_softmax", **towers)
    u, v = (of.numpy().astype(np.float64) for of in case.model.vectors)
    odds = np.exp(10.0 * u @ v.T - case.pooled[:, 2, 0])
    mask = np.array([1, 0, 1, 1, 0])[:, None]
    among = odds @ mask + np.diag(odds)[:, None] * (1 - mask)
    expected = (case.labels * mask * np.log(among / np.diag(odds)[:, None])).mean()
    given = (case.logits, case.labels, mask.astype(np.float32))
    found = case.model.loss(*map(paddle.to_tensor, given))
    assert float(found) == pytest.approx(expected, rel=1e-5)

"""HSTU against a plain float64 HSTU with its weights, which loops over the events of each user."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paddlebox import ops
from paddlebox.config.fields import fields_of
from paddlebox.models import create_model
from paddlebox.nn import use_products
from paddlebox.nn.rows import JaggedRows, PaddedRows, Pointwise, use_padding
from tests.models.test_formulas import SLOTS, Case, Pulled
from tests.operators.test_jagged_attention import bucket
from tests.support.configs import make_config

paddle = ops.paddle

D, SLOT_COUNT, DENSE = 3, 3, 2
LENGTHS = [0, 1, 9, 2, 20]
MODEL = {"type": "hstu", "hidden": [6], "width": 10, "heads": 2, "head_dim": 4, "use_cvm": False}
OF_USERS = {"sequences": {"user": "user"}}
CONFIG = make_config(
    data=OF_USERS, model={**MODEL, "layers": 3, "max_length": 12, "time_buckets": 9}
).model


def layer_norm(p: dict[str, np.ndarray], name: str, x: np.ndarray) -> np.ndarray:
    scaled = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return scaled * p[f"{name}.weight"] + p[f"{name}.bias"]


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


class PlainHstu:
    """The layers over one sequence: no batch, no offsets, one query at a time."""

    def __init__(
        self, p: dict[str, np.ndarray], heads: int, head_dim: int, max_length: int, buckets: int
    ) -> None:
        self.p, self.heads, self.head_dim = p, heads, head_dim
        self.max_length, self.buckets = max_length, buckets

    def linear(self, name: str, x: np.ndarray) -> np.ndarray:
        return x @ self.p[f"{name}.weight"] + self.p[f"{name}.bias"]

    def layer(self, name: str, x: np.ndarray, sees: list[list[int]], at: Any, times: Any) -> Any:
        """sees[i]: the rows that row i sees; at[i]: its position."""
        normal = layer_norm(self.p, f"{name}.norm", x)
        u, v, q = np.split(self.linear(f"{name}.inputs", normal), 3, axis=1)
        u, v, q, k = map(silu, (u, v, q, q + self.linear(f"{name}.keys", normal)))
        mixed = np.zeros_like(v)
        for i, seen in enumerate(sees):
            for h in range(self.heads):
                part = slice(h * self.head_dim, (h + 1) * self.head_dim)
                for j in seen:
                    score = q[i, part] @ k[j, part]
                    distance = min(at[i] - at[j], self.max_length - 1)
                    score += self.p[f"{name}.position_bias"][h, distance]
                    if self.buckets:
                        number = bucket(int(times[i] - times[j]), self.buckets)
                        score += self.p[f"{name}.time_bias"][h, number]
                    mixed[i, part] += silu(score) / self.max_length * v[j, part]
        gated = layer_norm(self.p, f"{name}.norm_of_values", mixed) * u
        return x + self.linear(f"{name}.output", gated)

    def encoded(self, x: np.ndarray, sees: list[list[int]], at: Any, times: Any) -> np.ndarray:
        number = 0
        while f"encoder.layers.{number}.inputs.weight" in self.p:
            x = self.layer(f"encoder.layers.{number}", x, sees, at, times)
            number += 1
        return x

    def logits(self, features: np.ndarray, times: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Of a user's events: features (n, F), times (n), labels (n, 1)."""
        n = len(features)
        x = self.linear("event", features)
        events = x + self.linear("action", labels)
        both = np.concatenate([events, x])
        sees = [[*range(i + 1)] for i in range(n)] + [[*range(i), n + i] for i in range(n)]
        at = [*range(n), *range(n)]
        y = self.encoded(both, sees, at, np.concatenate([times, times]))[n:]
        hidden = np.maximum(self.linear("mlp.layers.0", np.concatenate([features, y], axis=1)), 0)
        return self.linear("mlp.output", hidden)


class Users:
    """A model with random parameters over users with several slots per event."""

    def __init__(self) -> None:
        paddle.disable_static()
        random = np.random.default_rng(3)
        self.model = create_model(CONFIG, slots=SLOT_COUNT, embedx_dim=D, dense_width=DENSE)
        self.p = {}
        for name, parameter in self.model.named_parameters():
            parameter.set_value(random.normal(0, 0.5, parameter.shape).astype(np.float32))
            self.p[name] = parameter.numpy().astype(np.float64)
        self.offsets = np.cumsum([0, *LENGTHS]).astype(np.int32)
        count = self.offsets[-1]
        self.pooled = random.normal(0, 1, (count, SLOT_COUNT, 1 + D)).astype(np.float32)
        self.dense = random.normal(0, 1, (count, DENSE)).astype(np.float32)
        self.times = random.integers(0, 1000, count)
        self.times[10:30] = np.sort(self.times[10:30])
        self.labels = random.integers(0, 2, (count, 1)).astype(np.float32)

    def logits(self) -> np.ndarray:
        return self._forward().numpy()

    def _forward(self) -> Any:
        self.model.sparse = Pulled(self.model.sparse, self.pooled)
        inputs = (self.dense, self.offsets, self.times[:, None].astype(np.int64))
        dense, offsets, times = map(paddle.to_tensor, inputs)
        return self.model(None, None, None, None, dense, offsets, times, None, None,
                          paddle.to_tensor(self.labels))  # fmt: skip

    def expected(self) -> np.ndarray:
        plain = PlainHstu(self.p, 2, 4, 12, 9)
        features = np.concatenate([self.pooled.reshape(len(self.pooled), -1), self.dense], axis=1)
        features, labels = features.astype(np.float64), self.labels.astype(np.float64)
        return np.concatenate(
            [
                plain.logits(features[a:b], self.times[a:b], labels[a:b])
                for a, b in zip(self.offsets, self.offsets[1:], strict=False)
            ]
        )


def test_logits_are_those_of_a_plain_hstu() -> None:
    users = Users()
    found, expected = users.logits(), users.expected()
    assert np.ptp(expected) > 0.1
    assert np.linalg.norm(found - expected) <= 1e-5 * np.linalg.norm(expected)


def test_a_permutation_of_the_future_changes_no_bit_of_the_past() -> None:
    users = Users()
    before = users.logits()
    begin, end, now = users.offsets[4], users.offsets[5], users.offsets[4] + 8
    order = np.arange(len(before))
    order[now:end] = now + np.random.default_rng(1).permutation(end - now)
    users.pooled, users.dense = users.pooled[order], users.dense[order]
    users.times, users.labels = users.times[order], users.labels[order]
    after = users.logits()
    np.testing.assert_array_equal(after[:now], before[:now])
    assert (after[now:end] != before[now:end]).any()
    assert begin < now


def test_a_logit_depends_on_earlier_labels_and_not_on_its_own() -> None:
    users = Users()
    before, place = users.logits(), users.offsets[4] + 5
    users.labels[place] = 1 - users.labels[place]
    after = users.logits()
    np.testing.assert_array_equal(after[: place + 1], before[: place + 1])
    assert (after[place + 1 :] != before[place + 1 :]).all()


def test_users_do_not_see_each_other() -> None:
    users = Users()
    before = users.logits()
    users.pooled[: users.offsets[4]] += 1.0
    np.testing.assert_array_equal(users.logits()[users.offsets[4] :], before[users.offsets[4] :])


def test_gradients_are_the_slopes_of_the_loss() -> None:
    users = Users()
    weights = np.random.default_rng(2).normal(size=users.labels.shape)
    loss = paddle.sum(users._forward() * paddle.to_tensor(weights.astype(np.float32)))
    loss.backward()
    names = ["encoder.layers.0.time_bias", "encoder.layers.1.position_bias", "event.weight",
             "encoder.layers.0.inputs.weight", "encoder.layers.1.keys.weight",
             "action.weight"]  # fmt: skip
    parameters = dict(users.model.named_parameters())
    for name in names:
        gradient = parameters[name].grad.numpy().astype(np.float64)
        step = np.random.default_rng(4).normal(size=gradient.shape)
        of_sides = []
        for side in (1, -1):
            users.p[name] = users.p[name] + side * 1e-5 * step
            of_sides.append((users.expected() * weights).sum())
            users.p[name] = users.p[name] - side * 1e-5 * step
        slope = (of_sides[0] - of_sides[1]) / 2e-5
        assert (gradient * step).sum() == pytest.approx(slope, rel=2e-4, abs=1e-4), name


@pytest.mark.parametrize("model", ["hstu", "bst"])
def test_the_type_of_products_reaches_the_attention(
    monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    case, found = Case(1, type=model, history={"history": "item"}), []
    attention, mlp = ops.jagged_attention, ops.mlp

    def noting(*arguments: Any, dtype: str, **more: Any) -> Any:
        found.append(dtype)
        return attention(*arguments, dtype="float32", **more)

    def in_float32(x: Any, weights: Any, biases: Any, activations: Any, *_: Any) -> Any:
        return mlp(x, weights, biases, activations)

    monkeypatch.setattr(ops, "jagged_attention", noting)
    monkeypatch.setattr(ops, "mlp", in_float32)  # a processor may lack bfloat16
    case.evaluated()
    use_products(case.model, "bfloat16")
    case.evaluated()
    half = len(found) // 2
    assert found == ["float32"] * half + ["bfloat16"] * half
    assert half > 0


def test_of_histories_is_a_plain_hstu_over_history_and_item() -> None:
    case = Case(1, **MODEL, layers=2, history={"history": "item"})
    plain = PlainHstu(case.p, 2, 4, case.history.shape[1] + 1, 0)
    logits = []
    for row, n in enumerate(case.lengths):
        rows = np.concatenate([case.history[row, :n][::-1], case.item[row : row + 1]])
        x = plain.linear("event", np.concatenate([rows, np.eye(n + 1)[-1:].T], axis=1))
        sees = [[*range(i + 1)] for i in range(n + 1)]
        y = plain.encoded(x, sees, [*range(n + 1)], None)[-1:]
        both = np.concatenate([case.others[row : row + 1], y], axis=1)
        hidden = np.maximum(plain.linear("mlp.layers.0", both), 0)
        logits.append(plain.linear("mlp.output", hidden)[0])
    case.agrees(np.array(logits))


def test_the_sequence_of_a_tower_is_a_plain_hstu_over_it_and_the_asked_row() -> None:
    sizes = {"output_dim": 4, "layers": 2, "heads": 2, "head_dim": 3}
    towers = {"user": ["user", "history", "age"], "item": ["item"], "sequence": "history"}
    case = Case(1, type="dssm", **sizes, **towers)
    own = {name.removeprefix("user.sequence."): of for name, of in case.p.items()}
    layers = {f"encoder.{name}": of for name, of in own.items() if name.startswith("layers.")}
    plain = PlainHstu(own | layers, 2, 3, case.history.shape[1] + 1, 0)
    read = []
    for row, n in enumerate(case.lengths):
        rows = np.concatenate([case.history[row, :n][::-1], np.zeros((1, case.history.shape[2]))])
        x = plain.linear("event", np.concatenate([rows, np.eye(n + 1)[-1:].T], axis=1))
        sees = [[*range(i + 1)] for i in range(n + 1)]
        read.append(plain.encoded(x, sees, [*range(n + 1)], None)[-1])

    def vector(name: str, x: np.ndarray) -> np.ndarray:
        out = case.linear(f"{name}.output", case.tower(f"{name}.stack", x))
        return out / np.sqrt((out**2).sum(1, keepdims=True))

    u = vector("user", np.concatenate([case.pooled[:, 0], case.age, np.array(read)], axis=1))
    v = vector("item", case.item)
    case.agrees(10.0 * (u * v).sum(1, keepdims=True) + case.p["bias"])


@pytest.mark.parametrize(
    "model",
    [
        {**MODEL, "history": {"history": "item"}},
        {"type": "bst", "layers": 2, "history": {"history": "item"}},
        {"type": "din", "attention_hidden": [5], "history": {"history": "item"}},
        {"type": "din", "softmax": True, "activation": "relu", "history": {"history": "item"}},
    ],
    ids=["hstu", "bst", "din", "din_softmax"],
)
def test_padding_changes_no_logit_of_an_evaluation(model: dict[str, Any]) -> None:
    """An export computes all places, with Paddle's operators alone."""
    case = Case(1, **model)
    case.model.eval()
    logits = case.evaluated()
    use_padding(case.model)
    np.testing.assert_allclose(case.evaluated(), logits, rtol=1e-5, atol=1e-5)


def test_without_a_history_it_needs_sequences() -> None:
    with pytest.raises(ValueError, match=r"model\.type hstu needs .* set data\.sequences\.user"):
        make_config(model=MODEL)
    dnn = {"model": {"type": "dnn"}}
    with pytest.raises(ValueError, match=r"phases\.update\.model\.type hstu .* only join has"):
        make_config(data=OF_USERS, model=None, phases={"join": dnn, "update": {"model": MODEL}})


def test_a_gate_needs_predictions_of_single_instances() -> None:
    bounds = {"publish": {"file": "m", "gate_files": ["g"]}, "alerts": {"copc": [0.5, 2.0]}}
    with pytest.raises(
        ValueError, match=r"model\.type hstu does not work together with publish\.gate_files"
    ):
        make_config(data=OF_USERS, model=MODEL, save={"out": "out"}, **bounds)


def test_a_history_makes_instances_of_their_own() -> None:
    assert CONFIG.reads_sequences
    own = make_config(model={**MODEL, "history": {"history": "item"}}).model
    assert not own.reads_sequences
    assert fields_of(SLOTS, own.sequences).sequences == {"history": 2}


def test_keys_of_sequences_are_for_sequences() -> None:
    for key, value in (("max_length", 7), ("time_buckets", 0)):
        model = {**MODEL, "history": {"history": "item"}, key: value}
        with pytest.raises(ValueError, match=f"{key} is for hstu without history, found {value}"):
            make_config(model=model)


@pytest.mark.parametrize("reversed_", [False, True])
def test_rows_with_and_without_padding_attend_to_the_same(reversed_: bool) -> None:
    paddle.disable_static()
    random, places, width = np.random.default_rng(2), 5, 8
    lengths = paddle.to_tensor(np.array([[3], [5], [1]], np.float32))
    made = [random.normal(size=(3, places, width)).astype(np.float32) for _ in range(3)]
    bias = paddle.to_tensor(random.normal(size=(2, 4)).astype(np.float32))
    found = []
    for rows in (JaggedRows, PaddedRows):
        of = rows(lengths, places, reversed=reversed_)
        q, k, v = (of.pack(paddle.to_tensor(x)) for x in made)
        causal = of.causal(q, k, v, Pointwise(2, 3.0, bias, None, "float32"))
        whole = of.attention(q, k, v, heads=2, dtype="float32")
        found.append([of.unpack(one).numpy() for one in (causal, whole)])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)

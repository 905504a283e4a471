"""Each model's formula in plain numpy, float64, with loops where they make it plainer.

A reference takes p, the model's parameters by name; rows (B, S, width), the pooled slots; dense
(B, W); and D. It returns logits (B, 1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any

import numpy as np

Array = np.ndarray
Parameters = Mapping[str, Array]
Reference = Callable[[Parameters, Array, Array, int, Any], Array]


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def relu(x: Array) -> Array:
    return np.maximum(x, 0)


def linear(p: Parameters, name: str, x: Array) -> Array:
    return x @ p[f"{name}.weight"] + p.get(f"{name}.bias", 0.0)


def layer_norm(p: Parameters, name: str, x: Array) -> Array:
    normal = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return normal * p[f"{name}.weight"] + p[f"{name}.bias"]


def tower(p: Parameters, name: str, x: Array) -> Array:
    number = 0
    while f"{name}.layers.{number}.weight" in p:
        x = relu(linear(p, f"{name}.layers.{number}", x))
        number += 1
    return x


def mlp(p: Parameters, name: str, x: Array) -> Array:
    return linear(p, f"{name}.output", tower(p, name, x))


def flat(rows: Array, dense: Array) -> Array:
    return np.concatenate([rows.reshape(len(rows), -1), dense], axis=1)


def first_order(p: Parameters, rows: Array, dense: Array, d: int) -> Array:
    out = rows[:, :, -d - 1].sum(1, keepdims=True) + p.get("linear.bias", 0.0)
    return out + linear(p, "linear.dense", dense) if "linear.dense.weight" in p else out


def lr(p: Parameters, rows: Array, dense: Array, d: int, _: Any) -> Array:
    return first_order(p, rows, dense, d)


def fm(p: Parameters, rows: Array, dense: Array, d: int, _: Any) -> Array:
    v = rows[:, :, -d:]
    pairs = sum((v[:, i] * v[:, j]).sum(1) for i, j in combinations(range(v.shape[1]), 2))
    return first_order(p, rows, dense, d) + np.asarray(pairs)[:, None]


def dnn(p: Parameters, rows: Array, dense: Array, d: int, _: Any) -> Array:
    return mlp(p, "mlp", flat(rows, dense))


def wide_deep(p: Parameters, rows: Array, dense: Array, d: int, _: Any) -> Array:
    return first_order(p, rows, dense, d) + mlp(p, "mlp", flat(rows, dense))


def deepfm(p: Parameters, rows: Array, dense: Array, d: int, _: Any) -> Array:
    return fm(p, rows, dense, d, _) + mlp(p, "mlp", flat(rows, dense))


def _cross_and_tower(p: Parameters, x: Array, x0: Array) -> Array:
    return linear(p, "output", np.concatenate([x, tower(p, "tower", x0)], axis=1))


def dcn(p: Parameters, rows: Array, dense: Array, d: int, config: Any) -> Array:
    x = x0 = flat(rows, dense)
    for layer in range(config.layers):
        dot = (x * p[f"cross.{layer}.weight"][:, 0]).sum(1, keepdims=True)
        x = x0 * dot + p["biases"][layer] + x
    return first_order(p, rows, dense, d) + _cross_and_tower(p, x, x0)


def dcn_v2(p: Parameters, rows: Array, dense: Array, d: int, config: Any) -> Array:
    x = x0 = flat(rows, dense)
    for layer in range(config.layers):
        name, rank = f"cross.{layer}", config.low_rank
        if not rank:
            product = linear(p, name, x)
        else:
            gate = np.ones((len(x), 1))
            if config.experts > 1:
                gate = softmax(linear(p, f"{name}.gate", x))
            product = p[f"{name}.u.bias"] + np.zeros_like(x)
            for k in range(config.experts):
                v = p[f"{name}.v.weight"][:, k * rank : (k + 1) * rank]
                u = p[f"{name}.u.weight"][k * rank : (k + 1) * rank]
                product += gate[:, k : k + 1] * (x @ v @ u)
        x = x0 * product + x
    return first_order(p, rows, dense, d) + _cross_and_tower(p, x, x0)


def xdeepfm(p: Parameters, rows: Array, dense: Array, d: int, config: Any) -> Array:
    x = x0 = rows[:, :, -d:]
    sums = []
    for k, maps in enumerate(config.cin):
        w = p[f"cin.{k}.weight"].reshape(x.shape[1], x0.shape[1], maps)
        made = np.zeros((len(x), maps, d))
        for h in range(maps):
            for i in range(x.shape[1]):
                for j in range(x0.shape[1]):
                    made[:, h] += w[i, j, h] * x[:, i] * x0[:, j]
        x = made
        sums.append(x.sum(2))
    second = linear(p, "output", np.concatenate(sums, axis=1))
    return first_order(p, rows, dense, d) + second + mlp(p, "mlp", flat(rows, dense))


def autoint(p: Parameters, rows: Array, dense: Array, d: int, config: Any) -> Array:
    x = rows[:, :, -d:]
    if dense.shape[1]:
        x = np.concatenate([x, dense[:, :, None] * p["dense_vectors"]], axis=1)
    for number in range(config.layers):
        name, heads = f"attention.{number}", []
        for h in range(config.heads):
            at = slice(h * config.head_dim, (h + 1) * config.head_dim)
            q, k, v = (x @ p[f"{name}.{part}.weight"][:, at] for part in ("query", "key", "value"))
            heads.append(softmax(q @ k.transpose(0, 2, 1)) @ v)
        x = relu(np.concatenate(heads, axis=2) + linear(p, f"{name}.residual", x))
    attended = linear(p, "output", x.reshape(len(x), -1))
    return first_order(p, rows, dense, d) + attended + mlp(p, "mlp", flat(rows, dense))


def fibinet(p: Parameters, rows: Array, dense: Array, d: int, _: Any) -> Array:
    v = rows[:, :, -d:]
    weigh = relu(linear(p, "excite", relu(linear(p, "squeeze", v.mean(2)))))
    parts = [rows[:, :, : -d - 1].reshape(len(rows), -1)]
    for number, x in enumerate((v, v * weigh[:, :, None])):
        w = p[f"products.{number}.w"]
        for i, j in combinations(range(v.shape[1]), 2):
            parts.append(x[:, i] @ (w if w.ndim == 2 else w[i]) * x[:, j])
    return first_order(p, rows, dense, d) + mlp(p, "mlp", np.concatenate([*parts, dense], axis=1))


def dlrm(p: Parameters, rows: Array, dense: Array, d: int, _: Any) -> Array:
    x, parts = rows[:, :, -d:], []
    if dense.shape[1]:
        z = tower(p, "bottom", dense)
        parts.append(z)
        x = np.concatenate([z[:, None], x], axis=1)
    parts += [
        (x[:, i] * x[:, j]).sum(1, keepdims=True) for i, j in combinations(range(x.shape[1]), 2)
    ]
    parts.append(rows[:, :, : -d - 1].reshape(len(rows), -1))
    return first_order(p, rows, dense, d) + mlp(p, "mlp", np.concatenate(parts, axis=1))


def gatenet(p: Parameters, rows: Array, dense: Array, d: int, config: Any) -> Array:
    gated = np.stack(
        [rows[:, s] * sigmoid(rows[:, s] @ p["gates"][s]) for s in range(rows.shape[1])], axis=1
    )
    x = flat(gated, dense)
    for number in range(len(config.hidden)):
        x = relu(linear(p, f"layers.{number}.layers.0", x))
        x = x * sigmoid(linear(p, f"hidden_gates.{number}", x))
    return first_order(p, rows, dense, d) + linear(p, "output", x)


def masknet(p: Parameters, rows: Array, dense: Array, d: int, config: Any) -> Array:
    x = flat(rows, dense)
    normal = np.concatenate([rows[:, :, :-d], layer_norm(p, "norm", rows[:, :, -d:])], axis=2)
    blocks = []
    for k in range(config.layers):
        mask = linear(p, f"blocks.{k}.mask", tower(p, f"blocks.{k}.reads", x))
        product = linear(p, f"blocks.{k}.linear", flat(normal, dense) * mask)
        blocks.append(relu(layer_norm(p, f"blocks.{k}.norm", product)))
    return first_order(p, rows, dense, d) + mlp(p, "mlp", np.concatenate(blocks, axis=1))


def finalmlp(p: Parameters, rows: Array, dense: Array, d: int, config: Any) -> Array:
    x, slots = flat(rows, dense), rows.reshape(len(rows), -1)
    contexts, outputs = (dense if dense.shape[1] else slots, slots), []
    for t, context in enumerate(contexts):
        gate = np.ones_like(x)
        if config.gate_hidden:
            gate = 2 * sigmoid(linear(p, f"gates.{t}.1", tower(p, f"gates.{t}.0", context)))
        outputs.append(tower(p, f"towers.{t}", gate * x))
    one, two = outputs
    part = one.shape[1] // config.heads
    logit = linear(p, "outputs.0", one) + linear(p, "outputs.1", two)
    for h in range(config.heads):
        at = slice(h * part, (h + 1) * part)
        logit += (one[:, at] @ p["fusion"][h] * two[:, at]).sum(1, keepdims=True)
    return first_order(p, rows, dense, d) + logit


REFERENCES: dict[str, Reference] = {
    function.__name__: function
    for function in (
        *(lr, fm, dnn, wide_deep, deepfm, dcn, dcn_v2, xdeepfm, autoint, fibinet, dlrm, gatenet),
        *(masknet, finalmlp),
    )
}

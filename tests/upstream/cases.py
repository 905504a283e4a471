"""Random calls of PaddleBox's dense operators, with their results in float64 numpy.

Written from the formulas in docs/operators.md. Each result comes with the sum of the absolute
values of its terms: float32 arithmetic is accurate relative to this sum, not to the result, whose
terms may cancel.

Letters: N = instances, I = input columns, O = output columns, C = columns, G = groups, R = the
highest rank, E = columns of an embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paddlebox import ops
from paddlebox.compat import layers

Random = np.random.Generator
Arrays = dict[str, np.ndarray]
Tensors = Mapping[str, Any]
# Of the terms of a result, and of the sum of their absolute values.
SIGNS: tuple[Callable[[np.ndarray], np.ndarray], ...] = (np.positive, np.abs)


@dataclass(frozen=True)
class Result:
    value: np.ndarray
    terms: np.ndarray  # sum of the absolute values of the terms; zeros: the value is exact

    def __post_init__(self) -> None:
        assert self.value.shape == self.terms.shape


@dataclass(frozen=True)
class Case:
    """One call: `build` makes the output from tensors of `arrays` and `sums`.

    The loss is sum(output * arrays["weight"]). `expected` has the output as "out", the gradient of
    the loss by each of `gradients` under its name, and the running sums after the call.
    """

    build: Callable[[Tensors], Any]
    arrays: Arrays
    gradients: tuple[str, ...]
    expected: dict[str, Result]
    sums: Arrays = field(default_factory=dict)


def floats(random: Random, *shape: int) -> np.ndarray:
    """Values of either sign, or positive ones as upstream's tests have, of a random magnitude."""
    scale = 10.0 ** random.uniform(-2, 2)
    made = random.normal(size=shape) if random.integers(2) else random.random(shape)
    return (scale * made).astype(np.float32)


def double(arrays: Arrays, *names: str) -> tuple[np.ndarray, ...]:
    return tuple(arrays[name].astype(np.float64) for name in names)


def sizes(random: Random, *most: int) -> list[int]:
    return [int(random.integers(1, limit + 1)) for limit in most]


def product(a: np.ndarray, b: np.ndarray) -> Result:
    return Result(a @ b, np.abs(a) @ np.abs(b))


# ---- rank_attention, rank_attention2


def ranks_of_pages(random: Random, pages: int, max_rank: int) -> np.ndarray:
    """The lines of a feed: pair k of an instance with a rank is the one of rank k + 1."""
    lines: list[np.ndarray] = []
    for _ in range(pages):
        ranks = random.permutation(int(random.integers(1, max_rank + 2))) + 1
        first = len(lines)
        for own in ranks:
            line = np.full(2 * max_rank + 1, -1, np.int32)
            if own <= max_rank:
                line[0] = own
                for at, other in enumerate(ranks):
                    if other <= max_rank:
                        line[2 * other - 1 : 2 * other + 1] = other, first + at
            lines.append(line)
    return np.stack(lines)


def any_ranks(random: Random, instances: int, max_rank: int) -> np.ndarray:
    lines = random.integers(0, max_rank + 1, (instances, 2 * max_rank + 1))
    lines[:, 2::2] = random.integers(0, instances, (instances, max_rank))
    return lines.astype(np.int32)


def rank_case(random: Random, second: bool, pages: bool = False, input_bp: bool = False) -> Case:
    instances, inputs, outputs, max_rank = sizes(random, 12, 12, 16, 4)
    if pages:
        ranks = ranks_of_pages(random, instances, max_rank)
    else:
        ranks = any_ranks(random, instances, max_rank)
    instances = len(ranks)
    arrays = {
        "x": floats(random, instances, inputs),
        "ranks": ranks,
        "param": floats(random, max_rank * max_rank * inputs, outputs),
        "weight": floats(random, instances, outputs),
    }
    x, param, weight = double(arrays, "x", "param", "weight")
    blocks = param.reshape(-1, inputs, outputs)
    out, dparam, dx = (np.zeros((2, *shape)) for shape in (weight.shape, blocks.shape, x.shape))
    for n, (own, *pairs) in enumerate(ranks):
        for rank, row in zip(pairs[::2], pairs[1::2], strict=True):
            if own < 1 or rank < 1:
                continue
            block = (own - 1) * max_rank + rank - 1
            for i, sign in enumerate(SIGNS):
                out[i, n] += sign(x[row]) @ sign(blocks[block])
                dparam[i, block] += np.outer(sign(x[row]), sign(weight[n]))
                dx[i, row] += sign(weight[n]) @ sign(blocks[block]).T
    if not input_bp:
        dx[:] = 0
    expected = {
        "out": Result(*out),
        "param": Result(*dparam.reshape(2, *param.shape)),
        "x": Result(*dx),
    }

    def build(t: Tensors) -> Any:
        if second:
            return layers.rank_attention2(
                t["x"], t["ranks"], rank_param=t["param"], max_rank=max_rank
            )
        return ops.rank_attention(
            t["x"], t["ranks"], rank_param=t["param"], max_rank=max_rank, enable_input_bp=input_bp
        )

    return Case(build, arrays, ("x", "param"), expected)


# ---- scaled_fc, scaled_int8fc, batch_fc


def fc_arrays(random: Random) -> Arrays:
    instances, inputs, outputs = sizes(random, 64, 200, 40)
    return {
        "x": floats(random, instances, inputs),
        "w": floats(random, inputs, outputs),
        "bias": floats(random, outputs, 1) if random.integers(2) else floats(random, outputs),
        "weight": floats(random, instances, outputs),
    }


def fc_gradients(arrays: Arrays) -> dict[str, Result]:
    """Of x @ w + bias."""
    x, w, weight = double(arrays, "x", "w", "weight")
    shape = arrays["bias"].shape
    return {
        "x": product(weight, w.T),
        "w": product(x.T, weight),
        "bias": Result(weight.sum(0).reshape(shape), np.abs(weight).sum(0).reshape(shape)),
    }


def scaled_fc_case(random: Random, factor: float | None = None) -> Case:
    arrays = fc_arrays(random)
    x, w, bias = double(arrays, "x", "w", "bias")
    scale = factor or float(10 ** random.uniform(-3, 3))
    sums = product(x, w)
    out = Result(sums.value + bias.ravel(), sums.terms + np.abs(bias.ravel()))

    def build(t: Tensors) -> Any:
        return layers.scaled_fc(
            t["x"],
            input_scale_factor=scale,
            bias_scale_factor=scale,
            grad_scale_factor=factor or 256.0,
            weight=t["w"],
            bias=t["bias"],
        )

    return Case(build, arrays, ("x", "w", "bias"), {"out": out, **fc_gradients(arrays)})


def quantized(values: np.ndarray, expand: float, clip: float, int8_range: float) -> np.ndarray:
    """int64. All steps are float32 except the comparisons and the addition of 0.5."""
    e = values * np.float32(expand)
    above = (e - np.float32(clip)).astype(np.float64) > 1e-6
    below = (e + np.float32(clip)).astype(np.float64) < 1e-6
    e = np.where(above, np.float32(clip), np.where(below, -np.float32(clip), e))
    steps = e / (np.float32(2) * np.float32(clip) / np.float32(int8_range))
    assert steps.dtype == np.float32
    return np.clip(np.trunc(steps.astype(np.float64) + 0.5), -128, 127).astype(np.int64)


def scaled_int8fc_case(random: Random) -> Case:
    arrays = fc_arrays(random)
    if random.integers(2):
        # A step of exactly 1, so that the output is the integer sum, plus an integer.
        factors: dict[str, Any] = {
            "input_clip_factor": 60.0,
            "weight_clip_factor": 60.0,
            "int8_range": 120.0,
        }
        arrays["bias"] = np.round(arrays["bias"])
    else:
        factors = {
            "input_expand_factor": float(random.uniform(0.1, 20)),
            "input_clip_factor": float(random.uniform(0.1, 20)),
            "weight_expand_factor": float(random.uniform(0.1, 20)),
            "weight_clip_factor": float(random.uniform(0.1, 20)),
            "int8_range": float(random.choice([120, 240, 254, 256, 300])),
        }
    of = {"input_expand_factor": 1.0, "weight_expand_factor": 1.0, **factors}
    q = [
        quantized(
            arrays[name], of[f"{part}_expand_factor"], of[f"{part}_clip_factor"], of["int8_range"]
        )
        for name, part in (("x", "input"), ("w", "weight"))
    ]
    expand = np.float32(of["input_expand_factor"]) * np.float32(of["weight_expand_factor"])
    step = np.float32(2) * np.float32(of["input_clip_factor"]) / np.float32(of["int8_range"])
    out = (q[0] @ q[1]).astype(np.float32) / expand * step + arrays["bias"].ravel()
    assert out.dtype == np.float32
    exact = Result(out.astype(np.float64), np.zeros(out.shape))

    def build(t: Tensors) -> Any:
        return layers.scaled_int8fc(t["x"], weight=t["w"], bias=t["bias"], **factors)

    return Case(build, arrays, ("x", "w", "bias"), {"out": exact, **fc_gradients(arrays)})


def batch_fc_case(random: Random) -> Case:
    groups, instances, inputs, outputs = sizes(random, 10, 12, 24, 24)
    arrays = {
        "x": floats(random, groups, instances, inputs),
        "w": floats(random, groups, inputs, outputs),
        "bias": floats(random, groups, outputs),
        "weight": floats(random, groups, instances, outputs),
    }
    x, w, bias, weight = double(arrays, "x", "w", "bias", "weight")
    sums = product(x, w)
    expected = {
        "out": Result(sums.value + bias[:, None], sums.terms + np.abs(bias[:, None])),
        "x": product(weight, w.transpose(0, 2, 1)),
        "w": product(x.transpose(0, 2, 1), weight),
        "bias": Result(weight.sum(1), np.abs(weight).sum(1)),
    }

    def build(t: Tensors) -> Any:
        return ops.batch_fc(t["x"], weight=t["w"], bias=t["bias"])

    return Case(build, arrays, ("x", "w", "bias"), expected)


# ---- data_norm, masked_data_norm, cross_norm_layer_hadamard

SUMS = ("batch_size", "batch_sum", "batch_square_sum")


@dataclass(frozen=True)
class Normed:
    """y = (x - mean) * scale and its sums, where x itself is a sum of terms."""

    y: Result
    scale: np.ndarray
    mean: np.ndarray
    sums: list[Result]


def normed(x: Result, counts: np.ndarray, sums: np.ndarray, epsilon: float, decay: float) -> Normed:
    """counts (N, C): which values count; others become zeros. sums (3, C)."""
    size, total, square = sums
    mean, scale = total / size, np.sqrt(size / square)
    y = Result((x.value - mean) * scale * counts, (x.terms + np.abs(mean)) * scale * counts)
    n = counts.sum(0)
    some = n > 0
    n = np.maximum(n, 1)
    distances = (x.value - mean) ** 2 * counts
    spans = (x.terms + np.abs(mean)) ** 2 * counts
    epsilon, decay = float(np.float32(epsilon)), float(np.float32(decay))
    added = [
        (some * 1.0, some * 1.0),
        ((x.value * counts).sum(0) / n, (x.terms * counts).sum(0) / n),
        (distances.sum(0) / n + epsilon * some, spans.sum(0) / n + epsilon * some),
    ]
    new = [
        Result(s * decay + value, np.abs(s) * decay + terms)
        for s, (value, terms) in zip(sums, added, strict=True)
    ]
    return Normed(y, scale, mean, new)


def random_sums(random: Random, columns: int) -> np.ndarray:
    """(3, C) float32, of up to 10,000 instances."""
    size = 10 ** random.uniform(0, 4, columns)
    return np.stack(
        [size, random.normal(size=columns) * size, random.uniform(0.1, 10, columns) * size]
    ).astype(np.float32)


def data_norm_case(
    random: Random, slot_dim: int | None = None, affine: bool | None = None, masked: bool = False
) -> Case:
    if slot_dim is None:
        slot_dim = int(random.choice([-1, 1, 3]))
    if affine is None:
        affine = bool(random.integers(2))
    instances, columns = sizes(random, 24, 16)
    columns *= max(slot_dim, 1)
    arrays = {"x": floats(random, instances, columns), "weight": floats(random, instances, columns)}
    counts = np.ones((instances, columns), bool)
    if masked:
        arrays["mask"] = random.random((instances, 1)) < random.choice([0, 0.5, 1])
        counts = np.repeat(arrays["mask"], columns, axis=1)
        if random.integers(2):
            arrays["mask"] = arrays["mask"].ravel()
    elif slot_dim > 0:
        shows = arrays["x"][:, ::slot_dim]
        shows[random.random(shows.shape) < 0.3] = 0
        counts = np.repeat(np.abs(shows) >= 1e-7, slot_dim, axis=1)
    if affine:
        arrays |= {"scale_w": floats(random, columns), "bias": floats(random, columns)}
    sums = random_sums(random, columns)
    decay = float(random.choice([0.9999999, 0.5]))
    x, weight = double(arrays, "x", "weight")
    of = normed(Result(x, np.abs(x)), counts, sums.astype(np.float64), 1e-5, decay)
    ones = np.ones(columns)
    scale_w, bias = double(arrays, "scale_w", "bias") if affine else (ones, 0 * ones)
    dx = weight * of.scale * scale_w * counts
    expected = {
        "out": Result(
            of.y.value * scale_w + bias * counts,
            of.y.terms * np.abs(scale_w) + np.abs(bias) * counts,
        ),
        "x": Result(dx, np.abs(dx)),
        **dict(zip(SUMS, of.sums, strict=True)),
    }
    if masked and not counts.any():  # the sums do not even decay
        expected |= {
            name: Result(old.astype(np.float64), 0.0 * old)
            for name, old in zip(SUMS, sums, strict=True)
        }
    if affine:
        absolute = np.abs(weight)
        expected |= {
            "scale_w": Result((of.y.value * weight).sum(0), (of.y.terms * absolute).sum(0)),
            "bias": Result((weight * counts).sum(0), (absolute * counts).sum(0)),
        }
    gradients = ("x", "scale_w", "bias") if affine else ("x",)

    def build(t: Tensors) -> Any:
        settings: dict[str, Any] = {
            "sums": [t[name] for name in SUMS],
            "scale_w": t.get("scale_w"),
            "bias": t.get("bias"),
            "summary_decay_rate": decay,
            "slot_dim": slot_dim,
        }
        if masked:
            return layers.masked_data_norm(t["x"], t["mask"], **settings)
        return ops.data_norm(t["x"], **settings)

    return Case(build, arrays, gradients, expected, dict(zip(SUMS, sums, strict=True)))


def cross_norm_case(random: Random) -> Case:
    instances, pairs, embed = sizes(random, 16, 5, 9)
    columns = pairs * (3 * embed + 1)
    arrays = {
        "x": floats(random, instances, 2 * pairs * embed),
        "weight": floats(random, instances, columns),
    }
    sums = random_sums(random, columns)
    decay = float(random.choice([0.9999999, 0.5]))
    x, weight = double(arrays, "x", "weight")
    a, b = np.moveaxis(x.reshape(instances, pairs, 2, embed), 2, 0)

    def features(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        total = (a * b).sum(-1, keepdims=True)
        return np.concatenate([a, b, a * b, total], axis=-1).reshape(instances, columns)

    both = Result(features(a, b), features(np.abs(a), np.abs(b)))
    counts = np.ones(both.value.shape, bool)
    of = normed(both, counts, sums.astype(np.float64), 1e-4, decay)
    shape = (instances, pairs, 3 * embed + 1)

    def gradient(sign: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        to = sign(weight * of.scale).reshape(shape)
        of_product = to[..., 2 * embed : 3 * embed] + to[..., 3 * embed :]
        da = to[..., :embed] + of_product * sign(b)
        db = to[..., embed : 2 * embed] + of_product * sign(a)
        return np.stack([da, db], 2).reshape(x.shape)

    expected = {
        "out": of.y,
        "x": Result(*map(gradient, SIGNS)),
        "summary": Result(
            np.stack([s.value for s in of.sums]), np.stack([s.terms for s in of.sums])
        ),
    }

    def build(t: Tensors) -> Any:
        return layers.cross_norm_layer_hadamard(
            t["x"], pairs, embed, summary_decay_rate=decay, summary=t["summary"]
        )

    return Case(build, arrays, ("x",), expected, {"summary": sums})


# ---- continuous_value_model


def cvm_case(random: Random, use_cvm: bool | None = None, instances: int | None = None) -> Case:
    if use_cvm is None:
        use_cvm = bool(random.integers(2))
    n, weights = sizes(random, 24, 24)
    n = instances or n
    counts = np.floor(10 ** random.uniform(0, 6, (n, 2)))  # shows and clicks
    arrays = {
        "x": np.concatenate([counts, floats(random, n, weights)], 1).astype(np.float32),
        "cvm": random.integers(0, 2, (n, 2)).astype(np.float32),
        "weight": floats(random, n, weights + 2 * use_cvm),
    }
    x, cvm, weight = double(arrays, "x", "cvm", "weight")
    show, click = np.log(x[:, 0] + 1), np.log(x[:, 1] + 1)
    rest = x[:, 2:]
    value, terms = rest, 0 * rest
    if use_cvm:
        value = np.column_stack([show, click - show, rest])
        terms = np.column_stack([show, click + show, 0 * rest])
    dx = np.concatenate([cvm, weight[:, 2 * use_cvm :]], 1)
    expected = {"out": Result(value, terms), "x": Result(dx, 0 * dx)}

    def build(t: Tensors) -> Any:
        return ops.continuous_value_model(t["x"], t["cvm"], use_cvm)

    return Case(build, arrays, ("x",), expected)


# One generator an operator: any attributes and shapes.
OPERATORS: dict[str, Callable[[Random], Case]] = {
    "rank_attention": lambda r: rank_case(r, False, bool(r.integers(2)), bool(r.integers(2))),
    "rank_attention2": lambda r: rank_case(r, True, bool(r.integers(2))),
    "batch_fc": batch_fc_case,
    "scaled_fc": scaled_fc_case,
    "scaled_int8fc": scaled_int8fc_case,
    "data_norm": data_norm_case,
    "masked_data_norm": lambda r: data_norm_case(r, slot_dim=-1, masked=True),
    "cross_norm_layer_hadamard": cross_norm_case,
    "continuous_value_model": cvm_case,
}
# The test cases of PaddleBox's unit tests: its file, class, and what the class is about.
UPSTREAM: dict[str, Callable[[Random], Case]] = {
    "rank_attention_op-Complex": lambda r: rank_case(r, False, pages=True),
    "rank_attention_op-Cpu": lambda r: rank_case(r, False, pages=True),
    "rank_attention2_op-Complex": lambda r: rank_case(r, True),
    "rank_attention2_op-ApiStatic": lambda r: rank_case(r, True),
    "scaled_fc_op-Op": lambda r: scaled_fc_case(r, 0.0078125),
    "scaled_fc_op-Api": lambda r: scaled_fc_case(r, 0.0078125),
    "batch_fc_op-Op": batch_fc_case,
    "batch_fc_op-Op1": batch_fc_case,
    "data_norm_op-Inference": data_norm_case,
    "data_norm_op-Op": lambda r: data_norm_case(r, -1, False),
    "data_norm_op-WithEnableScaleAndShift": lambda r: data_norm_case(r, -1, True),
    "data_norm_op-WithoutEnableScaleAndShift": lambda r: data_norm_case(r, -1, False),
    "data_norm_op-WithEnableScaleAndShift_1": lambda r: data_norm_case(r, 1, True),
    "data_norm_op-WithSlotDim": lambda r: data_norm_case(r, 1, False),
    "cvm_op-WithLodTensor": lambda r: cvm_case(r, use_cvm=False, instances=1),
    "cvm_op-WithOutLodTensor1": lambda r: cvm_case(r, use_cvm=True),
    "cvm_op-WithOutLodTensor2": lambda r: cvm_case(r, use_cvm=False),
}

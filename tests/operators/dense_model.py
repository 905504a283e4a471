"""The dense operators in float64 numpy, written from their formulas, one row at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike


def log1p(x: float) -> float:
    return np.log(np.float64(x) + 1)


def head(form: str, sums: np.ndarray, c: dict[str, Any]) -> list[float]:
    """Features made of the summed counts."""
    show, click = sums[0], sums[1]
    if form == "show_click":
        second = log1p(click) if c.get("fix_ctr_to_click") else log1p(click) - log1p(show)
        return [log1p(show), *([] if c.get("clk_filter") else [second]), *sums[2 : c["cvm_offset"]]]
    if form == "conv":
        features = [log1p(show), log1p(click), log1p(sums[2]) - log1p(click)]
        return features[1 if c.get("show_filter") else 0 :]
    if form == "credit":
        return [log1p(x) for x in sums[: c["cvm_offset"]]][1 if c.get("show_filter") else 0 :]
    clicks = sums[4 : c["cvm_offset"]]
    return [
        log1p(show),
        log1p(click) - log1p(show),
        *[log1p(p) - log1p(sums[2]) for p in clicks],
        *[log1p(p) - log1p(sums[3]) for p in clicks],
    ]


def quantised(v: float, ratio: int) -> float:
    scaled = float(np.float32(v) * np.float32(ratio)) + 0.5  # the product is one of floats
    return int(scaled) / ratio


def seqpool(form: str, rows: list[list[np.ndarray]], c: dict[str, Any]) -> np.ndarray:
    """rows[b][s]: (n, D) each. Returns (B, S, W). c: the arguments of the Python function."""
    counts = c["max_cvm_offset"] if form == "pcoc" else c["cvm_offset"]
    places = c.get("embedx_concate_size", 1)
    skipped = 0 if c["use_cvm"] else c.get("embed_thres_size", 0)

    def left_out(row: np.ndarray, slot: int) -> bool:
        if not c.get("need_filter"):
            return False
        row = row.astype(np.float32)
        score = (row[0] - row[1]) * np.float32(c["show_coeff"]) + row[1] * np.float32(
            c["clk_coeff"]
        )
        diff = c.get("xbox_diff_thres_filter")
        if score < np.float32(c["threshold_vec"][slot] if diff else c["threshold"]):
            return True
        if not c.get("embed_threshold_filter"):
            return False
        weights = row[counts:][: c.get("embed_thres_size") or None].astype(np.float64)
        return abs(weights[0]) + np.sqrt((weights[1:] ** 2).sum()) < c["embed_threshold"]

    def value(row: np.ndarray) -> np.ndarray:
        ratio = c.get("quant_ratio", 0)
        if c.get("need_filter") and ratio == 0 and form != "conv":
            ratio = 128
        weights = [quantised(v, ratio) if ratio else v for v in row[counts:]]
        return np.array([*row[:counts], *weights], np.float64)

    def features(chosen: np.ndarray, slot: int, filters: bool) -> list[float]:
        sums = np.full(width_of(rows), c["pad_value"], np.float64)
        for row in chosen:
            if not (filters and left_out(row, slot)):
                sums += value(row)
        return [*(head(form, sums, c) if c["use_cvm"] else []), *sums[counts + skipped :]]

    def out(instance: np.ndarray, slot: int) -> ArrayLike:
        if places == 1:
            return features(instance, slot, True)
        filters = c.get("embedx_concate_filter", False)
        blocks = [features(instance[k : k + 1], slot, filters) for k in range(places)]
        return np.concatenate(blocks)

    return np.array([[out(i, s) for s, i in enumerate(slots)] for slots in rows], np.float64)


def width_of(rows: list[list[np.ndarray]]) -> int:
    return rows[0][0].shape[1]


def seqpool_gradient(
    form: str,
    rows: list[list[np.ndarray]],
    c: dict[str, Any],
    cvm: np.ndarray,
    mask: np.ndarray | None,
    gradient: np.ndarray,
) -> list[list[np.ndarray]]:
    """gradient (B, S, W) -> one (n, D) for each of rows[b][s]."""
    counts = c["max_cvm_offset"] if form == "pcoc" else c["cvm_offset"]
    places = c.get("embedx_concate_size", 1)
    skipped = 0 if c["use_cvm"] else c.get("embed_thres_size", 0)
    weights = width_of(rows) - counts - skipped
    result: list[list[np.ndarray]] = []
    for b, slots in enumerate(rows):
        result.append([])
        for s, instance in enumerate(slots):
            blocks = gradient[b, s].reshape(places, -1)
            grad = np.zeros(instance.shape)
            for i in range(len(instance)):
                if mask is not None and mask[b] == 0:
                    continue
                if skipped == 0:
                    grad[i, : cvm.shape[1]] = cvm[b]
                grad[i, counts + skipped :] = blocks[min(i, places - 1)][-weights:]
            result[-1].append(grad)
    return result


def data_norm(
    x: np.ndarray,
    size: np.ndarray,
    total: np.ndarray,
    square: np.ndarray,
    slot_dim: int,
    scale_w: float | np.ndarray,
    bias: float | np.ndarray,
) -> np.ndarray:
    y = (x - total / size) * np.sqrt(size / square) * scale_w + bias
    return np.where(shown(x, slot_dim), y, 0)


def shown(x: np.ndarray, slot_dim: int) -> np.ndarray:
    """(N, C): whether the slot of a column counts."""
    if slot_dim <= 0:
        return np.ones(x.shape, bool)
    return np.repeat(np.abs(x[:, ::slot_dim]) >= 1e-7, slot_dim, axis=1)


def data_norm_sums(
    x: np.ndarray,
    size: np.ndarray,
    total: np.ndarray,
    square: np.ndarray,
    slot_dim: int,
    epsilon: float,
    decay: float,
) -> list[np.ndarray]:
    counts = shown(x, slot_dim)
    n = counts.sum(0)
    mean = total / size
    some = n > 0
    add = [
        some * 1.0,
        np.where(some, (x * counts).sum(0) / np.maximum(n, 1), 0),
        np.where(some, (((x - mean) ** 2) * counts).sum(0) / np.maximum(n, 1) + epsilon, 0),
    ]
    return [s * decay + d for s, d in zip((size, total, square), add, strict=True)]


def rank_attention(
    x: np.ndarray, ranks: np.ndarray, param: np.ndarray, max_rank: int
) -> np.ndarray:
    matrices = param.reshape(max_rank, max_rank, x.shape[1], -1)
    y = np.zeros((len(x), matrices.shape[-1]))
    for i, line in enumerate(ranks):
        for rank, row in line[1:].reshape(-1, 2):
            if line[0] >= 1 and rank >= 1:
                y[i] += x[row] @ matrices[line[0] - 1, rank - 1]
    return y


def batch_fc(
    x: np.ndarray, w: np.ndarray, bias: np.ndarray, batchcount: int, transpose_weight: bool
) -> np.ndarray:
    if batchcount == 0:
        return np.stack([a @ b + c for a, b, c in zip(x, w, bias, strict=True)])
    groups = np.split(w, batchcount, axis=1)
    biases = np.split(bias, batchcount, axis=1)
    if transpose_weight:
        return np.stack([a @ b + c for a, b, c in zip(x, groups, biases, strict=True)])
    parts = np.split(x, batchcount, axis=1)
    return np.concatenate([a @ b + c for a, b, c in zip(parts, groups, biases, strict=True)], 1)


def numeric_gradient(
    f: Callable[[np.ndarray], float], x: np.ndarray, step: float = 1e-6
) -> np.ndarray:
    """Of the scalar f at x, in float64."""
    gradient = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        for sign in (1, -1):
            moved = x.copy()
            moved[i] += sign * step
            gradient[i] += sign * f(moved) / (2 * step)
    return gradient

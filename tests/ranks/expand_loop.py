"""A custom loop over slots `user`, which reads both embeddings of a row, and `tags`, which
reads the first alone. It has no dense parameters."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

#: What the dataset feeds: (B, n) int64 feasigns, (B, 1) float32.
VARIABLES = [
    SimpleNamespace(name="user", shape=(-1, 1), dtype="int64", lod_level=0),
    SimpleNamespace(name="tags", shape=(-1, 4), dtype="int64", lod_level=0),
    SimpleNamespace(name="click", shape=(-1, 1), dtype="float32", lod_level=0),
]


def expand_step(table: Any, own_pulls: bool = False) -> Callable[[Any], tuple[float, np.ndarray]]:
    """A step of dygraph that pushes the gradient of the mean log loss of a sum of weights.

    own_pulls: instead of one pull there are three: of `user`, and of each half of `tags`.
    """
    from paddlebox import ops
    from paddlebox._native import paddle

    paddle.disable_static()
    anchor, size = ops.create_anchor(), 3 + table.embedx_dim

    def step(feed: Any) -> tuple[float, np.ndarray]:
        assert set(feed) <= {"user", "tags", "click", "box_share"}, set(feed)
        slots = [paddle.to_tensor(feed[name]) for name in ("user", "tags")]
        sizes = {"size": size, "extend_size": table.expand_dim, "anchor": anchor}
        if own_pulls:
            of_user, expand = ops.pull_box_extended_sparse(slots[0], **sizes)
            halves = paddle.split(slots[1], 2, axis=1)
            of_halves = [ops.pull_box_extended_sparse(half, **sizes)[0] for half in halves]
            of_tags = paddle.concat(of_halves, axis=1)
        else:
            (of_user, of_tags), (expand,) = ops.pull_box_extended_sparse(
                slots, mask=[3, 1], **sizes
            )
        first = [part.numpy().astype(np.float64) for part in (of_user, of_tags, expand)]
        logits = sum(part[..., at:].reshape(len(part), -1).sum(1) for part, at in zip(
            first, (2, 2, 0), strict=True
        ))  # fmt: skip
        label = feed["click"][:, 0]
        predicted = 1 / (1 + np.exp(-logits))
        delta = ((predicted - label) / len(label)).astype(np.float32)
        gradients = [np.ones(part.shape, np.float32) for part in first]
        for gradient, begin in zip(gradients, (2, 2, 0), strict=True):
            by_instance = delta.reshape(-1, *[1] * (gradient.ndim - 1))
            gradient[..., begin:] = by_instance
            if begin:
                gradient[..., 1:2] = label.reshape(by_instance.shape)
        paddle.autograd.backward(
            [of_user, of_tags, expand], [paddle.to_tensor(gradient) for gradient in gradients]
        )
        loss = -np.log(np.where(label > 0, predicted, 1 - predicted)).mean()
        return float(loss), logits.astype(np.float32).reshape(-1, 1)

    return step

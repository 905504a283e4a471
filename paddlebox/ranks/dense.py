"""Gradients of dense parameters over all ranks: each rank's mean, weighted by its instances."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paddlebox import _native
from paddlebox._call import call

paddle = _native.paddle

#: Fed to programs of several ranks: (1) float32, the rank's instances of all in this step.
SHARE = "box_share"


def sum_gradients(gradients: Sequence[Any], share: Any, *, on_gpu: bool = False) -> list[Any]:
    """The gradients of the mean over the instances of all ranks; in dygraph and in PIR programs.

    Args:
        gradients: of this rank's mean loss, float32. share: (1) as `SHARE`. on_gpu: where they are.

    One message for all of them: on Gloo a call costs as much as a hundred kilobytes. Where all
    ranks are on one host it goes through the memory that they share, from a GPU by Paddle's NCCL.
    """
    if not on_gpu and _native.core.HostGroup.sums_here():
        of_all = {"Gradients": list(gradients), "Share": share}
        flat = call("box_sum_over_ranks", of_all, {}, ["Sum"])[0]
    else:
        flat = paddle.concat([paddle.reshape(gradient, [-1]) for gradient in gradients]) * share
        paddle.distributed.all_reduce(flat)
    return split_gradient(flat, gradients)


def split_gradient(flat: Any, like: Sequence[Any]) -> list[Any]:
    """What of (n) values one after the other is each one's, in its shape."""
    shapes = [list(one.shape) for one in like]
    sizes = [_size(shape) for shape in shapes]
    parts = paddle.split(flat, sizes) if len(sizes) > 1 else [flat]
    return [paddle.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)]


def _size(shape: Sequence[int]) -> int:
    size = 1
    for side in shape:
        size *= side
    return size

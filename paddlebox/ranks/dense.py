"""Sums the gradients of dense parameters over all ranks, weighted by the ranks' instances."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paddlebox import _native
from paddlebox._call import call

paddle = _native.paddle


def sum_gradients(
    gradients: Sequence[Any], share: Any, *, on_gpu: bool = False, pushed: bool = False
) -> list[Any]:
    """The gradients of the mean loss over the instances of all ranks.

    It works in dygraph and in PIR programs. All gradients go into one message. From a GPU, it goes
    through Paddle's NCCL.

    Args:
        gradients: float32 gradients of this rank's mean loss.
        share: (1) `SHARE`.
        on_gpu: whether the gradients are on a GPU.
        pushed: whether `gradients` contain those of the anchors of all pulls (ops.py), so that the
            step has done all its pushes. Ranks of several hosts then exchange the gradients of rows
            at the same time.
    """
    if not on_gpu:
        of_all = {"Gradients": list(gradients), "Share": share}
        flat = call("box_sum_over_ranks", of_all, {"pushed": pushed}, ["Sum"])[0]
    else:
        flat = paddle.concat([paddle.reshape(gradient, [-1]) for gradient in gradients]) * share
        paddle.distributed.all_reduce(flat)
    return _split(flat, gradients)


def _split(flat: Any, like: Sequence[Any]) -> list[Any]:
    """Split (n) concatenated values into tensors with the shapes of `like`."""
    shapes = [list(one.shape) for one in like]
    sizes = [_size(shape) for shape in shapes]
    parts = paddle.split(flat, sizes) if len(sizes) > 1 else [flat]
    return [paddle.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)]


def _size(shape: Sequence[int]) -> int:
    size = 1
    for side in shape:
        size *= side
    return size

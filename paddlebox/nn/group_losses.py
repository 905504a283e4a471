"""Losses that compare the instances of a group, such as a page view or a user.

Letters: B = instances. All inputs are (B, 1): float32 logits z, labels y in [0, 1] and factors w of
the instances (None: 1), and int32 groups. Instances with equal groups belong together. Each loss is
a mean over the B instances, and weight 2 is the instance twice. Time and memory grow with B².
"""

from __future__ import annotations

from typing import Any

from paddlebox._native import paddle
from paddlebox.nn.functional import log_loss

_NOT_COUNTED = 1e9  # is subtracted from logits that do not count; their exponential is 0 then
_BESIDE_ZERO = 1e-30  # for groups whose factors are all 0


def pairwise_loss(z: Any, y: Any, groups: Any, w: Any = None) -> Any:
    """RankNet (Burges et al., 2005): each instance should be above those with lower labels.

    mean_i w_i · Σ_j w_j log(1 + exp(z_j - z_i)) / Σ_j w_j, over the j of its group with y_j < y_i
    """
    factors = _factors(z, w)
    lower = _same(groups) * paddle.cast(paddle.less_than(_row(y), y), "float32")
    apart = z - _row(z)  # (B, B), z_i - z_j
    above = paddle.matmul(-1.0 * lower * paddle.nn.functional.log_sigmoid(apart), factors)
    count = paddle.matmul(lower, factors)
    none = paddle.cast(paddle.equal(count, paddle.zeros_like(count)), "float32")
    return paddle.mean(factors * above / (count + none))


def listwise_loss(z: Any, y: Any, groups: Any, w: Any = None) -> Any:
    """ListNet's softmax (Cao et al., 2007): the share of an instance in its group should be high.

    mean_i w_i y_i · log Σ_j w_j exp(z_j - z_i), over the j of its group
    """
    factors = _factors(z, w)
    return paddle.mean(factors * y * _log_share(_row(z) - z, groups, factors))


def jrc_loss(z: Any, y: Any, groups: Any, w: Any = None) -> Any:
    """Joint ranking and calibration (Sheng et al., 2022): half cross entropy, half `listwise_loss`.

    The paper has a logit for each class. They are z for a click and 0 for none here, so that
    sigmoid(z) is the probability. The paper's softmax for instances without a click, over the
    second logits, is then a constant, and is left out.
    """
    return 0.5 * log_loss(z, y, mask=_factors(z, w)) + 0.5 * listwise_loss(z, y, groups, w)


def _log_share(apart: Any, groups: Any, factors: Any) -> Any:
    """(B, 1) log Σ_j w_j exp(apart_ij) over the group of i. apart: (B, B)."""
    counted = _same(groups) * paddle.cast(
        paddle.less_than(paddle.zeros_like(_row(factors)), _row(factors)), "float32"
    )
    among = apart * counted - _NOT_COUNTED * (1.0 - counted)
    most = paddle.max(among, axis=1, keepdim=True)  # so that no exponential is infinite
    most.stop_gradient = True
    total = paddle.matmul(counted * paddle.exp(among - most), factors)
    return paddle.log(total + _BESIDE_ZERO) + most


def _factors(z: Any, w: Any) -> Any:
    return paddle.ones_like(z) if w is None else w


def _same(groups: Any) -> Any:
    """(B, B) 1 where two instances have one group."""
    return paddle.cast(paddle.equal(_row(groups), groups), "float32")


def _row(x: Any) -> Any:
    return paddle.reshape(x, [1, -1])

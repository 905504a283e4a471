"""Linear layers and towers: by `paddlebox.ops.mlp` they compute what Paddle's operators compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from paddlebox import nn
from paddlebox._native import paddle


@pytest.fixture(autouse=True)
def dygraph() -> None:
    paddle.disable_static()


def rows(*shape: int) -> Any:
    values = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    return paddle.to_tensor(values, stop_gradient=False)


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: nn.Linear(6, 5), (70, 6)),
        (lambda: nn.Linear(6, 5, bias_attr=False), (7, 10, 6)),
        (lambda: nn.LinearPart(6), (70, 6)),
        (lambda: nn.Tower(6, [8, 5], dropout=0.5), (70, 6)),
        (lambda: nn.MLP(6, [8, 5], dropout=0.5), (70, 6)),
        (lambda: nn.MLP(6, []), (70, 6)),
        (lambda: paddle.nn.Sequential(nn.Tower(6, [8]), nn.Linear(8, 2)), (70, 6)),
    ],
)
def test_both_ways_give_the_same_results_and_gradients(
    make: Callable[[], Any], shape: tuple[int, ...]
) -> None:
    model = make()
    for parameter in model.parameters():  # LinearPart starts with zeros
        parameter.set_value(rows(*parameter.shape))
    model.eval()  # the two ways drop other elements
    found = {}
    for products in ("", "float32"):
        nn.use_products(model, products)
        layers = [one for one in model.sublayers(True) if isinstance(one, nn.Linear)]
        assert layers
        assert all(layer.products == products for layer in layers)
        x = rows(*shape)
        given = (paddle.zeros([shape[0], 2, 1]), x) if isinstance(model, nn.LinearPart) else (x,)
        out = model(*given)
        paddle.square(out).sum().backward()
        tensors = [out, x.grad, *(parameter.grad for parameter in model.parameters())]
        found[products] = [tensor.numpy() for tensor in tensors]
        model.clear_gradients()
    for by_paddle, by_mlp in zip(found[""], found["float32"], strict=True):
        assert by_paddle.shape == by_mlp.shape
        np.testing.assert_allclose(by_mlp, by_paddle, rtol=1e-5, atol=1e-4)


def test_a_tower_drops_in_training_alone_and_as_paddles_generator_says() -> None:
    tower = nn.Tower(6, [64], dropout=0.5)
    nn.use_products(tower, "float32")
    x = rows(200, 6)

    def trained(seed: int) -> Any:
        paddle.seed(seed)
        tower.train()
        return tower(x).numpy(), tower(x).numpy()

    first, second = trained(1)
    assert (first != second).any()
    again, _ = trained(1)
    assert (first == again).all()
    other, _ = trained(2)
    assert (first != other).any()
    tower.eval()
    whole = tower(x).numpy()
    share = (first > 0).sum() / (whole > 0).sum()
    assert 0.45 < share < 0.55
    np.testing.assert_allclose(first[first > 0], 2 * whole[first > 0], rtol=1e-6)
    tower.dropout = 0.0
    assert (tower(x).numpy() == whole).all()

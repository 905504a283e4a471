"""Rank attention computes its formula; training it by both phases is in tests/training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paddlebox import ops
from paddlebox.config.models import RankAttentionConfig
from paddlebox.models import create_model
from tests.models.reference import mlp

paddle = ops.paddle
S, D, WIDE = 3, 2, 4
# Rows 0 and 1 are a page, of ranks 1 and 3; row 2 has no rank.
RANKS = [[1, 1, 0, -1, -1, 3, 1], [3, 1, 0, -1, -1, 3, 1], [-1] * 7]


class Given(paddle.nn.Layer):  # type: ignore[misc, name-defined]
    """Stands where the model pulls, and gives chosen rows."""

    def __init__(self, rows: np.ndarray) -> None:
        super().__init__()
        self.rows = rows

    def forward(self, *inputs: Any) -> Any:
        rows = paddle.to_tensor(self.rows)
        if len(inputs) == 5:
            return paddle.concat([rows.reshape([len(self.rows), -1]), inputs[4]], axis=1)
        return rows


@pytest.mark.parametrize("dense_width", [0, 2])
def test_an_instance_reads_those_on_its_page_by_both_positions(dense_width: int) -> None:
    paddle.disable_static()
    config = RankAttentionConfig.model_validate(
        {"type": "rank_attention", "hidden": [5], "output_dim": WIDE, "use_cvm": True}
    )
    model = create_model(config, slots=S, embedx_dim=D, dense_width=dense_width)
    random, p = np.random.default_rng(3), {}
    for name, parameter in model.named_parameters():
        p[name] = random.normal(0, 0.5, parameter.shape).astype(np.float32)
        parameter.set_value(p[name])
    rows = random.normal(size=(3, S, 3 + D)).astype(np.float32)
    dense = random.normal(size=(3, dense_width)).astype(np.float32)
    model.sparse = Given(rows)
    found = model(*[None] * 4, paddle.to_tensor(dense), paddle.to_tensor(RANKS, "int32")).numpy()
    x = np.concatenate([rows.reshape(3, -1), dense], axis=1)
    matrices = p["pairs"].reshape(3, 3, x.shape[1], WIDE)
    attended = np.zeros((3, WIDE))
    attended[0] = x[0] @ matrices[0, 0] + x[1] @ matrices[0, 2]
    attended[1] = x[0] @ matrices[2, 0] + x[1] @ matrices[2, 2]
    expected = mlp(p, "mlp", np.concatenate([x, attended], axis=1))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert np.ptp(expected) > 0.1

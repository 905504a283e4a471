"""Normalisation of columns by running sums over all batches so far."""

from __future__ import annotations

from typing import Any

from paddlebox import ops

paddle = ops.paddle


class DataNorm(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    """`paddlebox.ops.data_norm` together with the three sums that it needs.

    In training mode each call uses the sums and then adds its batch d to them, s = s * decay + d.
    In evaluation mode (`eval()`) the sums do not change. The sums are parameters that no optimizer
    updates, so they are saved and loaded with the other parameters.

    Letters: N = instances, C = columns.

    Args:
        columns: C.
        epsilon, slot_dim, summary_decay_rate, enable_scale_and_shift: as for
            `paddlebox.ops.data_norm`.
        batch_size, batch_sum, batch_square: initial values of the sums.
    """

    def __init__(
        self,
        columns: int,
        *,
        epsilon: float = 1e-5,
        slot_dim: int = -1,
        summary_decay_rate: float = 0.9999999,
        enable_scale_and_shift: bool = False,
        batch_size: float = 1e4,
        batch_sum: float = 0.0,
        batch_square: float = 1e4,
    ) -> None:
        super().__init__()
        self.settings: dict[str, Any] = {
            "epsilon": epsilon,
            "slot_dim": slot_dim,
            "summary_decay_rate": summary_decay_rate,
        }
        self.batch_size = self._create(columns, batch_size, trainable=False)
        self.batch_sum = self._create(columns, batch_sum, trainable=False)
        self.batch_square_sum = self._create(columns, batch_square, trainable=False)
        self.scale_w = self._create(columns, 1.0) if enable_scale_and_shift else None
        self.bias = self._create(columns, 0.0) if enable_scale_and_shift else None

    def _create(self, columns: int, value: float, trainable: bool = True) -> Any:
        attr = paddle.ParamAttr(
            initializer=paddle.nn.initializer.Constant(float(value)), trainable=trainable
        )
        made = self.create_parameter([columns], attr=attr, dtype="float32")
        made.stop_gradient = not trainable
        return made

    def forward(self, x: Any) -> Any:
        """x: (N, C) float32. Returns (N, C) float32."""
        return ops.data_norm(
            x,
            sums=(self.batch_size, self.batch_sum, self.batch_square_sum),
            scale_w=self.scale_w,
            bias=self.bias,
            update_norm=self.training,
            **self.settings,
        )

"""The layers of paddlebox.compat.layers in dygraph: what they refuse, create and leave alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from paddlebox import ops
from paddlebox._native import paddle
from paddlebox.compat import layers


@pytest.fixture(autouse=True)
def dygraph() -> None:
    paddle.disable_static()


def ones(*shape: int, dtype: str = "float32") -> Any:
    return paddle.ones(shape, dtype)


def sums(columns: int = 4) -> list[Any]:
    return [paddle.full([columns], value) for value in (4.0, 8.0, 1.0)]


class TestFullyConnected:
    LAYERS = pytest.mark.parametrize("layer", [layers.scaled_fc, layers.scaled_int8fc])

    @LAYERS
    def test_the_activation_is_applied(self, layer: Callable[..., Any]) -> None:
        x, w = paddle.to_tensor([[1.0], [-1.0]]), ones(1, 1)
        out = layer(x, weight=w, bias=paddle.zeros([1]), act="relu")
        assert out.numpy()[0] > 0
        assert out.numpy()[1] == 0

    @LAYERS
    @pytest.mark.parametrize(
        ("shapes", "message"),
        [
            ([(2, 3, 1), (3, 5), (5,)], r"Input has shape \(2, 3, 1\), expected \(N, I\)"),
            ([(2, 3), (3,), (5,)], r"W has shape \(3\), expected \(I, O\)"),
            ([(2, 3), (4, 5), (5,)], r"W has shape \(4, 5\), expected \(3, 5\)"),
            ([(2, 3), (3, 5), (4,)], r"Bias has shape \(4\), expected \(5\)"),
            ([(2, 3), (3, 5), (1, 5)], r"Bias has shape \(1, 5\), expected \(5, 1\)"),
        ],
    )
    def test_wrong_shapes(self, layer: Callable[..., Any], shapes: list[Any], message: str) -> None:
        x, weight, bias = (ones(*shape) for shape in shapes)
        with pytest.raises(ValueError, match=message):
            layer(x, weight=weight, bias=bias)

    @LAYERS
    def test_wrong_dtypes(self, layer: Callable[..., Any]) -> None:
        for wrong in ("input", "weight", "bias"):
            given = {"input": ones(2, 3), "weight": ones(3, 5), "bias": ones(5)}
            given[wrong] = given[wrong].astype("float64")
            with pytest.raises(ValueError, match="has dtype float64, expected float32"):
                layer(**given)

    @LAYERS
    def test_unequal_factors(self, layer: Callable[..., Any]) -> None:
        with pytest.raises(ValueError, match=r"factor is 1.0 and bias_scale_factor is 2.0, exp"):
            layer(
                ones(2, 3), input_scale_factor=1.0, bias_scale_factor=2.0, weight=ones(3, 5),
                bias=ones(5),
            )  # fmt: skip

    @LAYERS
    def test_dygraph_calls_create_no_parameters(self, layer: Callable[..., Any]) -> None:
        with pytest.raises(ValueError, match="weight is missing"):
            layer(ones(2, 3), [3, 5], None, [5], None)
        with pytest.raises(ValueError, match="bias is missing"):
            layer(ones(2, 3), [3, 5], None, [5], None, weight=ones(3, 5))

    @pytest.mark.parametrize("name", ["input_scale_factor", "grad_scale_factor"])
    @pytest.mark.parametrize("value", [0.0, float("inf"), float("nan")])
    def test_scaled_fc_refuses_factors_that_it_could_not_divide_by(
        self, name: str, value: float
    ) -> None:
        wrong: dict[str, Any] = {name: value}
        with pytest.raises(ValueError, match=f"scaled_fc: {name} is {value}, expected a finite"):
            layers.scaled_fc(ones(2, 3), weight=ones(3, 5), bias=ones(5), **wrong)

    @pytest.mark.parametrize(
        "name",
        [
            "input_expand_factor",
            "input_clip_factor",
            "weight_expand_factor",
            "weight_clip_factor",
            "int8_range",
        ],
    )
    def test_scaled_int8fc_refuses_factors_that_are_not_positive(self, name: str) -> None:
        wrong: dict[str, Any] = {name: 0}
        with pytest.raises(ValueError, match=f"scaled_int8fc: {name} is 0, expected a positive"):
            layers.scaled_int8fc(ones(2, 3), weight=ones(3, 5), bias=ones(5), **wrong)

    def test_scaled_int8fc_refuses_sums_that_int32_may_not_hold(self) -> None:
        x, w = ones(1, 131072), ones(131072, 1)
        with pytest.raises(ValueError, match="Input has 131072 columns, expected at most 131071"):
            layers.scaled_int8fc(x, weight=w, bias=ones(1))

    # Steps of 2 * 2 / 240 = 1/60: q(0.5) = 30 and q(1) = 60; 30 * 60 / 60 + 1.
    def test_defaults_of_scaled_int8fc_worked_by_hand(self) -> None:
        out = layers.scaled_int8fc(
            paddle.to_tensor([[0.5]]), weight=ones(1, 1), bias=ones(1, 1)
        )  # fmt: skip
        assert out.item() == pytest.approx(31, rel=1e-6)


class TestRankAttention2:
    @pytest.mark.parametrize(
        ("ranks", "message"),
        [
            (np.full((2, 7), 4, "i4"), "row 0, column 0 has rank 4, expected at most MaxRank = 3"),
            (np.full((2, 7), 2, "i4"), "row 0, column 2 names row 2, but X has 2 rows"),
            (np.zeros((2, 6), "i4"), r"RankOffset has shape \(2, 6\), expected \(2, 7\)"),
            (np.zeros((2, 7), "i8"), "RankOffset has dtype int64, expected int32"),
        ],
    )
    def test_wrong_ranks(self, ranks: np.ndarray, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            layers.rank_attention2(ones(2, 3), paddle.to_tensor(ranks), rank_param=ones(27, 5))

    def test_dygraph_calls_create_no_parameters(self) -> None:
        with pytest.raises(ValueError, match="rank_attention2: rank_param is missing"):
            layers.rank_attention2(ones(2, 3), ones(2, 7, dtype="int32"), [27, 5])


class TestMaskedDataNorm:
    # Means 2 and scales 2: 3 becomes 2.
    def test_selected_rows_are_normalised_and_enter_the_sums(self) -> None:
        x = paddle.to_tensor([[3.0], [100.0]])
        mask = paddle.to_tensor([True, False])
        of = sums(1)
        out = layers.masked_data_norm(x, mask, sums=of, epsilon=0.0, summary_decay_rate=0.5)
        assert out.numpy().tolist() == [[2], [0]]
        assert [s.item() for s in of] == [2 + 1, 4 + 3, 0.5 + 1]

    def test_with_all_rows_selected_it_is_data_norm_to_the_bit(self) -> None:
        random = np.random.default_rng(1)
        x = paddle.to_tensor(random.normal(size=(9, 4)).astype("f4"))
        of, others = sums(), sums()
        out = layers.masked_data_norm(x, ones(9, dtype="bool"), sums=of)
        assert out.numpy().tolist() == ops.data_norm(x, sums=others).numpy().tolist()
        assert [s.numpy().tolist() for s in of] == [s.numpy().tolist() for s in others]

    def test_the_sums_rest_without_update_norm(self) -> None:
        of = sums()
        layers.masked_data_norm(ones(2, 4), ones(2, dtype="bool"), sums=of, update_norm=False)
        assert [s.numpy().tolist() for s in of] == [s.numpy().tolist() for s in sums()]

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"input": ones(2, 4, 1)}, r"X has shape \(2, 4, 1\), expected \(N, C\)"),
            ({"input": ones(2, 4, dtype="int32")}, "X has dtype int32, expected float32"),
            ({"mask": ones(2)}, "Mask has dtype float32, expected bool"),
            ({"mask": ones(3, dtype="bool")}, r"Mask has shape \(3\), expected \(2\)"),
            ({"mask": ones(2, 4, dtype="bool")}, r"Mask has shape \(2, 4\), expected \(2, 1\)"),
            ({"sums": sums(3)}, r"BatchSize has shape \(3\), expected \(4\)"),
            ({"scale_w": ones(3)}, r"ScaleW has shape \(3\), expected \(4\)"),
            ({"data_layout": "NCL"}, "data_layout 'NCL', expected 'NCHW' or 'NHWC'"),
            ({"sums": None}, "sums .batch_size, batch_sum, batch_square_sum, .* is missing"),
        ],
    )
    def test_mistakes(self, change: dict[str, Any], message: str) -> None:
        given = {"input": ones(2, 4), "mask": ones(2, dtype="bool"), "sums": sums(), **change}
        with pytest.raises(ValueError, match=message):
            layers.masked_data_norm(**given)


class TestCrossNorm:
    def summary(self, columns: int = 7) -> Any:
        return paddle.to_tensor(np.repeat(np.array([4, 4, 1], "f4"), columns).reshape(3, -1))

    # All means are 1 and all scales 2. a = (1, 2) and b = (3, 4).
    def test_features_are_both_their_products_and_the_sum_of_these(self) -> None:
        summary = self.summary()
        out = layers.cross_norm_layer_hadamard(
            paddle.to_tensor([[1.0, 2, 3, 4]]), 1, 2, epsilon=0.0, summary_decay_rate=0.5,
            summary=summary,
        )  # fmt: skip
        features = np.array([1, 2, 3, 4, 3, 8, 11])
        assert out.numpy().tolist() == [((features - 1) * 2).tolist()]
        expected = [[3] * 7, (2 + features).tolist(), (0.5 + (features - 1) ** 2).tolist()]
        assert summary.numpy().tolist() == expected

    def test_the_sums_rest_without_update_norm(self) -> None:
        summary = self.summary()
        layers.cross_norm_layer_hadamard(ones(2, 4), 1, 2, summary=summary, update_norm=False)
        assert summary.numpy().tolist() == self.summary().numpy().tolist()

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"input": ones(2, 5)}, r"Input has shape \(2, 5\), expected \(2, 4\)"),
            ({"input": ones(4)}, r"Input has shape \(4\), expected \(N, 2 \* fields_num"),
            ({"input": ones(2, 4, dtype="float64")}, "Input has dtype float64, expected float32"),
            ({"summary": ones(3, 8)}, r"Summary has shape \(3, 8\), expected \(3, 7\)"),
            ({"embed_dim": 0}, "fields_num is 1 and embed_dim is 0, expected at least 1"),
            ({"summary": None}, "cross_summary is missing"),
        ],
    )
    def test_mistakes(self, change: dict[str, Any], message: str) -> None:
        given = {
            "input": ones(2, 4), "fields_num": 1, "embed_dim": 2, "summary": self.summary(),
            **change,
        }  # fmt: skip
        with pytest.raises(ValueError, match=message):
            layers.cross_norm_layer_hadamard(**given)

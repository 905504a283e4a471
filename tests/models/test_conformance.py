"""Every model computes its paper's formula, alike in all program modes and in an export."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlebox import ops
from paddlebox.config import ModelType
from paddlebox.models import Inputs, create_model
from paddlebox.nn import TableSlots
from paddlebox.serving.program import DenseProgram, freeze
from tests.models.reference import REFERENCES, sigmoid
from tests.models.small import CASES, SETTINGS, config_of, section
from tests.support.configs import make_config, make_slots
from tests.support.marks import long

paddle = ops.paddle
ROOT = Path(__file__).parents[2]
B, S, D = 6, 4, 3
IDS = [f"{model}-{number}" for number, (model, _) in enumerate(CASES)]
cases = pytest.mark.parametrize(("model", "settings"), CASES, ids=IDS)


class Given(paddle.nn.Layer):  # type: ignore[misc, name-defined]
    """Stands where a model pulls its slots, and gives those of a test."""

    def __init__(self, like: Any, rows: np.ndarray) -> None:
        super().__init__()
        self.slots, self.embedx_dim, self.width = like.slots, like.embedx_dim, like.width
        self.rows = paddle.to_tensor(rows)

    def forward(self, *_: Any) -> Any:
        return self.rows


def made(model: str, settings: dict[str, Any], dense_width: int) -> tuple[Any, ...]:
    """The model with random parameters; those by its own names and by Paddle's; rows; dense."""
    paddle.disable_static()
    config = config_of(model, settings)
    random = np.random.default_rng(5)
    with paddle.utils.unique_name.guard():
        layer = create_model(config, slots=S, embedx_dim=D, dense_width=dense_width)
    of_name, of_variable = {}, {}
    for name, parameter in layer.named_parameters():
        value = random.normal(0, 0.5, parameter.shape).astype(np.float32)
        parameter.set_value(value)
        of_name[name], of_variable[parameter.name] = value.astype(np.float64), value
    width = D + (3 if config.use_cvm else 1)
    rows = random.normal(0, 0.7, (B, S, width)).astype(np.float32)
    dense = random.normal(0, 0.7, (B, dense_width)).astype(np.float32)
    layer.eval()
    return layer, of_name, of_variable, rows, dense


def expected_of(model: str, settings: dict[str, Any], parts: tuple[Any, ...]) -> np.ndarray:
    _, parameters, _, rows, dense = parts
    rows, dense = rows.astype(np.float64), dense.astype(np.float64)
    return REFERENCES[model](parameters, rows, dense, D, config_of(model, settings))


@cases
@pytest.mark.parametrize("dense_width", [2, 0])
def test_logits_are_those_of_the_formula(
    model: str, settings: dict[str, Any], dense_width: int
) -> None:
    parts = made(model, settings, dense_width)
    layer, _, _, rows, dense = parts
    expected = expected_of(model, settings, parts)
    if model == "dnn":  # which joins rows and dense features by the pull itself
        joined = np.concatenate([rows.reshape(B, -1), dense], axis=1)
        found = layer.mlp(paddle.to_tensor(joined)).numpy()
    else:
        layer.sparse = Given(layer.sparse, rows)
        found = layer(None, None, None, None, paddle.to_tensor(dense)).numpy()
    assert found.shape == (B, 1)
    assert np.ptp(expected) > 0.1  # the instances differ
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@cases
@pytest.mark.parametrize("dense_width", [2, long(0)])
def test_an_export_predicts_the_same(
    model: str, settings: dict[str, Any], dense_width: int
) -> None:
    parts = made(model, settings, dense_width)
    _, _, of_variable, rows, dense = parts
    config = make_config(model=section(model, settings), table={"embedx_dim": D})
    dense_slots: dict[str, Any] = {"dense": {"type": "dense", "dim": dense_width}}
    slots = make_slots(
        click="label",
        **{f"s{i}": "sparse" for i in range(S)},
        **(dense_slots if dense_width else {}),
    )
    program, parameters = freeze(config, slots, of_variable)
    packed = np.concatenate([rows.reshape(B, -1), dense], axis=1)

    def fill(room: np.ndarray) -> None:
        room[:] = packed

    found = DenseProgram(program, parameters, 1, packed.shape[1]).run(B, fill)
    expected = sigmoid(expected_of(model, settings, parts))[:, 0]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


@pytest.fixture(scope="module")
def losses() -> Callable[[str], list[list[float]]]:
    from tests.conftest import run_python

    script = (Path(__file__).parent / "modes.py").read_text()
    return cache(lambda mode: run_python(script, mode, "20"))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(CASES)), ids=IDS)
def test_every_mode_of_program_trains_it_alike(
    losses: Callable[[str], list[list[float]]], number: int
) -> None:
    pir = losses("pir")[number]
    assert len(pir) == 20
    assert pir[-1] < pir[0] - 0.01  # one batch again and again: it learned
    np.testing.assert_allclose(losses("dygraph")[number], pir, rtol=0, atol=2e-6)


@pytest.mark.parametrize("model", [model for model in SETTINGS if model != "dnn"])
def test_a_model_of_one_width_projects_the_vectors_of_other_widths(model: str) -> None:
    more = [TableSlots(slots=2, embedx_dim=5, table="wide")]
    layer = create_model(config_of(model, {}), slots=S, embedx_dim=D, dense_width=0, more=more)
    assert [5, D] in [parameter.shape for parameter in layer.parameters()]


@pytest.mark.parametrize("model", list(SETTINGS))
def test_a_model_has_a_config_and_stands_on_the_page(model: str) -> None:
    assert model in set(ModelType)
    assert f"\n  type: {model}\n" in (ROOT / "configs" / f"{model}_criteo.yaml").read_text()
    assert f"configs/{model}_criteo.yaml" in (ROOT / "docs" / "models.md").read_text()


def test_inputs_count_the_columns_of_a_batch() -> None:
    assert Inputs(slots=3, embedx_dim=4, dense_width=2).width(5) == 17


@pytest.mark.parametrize("model", list(SETTINGS))
def test_a_model_is_converted_to_another_type_as_any_layer_of_paddle(model: str) -> None:
    paddle.disable_static()
    layer = create_model(config_of(model, {}), slots=S, embedx_dim=D, dense_width=2)
    layer.to(dtype="float64")
    assert {parameter.dtype for parameter in layer.parameters()} == {paddle.float64}


def test_no_layer_hides_a_method_of_paddle() -> None:
    def below(kind: Any) -> list[Any]:
        return [kind, *(found for own in kind.__subclasses__() for found in below(own))]

    ours = [kind for kind in below(paddle.nn.Layer) if kind.__module__.startswith("paddlebox.")]
    assert len(ours) > 30
    for kind in ours:
        hidden = {*vars(kind)} & {*dir(paddle.nn.Layer)}
        assert {name for name in hidden if not name.startswith("__")} <= {"forward"}, kind


@pytest.mark.parametrize("model", [model for model in SETTINGS if model != "dnn"])
def test_the_linear_part_of_a_new_model_starts_from_zero(model: str) -> None:
    paddle.disable_static()
    layer = create_model(config_of(model, {}), slots=S, embedx_dim=D, dense_width=2)
    dense = paddle.to_tensor(np.array([[3.0, 8.0]], np.float32))
    assert layer.linear(paddle.zeros([1, S, 1]), dense).numpy().tolist() == [[0.0]]

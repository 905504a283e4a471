"""Each model of the zoo as an ONNX model predicts what its frozen program does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlebox.config import load_config, load_slots
from paddlebox.errors import ConfigError
from paddlebox.serving.onnx_model import onnx_of
from paddlebox.serving.program import INPUT, create_predictor, freeze
from paddlebox.training.runner import build_runner
from tests.conftest import ROOT
from tests.support.marks import long

onnxruntime = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.slow
CONFIGS = sorted(path.stem for path in (ROOT / "configs").glob("*.yaml"))
# The models of these are those of others, with other widths.
LONG = {
    *("dcn_v2_criteo_x1", "deepfm_avazu", "deepfm_movielens", "deepfm_synthetic", "din_taobao"),
    *("dien_amazon_reviews", "din_kuairand", "dlrm_criteo_1tb", "dnn_movielens", "dnn_synthetic"),
    *("dssm_graph_walks", "hstu_kuairand", "mmoe_census_income"),
}


def frozen(name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, bytes, bytes]:
    """The config, and its program with random parameters."""
    monkeypatch.chdir(ROOT)
    config = load_config(Path("configs") / f"{name}.yaml")
    slots = load_slots(config.data.slots)
    random = np.random.default_rng(1)
    state = build_runner(config, slots).dense_state()
    drawn = {
        key: (value + 0.1 * random.random(value.shape)).astype(value.dtype)
        for key, value in state.items()
    }
    return config, *freeze(config, slots, drawn)


@pytest.mark.parametrize("name", [long(name) if name in LONG else name for name in CONFIGS])
def test_a_model_predicts_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config, program, parameters = frozen(name, monkeypatch)
    if config.model.reads_sequences:
        with pytest.raises(ConfigError, match="the program reads box_events, expected box_input"):
            onnx_of(program, parameters)
        return
    session = onnxruntime.InferenceSession(onnx_of(program, parameters))
    (given,) = session.get_inputs()
    assert given.name == INPUT
    predictor = create_predictor(program, parameters, 1)
    random = np.random.default_rng(2)
    for instances in (1, 7):
        room = random.random((instances, given.shape[1])).astype(np.float32)
        predictor.get_input_handle(INPUT).copy_from_cpu(room)
        predictor.run()
        expected = [
            predictor.get_output_handle(output).copy_to_cpu()
            for output in predictor.get_output_names()
        ]
        found = session.run(None, {INPUT: room})
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)

"""Each model of the zoo as an ONNX model predicts what its frozen program does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlebox.config import load_config, load_slots
from paddlebox.serving.onnx_model import onnx_of
from paddlebox.serving.program import INPUT, create_predictor, freeze
from paddlebox.training.runner import build_runner
from tests.conftest import ROOT
from tests.support.marks import long

onnxruntime = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.slow
CONFIGS = sorted(path.stem for path in (ROOT / "configs").glob("*.yaml"))
CONFIGS.append("hstu_kuairand model.time_buckets=0")
# The models of these are those of others, with other widths.
LONG = {
    *("dcn_v2_criteo_x1", "deepfm_avazu", "deepfm_movielens", "deepfm_synthetic", "din_taobao"),
    *("dien_amazon_reviews", "din_kuairand", "dlrm_criteo_1tb", "dnn_movielens", "dnn_synthetic"),
    *("dssm_graph_walks", "mmoe_census_income"),
}


def frozen(name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, bytes, bytes]:
    """The config, and its program with random parameters. name: may be followed by overrides."""
    name, *overrides = name.split()
    monkeypatch.chdir(ROOT)
    config = load_config(Path("configs") / f"{name}.yaml", overrides)
    slots = load_slots(config.data.slots)
    random = np.random.default_rng(1)
    state = build_runner(config, slots).dense_state()
    drawn = {
        key: (value + 0.1 * random.random(value.shape)).astype(value.dtype)
        for key, value in state.items()
    }
    return config, *freeze(config, slots, drawn)


def of_a_user(
    widths: dict[str, int], random: np.random.Generator, known: int, new: int, asked: int
) -> dict[str, np.ndarray]:
    """Inputs of a model that reads sequences, with gaps between times of 0 to 2^40."""
    events = known + new
    floats = {"box_events": new, "box_label": new, "box_candidates": asked, "box_known": known}
    ages = 2 ** random.integers(0, 41, events + asked) - random.integers(0, 2, events + asked)
    numbers = {
        "box_offsets": [0, events],
        "box_target_offsets": [0, asked],
        "box_seen": [*[0] * known, *range(known, events), *[events] * asked],
        "box_new": range(known, events + asked),
        "box_asked": range(new, new + asked),
    }
    return {
        **{name: random.random((n, widths[name]), np.float32) for name, n in floats.items()},
        **{name: np.array([*values], np.int32) for name, values in numbers.items()},
        "box_time": np.cumsum(ages),
    }


@pytest.mark.parametrize("name", [long(name) if name in LONG else name for name in CONFIGS])
def test_a_model_predicts_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config, program, parameters = frozen(name, monkeypatch)
    session = onnxruntime.InferenceSession(onnx_of(program, parameters))
    widths = {given.name: given.shape[-1] for given in session.get_inputs()}
    predictor = create_predictor(program, parameters, 1)
    random = np.random.default_rng(2)
    if config.model.reads_sequences:
        sizes = [(0, 5, 3), (4, 2, 3), (4, 0, 2), (5, 3, 0), (0, 0, 2), (0, 1, 0), (300, 9, 4)]
        feeds = [of_a_user(widths, random, *of_each) for of_each in sizes]
    else:
        assert list(widths) == [INPUT]
        feeds = [
            {INPUT: random.random((instances, widths[INPUT])).astype(np.float32)}
            for instances in (1, 7)
        ]
    for feed in feeds:
        for name_of, array in feed.items():
            predictor.get_input_handle(name_of).copy_from_cpu(array)
        predictor.run()
        expected = [
            predictor.get_output_handle(output).copy_to_cpu()
            for output in predictor.get_output_names()
        ]
        found = session.run(None, feed)
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)

"""Layers, losses and parsers of a user: what does not fit is an error that names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paddlebox.errors import ConfigError, DataError
from paddlebox.training.run import train
from tests.support.configs import config_fields, write_slots

CODE = """
import paddle

class Sound(paddle.nn.Layer):
    def __init__(self, config, inputs):
        super().__init__()
        self.sparse = inputs.pooled_slots(config.use_cvm)
        self.linear = paddle.nn.Linear(self.sparse.width, 1)

    def forward(self, ids, offsets, show_click, plan, dense):
        return self.linear(self.sparse(ids, offsets, show_click, plan)[:, 0])

def layer(result):
    class Changed(Sound):
        def forward(self, *inputs):
            return result(super().forward(*inputs))
    return Changed

Flat = layer(lambda logits: logits[:, 0])
Wide = layer(lambda logits: paddle.concat([logits, logits], 1))
Mean = layer(lambda logits: logits.mean(keepdim=True))
Double = layer(lambda logits: logits.astype("float64"))
Nothing = layer(lambda logits: None)
Pair = layer(lambda logits: (logits, logits))
Raises = layer(lambda logits: paddle.concat([logits, logits[:, 0]], 1))

class NoInputs(Sound):
    def __init__(self, config):
        pass

class NoSuper(Sound):
    def __init__(self, config, inputs):
        self.sparse = inputs.pooled_slots(config.use_cvm)

class NoDense(Sound):
    def forward(self, ids, offsets, show_click, plan):
        return None

def loss(result):
    class Losing(Sound):
        def loss(self, logits, labels):
            return result(logits, labels)
    return Losing

LossOfEach = loss(lambda logits, labels: logits - labels)
LossOfNone = loss(lambda logits, labels: None)
LossRaises = loss(lambda logits, labels: labels.no_such)
class LossOfOne(Sound):
    def loss(self, logits):
        return logits.mean()

def each(logits, labels, groups, mask): return logits - labels
def nothing(logits, labels, groups, mask): pass
def whole(logits, labels, groups, mask): return logits.mean().astype("int64")
def few(logits, labels): return logits.mean()
def failing(logits, labels, groups, mask): return logits.nothing

def parse(data): return {"click": [1.0, 0.0], "user": [["a"], ["b"]]}
def parse_none(data): pass
def parse_list(data): return [[1.0], [["a"]]]
def parse_two(data, more): pass
def parse_fails(data): return 1 / 0
def parse_less(data): return {"click": [1.0, 0.0], "user": [["a"]]}
def parse_text(data): return {"click": ["x", "y"], "user": [["a"], ["b"]]}
"""
FORWARD = r": forward: expected logits of shape \(B, 1\), a float32 column for each label, found "
MEAN = r": expected a mean over the instances, a float32 of shape \(\) or \(1,\), found "
LAYERS = {
    "Flat": FORWARD + r"\({B},\) float32",
    "Wide": FORWARD + r"\({B}, 2\) float32",
    "Mean": FORWARD + r"\(1, 1\) float32",
    "Double": FORWARD + r"\({B}, 1\) float64",
    "Nothing": FORWARD + "None",
    "Pair": FORWARD + "tuple",
    "Raises": r": forward raised \w+: .*own.py:\d+\)",
    "NoInputs": r": __init__: expected a function \(config, inputs\), found NoInputs\(config\)",
    "NoSuper": r": __init__ raised \w+: .*own.py:\d+\)",
    "NoDense": r": forward raised TypeError: .*takes 5 positional arguments but 6",
    "LossOfEach": "the method loss of Losing" + MEAN + r"\({B}, 1\) float32",
    "LossOfNone": "the method loss of Losing" + MEAN + "None",
    "LossRaises": r"the method loss of Losing raised AttributeError: .*own.py:\d+\)",
    "LossOfOne": r"the method loss of LossOfOne: expected a function \(logits, labels\), found",
}
LOSSES = {
    "each": MEAN + r"\({B}, 1\) float32",
    "nothing": MEAN + "None",
    "whole": MEAN + r"\(\) int64",
    "few": r": expected a function \(logits, labels, groups, mask\), found few\(logits, labels\)",
    "failing": r" raised AttributeError: .*own.py:\d+\)",
}
PARSERS = {
    "parse_none": r"a.csv: parser .* returned None, expected a dict",
    "parse_list": r"a.csv: parser .* returned list, expected a dict",
    "parse_two": r"expected a function \(lines\), found parse_two\(data, more\)",
    "parse_fails": r"a.csv: parser .* raised ZeroDivisionError: .*own.py:\d+\)",
    "parse_less": r"a.csv: parser .* returned columns that do not fit",
    "parse_text": r"a.csv: parser .* returned columns that do not fit",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(CODE)
    (tmp_path / "a.csv").write_text("click,user\n1,a\n0,b\n1,a\n")
    write_slots(tmp_path, click="label", user={"hash": True})
    return tmp_path


def error_of(folder: Path, **sections: Any) -> str:
    data = {"slots": f"{folder}/slots.yaml", "train_files": [f"{folder}/a.csv"], "batch_size": 3}
    fields = config_fields(**{**sections, "data": data | sections.get("data", {})})
    fields["security"] = {"allow_commands": True}
    fields |= {"mem": {"budget_bytes": "4MiB"}, "hbm": {"budget_bytes": "16MiB"}}
    with pytest.raises((ConfigError, DataError)) as error:
        train(fields, folder / "run")
    return str(error.value)


@pytest.mark.parametrize(
    ("layer", "program"), [*((one, "pir") for one in LAYERS), ("Flat", "dygraph")]
)
def test_a_layer_that_does_not_fit_is_named(folder: Path, layer: str, program: str) -> None:
    model = {"type": "custom", "layer": f"{folder}/own.py:{layer}", "hidden": []}
    error = error_of(folder, model=model, trainer={"program": program})
    assert_told(error, LAYERS[layer], program)


@pytest.mark.parametrize(
    ("loss", "program"), [*((one, "pir") for one in LOSSES), ("each", "dygraph")]
)
def test_a_loss_that_does_not_fit_is_named(folder: Path, loss: str, program: str) -> None:
    model = {"loss": f"{folder}/own.py:{loss}", "hidden": [2]}
    error = error_of(folder, model=model, trainer={"program": program})
    assert error.startswith(f"model.loss '{folder}/own.py:{loss}'")
    assert_told(error, LOSSES[loss], program)


@pytest.mark.parametrize("parser", PARSERS)
def test_a_parser_that_does_not_fit_is_named(folder: Path, parser: str) -> None:
    data = {"format": "multislot", "parser": f"{folder}/own.py:{parser}"}
    assert_told(error_of(folder, data=data), PARSERS[parser], "")


def assert_told(error: str, expected: str, program: str) -> None:
    pattern = expected.replace("{B}", "3" if program == "dygraph" else "-1")
    with pytest.raises(ConfigError, match=rf"(?s){pattern}"):
        raise ConfigError(error)

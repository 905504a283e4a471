"""What the keys of `publish:` do to the file that follows a trainer's saves."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from paddlebox.config.checkpoint import Bounds, PublishConfig
from paddlebox.serving.file import ExportFile, model_key
from paddlebox.tools.publish.follow import follow
from tests.serving.test_saves import Make, in_root, trainer_in
from tests.support.marks import long

__all__ = ["in_root", "trainer_in"]
UNREACHABLE = Bounds(copc=(1000.0, 2000.0))


@pytest.fixture
def saves(trainer_in: Make, tmp_path: Path) -> Path:
    """A folder with a base."""
    trainer = trainer_in(tmp_path / "trainer")
    trainer.train(1, 100)
    trainer.save("base")
    return trainer.folder / "out"


def refused(saves: Path, bounds: Bounds = UNREACHABLE, **publish: Any) -> str:
    """Why the base is not served; "": it is."""
    answers = io.StringIO()
    config = PublishConfig.model_validate(publish)
    follow(saves, config, bounds, io.StringIO(), answers)
    (served,) = map(json.loads, answers.getvalue().splitlines())
    return str(served["refused"])


@pytest.mark.parametrize("precision", [long("float16"), "int8"])
def test_saves_are_served_from_the_file_in_the_precision(
    saves: Path, tmp_path: Path, precision: str
) -> None:
    path = tmp_path / "model.export"
    assert refused(saves, file=str(path), precision=precision) == ""
    with ExportFile(path) as file, file.read() as txn:
        assert file.generation(txn, file.head(txn).current).precision == precision


def test_saves_have_an_onnx_model(saves: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.export"
    assert refused(saves, file=str(path), onnx=True) == ""
    with ExportFile(path) as file, file.read() as txn:
        record = file.generation(txn, file.head(txn).current)
        assert len(file.sealed(txn, model_key(record.model, "onnx"))) > 1000


def test_a_save_outside_the_bounds_on_gate_files_is_not_served(
    saves: Path, data: Path, tmp_path: Path
) -> None:
    path = tmp_path / "model.export"
    why = refused(saves, file=str(path), gate_files=[str(data / "test.txt")])
    assert "expected 1000 to 2000 (alerts.copc)" in why
    assert not path.exists()
    assert refused(saves, Bounds(), file=str(path), gate_files=[str(data / "test.txt")]) == ""

"""An export file with several models: the mean of their probabilities, and one version."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from paddlebox.config import KeySpace, Slot, SlotType
from paddlebox.errors import ConfigError, StoreError
from paddlebox.serving import Predictor
from paddlebox.serving.source import RunSource
from paddlebox.serving.writer import Writer, export_ensemble
from tests.conftest import ROOT, tool
from tests.serving.conftest import instances_of


@pytest.fixture(autouse=True)
def in_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.fixture(scope="module")
def runs(run_dir: Path, train: Callable[..., Path]) -> list[Path]:
    """A run, and one of another model, whose rows have another form."""
    return [run_dir, train("model.type=dnn", "model.use_cvm=false", "table.embedx_dim=4")]


@contextmanager
def opened(run: Path) -> Iterator[RunSource]:
    with RunSource(run) as source:
        yield source


def exported(path: Path, runs: list[Path]) -> Path:
    export_ensemble([opened(run) for run in runs], path)
    return path


def predicted(path: Path, data: Path) -> np.ndarray:
    with Predictor(path, follow_s=0) as predictor:
        predictor.warm()
        return predictor.predict(instances_of(data / "test.txt")[:200])


def test_an_ensemble_predicts_the_mean_of_the_probabilities_of_its_models(
    runs: list[Path], data: Path, tmp_path: Path
) -> None:
    alone = [
        predicted(exported(tmp_path / str(number), [run]), data) for number, run in enumerate(runs)
    ]
    path = exported(tmp_path / "all", runs)
    assert np.abs(alone[0] - alone[1]).max() > 1e-3
    mean = np.mean(alone, axis=0)
    np.testing.assert_allclose(predicted(path, data), mean, rtol=1e-6)

    feasigns, offsets = np.arange(1, 11, dtype=np.uint64), np.arange(11, dtype=np.int32)
    dense = np.zeros((1, 4), np.float32)
    found = []
    for file in [path, *(tmp_path / str(number) for number in range(len(runs)))]:
        with Predictor(file, follow_s=0) as predictor:
            found.append(predictor.predict_feasigns(feasigns, offsets, dense))
    np.testing.assert_allclose(found[0], np.mean(found[1:], axis=0), rtol=1e-6)


def test_the_tool_takes_several_runs(runs: list[Path], data: Path, tmp_path: Path) -> None:
    done = tool("export", *runs, "--out", tmp_path / "m")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["members"]) == 1
    expected = predicted(exported(tmp_path / "n", runs), data)
    np.testing.assert_array_equal(predicted(tmp_path / "m", data), expected)
    refused = tool("export", *runs, "--out", tmp_path / "o", "--version", 1)
    assert refused.returncode != 0
    assert "no --version in common" in refused.stderr


def test_an_ensemble_stays_whole_and_takes_no_other_version(
    runs: list[Path], data: Path, tmp_path: Path
) -> None:
    path = exported(tmp_path / "m", runs)
    expected = predicted(path, data)
    told = "holds an ensemble of 2 models, which has only one version"
    with (
        RunSource(runs[0]) as source,
        Writer(path) as writer,  # removes what no record names
        pytest.raises(StoreError, match=told),
    ):
        writer.apply(source)
    np.testing.assert_array_equal(predicted(path, data), expected)


def per_slot(run: RunSource) -> None:
    data = run.config.data.model_copy(update={"key_space": KeySpace.PER_SLOT})
    run.config = run.config.model_copy(update={"data": data})


def without_user(run: RunSource) -> None:
    kept = tuple(slot for slot in run.slots.slots if slot.name != "user")
    run.slots = run.slots.model_copy(update={"slots": kept})


def with_a_weight(run: RunSource) -> None:
    weight = Slot(name="w", type=SlotType.WEIGHT)
    run.slots = run.slots.model_copy(update={"slots": (*run.slots.slots, weight)})


def in_another_order(run: RunSource) -> None:
    run.slots = run.slots.model_copy(update={"slots": run.slots.slots[::-1]})


def a_delta(run: RunSource) -> None:
    run.meta = {**run.meta, "kind": "delta"}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (per_slot, "expected data.key_space shared, as in the first model, found per_slot"),
        (without_user, "expected the slots of the first model, found others: user"),
        (with_a_weight, "expected the slots of the first model, found others: w"),
        (in_another_order, "found others: csv, tags or the order of the slots"),
        (a_delta, "is a delta, expected a base"),
    ],
)
def test_a_model_that_reads_other_instances_is_refused_and_no_file_is_left(
    run_dir: Path, tmp_path: Path, change: Callable[[RunSource], None], told: str
) -> None:
    @contextmanager
    def changed() -> Iterator[RunSource]:
        with RunSource(run_dir) as source:
            change(source)
            yield source

    with pytest.raises(ConfigError, match=f"model 2 of the ensemble.*{re.escape(told)}"):
        export_ensemble([opened(run_dir), changed()], tmp_path / "m")
    assert not (tmp_path / "m").exists()

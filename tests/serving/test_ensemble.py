"""An export file with several models: the mean of their probabilities, and one version."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from paddlebox.errors import ConfigError, StoreError
from paddlebox.serving import Predictor
from paddlebox.serving.file import FORMAT, FORMAT_OF_ENSEMBLES, ExportFile
from paddlebox.serving.source import RunSource
from paddlebox.serving.writer import Writer, export_ensemble
from tests.conftest import ROOT, tool
from tests.serving.conftest import Rows, instances_of


@pytest.fixture(autouse=True)
def in_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.fixture(scope="module")
def runs(run_dir: Path, train: Callable[..., Path]) -> list[Path]:
    """A run, one of another seed, and one of another model, whose rows have counts."""
    priors = train("model.type=dnn", "model.click_prior=true", "data.batch_size=256")
    return [run_dir, train("seed=2", "data.shuffle=true"), priors]


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
    assert min(np.abs(alone[0] - other).max() for other in alone[1:]) > 1e-3
    mean = np.mean(alone, axis=0)
    np.testing.assert_allclose(predicted(path, data), mean, rtol=1e-6)
    feasigns, offsets = np.arange(1, 11, dtype=np.uint64), np.arange(11, dtype=np.int32)
    dense = np.zeros((1, 4), np.float32)
    found = []
    for file in [path, *(tmp_path / str(number) for number in range(len(runs)))]:
        with Predictor(file, follow_s=0) as predictor:
            found.append(predictor.predict_feasigns(feasigns, offsets, dense))
    np.testing.assert_allclose(found[0], np.mean(found[1:], axis=0), rtol=1e-6)
    with ExportFile(path) as written, written.read() as txn:
        assert written.head(txn).format == FORMAT_OF_ENSEMBLES
    with ExportFile(tmp_path / "0") as written, written.read() as txn:
        assert written.head(txn).format == FORMAT


def test_the_tool_takes_several_runs(runs: list[Path], data: Path, tmp_path: Path) -> None:
    done = tool("export", *runs[:2], "--out", tmp_path / "m")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["members"]) == 1
    expected = predicted(exported(tmp_path / "n", runs[:2]), data)
    np.testing.assert_array_equal(predicted(tmp_path / "m", data), expected)
    refused = tool("export", *runs[:2], "--out", tmp_path / "o", "--version", 1)
    assert refused.returncode != 0
    assert "no --version in common" in refused.stderr


def test_an_ensemble_stays_whole_and_takes_no_other_version(
    runs: list[Path], data: Path, tmp_path: Path
) -> None:
    path = exported(tmp_path / "m", runs[:2])
    expected = predicted(path, data)
    told = "holds an ensemble of 2 models, which has only one version"
    with (
        RunSource(runs[0]) as source,
        Writer(path) as writer,  # removes what no record names
        pytest.raises(StoreError, match=told),
    ):
        writer.apply(source)
    np.testing.assert_array_equal(predicted(path, data), expected)


def test_models_of_other_inputs_and_deltas_are_refused(
    runs: list[Path], train: Callable[..., Path], tmp_path: Path
) -> None:
    other = train("data.key_space=per_slot")
    with pytest.raises(ConfigError, match=r"model 2 of the ensemble has other data\.key_space"):
        export_ensemble([opened(runs[0]), opened(other)], tmp_path / "m")

    @contextmanager
    def delta() -> Iterator[Rows]:
        with RunSource(runs[0]) as run:
            yield Rows(run, "delta", 9, {1: 0.5})

    with pytest.raises(ConfigError, match="model 2 of the ensemble is a delta, expected a base"):
        export_ensemble([opened(runs[0]), delta()], tmp_path / "m")
    assert not (tmp_path / "m").exists()

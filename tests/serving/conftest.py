"""Runs to export, and sources whose rows a test chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import make_synthetic, tool
from tests.support.shared import once, own_copy

FEATURES = ["dense", "user", "item", "query", "history", "words", "tags", "publisher", "category",
            "region", "device"]  # fmt: skip


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return once(
        tmp_path_factory,
        "serving-data",
        lambda folder: make_synthetic(folder, passes=3, rows=4000, test_rows=1000),
    )


@pytest.fixture(scope="session")
def train(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Trains three passes of synthetic data; returns the run's folder."""

    def run(*overrides: str, folder: Path | None = None) -> Path:
        folder = folder or tmp_path_factory.mktemp("run") / "run"
        done = tool(
            "train", "-c", "configs/deepfm_synthetic.yaml", "--run-dir", folder, "-o",
            f"data.train_files=[{data}/train-*.txt]", f"data.test_files=[{data}/test.txt]",
            "model.hidden=[16]", "table.embedx_threshold=1", "table.life.base_threshold=0",
            "checkpoint.keep_versions=9", *overrides,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return folder

    return run


@pytest.fixture(scope="session")
def run_dir(train: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = own_copy(tmp_path_factory, "served", lambda folder: train(folder=folder / "run"))
    return made / "run"


def instances_of(path: Path) -> list[dict[str, Any]]:
    """Raw fields of multislot lines: "n v1 .. vn" for the label and each feature."""
    instances = []
    for line in path.read_text().splitlines():
        words, fields, at = line.split(), {}, 0
        for name in ["click", *FEATURES]:
            count = int(words[at])
            values = words[at + 1 : at + 1 + count]
            fields[name] = [float(v) if name == "dense" else int(v) for v in values]
            at += 1 + count
        del fields["click"]
        instances.append(fields)
    return instances


class Rows:
    """A source of rows that a test chooses: feasign -> embed_w. Its model is a run's."""

    def __init__(
        self, run: Any, kind: str, version: int, weights: Mapping[int, float], gone: Any = (),
        follows: int | None = None,
    ) -> None:  # fmt: skip
        from paddlebox._native import core

        self._run, self._gone, self._core = run, gone, core
        self.config, self.slots = run.config, run.slots
        self.meta = {**run.meta, "kind": kind, "version": version, "follows": follows}
        self.weights = weights
        self.dense, self.parts = run.dense, {"": self}
        self.layout = next(iter(run.parts.values())).layout

    def visit(self, callback: Callable[[np.ndarray, np.ndarray], None]) -> None:
        for chunk, rows in self.chunks():
            callback(chunk, rows)

    def chunks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        order = sorted(self.weights, key=self._core.mix)
        for first in range(0, len(order), 1000):
            chunk = order[first : first + 1000]
            rows = np.zeros((len(chunk), 17), np.float32)
            rows[:, 6] = [self.weights[feasign] for feasign in chunk]
            rows[:, 1] = 1  # shows
            yield np.array(chunk, np.uint64), rows

    def deleted(self) -> Iterator[np.ndarray]:
        if len(self._gone):
            yield np.array(list(self._gone), np.uint64)


@pytest.fixture
def run(run_dir: Path) -> Iterator[Any]:
    from paddlebox.serving.source import RunSource

    with RunSource(run_dir) as source:
        yield source

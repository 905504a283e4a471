"""Runs to export, and sources whose rows a test chooses."""

from __future__ import annotations

import random
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


CSV_SLOTS = """
slots:
  - {name: click, type: label}
  - {name: age, type: dense, default: 30, clip: [0, 100], log1p: true}
  - {name: price, type: dense, column: cost}
  - {name: user, type: sparse, default: 77}
  - {name: city, type: sparse, hash: true, default: nowhere}
  - {name: words, type: sparse, hash: true, max_length: 3}
  - {name: items, type: sparse}
  - {name: much, type: dense, default: -1, expr: "log1p(cost) * length(words) + if(age > 18, 1, 0)"}
  - {name: cheap, type: dense, default: 0, expr: "zscore(cost)"}
  - {name: town, type: sparse, hash: true, expr: "concat(lower(city), '-', length(words))"}
  - {name: land, type: sparse, hash: true, expr: "lookup('lands', city)"}
  - {name: said, type: sparse, hash: true, expr: "last(words, 1)"}
  - {name: some, type: sparse, shares: items, expr: "first(items, 2)"}
  - {name: age_range, type: sparse, bucket: {of: age, boundaries: [18, 30.5, 50]}}
  - {name: user_age, type: sparse, cross: [user, age_range]}
  - {name: city_words, type: sparse, cross: [city, words], max_length: 4}
lookups:
  lands: {Ulm: de, São Paulo: br}
"""
COLUMNS = ["click", "age", "cost", "user", "city", "words", "items"]
LISTS = {"words", "items"}


def csv_rows(count: int, seed: int) -> list[dict[str, str]]:
    rng = random.Random(seed)

    def some(counts: list[int], draw: Callable[[], Any]) -> list[str]:
        return [str(draw()) for _ in range(rng.choice(counts))]

    rows = []
    for _ in range(count):
        user = rng.randrange(40)
        words = some([0, 1, 2, 5], lambda: rng.choice(["tee", "Kaffee", "水", "a b", "x;y", "é"]))
        feasigns = (1 << 64) if rng.random() < 0.1 else 60
        rows.append(
            {
                "click": str(int((user % 3 == 0) ^ (len(words) > 1 and rng.random() < 0.8))),
                "age": rng.choice(["", "0", "17.9", "18", "30.5", "64", "-3", "250"]),
                "cost": f"{rng.random():.4g}",
                "user": str(user) if user > 5 else "",
                "city": rng.choice(["", "Ulm", "São Paulo", '"quoted" town', "7"]),
                "words": "|".join(words),
                "items": "|".join(some([0, 1, 4], lambda top=feasigns: rng.randrange(1, top))),  # type: ignore[misc]
            }
        )
    return rows


def write_csv(path: Path, rows: list[dict[str, str]]) -> None:
    def cell(text: str) -> str:
        return '"' + text.replace('"', '""') + '"' if '"' in text else text

    lines = [",".join(COLUMNS), *(",".join(cell(row[c]) for c in COLUMNS) for row in rows)]
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="session")
def csv_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run on CSV with every transform, and its export."""
    folder = own_copy(tmp_path_factory, "csv", _train_csv)
    return folder / "run", folder / "m.export"


def _train_csv(folder: Path) -> None:
    from paddlebox.serving.source import RunSource
    from paddlebox.serving.writer import export

    (folder / "slots.yaml").write_text(CSV_SLOTS)
    write_csv(folder / "train.csv", csv_rows(4000, 1))
    write_csv(folder / "test.csv", csv_rows(300, 2))
    done = tool(
        "train", "-c", "configs/deepfm_synthetic.yaml", "--run-dir", folder / "run", "-o",
        f"data.train_files=[{folder}/train.csv]", f"data.test_files=[{folder}/test.csv]",
        "data.format=csv", f"data.slots={folder}/slots.yaml", "model.hidden=[16]", "name=csv",
        "table.embedx_threshold=1", "table.life.base_threshold=0", "data.batch_size=64",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with RunSource(folder / "run") as source:
        export(source, folder / "m.export")


def as_json(row: dict[str, str], rng: random.Random) -> dict[str, Any]:
    """A row of CSV as a client may write it: numbers or their text, what is empty left out."""
    fields: dict[str, Any] = {}
    for name, text in row.items():
        if name == "click":
            continue
        if text == "" and rng.random() < 0.5:
            if rng.random() < 0.5:
                fields[name] = None
            continue
        value: Any = text.split("|") if name in LISTS and text else text
        if name in LISTS and not text:
            value = []
        if rng.random() < 0.5:
            if name in ("user", "items"):
                value = [int(v) for v in value] if name == "items" else (int(value or 0) or "")
            elif name in ("age", "cost") and value:
                value = float(value)
        fields[name] = value
    return fields

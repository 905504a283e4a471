"""Criteo_x1: its columns are read as they are, and the steps of datasets/criteo work."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from paddlebox.config import load_config, load_slots
from paddlebox.data.loader import load
from tests.conftest import ROOT
from tests.data.test_formats_columnar import contents
from tests.support.options import load_options
from tests.support.processes import tool

CONFIG = "configs/dcn_v2_criteo_x1.yaml"
NUMBERS = [f"I{k}" for k in range(1, 14)]
TOKENS = [f"C{k}" for k in range(1, 27)]
FIRST_ID = 14


def write_made_up(path: Path, rows: int) -> list[list[str]]:
    """Writes a file in the form of Criteo_x1. Returns its cells."""
    draw = random.Random(path.name)
    cells = [
        [
            str(draw.randrange(2)),
            *(f"{draw.random():.6g}" for _ in NUMBERS),
            *(str(FIRST_ID + 5 * k + draw.randrange(5)) for k in range(len(TOKENS))),
        ]
        for _ in range(rows)
    ]
    lines = [",".join(row) for row in (["label", *NUMBERS, *TOKENS], *cells)]
    path.write_text("\n".join(lines) + "\n")
    return cells


def test_every_cell_of_criteo_x1_is_read(tmp_path: Path) -> None:
    cells = write_made_up(tmp_path / "train.csv", 12)
    config = load_config(ROOT / CONFIG)
    slots = load_slots(ROOT / config.data.slots)
    slots.check_format(config.data.format)
    options = load_options(config.data.format, slots, 4)
    loaded = load([str(tmp_path / "train.csv")], options, 1 << 20)
    labels, dense, feasigns, offsets = contents(loaded)
    assert np.ravel(labels).tolist() == [float(row[0]) for row in cells]
    numbers = np.array([row[1:14] for row in cells], dtype=np.float32)
    np.testing.assert_array_equal(np.reshape(dense, numbers.shape).astype(np.float32), numbers)
    assert feasigns == [int(token) for row in cells for token in row[14:]]
    assert offsets == list(range(12 * len(TOKENS) + 1))


@pytest.mark.slow
def test_the_best_pass_of_criteo_x1_is_evaluated(tmp_path: Path) -> None:
    for name, rows in (("train", 40), ("valid", 20), ("test", 20)):
        write_made_up(tmp_path / f"{name}.csv", rows)
    run, copies, best = (tmp_path / name for name in ("run", "copies", "best"))
    files = [f"data.{part}_files=[{tmp_path}/{name}.csv]"
             for part, name in (("train", "train"), ("test", "valid"))]  # fmt: skip
    given = ("-c", CONFIG, "-o", *files, "data.batch_size=16", "trainer.epochs=3")
    for done in (
        tool("train", *given, "--run-dir", run),
        tool("store", "copy", run, copies, "--version", 2),
        tool("store", "restore", copies, best),
    ):
        assert done.returncode == 0, done.stderr
    passes = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for name, expected in (("valid", passes[1]["test"]["logloss"]), ("test", None)):
        done = tool("evaluate", best, "--files", tmp_path / f"{name}.csv")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout.splitlines()[-1])
        assert (found["version"], found["samples"]) == (2, 20)
        assert expected is None or found["logloss"] == expected

"""Running sums of all ranks, `sync_stats`: two ranks, PIR and dygraph, against numpy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import processes

DECAY, EPSILON = 0.9999999, {"cross_norm_layer_hadamard": 1e-4}


def features(name: str, x: np.ndarray) -> np.ndarray:
    """(N, C) of the input (N, 4) of cross_norm_layer_hadamard."""
    if name != "cross_norm_layer_hadamard":
        return x
    a, b = x[:, :2], x[:, 2:]
    return np.hstack([a, b, a * b, np.sum(a * b, axis=1, keepdims=True)])


def expected(name: str, steps: list[list[Any]]) -> np.ndarray:
    """(3, C) sums after steps of a batch for each rank, in float64."""
    sums = np.repeat([[1e4], [0.0], [1e4]], 7, axis=1)
    for batches in steps:
        means = sums[1] / sums[0]
        terms = np.zeros_like(sums)
        for x, mask in batches:
            rows = features(name, np.array(x))
            if name == "masked_data_norm":
                rows = rows[np.array(mask)]
            if len(rows):
                squares = np.mean((rows - means) ** 2, axis=0) + EPSILON.get(name, 1e-5)
                terms += [np.ones(7), rows.mean(axis=0), squares]
        if terms.any():
            sums = sums * DECAY + terms
    return sums


@pytest.mark.slow
def test_the_batches_of_all_ranks_enter_the_sums(tmp_path: Path) -> None:
    launcher = ["-m", "paddle.distributed.launch", "--nproc_per_node", "2"]
    logs = ["--log_dir", str(tmp_path / "log")]
    done = processes.run([*launcher, *logs, "tests/upstream/synced_sums.py", str(tmp_path)])
    log = "".join(path.read_text() for path in (tmp_path / "log").glob("workerlog.*"))
    assert done.returncode == 0, done.stderr + log
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for name, first in ranks[0].items():
        steps = [
            list(step) for step in zip(*(rank[name]["batches"] for rank in ranks), strict=True)
        ]
        wanted = expected(name, steps)
        for mode in ("dygraph", "static"):
            found = np.array(first[mode]).reshape(3, 7)
            assert found == pytest.approx(wanted, rel=1e-6, abs=1e-5), (name, mode)
            assert first[mode] == ranks[1][name][mode], (name, mode)

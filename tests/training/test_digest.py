"""The same bytes: whatever the threads, the memory, the processor's vectors, and from run to
run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import make_synthetic

SCRIPT = (Path(__file__).parent / "train_small.py").read_text()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four passes of which the model is several times the smallest MEM budget."""
    return make_synthetic(tmp_path_factory.mktemp("data"), passes=4, rows=20000)


@pytest.fixture
def train(in_new_process: Any, data: Path, tmp_path: Path) -> Any:
    runs = []

    def run(*overrides: str, **options: str) -> dict[str, Any]:
        runs.append(1)
        base = [
            f"data.train_files=[{data}/train-*.txt]",
            "model.hidden=[32]",
            "data.batch_size=256",
        ]
        base += ["table.embedx_threshold=1.0", "trainer.dense_threads=1", "mem.budget_bytes=1MiB"]
        arguments = {
            "folder": str(tmp_path / str(len(runs))),
            "overrides": [*base, *overrides],
            **options,
        }
        return dict(in_new_process(SCRIPT, json.dumps(arguments), env={"OMP_NUM_THREADS": "1"}))

    return run


@pytest.mark.slow
def test_threads_memory_and_runs_do_not_show(train: Callable[..., Any]) -> None:
    first = train("data.threads=1")
    # Else the smallest budget would prove nothing. How many hits each tier has depends on whether
    # the pass before last was still being committed when a pass was staged; 2,500 is the least.
    assert first["ssd_hits"] > 2000
    others = {
        "run again": train("data.threads=1"),
        "4 threads": train("data.threads=4"),
        "2 threads, all in MEM": train("data.threads=2", "mem.budget_bytes=256MiB"),
    }
    assert others["2 threads, all in MEM"]["ssd_hits"] == 0
    assert others["2 threads, all in MEM"]["mem_hits"] > 2000
    for name, other in others.items():
        assert (name, other["sparse"], other["dense"]) == (name, first["sparse"], first["dense"])
        assert other["auc"] == first["auc"]
    assert train("seed=2")["sparse"] != first["sparse"]


@pytest.mark.long
def test_vector_paths_do_not_show(train: Callable[..., Any]) -> None:
    flags = Path("/proc/cpuinfo").read_text()
    paths = ["plain", *(["avx2"] if " avx2 " in flags else [])]
    paths += ["avx512"] if " avx512vl " in flags and " avx512dq " in flags else []
    if len(paths) == 1:
        pytest.skip("this processor has neither AVX2 nor AVX-512: there is one path only")
    digests = {path: train(vector_path=path) for path in paths}
    assert len({(d["sparse"], d["dense"]) for d in digests.values()}) == 1, digests

"""An undisturbed run of two ranks, which several test files share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import make_synthetic
from tests.ranks.launched import launch


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    return make_synthetic(folder, passes=8, rows=4000, test_rows=2000)


@pytest.fixture(scope="session")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("runs") / "run"
    done = launch("train", run_dir, data, "trainer.evaluate_after_pass=true")
    assert done.returncode == 0, done.stdout + done.stderr
    return run_dir

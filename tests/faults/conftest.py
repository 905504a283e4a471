"""Data of the runs that are disturbed, and what the undisturbed one leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.faults.kill_run import Run, prepare
from tests.faults.runs import ALL, trained


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    prepare(folder)
    return folder


@pytest.fixture(scope="session")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the undisturbed run of ALL leaves."""
    run = Run(tmp_path_factory.mktemp("whole"), data, 0, ALL)
    trained(run)
    return run.result()

"""Data of the runs that are disturbed, and what the undisturbed one leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.faults.kill_run import Run, prepare
from tests.faults.runs import ALL, trained
from tests.support.shared import once, own_copy


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return once(tmp_path_factory, "faults-data", prepare)


@pytest.fixture(scope="session")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the undisturbed run of ALL leaves."""
    folder = own_copy(
        tmp_path_factory, "undisturbed", lambda folder: trained(Run(folder, data, 0, ALL))
    )
    return Run(folder, data, 0, ALL).result()

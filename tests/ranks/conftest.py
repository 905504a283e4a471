"""An undisturbed run of two ranks, which several test files share."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from paddlebox.ranks import adopt_stores, sightings
from tests.conftest import make_synthetic
from tests.ranks.launched import launch
from tests.support.shared import once, own_copy


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return once(
        tmp_path_factory,
        "ranks-data",
        lambda folder: make_synthetic(folder, passes=8, rows=4000, test_rows=2000),
    )


@pytest.fixture(scope="session")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    def make(folder: Path) -> None:
        done = launch("train", folder / "run", data, "trainer.evaluate_passes=after")
        assert done.returncode == 0, done.stdout + done.stderr

    return own_copy(tmp_path_factory, "undisturbed-ranks", make) / "run"


@pytest.fixture(autouse=True)
def _one_look_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that are threads of one process cannot have a manifest open at the same time."""
    lock, look = threading.Lock(), sightings.look

    def locked(store: Path) -> Any:
        with lock:
            return look(store)

    monkeypatch.setattr(adopt_stores, "look", locked)

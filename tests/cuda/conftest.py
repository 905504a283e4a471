"""The library under test: of a GPU with PADDLEBOX_HBM_DEVICE=gpu, else the one whose device is the
host. These tests need pytest and numpy, and neither Paddle nor the package."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cuda.hbm_library import Library, Reference, build


@pytest.fixture(params=["", "1"], ids=["at once", "late"])
def late(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether streams of the host build work when the host waits for them."""
    monkeypatch.setenv("PADDLEBOX_DEVICE_LATE", request.param)


@pytest.fixture(scope="session")
def folder() -> Path:
    return build(os.environ.get("PADDLEBOX_HBM_DEVICE", "host"))


@pytest.fixture(scope="session")
def library(folder: Path) -> Library:
    device = os.environ.get("PADDLEBOX_HBM_DEVICE", "host")
    return Library(folder / f"libpbx_hbm_{device}.so")


@pytest.fixture(scope="session")
def reference(folder: Path) -> Reference:
    return Reference(folder / "libpbx_reference.so")

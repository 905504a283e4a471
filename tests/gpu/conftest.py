"""The device of the stock Paddle wheel with the host as the device, built from ops/gpu."""

from __future__ import annotations

import fcntl
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.processes import ROOT


@pytest.fixture(scope="session")
def paddle_folder() -> Path:
    spec = find_spec("paddle")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


@pytest.fixture(scope="session")
def device(paddle_folder: Path) -> dict[str, str]:
    """The environment of programs whose `hbm.place: gpu` is that device."""
    folder = ROOT / "build/gpu"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:  # tests run in several processes
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(
            ["make", "-C", "ops/gpu", "-j2", "host", f"PADDLE={paddle_folder}"],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, f"make host in ops/gpu:\n{done.stdout}{done.stderr}"
    return {"CUSTOM_DEVICE_ROOT": str(folder / "host"), "OMP_NUM_THREADS": "1"}

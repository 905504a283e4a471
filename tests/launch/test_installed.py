"""What the scripts of tools/ say to a Python that has no paddlebox."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.launch.test_sigpipe import SCRIPTS


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_python_without_paddlebox_is_named_in_one_line(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-S", str(ROOT / "tools" / name)],  # -S: without site-packages
        cwd=tmp_path,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"{name}: {sys.executable} has no package paddlebox. Run the tool with " in done.stderr
    assert "install paddlebox into" in done.stderr
    assert len(done.stderr.splitlines()) == 1

"""A run over a stream that is killed, while its broker is killed too, trains each record once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults.kill_stream import kill_streams
from tests.support.marks import long

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("some", [2, long(8)])
def test_killed_streams_train_each_record_once(tmp_path: Path, some: int) -> None:
    """Some kills; `python -m tests.faults.kill_stream` makes them 100. PBX_KILLS, PBX_SEED."""
    kills, seed = int(os.environ.get("PBX_KILLS", some)), int(os.environ.get("PBX_SEED", "1"))
    report, _ = kill_streams(tmp_path, kills, seed)
    assert not report.wrong, "\n".join(report.wrong)
    assert report.runs >= 1

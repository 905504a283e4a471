"""A short week that is killed, as kill_week.py makes whole ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults.kill_week import kill_week, make_week


@pytest.mark.long
def test_a_killed_week_trains_and_serves_what_an_undisturbed_one_does(tmp_path: Path) -> None:
    """`python -m tests.faults.kill_week --kills 20` is the whole. PBX_KILLS, PBX_SEED."""
    kills, seed = int(os.environ.get("PBX_KILLS", "4")), int(os.environ.get("PBX_SEED", "1"))
    report = kill_week(tmp_path, make_week(tmp_path, 30, 150, 0.1), kills, seed)
    assert not report.wrong, "\n".join(report.wrong)
    assert report.kills >= kills // 2  # the others came after the end
    assert report.starts == report.kills + 2

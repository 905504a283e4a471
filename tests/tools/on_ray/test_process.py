"""The process of a rank, as its actor starts, watches and ends it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from paddlebox.tools.on_ray import rank
from paddlebox.tools.on_ray.job import Order, Report
from paddlebox.tools.on_ray.rank import RankProcess
from tests.conftest import PATIENCE_S, ROOT


def started(program: str, *arguments: object, grace_s: float = 60.0) -> RankProcess:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    one = RankProcess(3, command, {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}, grace_s)
    assert one.report() == Report()
    one.obey(Order("run", 1), up=False)
    return one


def until(one: RankProcess, holds: Callable[[Report], bool], order: Order | None = None) -> Report:
    deadline = time.monotonic() + PATIENCE_S
    while not holds(report := one.report()):
        assert time.monotonic() < deadline, report
        one.obey(order or Order("run", 1), report.up)
        time.sleep(0.02)
    return report


def has_ended(report: Report) -> bool:
    return not report.up


STEPS = """
import sys, time
from paddlebox import heartbeat
beats = heartbeat.of_process()
beats.committed(4)
for step in beats.steps([1, 2]):
    beats.waits(1, "exchange")
    while step == 2:
        time.sleep(0.01)
"""


def test_the_report_of_a_rank_has_what_its_heartbeat_says() -> None:
    one = started(STEPS)
    found = one.report().rank
    assert found is not None
    assert (found.stage, found.count, found.passes, found.code) == ("start", 0, -1, None)
    found = until(one, lambda it: it.rank is not None and it.rank.text == "2").rank
    assert found is not None
    assert (found.number, found.stage, found.passes, found.waits) == (3, "step", 4, "1 exchange")
    assert found.count == 5  # start, committed, step 1, load, step 2
    idle_s = found.idle_s
    time.sleep(0.1)
    found = one.report().rank
    assert found is not None
    assert found.idle_s > idle_s
    found = until(one, has_ended, Order("end", 1)).rank
    assert found is not None
    assert found.code == -15


def test_another_attempt_starts_from_an_empty_heartbeat() -> None:
    one = started("raise SystemExit(4)")
    found = until(one, has_ended).rank
    assert found is not None
    assert found.code == 4
    one.obey(Order("run", 2), up=False)
    again = one.report()
    assert again.attempt == 2
    assert again.rank is not None
    assert again.rank.pid != found.pid
    until(one, has_ended, Order("run", 2))


_DEAF = """
import os, pathlib, signal, sys, time
from paddlebox import heartbeat
beats = heartbeat.of_process()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
beats.stage(sys.argv[1])
pathlib.Path(sys.argv[2]).touch()
time.sleep(2)
open(sys.argv[3], "w").close()
os._exit(1)
"""


@pytest.mark.parametrize("stage", ["rescue", "step"])
def test_a_rank_that_keeps_its_rows_after_a_death_is_left_the_time(
    stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank, "_ENDING_S", 0.1)
    ready, kept = tmp_path / "ready", tmp_path / "kept"
    one = started(_DEAF, stage, ready, kept)
    until(one, lambda _: ready.exists())
    found = until(one, has_ended, Order("end", 1)).rank
    assert found is not None
    assert (found.code, kept.exists()) == ((1, True) if stage == "rescue" else (-9, False))


def test_a_rank_that_does_not_end_its_pass_in_time_is_killed(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    one = started(_DEAF, "step", ready, tmp_path / "kept", grace_s=0.1)
    until(one, lambda _: ready.exists())
    found = until(one, has_ended, Order("stop", 1)).rank
    assert found is not None
    assert found.code == -9


_LEAVES = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    open(sys.argv[1], "w").write(str(os.getpid()))
    time.sleep(600)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
"""


_REAPER = """
import sys
from pathlib import Path
from paddlebox.tools.on_ray import rank
from tests.tools.on_ray import test_process as own
rank.become_reaper()
one = own.started(own._LEAVES, sys.argv[1])
own.until(one, own.has_ended)
child = int(Path(sys.argv[1]).read_text())
own.until(one, lambda _: rank._state(child) == "")
"""


def test_what_a_rank_has_started_ends_with_it(tmp_path: Path) -> None:
    """In a process of its own: a reaper also ends the servers that other tests have started."""
    command = [sys.executable, "-c", _REAPER, str(tmp_path / "child")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

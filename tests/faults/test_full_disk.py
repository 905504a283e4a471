"""A disk that is full for one kind of file ends what writes it, with its name; where there is room
again the same command ends as if it had never been."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, tool
from tests.faults.crash_images import build_preloaded
from tests.faults.kill_run import Run
from tests.faults.runs import ALL, FIRST, ended, feasigns_of, predictions, trained
from tests.support.marks import long

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("on", "after"),
    [
        long("/dense/", 200_000),
        long("/dense/", 100),
        ("/MANIFEST-", 20_000),
        long("/manifest/data.mdb", 100_000),
        long("/saves/", 30_000),
        long("/saves/", 0),
        long("/metrics.jsonl", 3_000),
        long("/config.json", 100),
        long("/summary.json", 0),
    ],
)
def test_a_disk_that_is_full_for_one_kind_of_file(
    on: str, after: int, data: Path, whole: dict[str, Any], tmp_path: Path
) -> None:
    full = str(build_preloaded(tmp_path, "full"))
    run = Run(tmp_path / "r", data, 0, ALL)
    process = run.start(LD_PRELOAD=full, PBX_FULL_ON=on, PBX_FULL_AFTER=str(after))
    log = ended(process)
    assert process.returncode == 4, log
    assert on.strip("/").partition("/")[0] in log.splitlines()[-1]
    assert "o space" in log.splitlines()[-1]
    trained(run)
    assert run.result() == whole


@pytest.mark.parametrize("everywhere", [False, long(True)])
def test_an_export_file_that_finds_no_room_is_none_and_an_old_one_stays_as_it_is(
    everywhere: bool, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    run, path, fresh = Run(tmp_path / "r", data, 0, FIRST), tmp_path / "served", tmp_path / "fresh"
    full = {"LD_PRELOAD": str(build_preloaded(tmp_path, "full")), "PBX_FULL_ON": "/served"}
    run_dir = run.folder / "run"
    trained(run)
    for after in ("9000", *(("0", "60000") if everywhere else ())):
        done = tool("export", run_dir, "--out", path, env={**full, "PBX_FULL_AFTER": after})
        assert done.returncode == 4, done.stderr
        assert "o space" in done.stderr
        assert not path.exists()
    programs = [("/model.json", "4096"), ("/model.json", "0"), ("/model.pdip", "0")]
    for part, after in programs if everywhere else programs[:1]:
        room = {**full, "PBX_FULL_ON": part, "PBX_FULL_AFTER": after}
        done = tool("export", run_dir, "--out", path, env=room)
        assert done.returncode == 4, done.stderr
        assert "Paddle could not save the whole program" in done.stderr
    assert tool("export", run_dir, "--out", path).returncode == 0
    run.files = ALL
    trained(run)
    feasigns = feasigns_of(run_dir)
    before = predictions(path, feasigns)
    done = tool("export", path, "--apply", run_dir, env={**full, "PBX_FULL_AFTER": "9000"})
    assert done.returncode == 4, done.stderr
    assert predictions(path, feasigns) == before
    assert tool("export", path, "--apply", run_dir).returncode == 0
    assert tool("export", run_dir, "--out", fresh).returncode == 0
    assert predictions(path, feasigns) == predictions(fresh, feasigns) != before

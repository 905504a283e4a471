"""What is killed on its way, by SIGKILL, leaves nothing half made, and the same command ends as if
it had never been: exports, warm starts, copies, the files that are left out."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from paddlebox.store.copies import restore
from paddlebox.store.version_store import VersionStore
from paddlebox.tools.upkeep.verify import verify
from tests.conftest import ROOT, tool
from tests.faults.crash_images import build_preloaded
from tests.faults.kill_run import Run, check_killed
from tests.faults.runs import ALL, FIRST, ended, feasigns_of, predictions, trained
from tests.support.marks import long

pytestmark = pytest.mark.slow


def killing(recorder: Path, root: Path, on: str, at: int) -> dict[str, str]:
    """The environment of a process that ends itself at a change of a file."""
    return {
        "LD_PRELOAD": str(recorder),
        "PBX_ROOT": str(root),
        "PBX_KILL_ON": on,
        "PBX_KILL_AT": str(at),
    }


def killed_at(run: Run, recorder: Path, moments: list[tuple[str, int]], *more: str) -> int:
    """Starts a run again and again, each time killed at a moment; returns how often it was. What is
    left each time is sound, and no commit is lost."""
    kills = 0
    for on, at in moments:
        seen = run.head()
        process = run.start(*more, preexec=None, **killing(recorder, run.folder, on, at))
        log = ended(process)
        assert process.returncode in (0, -signal.SIGKILL), log
        kills += process.returncode != 0
        assert check_killed(run, seen) == []
    return kills


@pytest.mark.parametrize("changes", [(2, 9), long((1, 3, 5, 14))])
def test_an_export_that_is_killed_leaves_no_file_and_can_be_made_again(
    changes: tuple[int, ...], data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    run, path, fresh = Run(tmp_path, data, 0, FIRST), tmp_path / "m", tmp_path / "fresh"
    recorder = build_preloaded(tmp_path)
    trained(run)
    assert tool("export", tmp_path / "run", "--out", fresh).returncode == 0
    feasigns = feasigns_of(tmp_path / "run")
    expected = predictions(fresh, feasigns)
    killed = 0
    for change in changes:
        done = tool(
            "export", tmp_path / "run", "--out", path, env=killing(recorder, tmp_path, "/m", change)
        )
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        killed += done.returncode != 0
        if path.exists():  # renamed, and killed after that
            assert predictions(path, feasigns) == expected
            path.unlink()
    assert killed >= len(changes) - 1
    done = tool("export", tmp_path / "run", "--out", path)
    assert done.returncode == 0, done.stderr
    assert predictions(path, feasigns) == expected
    left = {p.name for p in tmp_path.iterdir() if p.name.startswith("m")}
    assert left <= {"m", "m-lock", "m-writer"}


@pytest.mark.long
def test_an_apply_that_is_killed_leaves_a_file_that_is_read_and_applied_to(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    run, path, fresh = Run(tmp_path, data, 0, FIRST), tmp_path / "m", tmp_path / "fresh"
    recorder = build_preloaded(tmp_path)
    trained(run)
    done = tool("export", tmp_path / "run", "--out", path)
    assert done.returncode == 0, done.stderr
    run.files = ALL
    trained(run)
    assert tool("export", tmp_path / "run", "--out", fresh).returncode == 0
    feasigns = feasigns_of(tmp_path / "run")
    before, after = predictions(path, feasigns), predictions(fresh, feasigns)
    assert before != after
    apply = ("export", path, "--apply", tmp_path / "run")
    for change in (2, 5, 9, 14):
        done = tool(*apply, env=killing(recorder, tmp_path, "/m", change))
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        found = predictions(path, feasigns)
        assert found in (before, after)
        if done.returncode == 0 or found == after:
            break
    assert change > 4  # it was killed on the way
    done = tool(*apply)
    assert done.returncode == 0 or "holds version" in done.stderr, done.stderr
    assert predictions(path, feasigns) == after


@pytest.mark.long
def test_a_killed_warm_start_begins_again_and_ends_as_undisturbed(
    data: Path, tmp_path: Path
) -> None:
    recorder = build_preloaded(tmp_path)
    source = Run(tmp_path / "source", data, 0, "train-01[0-3]")
    trained(source)
    init = f"--init-from={source.folder}/run"
    undisturbed = Run(tmp_path / "undisturbed", data, 0, FIRST)
    trained(undisturbed, init)
    run = Run(tmp_path / "killed", data, 0, FIRST)
    moments = [
        ("", 3), ("/ssd/", 1), ("/ssd/", 6), ("/dense/", 2), ("/MANIFEST-", 1),
        ("/manifest/data.mdb", 3), ("/init.json", 1), ("/MANIFEST-", 7), ("/ssd/", 2), ("", 9),
    ]  # fmt: skip
    assert killed_at(run, recorder, moments, init) >= 8
    trained(run, init)
    assert run.result() == undisturbed.result()
    assert verify(run.store).damage == []


@pytest.mark.long
def test_copies_of_a_run_that_is_killed_are_whole_or_none(
    data: Path, whole: dict[str, Any], tmp_path: Path
) -> None:
    recorder = build_preloaded(tmp_path)
    run, copies = Run(tmp_path / "r", data, 0, ALL), tmp_path / "r/copies"
    copied = f"checkpoint.copy_to={copies}"
    restored = 0
    for number, at in enumerate((1, 4, 9, 40, 90, 150)):
        killed_at(run, recorder, [("/copies/", at)], copied)
        labels = copies / "checkpoints"
        names = [p.name for p in labels.iterdir() if p.suffix != ".tmp"] if labels.is_dir() else []
        for name in names:
            restored += 1
            record = restore(str(copies), tmp_path / f"restored-{number}-{name}", name)
            folder = tmp_path / f"restored-{number}-{name}" / "store"
            assert verify(folder).damage == []
            with VersionStore.open_reader(folder) as manifest:
                assert manifest.newest() == record
    assert restored >= 2
    trained(run, copied)
    assert run.result() == whole
    restore(str(copies), tmp_path / "last")
    found = json.loads(tool("store", "digest", tmp_path / "last", "--json").stdout)
    assert (found["sparse_digest"], found["dense_digest"]) == whole["digests"]


@pytest.mark.long
def test_files_that_are_left_out_stay_out_however_often_it_is_killed(
    data: Path, tmp_path: Path
) -> None:
    recorder = build_preloaded(tmp_path)
    undisturbed, run = (Run(tmp_path / name, data, 0, FIRST) for name in ("undisturbed", "killed"))
    skip = "--skip-files=train-00[67].txt"
    for one in (undisturbed, run):
        one.files = "train-00[0-3]"
        trained(one)
        one.files = FIRST
    trained(undisturbed, skip)
    lines = undisturbed.result()["lines"]
    assert [len(line["files"]) for line in lines] == [2, 2, 2]
    # The first start says it, and is killed as soon as it is recorded; the others need not.
    before = run.head()
    assert killed_at(run, recorder, [("/manifest/data.mdb", 2)], skip) == 1
    if run.head() == before:  # killed before that, so it is to be said again
        assert killed_at(run, recorder, [("/ssd/", 1)], skip) == 1
    killed_at(run, recorder, [("/ssd/", 1), ("/MANIFEST-", 1), ("", 20)])
    trained(run)
    assert run.result() == undisturbed.result()

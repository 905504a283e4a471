"""Runs over two tables that are stopped, killed, taken back, copied, and started again."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import tool
from tests.e2e.test_resume_cli import digests, passes
from tests.e2e.test_several_tables import CONFIG, overrides
from tests.support.marks import long
from tests.support.processes import start_tool


def arguments(data: Path, run_dir: Path, *more: str) -> list[str]:
    options = [text for text in more if text.startswith("-")]
    rest = [text for text in more if not text.startswith("-")]
    shuffled = ["data.shuffle=true", "trainer.epochs=2", "model.dropout=0.2"]
    words = overrides(data, *shuffled, *rest)
    return ["-c", CONFIG, "--run-dir", str(run_dir), *options, *words]


def trained(*words: str) -> Any:
    done = tool("train", *words)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def unbroken(wide_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six passes, of three files twice."""
    run_dir = tmp_path_factory.mktemp("runs") / "unbroken"
    trained(*arguments(wide_data, run_dir, "checkpoint.keep_versions=9"))
    return run_dir


@pytest.mark.slow
@pytest.mark.parametrize("every", ["pass", long("2")])
def test_killed_and_started_again_it_ends_as_unbroken(
    wide_data: Path, tmp_path: Path, unbroken: Path, every: str
) -> None:
    run_dir, more = tmp_path / "r", [f"checkpoint.every={every}", "checkpoint.keep_versions=9"]
    for versions in (1, 2):
        trainer = start_tool("train", *arguments(wide_data, run_dir, *more))
        # Between the commits of the tables, or just after: the other one is written first.
        wide = run_dir / "store" / "tables" / "wide"
        while len(list(wide.glob("MANIFEST-*"))) < versions and trainer.poll() is None:
            time.sleep(0.01)
        trainer.kill()
        _, stderr = trainer.communicate()
        assert "Error" not in stderr
    assert not (run_dir / "summary.json").exists()
    trained(*arguments(wide_data, run_dir, *more))
    assert digests(run_dir) == digests(unbroken)
    assert passes(run_dir) == passes(unbroken) == [1, 2, 3, 4, 5, 6]
    stat = json.loads(tool("store", "stat", run_dir, "--json").stdout)
    assert stat["version"] >= (6 if every == "pass" else 3)  # merges have versions, too


@pytest.mark.slow
def test_going_back_naming_and_copying_are_of_all_tables(
    wide_data: Path, tmp_path: Path, unbroken: Path
) -> None:
    run_dir, remote = tmp_path / "r", tmp_path / "remote"
    keep = "checkpoint.keep_versions=9"
    trained(*arguments(wide_data, run_dir, keep, f"checkpoint.copy_to={remote}"))
    assert tool("store", "name", run_dir, "2", "good").returncode == 0
    done = trained(*arguments(wide_data, run_dir, "--from=good"))
    assert "went back to version 2, dropped [" in done.stderr
    assert "tables/wide: versions [" in done.stderr
    assert digests(run_dir) == digests(unbroken)
    done = tool("store", "restore", remote, tmp_path / "new")
    assert done.returncode == 0, done.stderr
    trained(*arguments(wide_data, tmp_path / "new"))
    assert digests(tmp_path / "new") == digests(unbroken)


@pytest.mark.slow
def test_keys_of_tables_may_change_as_those_of_the_first(
    wide_data: Path, tmp_path: Path, unbroken: Path
) -> None:
    more = [
        "extra_tables.wide.embedx.initial_range=0.5",
        "extra_tables.wide.embed.learning_rate=0.5",
    ]
    done = tool("train", *arguments(wide_data, unbroken, *more, "extra_tables.wide.share=2.0"))
    assert done.returncode == 2
    differing = done.stderr.split("cannot go on with this one:")[1]
    assert "extra_tables.wide.embedx.initial_range: was" in differing
    assert "learning_rate" not in differing
    assert "share" not in differing


@pytest.mark.long
def test_files_are_left_out_of_all_tables_alike(wide_data: Path, tmp_path: Path) -> None:
    back, once = tmp_path / "back", tmp_path / "once"
    words = arguments(wide_data, back, "checkpoint.keep_versions=9")
    trained(*words)
    lines = (back / "metrics.jsonl").read_text().splitlines()
    skip = f"--skip-files={json.loads(lines[1])['files'][0]}"
    trained("--from=3", skip, *words)
    assert passes(back) == [1, 2, 3, 4, 5]
    assert "all 5 passes are committed" in trained(*words).stderr
    trained(*arguments(wide_data, once, "trainer.epochs=1"))
    trained(skip, *arguments(wide_data, once))
    assert digests(once) == digests(back)
    verified = [tool("store", "verify", back / "store" / where) for where in ("", "tables/wide")]
    assert [done.returncode for done in verified] == [0, 0]

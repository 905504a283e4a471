"""Which sources `make tidy DAYS=1` checks."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.ci import scripts

tidy = scripts.load("tidy")
SOURCES = {
    "ops/base/status.h": "",
    "ops/store/tier.h": '#include "base/status.h"\n',
    "ops/store/a.cc": '#include "store/tier.h"\n',
    "ops/store/b.cc": '#include "store/tier.h"\n',
    "ops/store/c.cc": "",
}


def _commit(root: Path, day: int, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    date = f"2026-01-{day:02} 12:00:00 +0000"
    env = {**os.environ, "GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "add", "-A"], cwd=root, check=True)
    subprocess.run(["git", *who, "commit", "-qm", "x"], cwd=root, env=env, check=True)


def _affected(root: Path) -> list[str]:
    sources = sorted((root / "ops").rglob("*.cc"))
    files = tidy.changed(1)
    found = sources if files is None else tidy.affected(sources, files)
    return [path.name for path in found]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    _commit(tmp_path, 1, SOURCES)
    monkeypatch.setattr(tidy, "ROOT", tmp_path)
    tidy.includes.cache_clear()
    return tmp_path


def test_a_history_of_less_than_a_day_counts_as_changed(root: Path) -> None:
    assert _affected(root) == ["a.cc", "b.cc", "c.cc"]


def test_changed_sources_are_checked_and_one_source_for_a_changed_header(root: Path) -> None:
    _commit(root, 3, {"README.md": "no source"})
    assert _affected(root) == []
    _commit(root, 3, {"ops/store/c.cc": "int c;"})
    assert _affected(root) == ["c.cc"]
    (root / "ops/base/status.h").write_text("// not committed\n")
    assert _affected(root) == ["c.cc", "a.cc"]
    (root / "ops/store/b.cc").write_text('#include "store/tier.h"\n\n')
    assert _affected(root) == ["b.cc", "c.cc"]


def test_a_change_of_the_checks_counts_for_all(root: Path) -> None:
    _commit(root, 3, {".clang-tidy": "Checks: '*'"})
    assert _affected(root) == ["a.cc", "b.cc", "c.cc"]

"""Which sources .ci/run checks where all take too long."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.ci import scripts

recent = scripts.load("recent")
FILES = {
    "ops/base/status.h": "",
    "ops/store/tier.h": '#include "base/status.h"\n',
    "ops/store/a.cc": '#include "store/tier.h"\n',
    "ops/store/b.cc": '#include "store/tier.h"\n',
    "ops/store/tier.cc": '#include "store/tier.h"\n',
    "tests/ops/store/suite.h": '#include "store/tier.h"\n',
    "tests/ops/store/test_suite.cc": '#include "suite.h"\n',
    "tests/ops/store/test_tier.cc": '#include "store/tier.h"\n',
}


def _commit(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "add", "-A"], cwd=root, check=True)
    subprocess.run(["git", *who, "commit", "-qm", "x"], cwd=root, check=True)


def _chosen(root: Path, folder: str, most: int) -> list[str]:
    sources = sorted((root / folder).rglob("*.cc"))
    return [path.name for path in recent.choose(sources, most)]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    monkeypatch.setattr(recent, "ROOT", tmp_path)
    recent.direct.cache_clear()
    recent.includes.cache_clear()
    _commit(tmp_path, FILES)
    return tmp_path


def test_the_files_that_changed_last_come_first_and_those_that_are_not_committed_before(
    root: Path,
) -> None:
    assert _chosen(root, "ops", 9) == ["a.cc", "b.cc", "tier.cc"]
    _commit(root, {"ops/store/tier.cc": '#include "store/tier.h"\n// 1\n', "README.md": ""})
    _commit(root, {"ops/store/b.cc": '#include "store/tier.h"\n// 1\n'})
    assert _chosen(root, "ops", 9) == ["b.cc", "tier.cc", "a.cc"]
    (root / "ops/store/a.cc").write_text("// not committed\n")
    assert _chosen(root, "ops", 2) == ["a.cc", "b.cc"]
    (root / "ops/store/new.cc").write_text("// not known to git\n")
    assert _chosen(root, "ops", 1) == ["new.cc"]


def test_a_header_chooses_a_source_that_includes_it_unless_one_is_chosen(root: Path) -> None:
    _commit(root, {"ops/base/status.h": "// 1\n"})
    assert _chosen(root, "ops", 1) == ["a.cc"]
    assert _chosen(root, "tests/ops", 1) == ["test_suite.cc"]
    _commit(root, {"ops/store/b.cc": '#include "store/tier.h"\n// 1\n'})
    assert _chosen(root, "ops", 2) == ["b.cc", "a.cc"]  # a.cc for itself, in the first commit


def test_a_file_chooses_the_test_of_its_name_or_else_one_that_includes_its_header(
    root: Path,
) -> None:
    for name in ("ops/store/tier.cc", "ops/store/tier.h"):
        _commit(root, {name: FILES[name] + f"// {name}\n"})
        assert _chosen(root, "tests/ops", 1) == ["test_tier.cc"]
    _commit(root, {"tests/ops/store/suite.h": '#include "store/tier.h"\n// 1\n'})
    assert _chosen(root, "tests/ops", 1) == ["test_suite.cc"]


def test_a_file_that_was_removed_chooses_none(root: Path) -> None:
    _commit(root, {"ops/store/c.cc": ""})
    (root / "ops/store/c.cc").unlink()
    _commit(root, {})
    assert _chosen(root, "ops", 1) == ["a.cc"]


def test_a_file_without_test_and_header_chooses_by_the_headers_of_its_folder(root: Path) -> None:
    other = {"ops/store/zz.h": "", "tests/ops/store/test_zz.cc": '#include "store/zz.h"\n'}
    _commit(root, other)
    _commit(root, {"ops/store/tier_fast.cc": '#include "store/tier.h"\n'})
    assert _chosen(root, "tests/ops", 1) == ["test_tier.cc"]
    assert _chosen(root, "tests/ops", 2) == ["test_tier.cc", "test_zz.cc"]


def test_sources_that_no_file_chooses_follow_and_a_tree_in_a_folder_is_found(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _commit(root, {".gitignore": "generated.cc\n"})
    (root / "ops/store/generated.cc").write_text("")
    assert _chosen(root, "ops", 9) == ["a.cc", "b.cc", "tier.cc", "generated.cc"]
    inner = root / "inner"
    _commit(root, {f"inner/{name}": text for name, text in FILES.items()})
    _commit(root, {"inner/ops/store/b.cc": '#include "store/tier.h"\n// 1\n'})
    monkeypatch.setattr(recent, "ROOT", inner)
    assert _chosen(inner, "ops", 1) == ["b.cc"]

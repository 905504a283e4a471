"""A mutant that survives, or that cannot be judged, fails the run; the tree stays as it is."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.ci import scripts

mutate = scripts.load("mutate")

CODE = "def double(x):\n    return 2 * x\n\n\ndef unused(x):\n    return x + 1\n"
TEST = "import twice\n\n\ndef test_double():\n    assert twice.double(3) == 6\n"
SLOW = "import time\n\nimport twice\n\n\ndef test_slow():\n    time.sleep(twice.double(0))\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "tests/mutants").mkdir(parents=True)
    (tmp_path / "twice.py").write_text(CODE)
    (tmp_path / "tests/test_twice.py").write_text(TEST)
    (tmp_path / "tests/test_slow.py").write_text(SLOW)
    (tmp_path / ".gitignore").write_text("build/\n")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    return tmp_path


def add(
    tree: Path,
    old: str,
    new: str,
    test: str = "test_twice.py",
    timeout_s: int = 60,
    file: str = "twice.py",
) -> None:
    with open(tree / "tests/mutants/list.toml", "a") as mutants:
        mutants.write(
            f'[[mutant]]\nbreaks = "the promise"\nfile = "{file}"\nold = "{old}"\n'
            f'new = "{new}"\ntest = "tests/{test}"\ntimeout_s = {timeout_s}\n'
        )


CORE = {
    "ops/base/scale.h": "#pragma once\ninline int Scale() { return 2; }\nconstexpr int kOne = 1;\n",
    "ops/base/twice.h": "int Twice(int x);\n",
    "ops/base/twice.cc": '#include "base/twice.h"\n\n#include "base/scale.h"\n'
    "int Twice(int x) { return Scale() * x; }\n",
    # No test links it.
    "ops/base/other.cc": '#include "base/scale.h"\nstatic_assert(kOne == 1);\n',
    "tests/ops/base/test_twice.cc": '#include "base/twice.h"\n#include "check.h"\n'
    "TEST(twice_three_is_six) { CHECK_EQ(Twice(3), 6); }\n",
}


@pytest.fixture
def core(tree: Path) -> Path:
    """The tree with a core of one test, which is built."""
    for name in ("Makefile", "standard.h", "check.h", "check_main.cc", "../../ops/base/status.h"):
        (tree / "tests/ops" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(mutate.ROOT / "tests/ops" / name, tree / "tests/ops" / name)
    for name, text in CORE.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    program = tree / "build/core/plain/tests/ops/base/test_twice"
    make = ["make", "-C", "tests/ops", "-j2", "VARIANT=plain", str(program)]
    subprocess.run(make, cwd=tree, check=True, capture_output=True)
    return tree


def run(tree: Path, *arguments: str) -> int:
    return int(mutate.main(["--jobs", "1", *arguments], tree))


@pytest.mark.slow
def test_a_mutant_is_killed_by_a_test_that_fails(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add(tree, "2 * x", "3 * x")
    assert run(tree) == 0
    out = capsys.readouterr().out
    assert "1 of 1 mutants killed" in out
    assert "FAILED tests/test_twice.py::test_double" in out  # by which test
    assert (tree / "twice.py").read_text() == CODE


@pytest.mark.slow
def test_a_mutant_that_no_test_notices_survives(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add(tree, "2 * x", "3 * x")
    add(tree, "x + 1", "x + 2")
    assert run(tree) == 1
    out = capsys.readouterr().out
    assert "SURVIVED" in out
    assert "1 of 2 mutants killed" in out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "test", "why"),
    [
        ("4 * x", "3 * x", "test_twice.py", "old occurs 0 times in twice.py, expected once"),
        ("return", "yield", "test_twice.py", "old occurs 2 times in twice.py, expected once"),
        ("2 * x", "2 * x", "test_twice.py", "old and new are the same text"),
        ("2 * x", "3 * x", "test_none.py", "there is no such test"),
        (
            "2 * x",
            "3 * x",
            "test_twice.py::test_none",
            "pytest tests/test_twice.py::test_none ends",
        ),
    ],
)
def test_a_mutant_that_cannot_be_judged_fails_the_run(
    tree: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, test: str, why: str
) -> None:
    add(tree, old, new, test)
    assert run(tree) == 1
    assert why in capsys.readouterr().out


@pytest.mark.long
def test_a_test_that_fails_without_the_mutant_judges_nothing(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add(tree, "2 * x", "3 * x")
    (tree / "tests/test_twice.py").write_text(TEST.replace("== 6", "== 7"))
    assert run(tree) == 1
    assert "fails without the mutant" in capsys.readouterr().out


@pytest.mark.long
def test_a_test_that_hangs_with_the_mutant_fails_the_run(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add(tree, "2 * x", "900", "test_slow.py", timeout_s=5)
    assert run(tree) == 1
    out = capsys.readouterr().out
    assert out.startswith("HANGS")
    assert "test_slow.py takes longer than 5 s" in out


@pytest.mark.long
def test_a_mutant_of_the_core_is_compiled_into_what_its_test_links_and_leaves_nothing(
    core: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    built = {path: path.stat().st_mtime_ns for path in core.rglob("build/core/**/*.o")}
    core_test = "ops/base/test_twice.cc"
    add(core, "return 2", "return 3", core_test, file="ops/base/scale.h")
    add(core, "kOne = 1", "kOne = 2", core_test, file="ops/base/scale.h")  # breaks only other.cc
    add(core, "return Scale", "return 1 + Scale", core_test, file="ops/base/twice.cc")
    add(core, "return Scale", "turn Scale", core_test, file="ops/base/twice.cc")
    assert run(core) == 1
    lines = capsys.readouterr().out.splitlines()
    outcomes = [line.split()[0] for line in lines if "the promise" in line]
    assert outcomes == ["killed", "SURVIVED", "killed", "ERROR"]
    assert lines.count("  FAILED twice_three_is_six") == 2
    assert any("test_twice.cc does not compile" in line for line in lines)
    for path, time_ns in built.items():
        assert path.stat().st_mtime_ns == time_ns
        copy = core / "build/mutants/copy-0" / path.relative_to(core)
        assert copy.read_bytes() == path.read_bytes()


@pytest.mark.long
def test_shards_are_parts_of_the_list(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add(tree, "2 * x", "3 * x")
    add(tree, "2 * x", "4 * x")
    add(tree, "x + 1", "x + 2")
    codes = [run(tree, "--shard", f"{part}/2") for part in (1, 2)]
    out = capsys.readouterr().out
    assert sorted(codes) == [0, 1]
    assert "of 2 mutants killed" in out
    assert "of 1 mutants killed" in out


def test_an_entry_with_a_wrong_key_is_refused(tree: Path) -> None:
    (tree / "tests/mutants/list.toml").write_text('[[mutant]]\nbreak = "x"\n')
    with pytest.raises(SystemExit, match=r"list\.toml: mutant 1: expected the keys breaks, file"):
        run(tree)


def test_every_mutant_of_the_project_applies() -> None:
    """A change of the code that a mutant names also changes the mutant."""
    mutants = mutate.read_mutants(mutate.ROOT / "tests/mutants")
    for mutant in mutants:
        mutant.check(mutate.ROOT)

"""A mutant that survives, or that cannot be judged, fails the run; the tree stays as it is."""

from __future__ import annotations

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


def add(tree: Path, old: str, new: str, test: str = "test_twice.py", timeout_s: int = 60) -> None:
    with open(tree / "tests/mutants/list.toml", "a") as file:
        file.write(
            f'[[mutant]]\nbreaks = "the promise"\nfile = "twice.py"\nold = "{old}"\n'
            f'new = "{new}"\ntest = "tests/{test}"\ntimeout_s = {timeout_s}\n'
        )


def run(tree: Path, *arguments: str) -> int:
    return int(mutate.main(["--jobs", "1", *arguments], tree))


def test_a_mutant_is_killed_by_a_test_that_fails(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add(tree, "2 * x", "3 * x")
    assert run(tree) == 0
    assert "1 of 1 mutants killed" in capsys.readouterr().out
    assert (tree / "twice.py").read_text() == CODE


def test_a_mutant_that_no_test_notices_survives(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add(tree, "2 * x", "3 * x")
    add(tree, "x + 1", "x + 2")
    assert run(tree) == 1
    out = capsys.readouterr().out
    assert "SURVIVED" in out
    assert "1 of 2 mutants killed" in out


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


def test_a_test_that_fails_without_the_mutant_judges_nothing(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add(tree, "2 * x", "3 * x")
    (tree / "tests/test_twice.py").write_text(TEST.replace("== 6", "== 7"))
    assert run(tree) == 1
    assert "fails without the mutant" in capsys.readouterr().out


def test_a_test_that_hangs_with_the_mutant_fails_the_run(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add(tree, "2 * x", "900", "test_slow.py", timeout_s=5)
    assert run(tree) == 1
    assert "takes longer than 5 s" in capsys.readouterr().out


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

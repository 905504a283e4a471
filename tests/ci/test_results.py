"""The figures of the docs are those of published runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.ci import scripts

results = scripts.load("results", "benchmarks")

PAGE = "# Results\n\n<!-- begin one -->\n\n| a |\n\n<!-- end one -->\n\nThe end.\n"
ABOUT = "4.8 GB of rows with 1.2 GB of memory"


def goal(name: str, value: float | None, outcome: str) -> dict[str, Any]:
    fields = {"name": name, "outcome": outcome, "at_least": 0.75}
    if value is None:
        return fields | {"why": "no GPU"}
    return fields | {"value": value, "quartiles": [value - 0.1, value + 0.1], "turns": [value]}


def run_of(script: str, **changed: Any) -> dict[str, Any]:
    machine = {"processor": "Xeon", "cores": 2, "memory_bytes": 16 << 30, "gpu": None}
    return {
        "command": [f"{script}.py"],
        "commit": "1234abc",
        "date": "2026-01-02T03:04:05+00:00",
        "machine": machine,
        "settings": {},
        "seconds": 120,
        "figures": {"a": 1},
        "goals": [
            goal("a rate", 0.8, "ok"),
            goal("b", 0.5, "MISSED"),
            goal("c", None, "not measured"),
        ],
    } | changed


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tree with a page, a README and a published run."""
    readme = "".join(f"\n| {about} | 1 | x |\n" for about in results.HEADLINES)
    for name, text in {"docs/results.md": PAGE, "README.md": readme}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    publish(tmp_path, "one", run_of("one"))
    return tmp_path


def publish(root: Path, name: str, run: dict[str, Any]) -> None:
    file = root / f"benchmarks/published/{name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(run))


def wrong(root: Path) -> list[str]:
    return list(results.Results(root).wrong())


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_the_pages_show_what_the_published_runs_found() -> None:
    assert list(results.Results().wrong()) == []


def test_a_published_run_fills_its_tables(root: Path) -> None:
    run = run_of("one", command=["one.py", "part", "--seeds", "5"])
    run["machine"]["instructions"] = ["avx2", "amx_tile"]
    publish(root, "one", run)
    assert any("differs" in line for line in wrong(root))
    assert results.Results(root).tables() == [root / "docs/results.md"]
    text = (root / "docs/results.md").read_text()
    assert "`python benchmarks/one.py part --seeds 5`, 2026-01-02, commit 1234abc, 2 min" in text
    assert "2 cores of Xeon with amx_tile, 16 GiB" in text
    assert "| a rate | 0.8 (0.7 to 0.9) | ≥ 0.75 |" in text
    assert "| b | 0.5 (0.4 to 0.6) **missed** | ≥ 0.75 |" in text
    assert "| c | not measured: no GPU | ≥ 0.75 |" in text
    assert text.endswith("<!-- end one -->\n\nThe end.\n")
    assert wrong(root) == []
    assert results.Results(root).tables() == []


def test_a_changed_figure_fails_the_check(root: Path) -> None:
    results.Results(root).tables()
    change(root / "docs/results.md", "0.5 (0.4", "0.8 (0.4")
    (found,) = wrong(root)
    assert found.startswith("docs/results.md: a table differs")


def test_a_changed_headline_fails_the_check(root: Path) -> None:
    goals = [goal("samples/s, of all in memory", 0.86, "ok"), goal("same digest", 1.0, "ok")]
    publish(root, "out_of_memory", run_of("out_of_memory", goals=goals))
    (root / "docs/more.md").write_text("[run](benchmarks/published/out_of_memory.json)\n")
    results.Results(root).tables()
    readme = root / "README.md"
    expected = "0.86 of the speed with all rows in memory, and the same bytes as result"
    assert f"| {ABOUT} | {expected} | x |" in readme.read_text()
    assert wrong(root) == []
    change(readme, "0.86 of", "0.96 of")
    (found,) = wrong(root)
    assert found.startswith("README.md: a table differs")


def test_every_published_run_is_quoted_and_every_quoted_run_is_published(root: Path) -> None:
    results.Results(root).tables()
    publish(root, "two", run_of("two"))
    assert wrong(root) == ["expected benchmarks/published/two.json and a page that quotes it"]
    (root / "benchmarks/published/two.json").rename(root / "benchmarks/published/three.json")
    (root / "docs/more.md").write_text("[three](benchmarks/published/three.json)\n")
    assert wrong(root) == []
    (root / "benchmarks/published/one.json").unlink()
    assert wrong(root) == ["expected benchmarks/published/one.json and a page that quotes it"]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"commit": "1234abc-dirty"}, "expected a commit without changes, found 1234abc-dirty"),
        ({"commit": "unknown"}, "expected a commit without changes, found unknown"),
        ({"command": ["one.py", "--quick"]}, "expected the default settings, found --quick"),
        ({"figures": {}}, "measured nothing"),
    ],
)
def test_a_trial_and_a_run_of_a_changed_tree_are_not_published(
    root: Path, changed: dict[str, Any], why: str
) -> None:
    publish(root, "one", run_of("one", **changed))
    results.Results(root).tables()
    assert wrong(root) == [f"benchmarks/published/one.json: {why}"]


@pytest.mark.parametrize(
    ("ends", "code"),
    [
        ({"good": 0}, 0),
        ({"good": 0, "none": 2}, 0),
        ({"good": 0, "missed": 1, "none": 2}, 1),
        ({"good": 0, "broken": None}, 1),
        ({"none": 2}, 2),
    ],
)
def test_repeated_runs_end_with_the_goals_of_each(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    ends: dict[str, int | None],
    code: int,
) -> None:
    """None: the script fails, with Python's exit code 1, before it writes anything."""
    outcomes = {0: "ok", 1: "MISSED"}
    (tmp_path / "benchmarks").mkdir()
    monkeypatch.setattr(results, "ROOT", tmp_path)
    for name, end in ends.items():
        goals = [{"name": "rate", "outcome": outcomes[end]}] if end in outcomes else []
        writes = f"open(sys.argv[3], 'w').write({json.dumps({'goals': goals})!r})" if goals else ""
        stop = "raise OSError" if end is None else f"sys.exit({end})"
        (tmp_path / f"benchmarks/{name}.py").write_text(f"import sys\n{writes}\n{stop}\n")
    runs = {name: {"command": [f"{name}.py", "part"]} for name in ends}
    found = results.repeat(runs, tmp_path)
    assert found == code
    listed = capfd.readouterr().out.partition("== goals\n")[2].splitlines()
    shown = {0: "ok: rate", 1: "MISSED: rate", 2: "not measured", None: "FAILED"}
    assert [re.split(r"\s{2,}|(?<=measured) ", line)[0] for line in listed] == [
        shown[end].partition(":")[0] for end in ends.values()
    ]

"""The figures of the docs are those of published runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.ci import scripts

results = scripts.load("results", "benchmarks")

PAGE = "# Results\n\n<!-- begin one -->\n\nNo run is kept.\n\n<!-- end one -->\n\nThe end.\n"
ABOUT = "4.8 GB of rows with 1.2 GB of memory"


def goal(name: str, value: float | None, outcome: str) -> dict[str, Any]:
    fields = {"name": name, "outcome": outcome, "at_least": 0.75}
    if value is None:
        return fields | {"why": "no GPU"}
    return fields | {"value": value, "quartiles": [value - 0.1, value + 0.1], "turns": [value]}


def run_of(script: str, root: Path, **changed: Any) -> dict[str, Any]:
    path = root / f"benchmarks/{script}.py"
    machine = {"processor": "Xeon", "cores": 2, "memory_bytes": 16 << 30, "gpu": None}
    return {
        "command": [path.name],
        "commit": "1234abc",
        "code": results.measured_code.digests(path, ["ops/base"], root),
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
def tree(tmp_path: Path) -> Any:
    """A tree with a benchmark, the code that it measures, a page and a README."""
    for name, text in {
        "benchmarks/one.py": "MEASURES = ('ops/base',)\n",
        "benchmarks/published/.keep": "",
        "ops/base/file.h": "int a;\n",
        "docs/results.md": PAGE,
        "README.md": "".join(
            f"| {about} | 1 {results.EARLIER} | x |\n" for about in results.HEADLINES
        ),
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return results.Results(tmp_path)


def publish(tree: Any, run: dict[str, Any], force: bool = False) -> Path:
    file = tree.root / "run.json"
    file.write_text(json.dumps(run))
    return Path(tree.publish(file, force))


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_the_pages_show_what_the_published_runs_found() -> None:
    assert list(results.Results().wrong()) == []


def test_a_published_run_fills_its_tables(tree: Any) -> None:
    assert list(tree.wrong()) == []
    run = run_of("one", tree.root)
    run["machine"]["instructions"] = ["avx2", "amx_tile"]
    publish(tree, run)
    assert any("differs" in line for line in tree.wrong())
    assert tree.tables() == [tree.root / "docs/results.md"]
    text = (tree.root / "docs/results.md").read_text()
    assert "`python benchmarks/one.py`, 2026-01-02, commit 1234abc, 2 min" in text
    assert "2 cores of Xeon with amx_tile, 16 GiB" in text
    assert "| a rate | 0.8 (0.7 to 0.9) | ≥ 0.75 | ok |" in text
    assert "| b | 0.5 (0.4 to 0.6) | ≥ 0.75 | **missed** |" in text
    assert "| c | | ≥ 0.75 | not measured: no GPU |" in text
    assert text.endswith("<!-- end one -->\n\nThe end.\n")
    assert list(tree.wrong()) == []
    assert tree.tables() == []


def test_a_difference_of_auc_with_the_goal_in_its_interval_is_a_tie() -> None:
    model = {"runs": [{"auc": 0.8}], "mean": 0.8, "logloss": 0.4}
    less = {"trees": [0.2, -0.1, 0.5], "linear": [0.2, 0.1, 0.5]}
    figures = {
        "trees": {"auc": 0.6, "logloss": 0.5},
        "linear": {"auc": 0.6, "logloss": 0.5},
        "net": model | {"less": less},
    }
    named = ("AUC of net less that of trees", "AUC of net less that of linear")
    found = [goal(name, 0.2, "ok") | {"at_least": 0.0} for name in named]
    text = results.result_tables.zoo_criteo({"figures": figures, "goals": found})
    trees, linear = text.splitlines()[-2:]
    assert trees.endswith("| tie: its interval contains the goal |")
    assert linear.endswith("| ok |")


def test_a_changed_figure_fails_the_check(tree: Any) -> None:
    publish(tree, run_of("one", tree.root))
    tree.tables()
    change(tree.root / "docs/results.md", "0.5 (0.4", "0.8 (0.4")
    (wrong,) = tree.wrong()
    assert wrong.startswith("docs/results.md: a table differs")


def test_a_changed_headline_fails_the_check(tree: Any) -> None:
    (tree.root / "benchmarks/out_of_memory.py").write_text("MEASURES = ()\n")
    block = "<!-- begin out_of_memory -->\n\nNo run is kept.\n\n<!-- end out_of_memory -->\n"
    (tree.root / "docs/more.md").write_text(block)
    goals = [goal("samples/s, of all in memory", 0.86, "ok"), goal("same digest", 1.0, "ok")]
    publish(tree, run_of("out_of_memory", tree.root, goals=goals))
    tree.tables()
    readme = tree.root / "README.md"
    expected = "0.86 of the speed with all rows in memory, and the same bytes as result"
    assert f"| {ABOUT} | {expected} | x |" in readme.read_text()
    assert list(tree.wrong()) == []
    change(readme, "0.86 of", "0.96 of")
    (wrong,) = tree.wrong()
    assert wrong.startswith("README.md: a table differs")


def test_a_figure_without_a_run_says_so(tree: Any) -> None:
    change(tree.root / "docs/results.md", "No run is kept.", "| a | 2 |")
    (wrong,) = tree.wrong()
    assert "one has no published run" in wrong
    change(tree.root / "docs/results.md", "| a | 2 |", "No run is kept.")
    change(tree.root / "README.md", f"{ABOUT} | 1 {results.EARLIER}", f"{ABOUT} | 1")
    (wrong,) = tree.wrong()
    assert "out_of_memory has no published run" in wrong


def test_every_benchmark_has_its_tables(tree: Any) -> None:
    (tree.root / "benchmarks/two.py").write_text("MEASURES = ()\n")
    (wrong,) = tree.wrong()
    assert "`begin two`" in wrong


def test_a_page_takes_no_figures_from_a_run_that_does_not_name_its_code(tree: Any) -> None:
    run = run_of("one", tree.root)
    del run["code"]
    (tree.root / "benchmarks/published/one.json").write_text(json.dumps(run))
    assert tree.tables() == []
    assert list(tree.stale()) == ["one: does not say which code it measured"]


def test_runs_of_changed_code_and_missing_runs_are_listed(tree: Any) -> None:
    assert list(tree.stale()) == ["one: no published run"]
    publish(tree, run_of("one", tree.root))
    assert list(tree.stale()) == []
    change(tree.root / "ops/base/file.h", "int a;", "int b;")
    assert list(tree.stale()) == ["one: changed since 1234abc: ops/base"]
    change(tree.root / "benchmarks/one.py", "MEASURES", "x = 1\nMEASURES")
    (line,) = tree.stale()
    assert set(line.partition(": changed since 1234abc: ")[2].split(", ")) == {
        "benchmarks/one.py",
        "ops/base",
    }


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"commit": "1234abc-dirty"}, "its commit is 1234abc-dirty"),
        ({"commit": "1234abc-changed"}, "its commit is 1234abc-changed"),
        ({"commit": "unknown"}, "its commit is unknown"),
        ({"command": ["one.py", "--rows", "5"]}, "expected the default settings, found --rows"),
        ({"command": ["one.py", "--quick"]}, "expected the default settings, found --quick"),
        ({"command": ["one.py", "--seeds", "0"], "settings": {"seeds": 0}}, "expected 1 seeds"),
        ({"figures": {}}, "measured nothing"),
    ],
)
def test_trials_and_runs_of_a_changed_tree_are_refused(
    tree: Any, changed: dict[str, Any], why: str
) -> None:
    run = run_of("one", tree.root, **changed)
    with pytest.raises(results.RefusedError, match=re.escape(why)):
        publish(tree, run)
    assert not list((tree.root / "benchmarks/published").glob("*.json"))
    if "commit" not in changed:
        with pytest.raises(results.RefusedError):
            publish(tree, run, force=True)
        return
    assert publish(tree, run, force=True).is_file()


def test_a_run_with_more_seeds_is_published_and_one_with_fewer_is_not(tree: Any) -> None:
    def run_with(seeds: int) -> dict[str, Any]:
        command = ["one.py", "--jobs", "2", "--seeds", str(seeds)]
        return run_of("one", tree.root, command=command, settings={"seeds": seeds})

    file = publish(tree, run_with(5))
    assert json.loads(file.read_text())["command"] == ["one.py", "--seeds", "5"]
    tree.tables()
    assert "`python benchmarks/one.py --seeds 5`" in (tree.root / "docs/results.md").read_text()
    why = "expected 5 seeds or more, as in the published run, found 3"
    with pytest.raises(results.RefusedError, match=why):
        publish(tree, run_with(3))


def test_a_published_run_names_no_folder_of_its_machine(tree: Any) -> None:
    command = ["one.py", "--out", "/home/me/one.json", "--scratch=/home/me", "--jobs", "2"]
    file = publish(tree, run_of("one", tree.root, command=command))
    assert "/home/me" not in file.read_text()


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
def test_a_run_of_all_ends_with_the_goals_of_each(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], ends: dict[str, int | None], code: int
) -> None:
    """None: the script fails, with Python's exit code 1, before it writes anything."""
    outcomes = {0: "ok", 1: "MISSED"}
    for name, end in ends.items():
        goals = [{"name": "rate", "outcome": outcomes[end]}] if end in outcomes else []
        writes = f"open(sys.argv[2], 'w').write({json.dumps({'goals': goals})!r})" if goals else ""
        stop = "raise OSError" if end is None else f"sys.exit({end})"
        (tmp_path / f"{name}.py").write_text(f"import sys\n{writes}\n{stop}\n")
    found = results.run_all([tmp_path / f"{name}.py" for name in ends], tmp_path)
    assert found == code
    listed = capfd.readouterr().out.partition("== goals\n")[2].splitlines()
    shown = {0: "ok: rate", 1: "MISSED: rate", 2: "not measured", None: "FAILED"}
    assert [re.split(r"\s{2,}|(?<=measured) ", line)[0] for line in listed] == [
        shown[end].partition(":")[0] for end in ends.values()
    ]

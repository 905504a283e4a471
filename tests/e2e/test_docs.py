"""What the docs tell a newcomer to type, typed; what they show, printed; and their links."""

from __future__ import annotations

import csv
import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from paddlebox.serving import Predictor
from tests.conftest import PATIENCE_S, ROOT, call
from tests.support.processes import free_port, run, to_python
from tests.support.shared import own_copy

PAGE = (ROOT / "docs" / "first_hour.md").read_text()


def blocks() -> list[str]:
    return re.findall(r"^```\w*\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def commands(block: str) -> list[str]:
    return [line for line in block.splitlines() if line.startswith(("paddlebox ", "python "))]


def make_hour(folder: Path) -> None:
    """Runs the commands of the page, and keeps what each says in said.json."""
    (folder / "mine").mkdir()
    for block in blocks():
        if named := re.match(r"# (mine/\S+)\n", block):
            (folder / named[1]).write_text(block)
    said = {}
    for command in [line for block in blocks() for line in commands(block)]:
        if command.endswith(" &"):
            said[command] = served_answer(folder, command)
            continue
        done = run(to_python(command), folder)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        said[command] = done.stdout, done.stderr
    (folder / "said.json").write_text(json.dumps(said))


def served_answer(folder: Path, serve: str) -> tuple[str, str]:
    """What the page's request gets from the page's server, on a port that is free."""
    ask = next(line for line in PAGE.splitlines() if line.startswith("curl "))
    port = str(free_port())
    serve, ask = (command.replace("8000", port) for command in (serve, ask))
    server = subprocess.Popen(
        [sys.executable, *to_python(serve.removesuffix(" &"))],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    try:
        done = subprocess.run(shlex.split(ask), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout, ""
    finally:
        server.terminate()
        server.wait(PATIENCE_S)


class Hour:
    """A folder in which all commands of the page have run. said: command -> (what it printed, what
    it logged)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said: dict[str, tuple[str, str]] = json.loads((folder / "said.json").read_text())

    def of(self, part: str) -> tuple[str, str]:
        """What the first command with this part said."""
        return next(said for command, said in self.said.items() if part in command)


@pytest.fixture(scope="module")
def hour(tmp_path_factory: pytest.TempPathFactory) -> Hour:
    if shutil.which("curl") is None:
        pytest.skip("no curl, by which the page asks the server")
    return Hour(own_copy(tmp_path_factory, "first-hour", make_hour))


@pytest.mark.slow  # twelve starts of a process that imports Paddle
def test_each_command_of_the_page_does_what_it_says(hour: Hour) -> None:
    assert len(hour.said) == 12
    assert json.loads(hour.of("paddlebox evaluate")[0])["samples"] == 10000
    assert "show " in hour.of("lookup")[0]
    assert "20240102" in hour.of("store life")[0]  # a day that has ended
    line = (hour.folder / "runs/gauc/metrics.jsonl").read_text().splitlines()[-1]
    assert json.loads(line)["metrics"]["gauc"]["groups"] > 0


@pytest.mark.slow
def test_a_new_day_of_the_page_is_trained_and_applied(hour: Hour, tmp_path: Path) -> None:
    folder = tmp_path / "hour"
    shutil.copytree(hour.folder, folder, symlinks=True)
    shutil.copy(folder / "mine/test.csv", folder / "mine/train-20240104.csv")
    call(folder, next(command for command in hour.said if "paddlebox train" in command))
    lines = (folder / "runs/mine/metrics.jsonl").read_text().splitlines()
    assert [json.loads(one)["date"] for one in lines][-2:] == ["20240103", "20240104"]
    call(folder, "paddlebox export runs/mine.export --apply runs/mine")


NUMBER = r"\d[\d,]*(?:\.\d+)?"


def says(shown: str, printed: str) -> bool:
    """Whether a line that the page shows is one of those printed. "…" is any text, or the further
    digits of a number. Two differences are allowed: numbers with a decimal point may differ by one
    in the last digit shown, since other CPUs add floats up in another order; and versions by one,
    since merges in the background make versions."""
    parts = re.split(f"({NUMBER}|…)", shown)
    pattern = "".join(
        ".*" if part == "…" else f"({NUMBER})" if number % 2 else re.escape(part)
        for number, part in enumerate(parts)
    )
    numbers = [
        (part, "version" in before)
        for before, part in zip(parts[::2], parts[1::2], strict=False)
        if part != "…"
    ]
    for found in re.finditer(pattern, printed):
        if all(
            is_near(*wanted, text) for wanted, text in zip(numbers, found.groups(), strict=True)
        ):
            return True
    return False


def is_near(shown: str, is_version: bool, found: str) -> bool:
    decimals = len(shown.partition(".")[2])
    most = 1.0 if is_version else 1.01 * 10**-decimals if decimals else 0.0
    values = [float(number.replace(",", "")) for number in (shown, found)]
    return abs(values[0] - values[1]) <= most


@pytest.mark.slow
def test_each_line_that_the_page_shows_is_printed_by_the_commands_above_it(hour: Hour) -> None:
    with open(hour.folder / "mine/train-20240101.csv") as file:
        printed = file.read(400)  # the page begins with the first lines of the data
    count = 0
    for block, line in re.findall(r"^```\w*\n(.*?)^```$|^    ([^\n]*)$", PAGE, re.M | re.S):
        if given := commands(block):
            printed = "".join(text for command in given for text in hour.said[command])
        elif line:
            assert says(line, printed), f"the page shows: {line}\nits commands print: {printed}"
            count += 1
    assert count == 10
    assert not says("AUC 0.7601, 3 rows", "AUC 0.7603, 3 rows\nAUC 0.7601, 4 rows")


@pytest.mark.slow
def test_the_commands_of_the_page_use_the_version_that_was_trained(hour: Hour) -> None:
    (version,) = re.findall(r"version (\d+) in runs/mine$", hour.of("paddlebox train")[1], re.M)
    for part in ("evaluate", "export", "serve"):
        assert json.loads(hour.of(f"paddlebox {part}")[0])["version"] == int(version)


@pytest.mark.slow
@pytest.mark.parametrize("dates", [True, False])
def test_the_model_of_the_page_serves_what_was_evaluated(hour: Hour, dates: bool) -> None:
    name = "mine" if dates else "undated"
    if not dates:
        config = (hour.folder / "mine/config.yaml").read_text()
        without = re.sub(r"^  (date|files_per_day):.*\n", "", config, flags=re.M)
        assert len(without.splitlines()) == len(config.splitlines()) - 2
        (hour.folder / "mine/undated.yaml").write_text(without)
        train = "paddlebox train -c mine/undated.yaml --run-dir runs/undated"
        call(hour.folder, train)
    dump, path = hour.folder / f"{name}.parquet", hour.folder / f"{name}.export"
    evaluate = f"paddlebox evaluate runs/{name} --dump {dump}"
    evaluated = json.loads(call(hour.folder, evaluate))
    call(hour.folder, f"paddlebox export runs/{name} --out {path}")
    with open(hour.folder / "mine/test.csv") as file:
        instances = list(csv.DictReader(file))
    for fields in instances:
        del fields["clicked"]
    with Predictor(path) as predictor:
        served = predictor.predict(instances)
    predictions = np.asarray(pq.read_table(dump)["prediction"])
    assert len(predictions) == 10000
    assert len({*predictions.round(4)}) > 1000
    assert np.abs(served - predictions).max() < 1e-6
    if not dates:
        (shown,) = re.findall(r"Without dates, .* AUC of the evaluation is (\d\.\d+)", PAGE, re.S)
        assert is_near(shown, False, f"{evaluated['auc']}")


def program_of(page: Path, folder: Path) -> None:
    """Writes the program of a page, and the files that it reads, as the page says."""
    for kind, block in re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(), re.M | re.S):
        if block.startswith("# slots.yaml\n"):
            (folder / "slots.yaml").write_text(block)
        elif kind == "sh":
            subprocess.run(["sh", "-c", block], cwd=folder, check=True)
        elif kind == "python":
            (folder / "program.py").write_text(block)


@pytest.mark.slow
def test_the_program_of_the_readme_trains_a_model_of_the_zoo(tmp_path: Path) -> None:
    program_of(ROOT / "README.md", tmp_path)
    samples, auc = call(tmp_path, "python program.py").split()
    assert samples == "40000"
    assert float(auc) > 0.5
    assert json.loads((tmp_path / "runs/clicks/summary.json").read_text())["version"] == 3


@pytest.mark.slow
def test_the_program_of_the_api_page_trains_evaluates_and_predicts(tmp_path: Path) -> None:
    program_of(ROOT / "docs/api.md", tmp_path)
    auc, *predictions = call(tmp_path, "python program.py").split()
    assert float(auc) == 1
    low, high = (float(one.strip("[]")) for one in predictions)
    assert low < 0.1 < 0.9 < high
    assert [*(tmp_path / "runs/api/data").glob("train-00001-*.arrow")]


def test_the_readme_has_at_most_120_lines() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_no_line_of_prose_is_wider_than_120_characters() -> None:
    folders = [ROOT / name for name in ("docs", "datasets", "benchmarks")]
    pages = [page for folder in folders for page in folder.rglob("*.md")]
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *pages]:
        prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
        for line in prose.splitlines():
            is_prose = not line.startswith(("|", "    ", "<!--"))
            assert not is_prose or len(line) <= 120, f"{page.relative_to(ROOT)}: {line}"


@pytest.fixture
def own_program(tmp_path: Path) -> Path:
    """A folder with the files of docs/static_program.md."""
    program_of(ROOT / "docs/static_program.md", tmp_path)
    return tmp_path


@pytest.mark.slow
def test_the_static_program_trains_and_commits_a_pass(own_program: Path) -> None:
    said = call(own_program, "python program.py").split()
    assert said[0] == "20000"
    assert float(said[2]) > 0.5
    assert list((own_program / "store").glob("MANIFEST-*1"))


@pytest.mark.slow
def test_the_custom_loop_trains_and_a_second_start_continues(own_program: Path) -> None:
    page = (ROOT / "docs/own_loop.md").read_text()
    program = re.search(r"^```python\n# own_loop.py\n(.*?)^```$", page, re.M | re.S)
    assert program is not None
    (own_program / "own_loop.py").write_text(program[1])
    assert float(call(own_program, "python own_loop.py")) > 0.99
    once = (own_program / "own_loop.py").read_text().replace("range(3)", "range(0)")
    (own_program / "own_loop.py").write_text(once)  # evaluates what the first start committed
    assert float(call(own_program, "python own_loop.py")) > 0.99


def anchors(page: Path) -> set[str]:
    """Of its headings, as they are shown on the web."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", prose, re.M)
    return {re.sub(r"[^\w\- ]", "", line).strip().lower().replace(" ", "-") for line in headings}


def test_every_link_of_the_docs_leads_to_a_file_and_its_heading() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("datasets/*/*.md")]
    assert len(pages) > 20
    for page in pages:
        for target, heading in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", page.read_text()):
            if target.startswith(("http://", "https://")):
                continue
            leads_to = page.parent / target if target else page
            assert leads_to.exists(), f"{page}: {target}"
            assert not heading or heading in anchors(leads_to), f"{page}: {target}#{heading}"


def test_every_page_of_docs_is_reached_from_the_readme_and_the_navigation_of_the_site() -> None:
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    linked = set(re.findall(r"\]\(docs/([^)#\s]+\.md)", (ROOT / "README.md").read_text()))
    shown = set(re.findall(r"([\w/]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M))
    assert pages == linked
    assert pages == shown - {"index.md", "CONTRIBUTING.md", "CHANGELOG.md"}


def test_every_name_that_a_program_of_the_docs_imports_is_there() -> None:
    lines = set()
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for block in re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.M | re.S):
            lines |= set(re.findall(r"^from (paddlebox[\w.]*) import ([\w, ]+)$", block, re.M))
    assert len(lines) > 3
    for module, names in lines:
        for name in names.split(", "):
            assert hasattr(importlib.import_module(module), name), f"{module}.{name}"

"""What the docs tell a newcomer to type, typed; and their links."""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PATIENCE_S, ROOT, call
from tests.support.processes import free_port

PAGE = (ROOT / "docs" / "first_hour.md").read_text()


def blocks() -> list[str]:
    return re.findall(r"^```\w*\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def served_answer(folder: Path) -> dict[str, Any]:
    """What the page's request gets from the page's server, on a port that is free."""
    if shutil.which("curl") is None:
        pytest.skip("no curl, by which the page asks the server")
    port = str(free_port())
    serve, ask = (
        next(line for line in PAGE.splitlines() if line.startswith(start)).replace("8000", port)
        for start in (".venv/bin/python tools/serve.py", "curl ")
    )
    server = subprocess.Popen(
        [sys.executable, *shlex.split(serve.removesuffix(" &"))[1:]],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    try:
        done = subprocess.run(shlex.split(ask), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer
    finally:
        server.terminate()
        server.wait(PATIENCE_S)


@pytest.mark.slow  # twelve starts of a process that imports Paddle
def test_each_command_of_the_page_does_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for name in ("tools", "datasets"):
        (tmp_path / name).symlink_to(ROOT / name)
    for block in blocks():
        if named := re.match(r"# (mine/\S+)\n", block):
            (tmp_path / named[1]).write_text(block)

    lines = [line for block in blocks() for line in block.splitlines() if ".venv/" in line[:6]]
    commands = [line for line in lines if not line.endswith(" &")]
    said = {command: call(tmp_path, command) for command in commands}

    def of(part: str) -> str:
        return next(text for command, text in said.items() if part in command)

    assert len(commands) == 11
    best = float(of("prepare.py").split("AUC ")[1].split()[0])
    measured = json.loads(of("evaluate.py"))
    assert measured["samples"] == 10000
    assert 0.7 < measured["auc"] < best
    assert "show " in of("lookup")
    assert "20240102" in of("store.py life")  # a day that has ended
    assert len(of("predict.py").strip("[]\n").split()) == 2
    answer = served_answer(tmp_path)
    assert answer["model"] == "mine"
    assert 0 < answer["predictions"][0] < 1
    line = (tmp_path / "runs/gauc/metrics.jsonl").read_text().splitlines()[-1]
    assert json.loads(line)["metrics"]["gauc"]["groups"] > 0

    shutil.copy(tmp_path / "mine/test.csv", tmp_path / "mine/train-20240104.csv")  # a new day
    call(tmp_path, next(command for command in commands if "tools/train.py" in command))
    lines = (tmp_path / "runs/mine/metrics.jsonl").read_text().splitlines()
    assert [json.loads(one)["date"] for one in lines][-2:] == ["20240103", "20240104"]
    call(tmp_path, ".venv/bin/python tools/export.py runs/mine.export --apply runs/mine")


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
    samples, auc = call(tmp_path, ".venv/bin/python program.py").split()
    assert samples == "20000"
    assert float(auc) > 0.5
    assert json.loads((tmp_path / "runs/clicks/summary.json").read_text())["version"] == 1


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
    said = call(own_program, ".venv/bin/python program.py").split()
    assert said[0] == "20000"
    assert float(said[2]) > 0.5
    assert list((own_program / "store").glob("MANIFEST-*1"))


@pytest.mark.slow
def test_the_custom_loop_trains_and_a_second_start_continues(own_program: Path) -> None:
    page = (ROOT / "docs/own_loop.md").read_text()
    program = re.search(r"^```python\n# own_loop.py\n(.*?)^```$", page, re.M | re.S)
    assert program is not None
    (own_program / "own_loop.py").write_text(program[1])
    assert float(call(own_program, ".venv/bin/python own_loop.py")) > 0.99
    once = (own_program / "own_loop.py").read_text().replace("range(3)", "range(0)")
    (own_program / "own_loop.py").write_text(once)  # evaluates what the first start committed
    assert float(call(own_program, ".venv/bin/python own_loop.py")) > 0.99


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

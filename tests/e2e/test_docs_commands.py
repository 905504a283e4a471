"""Tools, commands and options that the pages name are there."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from paddlebox.config import Config
from paddlebox.config.describe import describe
from tests.conftest import ROOT
from tests.support import processes

PAGES = sorted(
    path
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("datasets/*/*.md"))
    if path.name not in ("CHANGELOG.md", "migration.md")  # other systems' tools
)


@cache
def usage(tool: str) -> str:
    done = processes.run([f"tools/{tool}.py", "--help"])
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_what_a_page_says_to_call_is_there(page: Path) -> None:
    for tool, rest in re.findall(r"tools/(\w+)\.py([^`\n#|]*)", page.read_text()):
        assert (ROOT / f"tools/{tool}.py").exists(), f"tools/{tool}.py{rest}"
        if tool == "store":  # its options are of its commands
            command = re.match(r" ([a-z]+)\b", rest)
            assert command is None or f" {command[1]} " in usage(tool), f"tools/store.py{rest}"
            continue
        own = rest.split(" -- ")[0]
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", own):
            assert option in usage(tool), f"tools/{tool}.py{rest}"


def test_every_script_that_a_page_names_has_the_options_of_the_page() -> None:
    shared = "".join((ROOT / f).read_text() for f in ("benchmarks/report.py", "datasets/parts.py"))
    life = (key.path for key in describe(Config) if key.path.startswith("table.life."))
    of_life = {f"--{path.rsplit('.', 1)[1].replace('_', '-')}" for path in life}
    scripts = r"((?:benchmarks|datasets)/[\w/]+\.py|python -m tests[\w.]+|tools/store\.py)"
    seen = 0
    for page in PAGES:
        # A command that goes on in the next line is one.
        for script, rest in re.findall(
            scripts + r"([^`\n#|]*)", page.read_text().replace("\\\n", "")
        ):
            path = f"{script[10:].replace('.', '/')}.py" if " " in script else script
            path = {"tools/store.py": "paddlebox/tools/upkeep/cli.py"}.get(path, path)
            source = (ROOT / path).read_text() + shared
            for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", rest):
                known = f'"{option}"' in source or option in of_life
                assert known, f"{page.name}: {script}{rest}"
                seen += 1
    assert seen > 20


def test_every_target_of_make_that_a_page_names_is_there() -> None:
    rules = re.findall(r"^([a-z][a-z -]*):", (ROOT / "Makefile").read_text(), re.M)
    targets = {target for rule in rules for target in rule.split()}
    named = {
        (page.name, target)
        for page in PAGES
        for target in re.findall(r"(?:`|^(?: {4})?)make ([a-z][a-z-]*)", page.read_text(), re.M)
    }
    assert len(named) > 10
    assert {(page, target) for page, target in named if target not in targets} == set()

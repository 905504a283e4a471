"""Tools, commands and options that the pages name are there."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import ROOT

PAGES = sorted(
    path
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("datasets/*/*.md"))
    if path.name not in ("CHANGELOG.md", "migration.md")  # other systems' tools
)


@cache
def usage(tool: str) -> str:
    done = subprocess.run(
        [sys.executable, f"tools/{tool}.py", "--help"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
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

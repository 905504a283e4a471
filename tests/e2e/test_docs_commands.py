"""Tools, commands and options that the pages name are there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from paddlebox.launch.arguments import subcommands
from paddlebox.tools.commands import COMMANDS, parser_of
from tests.conftest import ROOT

PAGES = sorted(
    path
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("datasets/*/*.md"))
    if path.name not in ("CHANGELOG.md", "migration.md")  # other systems' tools
)


def commands_of(page: Path) -> list[tuple[str, str]]:
    """The commands in the code of a page: the name of each, and the rest of its line."""
    text = page.read_text().replace("\\\n", "")  # a command that goes on in the next line is one
    fence = r"^```.*?^```$"
    code = [line for block in re.findall(fence, text, re.M | re.S) for line in block.splitlines()]
    prose = re.sub(fence, "", text, flags=re.M | re.S)
    code += [*re.findall(r"^ {4}(.*)$", prose, re.M), *re.findall(r"`([^`]+)`", prose)]
    called = re.compile(
        r"(?<!from )(?<![\w./])(?:paddlebox |tools/)([a-z][\w-]*)(?:\.py)?([^\n#|]*)"
    )
    return [found for line in code for found in called.findall(line)]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_what_a_page_says_to_call_is_there(page: Path) -> None:
    for tool, rest in commands_of(page):
        name = tool.replace("_", "-")
        assert name in COMMANDS, f"paddlebox {tool}{rest}"
        words, parser = rest.split(" -- ")[0], parser_of(name)
        parsers = [parser, *subcommands(parser).values()]
        if subcommands(parser) and (own := re.match(r" ([a-z]+)\b", words)):
            assert own[1] in subcommands(parser), f"paddlebox {tool}{rest}"
            parsers = [subcommands(parser)[own[1]]]
        known = {option for parser in parsers for option in parser._option_string_actions}
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", words):
            assert option in known, f"paddlebox {tool}{rest}"


def test_the_commands_of_pages_are_found() -> None:
    assert sum(len(commands_of(page)) for page in PAGES) > 120


def test_every_script_that_a_page_names_has_the_options_of_the_page() -> None:
    shared = "".join((ROOT / f).read_text() for f in ("benchmarks/report.py", "datasets/parts.py"))
    scripts = r"((?:benchmarks|datasets)/[\w/]+\.py|python -m (?:tests|paddlebox\.tools)[\w.]+)"
    seen = 0
    for page in PAGES:
        # A command that goes on in the next line is one.
        for script, rest in re.findall(
            scripts + r"([^`\n#|]*)", page.read_text().replace("\\\n", "")
        ):
            path = f"{script[10:].replace('.', '/')}.py" if " " in script else script
            source = (ROOT / path).read_text() + shared
            for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", rest):
                assert f'"{option}"' in source, f"{page.name}: {script}{rest}"
                seen += 1
    assert seen > 20


def test_packages_that_a_page_installs_by_name_are_those_of_the_extras() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    extras = {one for extra in optional.values() for one in extra}
    extras |= {f"paddlebox[{extra}]" for extra in optional}
    named = [one for page in PAGES for one in re.findall(r"pip install '(.+?)'", page.read_text())]
    assert len(named) >= 3
    assert set(named) - extras == set()


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

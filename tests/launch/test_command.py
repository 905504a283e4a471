"""The command `paddlebox`."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from paddlebox import __version__
from paddlebox.__main__ import COMMANDS, main

ROOT = Path(__file__).resolve().parents[2]
Run = Callable[..., int]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    def run(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["paddlebox", *arguments])
        with warnings.catch_warnings():
            return main()

    return run


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_shows_its_own_arguments(
    command: str, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(command, "--help")
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: paddlebox {command} ")


def test_each_script_of_tools_is_a_command() -> None:
    scripts = {}
    for script in (ROOT / "tools").glob("*.py"):
        found = re.search(r"from paddlebox\.(\S+) import (\w*main)$", script.read_text(), re.M)
        if found is not None:
            scripts[script.stem.replace("_", "-")] = found.groups()
    commands = {name: (module, function) for name, (module, function, _) in COMMANDS.items()}
    assert scripts
    assert scripts.items() <= commands.items()


def test_the_installed_package_has_the_command() -> None:
    (script,) = metadata.entry_points(group="console_scripts", name="paddlebox")
    assert script.load() is main


def test_no_command_prints_the_list_of_commands(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run() == 2
    out = capsys.readouterr().out
    assert all(f"\n  {name} " in out for name in COMMANDS)


def test_an_unknown_command_is_an_error_with_the_nearest_name(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run("trian", "-c", "x.yaml")
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.endswith("error: expected a command, found 'trian'; did you mean 'train'?\n")


def test_the_version_is_that_of_the_package(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run("--version")
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"paddlebox {__version__}\n"


def test_the_exit_code_is_that_of_the_tool(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("report", str(tmp_path / "absent")) == 2
    assert "StoreError: " in capsys.readouterr().err

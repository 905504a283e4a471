"""The command `paddlebox`."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import pytest

from paddlebox import __version__
from paddlebox.__main__ import main
from paddlebox.launch.arguments import subcommands
from paddlebox.tools.commands import COMMANDS, main_of, parser_of

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


def parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Of all commands, and of their own ones."""
    for name in COMMANDS:
        yield name, parser_of(name)
        yield from ((f"{name} {own}", of) for own, of in subcommands(parser_of(name)).items())


@pytest.mark.parametrize(("name", "parser"), [*parsers()], ids=[name for name, _ in parsers()])
def test_the_help_of_each_command_has_the_same_form(
    name: str, parser: argparse.ArgumentParser
) -> None:
    assert re.fullmatch(r"[A-Z].*\.", parser.description or "")
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            assert action.metavar == "COMMAND"
            continue
        told = (action.help or "") % vars(action)
        assert re.fullmatch(r"[^.].*[^.]", told), f"{name}: {action.dest}: {told!r}"
        if action.nargs != 0 and action.choices is None:
            metavar = str(action.metavar or action.dest.upper())
            assert re.fullmatch(r"[A-Z0-9_@.,=:\[\]| or]+", metavar), f"{name}: {metavar}"
        shown = "".join(parser.format_help().split())
        default = action.default
        if (
            action.option_strings
            and action.nargs != 0
            and default not in (None, "", "==SUPPRESS==")
        ):
            assert (
                default == [] or f"{''.join(told.split())};default:" in shown or "default:" in told
            )


def test_each_script_of_tools_is_a_command() -> None:
    scripts = {
        script.stem: re.findall(
            r"from (paddlebox\.\S+) import (\w*main)$", script.read_text(), re.M
        )
        for script in (ROOT / "tools").glob("*.py")
    }
    assert scripts.pop("installed") == []
    assert "train" in scripts  # python -m paddle.distributed.launch tools/train.py
    for name, imported in scripts.items():
        command = main_of(name)
        assert imported == [(command.__module__, command.__name__)]


def new_process(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_help_imports_no_paddle_and_the_list_of_commands_imports_next_to_nothing() -> None:
    """Python starts in 25 ms, `paddlebox --help` in 40 ms; pydantic takes 70 ms, Paddle 1 s."""
    done = new_process(
        "import contextlib, os, sys\n"
        "from paddlebox.__main__ import main\n"
        "sys.argv = ['paddlebox']\n"
        "with open(os.devnull, 'w') as nowhere, contextlib.redirect_stdout(nowhere):\n"
        "    assert main() == 2\n"
        "print(*{'numpy', 'pydantic'} & {*sys.modules})\n"
        "from paddlebox.tools.commands import COMMANDS, parser_of\n"
        "print(*(name for name in COMMANDS if parser_of(name) and 'paddle' in sys.modules))\n"
    )
    assert done.stdout == "\n\n", done.stderr


def test_a_missing_package_is_named_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "pydantic.py").write_text(
        "raise ModuleNotFoundError('No module named pydantic', name='pydantic')\n"
    )
    code = "import sys; from paddlebox.__main__ import main; sys.exit(main())"
    done = new_process(code, "doctor", PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert done.returncode == 1
    told = f"ImportError: {sys.executable} has no package pydantic, which paddlebox requires"
    assert done.stderr == f"{told}: install it (docs/building.md)\n"


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
    assert run("report", str(tmp_path / "absent")) == 4
    assert "StoreError: " in capsys.readouterr().err

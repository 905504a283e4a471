"""`paddlebox completion`: what the shells offer."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import time
from functools import cache
from pathlib import Path

import pytest

from paddlebox.launch.arguments import subcommands
from paddlebox.tools import completion
from paddlebox.tools.commands import COMMANDS, parser_of
from tests.conftest import PATIENCE_S

SHELLS = ("bash", "zsh", "fish")
script = cache(completion.script)


@pytest.fixture(scope="module")
def bash(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bash") / "paddlebox"
    path.write_text(script("bash"))
    return path


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to complete paths in."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "run config.yaml").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def offered(bash: Path, *words: str) -> list[str]:
    """What bash offers for the last one of the words."""
    code = (
        'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _paddlebox; '
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", code, "bash", str(bash), "paddlebox", *words],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split("\n")[:-1]


def test_the_commands_are_offered(bash: Path) -> None:
    assert offered(bash, "") == [*COMMANDS]
    assert offered(bash, "tra") == ["train", "train-on-ray"]
    assert offered(bash, "store", "ver") == ["verify"]
    assert offered(bash, "--v") == ["--version"]


@pytest.mark.parametrize("command", COMMANDS)
def test_all_options_of_a_command_are_offered(bash: Path, command: str) -> None:
    own = subcommands(parser_of(command))
    for words, parser in {"": parser_of(command), **own}.items():
        found = offered(bash, command, *words.split(), "-")
        assert {*found} == {*parser._option_string_actions}
        assert all(name in script(shell) for shell in SHELLS for name in found)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["train", "--run-dir", "r"], ["runs"]),
        (["train", "r"], ["runs"]),
        (["train", "--fresh", "r"], ["runs"]),  # --fresh takes no value
        (["train", "-c", "r"], ["run config.yaml", "runs"]),
        (["evaluate", "runs", "--files", "a", "r"], ["run config.yaml", "runs"]),
        (["evaluate", "--phase", ""], ["join", "update"]),
        (["train", "-o", "data.batch_s"], ["data.batch_size="]),
        (["train", "-o", "seed", "=", "1", "data.batch_s"], ["data.batch_size="]),
        (["train", "-o", "data.slots", "=", "r"], ["run config.yaml", "runs"]),
        (["export", "runs", "--version", ""], [""]),  # a number
        (["store", "verify", "r"], ["runs"]),
        (["train-on-ray", "--nodes", "2", "--", "r"], ["run config.yaml", "runs"]),
    ],
)
def test_values_and_paths_are_offered(
    bash: Path, work: Path, words: list[str], expected: list[str]
) -> None:
    assert sorted(offered(bash, *words)) == expected


# How each shell starts without the files of the user, and reads the script.
STARTS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "source {folder}/script"),
    "zsh": (["zsh", "-f", "-i"], "fpath=({folder} $fpath); autoload -Uz compinit; compinit -D"),
    "fish": (["fish", "--no-config", "-i"], "source {folder}/script"),
}


@pytest.mark.parametrize("shell", SHELLS)
def test_tab_completes_in_the_shell(shell: str, work: Path) -> None:
    command, read = STARTS[shell]
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} on PATH")
    for name in ("script", "_paddlebox"):
        (work / name).write_text(script(shell))
    process, terminal = pty.fork()
    if process == 0:
        os.environ.update(TERM="dumb", HOME=str(work), PS1="% ")
        os.execvp(command[0], command)
    try:
        for typed, completed in (
            (f"{read.format(folder=work)}\n", ""),
            ("paddlebox ev\t", "evaluate "),
            ("paddlebox train --run-d\t", "--run-dir "),
            ("paddlebox train --run-dir ru\t", "runs/"),
            ("paddlebox export --precision i\t", "int8 "),
            ("paddlebox train -o data.batch_s\t", "data.batch_size="),
        ):
            os.write(terminal, typed.encode())
            wait_for(terminal, completed)
            os.write(terminal, b"\x15")  # deletes the line
    finally:
        os.close(terminal)  # ends the shell
        os.waitpid(process, 0)


def wait_for(terminal: int, text: str) -> None:
    shown, deadline = "", time.monotonic() + PATIENCE_S
    while not shown or text not in shown:
        assert time.monotonic() < deadline, shown
        if select.select([terminal], [], [], 0.1)[0]:
            shown += os.read(terminal, 1 << 16).decode(errors="replace")

"""Tools whose reader is gone end without a word."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from paddlebox.launch import sigpipe
from tests.conftest import ROOT


def without_a_reader(*command: str) -> tuple[int, str]:
    """Exit code and standard error of a program whose output is not read."""
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(writes, "wb") as gone:
        done = subprocess.run(
            [sys.executable, *command], cwd=ROOT, stdout=gone, stderr=subprocess.PIPE, check=False
        )
    return done.returncode, done.stderr.decode()


SCRIPTS = sorted({path.name for path in (ROOT / "tools").glob("*.py")} - {"installed.py"})


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_runs_so(name: str) -> None:
    """Of all of them, as text: to start each takes a minute."""
    assert "    with sigpipe.handled():\n        sys.exit(" in (ROOT / "tools" / name).read_text()


@pytest.mark.slow
def test_the_doctor_ends_in_silence_when_its_reader_is_gone() -> None:
    assert without_a_reader("-m", "paddlebox", "doctor", "--disk-mib", "0") == (141, "")
    assert without_a_reader("-m", "paddlebox", "doctor", "--help")[1] == ""


def test_a_broken_pipe_of_the_tool_itself_is_an_error() -> None:
    with pytest.raises(BrokenPipeError), sigpipe.handled():
        raise BrokenPipeError  # such as one to a command


def test_what_is_read_keeps_its_exit_code() -> None:
    with pytest.raises(SystemExit) as ended, sigpipe.handled():
        sys.exit(7)
    assert ended.value.code == 7

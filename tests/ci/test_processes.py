"""A program in a child of the fork server is as one that a shell starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support import processes

PARENT = "import os, json; print(json.dumps(open(f'/proc/{os.getppid()}/cmdline').read()))"
APPLY = """
import json, sys
from paddlebox.config import Program
from paddlebox.launch import cpu
cpu.apply(Program.{program}, 1)
print(json.dumps("paddle" in sys.modules))
"""


@pytest.mark.parametrize(
    "code",
    [
        "import os, sys; print(sys.argv, os.getcwd(), sys.path[0], __name__)",
        "import sys; print('said', file=sys.stderr); sys.exit(3)",
        "import sys; print('not flushed', end=''); sys.exit('a reason')",
        "import atexit; atexit.register(print, 'at exit')",
        "import os; print(sorted(k for k in os.environ if k != 'LC_CTYPE'))",
        "raise ValueError('wrong')",
    ],
)
def test_it_prints_and_exits_as_one_that_a_shell_starts(code: str, tmp_path: Path) -> None:
    command = ["-c", code, "one", "two"]
    found = processes.run(command, tmp_path, None, prepared=False)
    plain = subprocess.run(
        [sys.executable, *command],
        cwd=tmp_path,
        env=processes.whole_environment({}),
        capture_output=True,
        text=True,
    )
    assert (found.returncode, found.stdout) == (plain.returncode, plain.stdout)
    assert found.stderr.splitlines()[-1:] == plain.stderr.splitlines()[-1:]


def test_a_signal_is_its_exit_code(tmp_path: Path) -> None:
    done = processes.run(["-c", "import os; os.kill(os.getpid(), 9)"], ROOT, None, prepared=False)
    assert done.returncode == -9


def test_one_that_hangs_is_ended_and_shows_its_stack() -> None:
    code = "import time\ndef waits():\n    time.sleep(600)\nwaits()"
    child = processes.start(["-c", code], ROOT, {}, prepared=False)
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        child.communicate(timeout=1)
    assert "line 3 in waits" in "".join(caught.value.__notes__)
    assert child.poll() == -6


def test_other_settings_of_libraries_take_a_process_that_imports_them() -> None:
    assert "fork_server" in processes.run_python(PARENT)
    assert "fork_server" in processes.run_python(PARENT, env={"OMP_NUM_THREADS": "1", "OTHER": "1"})
    assert "fork_server" not in processes.run_python(PARENT, env={"OMP_NUM_THREADS": "2"})
    assert processes.run_python(APPLY.format(program="PIR")) is True
    assert processes.run_python(APPLY.format(program="DYGRAPH")) is False

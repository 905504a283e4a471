"""A program in a child of the fork server is as one that a shell starts."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import PATIENCE_S, ROOT
from tests.support import processes
from tests.support.marks import slow

PARENT = "import os, json; print(json.dumps(open(f'/proc/{os.getppid()}/cmdline').read()))"
APPLY = """
import json, os, sys
from paddlebox.config import Program
from paddlebox.launch import cpu
cpu.apply(Program.{program}, 1)
there = "paddle" in sys.modules
import paddle
name = "FLAGS_eager_delete_tensor_gb"
print(json.dumps(dict(there=there, flags=[paddle.get_flags(name)[name], os.environ.get(name)])))
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
    found = processes.run(command, tmp_path)
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
    done = processes.run(["-c", "import os; os.kill(os.getpid(), 9)"])
    assert done.returncode == -9


def test_one_that_hangs_is_ended_and_shows_its_stack() -> None:
    code = "import time\ndef waits():\n    print(flush=True); time.sleep(600)\nwaits()"
    child = processes.start(["-c", code])
    said, until = child.beside / "out", time.monotonic() + PATIENCE_S
    while not (said.exists() and said.stat().st_size):
        assert time.monotonic() < until
        time.sleep(0.01)
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        child.communicate(timeout=0.1)
    assert "line 3 in waits" in "".join(caught.value.__notes__)
    assert child.poll() == -6


def test_a_number_that_the_kernel_gives_again_is_that_of_the_later_child(tmp_path: Path) -> None:
    ours, of_server = socket.socketpair()
    with ours, of_server:
        server = processes.ForkServer(ours)
        of_server.sendall(b"7\n7 3\n")
        first = server.start(["-c", ""], tmp_path, {})
        assert first.wait(PATIENCE_S) == 3
        of_server.sendall(b"7\n")
        second = server.start(["-c", ""], tmp_path, {})
        assert (first.poll(), second.poll()) == (3, None)


def test_a_process_that_ends_takes_its_programs_with_it() -> None:
    client = "from tests.support import processes; "
    client += "print(processes.start(['-c', 'import time; time.sleep(600)']).pid)"
    done = subprocess.run([sys.executable, "-c", client], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    until = time.monotonic() + PATIENCE_S
    while Path(f"/proc/{int(done.stdout)}").exists():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.slow
def test_other_settings_of_libraries_take_a_process_that_imports_them() -> None:
    assert "fork_server" in processes.run_python(PARENT)
    assert "fork_server" in processes.run_python(PARENT, env={"OMP_NUM_THREADS": "1", "OTHER": "1"})
    assert "fork_server" not in processes.run_python(PARENT, env={"FLAGS_other": "2"})


@pytest.mark.parametrize("program", ["PIR", slow("DYGRAPH")])
def test_a_program_finds_the_paddle_that_it_has_prepared(program: str) -> None:
    found = processes.run_python(APPLY.format(program=program))
    assert found["there"]
    assert found["flags"] == ([-1, "-1"] if program == "PIR" else [0, None])
    child = processes.start(["-c", APPLY.format(program=program)])
    assert json.loads(child.communicate(PATIENCE_S)[0]) == {**found, "there": program == "PIR"}

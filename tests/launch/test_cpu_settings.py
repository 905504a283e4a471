"""CPU settings: right for the processor, never over a user's own, and never too late."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from paddlebox.config import Program
from paddlebox.errors import ConfigError, PassError
from paddlebox.launch.cpu import CpuInfo, apply, choose, local_world_size, parse_quota

ROOT = Path(__file__).resolve().parents[2]


def cpuinfo(
    vendor: str, flags: str, cores: int, threads_per_core: int = 1, sockets: int = 1
) -> str:
    """The text of /proc/cpuinfo: first one thread of each core, then the next, as Linux counts."""
    blocks = []
    per_thread = cores * sockets
    for number in range(per_thread * threads_per_core):
        core = number % per_thread
        blocks.append(
            f"processor\t: {number}\nvendor_id\t: {vendor}\nmodel name\t: a: b\n"
            f"physical id\t: {core // cores}\ncore id\t\t: {core % cores}\nflags\t\t: fpu {flags}\n"
        )
    return "\n".join(blocks) + "\n"


AMD512 = cpuinfo("AuthenticAMD", "avx2 avx512f avx512dq", 8)
AMD2 = cpuinfo("AuthenticAMD", "avx avx2", 8)
AMD1 = cpuinfo("AuthenticAMD", "avx", 8)
INTEL = cpuinfo("GenuineIntel", "avx2 avx512f", 8)
ARM = (
    "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd\n\nprocessor\t: 1\nBogoMIPS\t: 50.00\n"
)


def values(
    text: str, program: Program = Program.PIR, ranks: int = 1, dense_threads: int = 0
) -> dict[str, str]:
    env = {"PADDLE_LOCAL_SIZE": str(ranks)}
    chosen = choose(CpuInfo.parse(text), env, program, dense_threads)
    return {name: setting.value for name, setting in chosen.items()}


@pytest.mark.parametrize(
    ("text", "mkl"),
    [(AMD512, "7"), (AMD2, "5"), (AMD1, None), (INTEL, None), (ARM, None), ("", None)],
)
def test_mkl_is_configured_for_an_amd_processor(text: str, mkl: str | None) -> None:
    assert values(text).get("MKL_DEBUG_CPU_TYPE") == mkl


@pytest.mark.parametrize(("program", "eager"), [(Program.PIR, "-1"), (Program.DYGRAPH, None)])
def test_flags_follow_the_program(program: Program, eager: str | None) -> None:
    assert values(INTEL, program).get("FLAGS_eager_delete_tensor_gb") == eager


@pytest.mark.parametrize(
    ("cores", "ranks", "dense_threads", "expected"),
    [
        (1, 1, 0, "1"),
        (2, 1, 0, "1"),
        (4, 1, 0, "2"),
        (64, 1, 0, "4"),
        (8, 2, 0, "2"),
        (4, 8, 0, "1"),
        (2, 1, 3, "3"),
    ],
)
def test_dense_threads_are_half_a_ranks_cores(
    cores: int, ranks: int, dense_threads: int, expected: str
) -> None:
    text = cpuinfo("GenuineIntel", "avx2", cores)
    chosen = values(text, ranks=ranks, dense_threads=dense_threads)
    assert chosen["OMP_NUM_THREADS"] == expected


def test_cores_are_physical_allowed_and_within_the_quota() -> None:
    text = cpuinfo("GenuineIntel", "avx2", cores=4, threads_per_core=2, sockets=2)
    assert CpuInfo.parse(text).cores == 8
    assert CpuInfo.parse(text, allowed={0, 8}).cores == 1  # two threads of one core
    assert CpuInfo.parse(text, allowed={0, 1, 4}).cores == 3
    assert CpuInfo.parse(text, quota=2.5).cores == 2
    assert CpuInfo.parse(text, quota=0.5).cores == 1
    assert CpuInfo.parse(ARM).cores == 2
    assert CpuInfo.parse("", allowed={0, 1, 2}).cores == 3


@pytest.mark.parametrize(
    ("text", "quota"), [("200000 100000\n", 2.0), ("max 100000\n", None), ("", None), ("1 0", None)]
)
def test_quota_of_a_container(text: str, quota: float | None) -> None:
    assert parse_quota(text) == quota


def test_local_world_size_is_what_the_launcher_says() -> None:
    assert local_world_size({}) == 1
    assert local_world_size({"PADDLE_LOCAL_SIZE": "4"}) == 4
    assert local_world_size({"PADDLE_LOCAL_SIZE": "x"}) == 1


@pytest.fixture
def _no_paddle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "paddle", raising=False)


@pytest.mark.usefixtures("_no_paddle")
def test_a_users_own_settings_stay_and_are_logged() -> None:
    env = {"MKL_DEBUG_CPU_TYPE": "5", "OMP_NUM_THREADS": "4"}
    lines = apply(Program.PIR, env=env, cpu=CpuInfo.parse(AMD512))
    assert env["MKL_DEBUG_CPU_TYPE"] == "5"
    assert env["OMP_NUM_THREADS"] == "4"
    assert "MKL_DEBUG_CPU_TYPE=5 (from the environment, not 7: AMD with AVX-512)" in lines
    assert not any(line.startswith("OMP_NUM_THREADS") for line in lines)  # the same value


@pytest.mark.usefixtures("_no_paddle")
def test_what_was_set_is_logged_with_its_reason() -> None:
    env: dict[str, str] = {}
    lines = apply(Program.PIR, env=env, cpu=CpuInfo.parse(AMD512))
    assert "MKL_DEBUG_CPU_TYPE=7 (AMD with AVX-512; unset before)" in lines
    assert len(lines) == len(env) == 3


@pytest.mark.parametrize(
    ("program", "value", "fits"),
    [
        (Program.PIR, "true", True),
        (Program.PIR, "0", False),
        (Program.DYGRAPH, "0", True),
    ],
)
def test_an_environment_for_another_program_is_an_error(
    program: Program, value: str, fits: bool
) -> None:
    env = {"FLAGS_enable_pir_api": value}
    if fits:
        choose(CpuInfo.parse(INTEL), env, program)
    else:
        with pytest.raises(ConfigError, match="FLAGS_enable_pir_api"):
            choose(CpuInfo.parse(INTEL), env, program)


def test_too_late_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "paddle", types.ModuleType("paddle"))
    env: dict[str, str] = {}
    with pytest.raises(PassError, match="imported already"):
        apply(Program.PIR, env=env)
    assert not env


def test_apply_sets_the_environment_of_this_process_on_this_machine() -> None:
    code = (
        "import os\nfrom paddlebox.config import Program\nfrom paddlebox.launch import cpu\n"
        "cpu.apply(Program.PIR)\nprint(os.environ['OMP_NUM_THREADS'])\n"
    )
    names = ("OMP_NUM_THREADS", "PADDLE_LOCAL_SIZE")
    env = {name: value for name, value in os.environ.items() if name not in names}
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=True
    )
    assert 1 <= int(ran.stdout) <= 4


def test_large_arrays_go_back_to_the_system() -> None:
    # In a child: the setting is the process's for good.
    code = "from paddlebox.launch.cpu import keep_heaps_small; assert keep_heaps_small()"
    subprocess.run([sys.executable, "-c", code], check=True)


OPENMP = """
import ctypes, os, sys
import paddlebox._native

def begun():
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    return getenv(b"__KMP_REGISTERED_LIB_%d" % os.getpid()) is not None

assert not begun(), "a process that forks later may crash"
"""


@pytest.mark.parametrize("who", ["training", "serving"])
def test_openmp_begins_before_paddle_has_threads(who: str) -> None:
    """It sets a variable of the environment, which a thread of Paddle may be reading."""
    begins = {
        "training": """
from types import SimpleNamespace
from paddlebox.config import load_config, load_slots
from paddlebox.training import static_program
paddle = static_program.paddle
def executor(place):
    sys.exit(0 if begun() else 1)
paddle.static.Executor = executor
paddle.enable_static()
config = load_config("configs/deepfm_synthetic.yaml", ["model.dense_ranges=none"])
sync = SimpleNamespace(changes_gradients=False)
static_program.StaticProgram(config, load_slots(config.data.slots), sync)
""",
        "serving": """
from paddlebox.serving import program
program.paddle.inference.create_predictor = lambda config: sys.exit(0 if begun() else 1)
program.create_predictor(b"{", b"", 1)
""",
    }[who]
    done = subprocess.run([sys.executable, "-c", OPENMP + begins], cwd=ROOT, check=False)
    assert done.returncode == 0

"""Every native source is in the builds it belongs to, however deep its folder is."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.ci.scripts import load
from tests.support import processes

ROOT = Path(__file__).resolve().parents[2]
HEADERS = {".h", ".inl", ".cuh"}
BUILDING = {"ops/gpu/Makefile", "ops/digest.py"}
EXTENSION_SOURCES = (
    "import setuptools; from distutils.core import run_setup; "
    "extension, = run_setup('setup.py', stop_after='init').ext_modules; "
    "print(' '.join(extension.sources))"
)


def files(folder: str) -> set[str]:
    return {
        path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob("*") if path.is_file()
    }


def sources(folder: str) -> set[str]:
    return {name for name in files(folder) if Path(name).suffix not in HEADERS}


def printed(command: list[str]) -> list[str]:
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout.splitlines()[-1].split()


def listed(makefile: str, variable: str) -> set[str]:
    """The paths in a variable of a Makefile."""
    rule = f"print-it: ; @echo $({variable})"
    paths = printed(
        ["make", "-s", "--no-print-directory", "-C", makefile, f"--eval={rule}", "print-it"]
    )
    return {(ROOT / path).resolve().relative_to(ROOT).as_posix() for path in paths}


def of_extension(name: str) -> str:
    """ops/x.cu is compiled for the host as build/host_device/x.cc."""
    made = "build/host_device/"
    return f"ops/{Path(name[len(made) :]).with_suffix('.cu')}" if name.startswith(made) else name


#: Built by ops/gpu/Makefile into a library of its own.
PLUG_IN = sources("ops/gpu") - BUILDING | sources("ops/paddle/gpu")
NATIVE = sources("ops") - BUILDING


def test_the_extension_is_built_of_every_source() -> None:
    done = processes.run(["-c", EXTENSION_SOURCES])
    assert done.returncode == 0, done.stderr
    built = done.stdout.splitlines()[-1].split()
    assert set(map(of_extension, built)) == NATIVE - PLUG_IN


def test_make_rebuilds_the_extension_for_every_file() -> None:
    assert listed(".", "NATIVE_SOURCES") == files("ops") - BUILDING


def test_the_core_is_built_of_every_source_that_needs_neither_paddle_nor_nvcc() -> None:
    apart = {name for name in NATIVE if name.startswith("ops/paddle/")}
    apart |= {name for name in NATIVE if name.endswith(".cu")}
    assert listed("tests/ops", "CORE") == NATIVE - apart - PLUG_IN


def test_the_library_for_gpus_is_built_of_every_device_source() -> None:
    tier = {name for name in NATIVE - PLUG_IN if name.endswith(".cu")}
    assert listed("tests/cuda", "SOURCES") == tier | {"ops/base/threads.cc"}


def test_the_device_of_the_stock_wheel_is_built_of_every_source_of_its_own() -> None:
    parts = (listed("ops/gpu", part) for part in ("TIER", "KERNELS", "GLUE", "GUARD"))
    tier = {name for name in NATIVE if name.startswith("ops/cuda/")}
    assert set().union(*parts) == PLUG_IN | tier


def test_a_wheel_has_none_of_the_libraries_of_paddle_that_it_links() -> None:
    linked = re.findall(r"-l:(\S+)", (processes.ROOT / "ops/gpu/Makefile").read_text())
    assert len(linked) == 3
    assert {*linked, "libpaddle.so"} == {*load("wheels").OF_PADDLE}


@pytest.mark.parametrize(
    ("folder", "variable", "common"),
    [("ops", "EVERY_TEST", "check_main"), ("fuzz", "FUZZ", "driver")],
)
def test_every_source_of_a_test_is_a_program_or_common_to_all(
    folder: str, variable: str, common: str
) -> None:
    found = {name for name in files(f"tests/{folder}") if name.endswith(".cc")}
    assert listed("tests/ops", variable) == found - {f"tests/{folder}/{common}.cc"}

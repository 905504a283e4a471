"""The build of the extension: incremental, and never the library of an earlier source."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.long

OPERATOR = """
#include "base/number.h"
#include "paddle/extension.h"
#include "pybind11/pybind11.h"
std::vector<paddle::Tensor> Same(const paddle::Tensor& x) { return {x}; }
PD_BUILD_OP(build_test_same).Inputs({"X"}).Outputs({"Out"}).SetKernelFn(PD_KERNEL(Same));
PYBIND11_MODULE(_ops, m) { m.def("number", [] { return pbx::Number(); }); }
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small project with the real setup.py and loader, built once."""
    root = tmp_path_factory.mktemp("tree")
    for name in ("setup.py", "pyproject.toml"):
        shutil.copy(ROOT / name, root)
    (root / "paddlebox").mkdir()
    for name in ("__init__.py", "_native.py", "_paddle_version.py", "py.typed"):
        shutil.copy(ROOT / "paddlebox" / name, root / "paddlebox")
    for layer in ("base", "row", "library", "paddle/operators"):
        (root / "ops" / layer).mkdir(parents=True)
    shutil.copy(ROOT / "ops/library/paddlebox_serve.h", root / "ops/library")
    (root / "ops/base/number.h").write_text("namespace pbx { inline int Number() { return 1; } }\n")
    (root / "ops/row/other.cc").write_text("namespace pbx { int Other() { return 2; } }\n")
    (root / "ops/paddle/operators/operator.cc").write_text(OPERATOR)
    run = build(root)
    assert run.returncode == 0, run.stdout + run.stderr
    return root


def build(root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "setup.py", "build_ext", "--inplace"]
    return subprocess.run(command, cwd=root, capture_output=True, text=True)


def number(root: Path) -> int:
    program = "from paddlebox._native import core; print(core.number())"
    environment = {**os.environ, "PYTHONPATH": str(root)}
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=root, env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    return int(run.stdout)


def test_a_changed_header_rebuilds_what_includes_it_and_nothing_else(tree: Path) -> None:
    other = next((tree / "build/objects").rglob("other.o")).stat().st_mtime_ns
    assert number(tree) == 1
    (tree / "ops/base/number.h").write_text("namespace pbx { inline int Number() { return 5; } }\n")
    run = build(tree)
    assert run.returncode == 0, run.stdout + run.stderr
    assert number(tree) == 5
    assert next((tree / "build/objects").rglob("other.o")).stat().st_mtime_ns == other


def test_a_compile_error_fails_the_build_and_names_the_file(tree: Path) -> None:
    source = tree / "ops/row/other.cc"
    good = source.read_text()
    source.write_text("int broken = ;\n")
    run = build(tree)
    source.write_text(good)
    assert run.returncode != 0
    assert "failed to compile ops/row/other.cc" in run.stdout + run.stderr


@pytest.mark.parametrize("header", ["Python.h", "paddle/extension.h"])
def test_the_core_is_compiled_without_the_headers_of_python_and_paddle(
    tree: Path, header: str
) -> None:
    source = tree / "ops/row/other.cc"
    good = source.read_text()
    source.write_text(f'#include "{header}"\n{good}')
    run = build(tree)
    source.write_text(good)
    assert run.returncode != 0
    assert f"{header}: No such file" in run.stdout + run.stderr


def test_an_undefined_symbol_fails_the_build(tree: Path) -> None:
    source = tree / "ops/row/other.cc"
    good = source.read_text()
    source.write_text("int Absent();\nint Other() { return Absent(); }\nint value = Other();\n")
    run = build(tree)
    source.write_text(good)
    assert run.returncode != 0
    assert "undefined symbol" in run.stdout + run.stderr


def test_the_record_names_the_paddle_and_the_compiler(tree: Path) -> None:
    record = (tree / "paddlebox/_build_info.py").read_text()
    for field in ("PADDLE_VERSION = '3.3.", "PADDLE_COMMIT = '", "PADDLE_CUDA = ", "CXX11_ABI = "):
        assert field in record
    assert "COMPILER = ''" not in record


def test_the_library_holds_no_folder_of_the_machine_that_built_it(tree: Path) -> None:
    # ops/paddle and Paddle name their files in errors; a linker may record where libpaddle.so is.
    library = (tree / "paddlebox/_ops.so").read_bytes()
    for folder in (tree, Path(sys.prefix), Path(sys.base_prefix)):
        assert str(folder).encode() not in library

"""The layer check finds each kind of wrong include and import, and passes the right ones."""

from __future__ import annotations

import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.ci import scripts
from tests.conftest import ROOT

SCRIPT = ROOT / ".ci" / "layers.py"
layers = scripts.load("layers")


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("ops/base/a.h", '#include "row/layout.h"', "ops/base includes row/layout.h"),
        ("ops/store/a.cc", '// x\n#include "table/table.h"', "a.cc:2: ops/store includes table/"),
        ("ops/feed/text/a.cc", '#include "store/tier.h"', "ops/feed/text includes store/tier.h"),
        ("ops/metric/a.cc", ' #  include "row/plan.h"', "ops/metric includes row/plan.h"),
        ("ops/table/a.inl", '#include "feed/text/a.h"', "ops/table includes feed/text/a.h"),
        ("ops/feed/text/a.h", '#include "feed/columns/a.h"', "feed/text includes feed/columns/"),
        ("ops/feed/columns/a.h", '#include "feed/instances/a.h"', "includes feed/instances/a.h"),
        ("ops/feed/instances/a.h", '#include "feed/columns/a.h"', "includes feed/columns/a.h"),
        ("ops/paddle/operators/a.cc", '#include "paddle/bindings/a.h"', "is not below it"),
        ("ops/device/a.cc", '#include "paddle/operators/a.h"', "is not below it"),
        ("ops/device/a.cc", '#include "paddle/extension.h"', "only ops/paddle may"),
        ("ops/table/a.cc", "#include <paddle/extension.h>", "only ops/paddle may"),
        ("ops/feed/text/a.cc", "#include <pybind11/pybind11.h>", "only ops/paddle may"),
        ("ops/cuda/a.cu", '#include "paddle/phi/api/all.h"', "only ops/paddle may"),
        ("ops/base/a.cc", "#include <Python.h>", "only ops/paddle may"),
        ("ops/table/a.cc", '#include "../base/status.h"', "include paths start at ops/"),
        ("ops/misc/a.cc", "", "not in one of the folders"),
        ("ops/base/deep/a.h", "", "not in one of the folders"),
        ("ops/feed/a.h", "", "not in one of the folders"),
        ("ops/paddle/misc/a.cc", "", "not in one of the folders"),
    ],
)
def test_a_wrong_include_is_reported(tmp_path: Path, name: str, text: str, said: str) -> None:
    write(tmp_path, name, text + "\n")
    (violation,) = layers.cpp_violations(tmp_path)
    assert name.rsplit("/", 1)[1] in violation
    assert said in violation


def test_includes_of_lower_layers_and_the_standard_library_are_right(tmp_path: Path) -> None:
    write(tmp_path, "ops/table/a.h", '#include "base/status.h"\n#include "store/tier.h"\n')
    write(
        tmp_path,
        "ops/feed/instances/a.cc",
        '#include <vector>\n#include "feed/instances/a.h"\n#include "feed/text/a.h"\n'
        '#include "row/b.h"\n',
    )
    write(tmp_path, "ops/device/a.cc", '#include "cuda/hbm.h"\n#include "table/table.h"\n')
    write(
        tmp_path,
        "ops/paddle/bindings/a.cc",
        '#include "paddle/extension.h"\n#include "paddle/operators/a.h"\n'
        '#include "feed/columns/a.h"\n#include "device/a.h"\n',
    )
    assert [*layers.cpp_violations(tmp_path), *layers.cpp_circles(tmp_path)] == []


def test_a_circle_of_folders_is_reported_even_where_each_edge_is_declared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(layers.CPP_FOLDERS, "feed/text", {"feed/columns"})
    write(tmp_path, "ops/feed/columns/a.cc", '#include "feed/text/a.h"\n')
    write(tmp_path, "ops/feed/text/a.h", '#include "feed/columns/a.h"\n')
    assert list(layers.cpp_violations(tmp_path)) == []
    (circle,) = layers.cpp_circles(tmp_path)
    assert "circle of includes: feed/" in circle
    assert "feed/text -> feed/columns" in circle


def test_what_is_declared_has_no_circle() -> None:
    TopologicalSorter(layers.CPP_FOLDERS).prepare()


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("config/a.py", "import paddle", "must load without Paddle"),
        ("config/a.py", "def f():\n    from paddle.nn import Layer", "a.py:2: imports paddle.nn"),
        ("errors.py", "from paddle import Tensor", "must load without Paddle"),
        ("config/a.py", "from paddlebox._native import core", "not below paddlebox.config"),
        ("errors.py", "from paddlebox import config", "not below paddlebox.errors"),
        ("store/a.py", "from paddlebox.data import dataset", "not below paddlebox.store"),
        ("store/a.py", "from ..data.dataset import X", "not below paddlebox.store"),
        ("store/a/b.py", "from ...data import X", "not below paddlebox.store"),
        ("data/a.py", "def f():\n    import paddlebox.training.run", "not below paddlebox.data"),
        ("data/a.py", "from paddlebox import models", "not below paddlebox.data"),
        ("models/a.py", "from paddlebox.data import dataset", "not below paddlebox.models"),
        ("models/a.py", "from paddlebox import training", "not below paddlebox.models"),
        ("ops.py", "from .nn import layer", "not below paddlebox.ops"),
        ("training/a.py", "from paddlebox.launch import cpu", "not below paddlebox.training"),
        ("launch/a.py", "from paddlebox.tools import report", "not below paddlebox.launch"),
        ("training/a.py", "import paddlebox.tools.report.page", "not below paddlebox.training"),
        ("launch/a.py", "from tools import train", "nothing in paddlebox may"),
        ("nn/a.py", 'importlib.import_module("paddlebox.data")', "not below paddlebox.nn"),
        ("training/a.py", "from paddlebox import Table", "not from the package"),
        ("training/a.py", "import paddlebox", "not from the package"),
        ("training/a.py", "from paddlebox import _ops", "not below paddlebox.training"),
        ("misc/a.py", "", "is in no layer: add it"),
    ],
)
def test_a_wrong_import_is_reported(tmp_path: Path, name: str, text: str, said: str) -> None:
    write(tmp_path, f"paddlebox/{name}", text + "\n")
    (violation,) = layers.python_violations(tmp_path)
    assert violation.startswith(f"paddlebox/{name}:")
    assert said in violation


def test_imports_of_lower_layers_are_right(tmp_path: Path) -> None:
    write(tmp_path, "paddlebox/__init__.py", "from paddlebox.training.batch_loop import X\n")
    write(tmp_path, "paddlebox/launch/a.py", "from paddlebox.training.batch_loop import run\n")
    write(
        tmp_path,
        "paddlebox/tools/a.py",
        "from paddlebox.tools.report import page\nfrom paddlebox.launch import cpu\n",
    )
    write(
        tmp_path,
        "paddlebox/training/batch_loop.py",
        "import paddle\nfrom paddlebox import __version__, models, store\nfrom . import metrics\n"
        "from paddlebox.data.dataset import X\nfrom ..config import load_config\n",
    )
    write(tmp_path, "paddlebox/models/dnn.py", "from paddlebox.nn import embed\nimport paddle\n")
    write(tmp_path, "paddlebox/ops.py", "from paddlebox._native import core\n")
    write(tmp_path, "paddlebox/config/a.py", "from paddlebox.errors import ConfigError\n")
    assert list(layers.python_violations(tmp_path)) == []


def test_a_circle_of_imports_between_folders_is_reported(tmp_path: Path) -> None:
    write(tmp_path, "paddlebox/tools/report/page.py", "from paddlebox.tools.upkeep import cli\n")
    write(tmp_path, "paddlebox/tools/report/text.py", "from paddlebox.tools.report import page\n")
    write(tmp_path, "paddlebox/tools/upkeep/cli.py", "from paddlebox.tools import diagnose\n")
    assert list(layers.python_circles(tmp_path)) == []
    late = "def f():\n    import paddlebox.tools.report.text\n"
    write(tmp_path, "paddlebox/tools/diagnose.py", late)
    (violation,) = layers.python_circles(tmp_path)
    assert "circle of imports" in violation
    for name in ("report", "upkeep", "diagnose"):
        assert f"paddlebox.tools.{name}" in violation


def test_the_script_exits_with_1_on_a_violation_and_with_0_without(tmp_path: Path) -> None:
    write(tmp_path, "ops/base/a.h", "#include <vector>\n")
    command = [sys.executable, str(SCRIPT), str(tmp_path)]
    assert subprocess.run(command, capture_output=True).returncode == 0
    write(tmp_path, "paddlebox/data/a.py", "import tools.train\n")
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 1
    assert "paddlebox/data/a.py:1" in run.stdout

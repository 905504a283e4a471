"""docs/reference.md has every public name, and every public name has a docstring."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import paddlebox
from paddlebox import errors, nn, ops
from paddlebox.serving import Predictor

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference.md").read_text()
SHOWN = re.findall(r"^::: (\S+)$", PAGE, re.MULTILINE)
WHOLE = {"paddlebox.nn": nn, "paddlebox.ops": ops, "paddlebox.errors": errors}
# Their docstrings say nothing of arrays.
WITHOUT_ARRAYS = {"create_anchor", "raising_own_errors"}


def public() -> dict[str, Any]:
    """The public objects that are not modules, by name."""
    found = {f"paddlebox.{name}": getattr(paddlebox, name) for name in paddlebox.__all__}
    found["paddlebox.serving.Predictor"] = Predictor
    for path, module in WHOLE.items():
        own = (name for name in vars(module) if inspect.isclass(getattr(module, name)))
        found |= {f"{path}.{n}": getattr(module, n) for n in getattr(module, "__all__", own)}
    hidden = (ModuleType, str)  # Paddle, and the version
    return {name: one for name, one in found.items() if not isinstance(one, hidden)}


PUBLIC = public()


def test_every_public_name_is_on_the_page() -> None:
    modules = [name for name in paddlebox.__all__ if inspect.ismodule(getattr(paddlebox, name))]
    expected = {f"paddlebox.{name}" for name in modules if name != "compat"}
    assert "(upstream_names.md)" in PAGE  # has the names of `compat`
    expected |= {name for name in PUBLIC if name.rpartition(".")[0] not in WHOLE}
    assert expected - {*SHOWN} == set()
    assert len(SHOWN) == len({*SHOWN})


def test_what_the_page_shows_is_there() -> None:
    for path in SHOWN:
        module, _, name = path.rpartition(".")
        assert path in WHOLE or hasattr(importlib.import_module(module), name), path


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties of a class that the project defines."""
    for name in dir(kind):
        owner = next((one for one in kind.__mro__ if name in vars(one)), object)
        member = inspect.getattr_static(kind, name)
        ours = owner.__module__.startswith("paddlebox.") and not name.startswith("_")
        if ours and (inspect.isfunction(member) or isinstance(member, property)):
            yield name, getattr(kind, name)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_and_its_methods_have_docstrings(name: str) -> None:
    one = PUBLIC[name]
    assert one.__doc__
    if inspect.isclass(one):
        assert [member for member, of in members(one) if not inspect.getdoc(of)] == []


@pytest.mark.parametrize("name", sorted({*ops.__all__} - {*WITHOUT_ARRAYS, "paddle"}))
def test_an_operator_tells_its_shapes_and_errors_or_names_the_one_that_does(name: str) -> None:
    told = getattr(ops, name).__doc__
    if re.match(r"`\w+` (for|with)|.*are\s+those of `\w+`", told, re.DOTALL):
        return
    assert re.search(r"\((?:[A-Z]|\.\.\.|1\))", told), "no shape"
    assert re.search(r"float32|int32|int64", told), "no dtype"
    assert "Raises: " in told


@pytest.fixture
def docstrings(monkeypatch: pytest.MonkeyPatch) -> Any:
    """.ci/docstrings.py, which `make docs` uses."""
    griffe = SimpleNamespace(Extension=object, Object=object)
    monkeypatch.setitem(sys.modules, "griffe", griffe)
    spec = importlib.util.spec_from_file_location("docstrings", ROOT / ".ci" / "docstrings.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_sections_that_begin_on_the_line_of_their_title_become_paragraphs(docstrings: Any) -> None:
    given = (
        "Add.\n\nArgs:\n    x: OUT/<day>, not `<day>`.\n\n"
        "Returns: a sum,\n    or None.\n\nRaises: A; B if\n    C.\n\nRaises:\n    D: never.\n"
    )
    assert docstrings.paragraphs(given) == (
        "Add.\n\nArgs:\n    x: OUT/&lt;day>, not `<day>`.\n\n"
        "**Returns:** a sum,\nor None.\n\n**Raises:** A; B if\nC.\n\nRaises:\n    D: never.\n"
    )

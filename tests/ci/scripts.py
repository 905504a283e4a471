"""Scripts in folders that are not packages, as modules."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from tests.conftest import ROOT


def load(name: str, folder: str = ".ci") -> ModuleType:
    """<folder>/<name>.py as a module. It may import its neighbours."""
    spec = importlib.util.spec_from_file_location(f"script_{name}", ROOT / folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look their module up
    sys.path.insert(0, str(ROOT / folder))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module

"""Imported first by the other tools: ends them with one line where this Python has no paddlebox."""

import importlib.util
import sys
from pathlib import Path

if importlib.util.find_spec("paddlebox") is None:
    _root = Path(__file__).resolve().parents[1]
    _python = _root / ".venv" / "bin" / "python"
    _make = "" if _python.exists() else f"`make setup` in {_root} makes it. "
    sys.exit(
        f"{sys.argv[0]}: {sys.executable} has no package paddlebox. Run the tool with {_python}. "
        f"{_make}Or install paddlebox into {sys.executable} (docs/building.md)"
    )

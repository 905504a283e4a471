"""The other tools import this first. If this Python lacks paddlebox, it ends them with an error."""

import importlib.util
import sys
from pathlib import Path

if importlib.util.find_spec("paddlebox") is None:
    _root = Path(__file__).resolve().parents[1]
    _python = _root / ".venv" / "bin" / "python"
    _make = "" if _python.exists() else f"Run `make setup` in {_root} to create it. "
    sys.exit(
        f"{sys.argv[0]}: {sys.executable} has no package paddlebox. Run the tool with {_python}. "
        f"{_make}Or install paddlebox into {sys.executable} (docs/building.md)"
    )

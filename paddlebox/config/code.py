"""Loads code that a config names as `module:name` or `path/to/file.py:name`.

Loading code runs it, so every key that names code requires `security.allow_commands`.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from paddlebox.errors import ConfigError


def load_named(named: str, key: str) -> Any:
    """Load an object by name. A file is run only once per process.

    Args:
        named: `module:name`, or `path/to/file.py:name` with a path relative to the current folder.
        key: the key of the config, for messages.

    Raises:
        ConfigError: there is nothing of that name, or the code fails while it is loaded.
    """
    where, colon, name = named.rpartition(":")
    if not colon or not where or not name:
        raise ConfigError(f"{key} {named!r}: expected module:name, or path/to/file.py:name")
    try:
        module = _load_file(Path(where)) if where.endswith(".py") else _load_module(where)
        if not hasattr(module, name):
            near = difflib.get_close_matches(name, vars(module), 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"{where} has no attribute {name!r}{hint}")
        return getattr(module, name)
    except (ConfigError, ImportError, OSError) as error:
        raise ConfigError(f"{key} {named!r}: {error}") from error
    except Exception as error:  # whatever the user's code does wrong
        raise ConfigError(f"{key} {named!r}: {type(error).__name__}: {error}") from error


def _load_module(name: str) -> Any:
    return importlib.import_module(name)


def _load_file(path: Path) -> Any:
    whole = path.resolve()
    # The hash separates files with equal names from each other and from installed modules.
    name = f"paddlebox_named_{hashlib.sha256(str(whole).encode()).hexdigest()[:16]}_{path.stem}"
    if name in sys.modules:
        return sys.modules[name]
    if not whole.is_file():
        raise ConfigError(f"{path}: no such file; the path is relative to {Path.cwd()}")
    spec = importlib.util.spec_from_file_location(name, whole)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path}: cannot be loaded as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module

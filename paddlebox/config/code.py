"""Loads and calls code that a config names as `module:name` or `path/to/file.py:name`. Loading code
runs it, so every key that names code requires `security.allow_commands`."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from paddlebox.config.check import did_you_mean
from paddlebox.errors import ConfigError, PaddleBoxError

_OF_PACKAGES = (str(Path(__file__).parents[1]), "site-packages", "<")


def load_named(named: str, key: str) -> Any:
    """Load an object `module:name`, or `path/to/file.py:name` with a path relative to the current
    folder. A file is run only once per process. key: of the config, for messages. Raises:
    ConfigError."""
    where, colon, name = named.rpartition(":")
    if not colon or not where or not name:
        raise ConfigError(f"{key} {named!r}: expected module:name, or path/to/file.py:name")
    try:
        module = _load_file(Path(where)) if where.endswith(".py") else import_module(where)
        if not hasattr(module, name):
            hint = did_you_mean([name], vars(module))
            raise ConfigError(f"{where} has no attribute {name!r}{hint}")
        return getattr(module, name)
    except (ConfigError, ImportError, OSError) as error:
        raise ConfigError(f"{key} {named!r}: {error}") from error
    except Exception as error:  # whatever the user's code does wrong
        raise ConfigError(f"{key} {named!r}: {type(error).__name__}: {error}") from error


def check_callable(found: Any, what: str, *names: str) -> None:
    """Raises: ConfigError if code of the user cannot be called with these positional arguments.
    what: the key of the config and its value."""
    expected = f"{what}: expected a function ({', '.join(names)})"
    if not callable(found):
        raise ConfigError(f"{expected}, found {type(found).__name__}")
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):  # a function that is not written in Python
        return
    try:
        signature.bind(*names)
    except TypeError as error:
        name = getattr(found, "__name__", "it")
        raise ConfigError(f"{expected}, found {name}{signature}: {error}") from None


@contextmanager
def calling(
    what: str, error_class: Callable[[str], PaddleBoxError] = ConfigError
) -> Iterator[None]:
    """Replace an exception of the user's code by an error that names the line of that code."""
    try:
        yield
    except PaddleBoxError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [f for f in frames if not any(part in f.filename for part in _OF_PACKAGES)]
        line = f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
        raise error_class(
            f"{what} raised {type(error).__name__}: {str(error).strip()}{line}"
        ) from error


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

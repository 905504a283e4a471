"""Loads the native library `paddlebox._ops` into Paddle and registers its operators.

Importing this module imports Paddle. `core` is the control plane: the pybind11 module with the
tables, the feeder and the metrics. Operators are called through Paddle.

Raises: ImportError with the command to run, if Paddle is missing, its version is not supported, or
    it is a different build from the one that this library was compiled for.
"""

from __future__ import annotations

import ctypes
import importlib
import warnings
from contextlib import suppress
from types import ModuleType

from paddlebox import _paddle_version
from paddlebox._paddle_version import PaddleBuild


def _import_paddle() -> ModuleType:
    with warnings.catch_warnings():
        # Paddle's import warns about a missing compiler cache, which matters only to builds.
        warnings.filterwarnings("ignore", message="No ccache found")
        try:
            return importlib.import_module("paddle")
        except ModuleNotFoundError as error:
            if error.name != "paddle":
                raise
            raise ImportError(_paddle_version.absent(_recorded()), name="paddle") from error
        except ImportError as error:
            if "libgomp.so.1" not in str(error):
                raise
            raise ImportError(_paddle_version.no_libgomp(error), name="paddle") from error


def start_openmp() -> None:
    """Let the OpenMP runtime of Paddle begin now: call it before Paddle begins threads. Otherwise
    it begins with the first kernel, and sets an environment variable while threads of Paddle may
    read the environment, which can crash. It does not begin when this module is imported, because
    a child of a process in which it has begun may crash.
    """
    with suppress(OSError):  # another build of Paddle
        ctypes.CDLL("libiomp5.so").omp_get_dynamic()


def sources() -> str:
    """The digest of the sources of the library."""
    return str(importlib.import_module("paddlebox._build_info").SOURCES)


def _recorded() -> PaddleBuild | None:
    """The Paddle build that setup.py recorded when it built the library; None if not built."""
    try:
        info = importlib.import_module("paddlebox._build_info")
    except ModuleNotFoundError:
        return None
    return PaddleBuild(info.PADDLE_VERSION, info.PADDLE_COMMIT, info.PADDLE_CUDA)


def _load(paddle: ModuleType) -> ModuleType:
    version = paddle.version
    found = PaddleBuild(version.full_version, version.commit, str(version.cuda_version))
    # Check before the library is loaded: a wrong one may crash instead of raising.
    problem = _paddle_version.problem(found, _recorded())
    if problem is not None:
        raise ImportError(problem, name="paddlebox._ops")
    try:
        core = importlib.import_module("paddlebox._ops")
    except ModuleNotFoundError as error:
        raise ImportError(_paddle_version.not_built(), name="paddlebox._ops") from error
    except ImportError as error:
        message = _paddle_version.not_loaded(error)
        raise ImportError(message, name="paddlebox._ops", path=error.path) from error
    extension_utils = importlib.import_module("paddle.utils.cpp_extension.extension_utils")
    extension_utils.load_op_meta_info_and_register_op(core.__file__)
    if paddle.device.get_all_custom_device_type():
        # Paddle makes a device that it has loaded (docs/gpu.md) the default of all programs.
        paddle.set_device("cpu")
    return core


paddle: ModuleType = _import_paddle()
core: ModuleType = _load(paddle)

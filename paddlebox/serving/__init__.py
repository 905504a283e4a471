"""Prediction from an export file (docs/serving.md).

Importing the package does not import Paddle, because the parent process of an HTTP server's workers
must not load it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paddlebox.serving.predictor import Predictor

__all__ = ["Predictor"]


def __getattr__(name: str) -> Any:
    if name != "Predictor":
        raise AttributeError(f"module 'paddlebox.serving' has no attribute {name!r}")
    from paddlebox.serving.predictor import Predictor

    globals()[name] = Predictor  # later accesses do not call __getattr__
    return Predictor

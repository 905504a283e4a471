"""Prediction from an export file: see docs/serving.md.

Importing the package imports no Paddle: the process that keeps an HTTP server's workers never does.
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

    globals()[name] = Predictor  # the next access does not come here
    return Predictor

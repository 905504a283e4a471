"""Prediction from an export file: see docs/serving.md."""

from paddlebox.serving.predictor import Predictor

__all__ = ["Predictor"]

"""Marks for single variants of a test."""

from __future__ import annotations

from typing import Any

import pytest


def slow(*values: Any, name: str | None = None) -> Any:
    """The values of a variant that `make test` leaves out."""
    return pytest.param(*values, marks=pytest.mark.slow, id=name)


def long(*values: Any, name: str | None = None) -> Any:
    """The values of a variant that only `make nightly` runs."""
    return pytest.param(*values, marks=pytest.mark.long, id=name)

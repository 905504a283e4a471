"""Types of the shared fixtures, for the annotations of tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # at run time, this file must not import Paddle
    from paddlebox.compat.upstream import UpstreamDataset
    from paddlebox.store.table import Table

OpenTable = Callable[..., "Table"]
OpenDataset = Callable[..., "UpstreamDataset"]
WriteLines = Callable[[str, Sequence[str]], str]

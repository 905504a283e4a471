"""Closing: base class of objects with a `close` method that a `with` block calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self


class Closing:
    def close(self) -> None:
        """Release the resources. Further calls have no effect."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


@contextmanager
def on_error(undo: Callable[[], object]) -> Iterator[None]:
    """Calls `undo` if the block raises anything."""
    try:
        yield
    except BaseException:
        undo()
        raise

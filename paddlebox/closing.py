"""Closing: base class of objects with a `close` method that a `with` block calls."""

from __future__ import annotations

from typing import Self


class Closing:
    def close(self) -> None:
        """Release the resources. Further calls have no effect."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()
